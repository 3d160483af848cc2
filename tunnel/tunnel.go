// Package tunnel knows what a real server in TUN mode needs of the kernel: the module and the device
// that take an encapsulated packet apart, the device up, and rp_filter open just enough for the
// packet that comes out of it.
package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rsagent/sysctl"
)

// A Kind is one way in which an IPVS director wraps packets (ipvsadm -i, --tun-type), and what the
// real server needs to unwrap them.
type Kind struct {
	Name   string // of the encapsulation, as --tunnel takes it
	VIP    int    // IP version of the packets inside, 4 or 6
	Outer  int    // IP version of those around them
	CSum   bool   // the director adds checksums that no fallback device takes (--tun-csum)
	Device string // takes packets from any director; where Device is shared, Module and Link are the same
	Module string // brings the device, but for CSum
	Link   string // the device's kind, as `ip link add type` names it
	Source string // where the kernel does it
}

// Kinds is the table of what a director can send and rsagent can receive. The first row with a
// device's kind and a VIP's version is what an address found on such a device stands for.
var Kinds = []Kind{
	{"ipip", 4, 4, false, "tunl0", "ipip", "ipip", "net/ipv4/ipip.c"},
	{"ipip", 6, 6, false, "ip6tnl0", "ip6_tunnel", "ip6tnl", "net/ipv6/ip6_tunnel.c"},
	{"ipip", 4, 6, false, "ip6tnl0", "ip6_tunnel", "ip6tnl", "net/ipv6/ip6_tunnel.c"},
	{"ipip", 6, 4, false, "sit0", "sit", "sit", "net/ipv6/sit.c"},
	{"gre", 4, 4, false, "gre0", "ip_gre", "gre", "net/ipv4/ip_gre.c"},
	{"gre", 6, 4, false, "gre0", "ip_gre", "gre", "net/ipv4/ip_gre.c"},
	{"gre", 4, 6, false, "ip6gre0", "ip6_gre", "ip6gre", "net/ipv6/ip6_gre.c"},
	{"gre", 6, 6, false, "ip6gre0", "ip6_gre", "ip6gre", "net/ipv6/ip6_gre.c"},
	{"gre", 4, 4, true, "grecsum0", "ip_gre", "gre", "net/ipv4/ip_tunnel.c"},
	{"gre", 6, 4, true, "grecsum0", "ip_gre", "gre", "net/ipv4/ip_tunnel.c"},
	{"gue", 4, 4, false, "tunl0", "ipip", "ipip", "net/ipv4/fou_core.c"},
	{"gue", 6, 4, false, "sit0", "sit", "sit", "net/ipv4/fou_core.c"},
	{"gue", 4, 6, false, "ip6tnl0", "ip6_tunnel", "ip6tnl", "net/ipv4/fou_core.c"},
	{"gue", 6, 6, false, "ip6tnl0", "ip6_tunnel", "ip6tnl", "net/ipv4/fou_core.c"},
}

// Names lists the encapsulations.
func Names() (names []string) {
	for _, k := range Kinds {
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	return names
}

// Devices has one row for each device.
func Devices() (out []Kind) {
	for _, k := range Kinds {
		if !slices.ContainsFunc(out, func(o Kind) bool { return o.Device == k.Device }) {
			out = append(out, k)
		}
	}
	return out
}

// Find is the row for an encapsulation, IP versions inside and outside, and checksums.
func Find(name string, vip, outer int, csum bool) (Kind, bool) {
	for i := range Kinds { // of ten thousand VIPs each asks several times
		if k := &Kinds[i]; k.VIP == vip && k.Outer == outer && k.CSum == csum && k.Name == name {
			return *k, true
		}
	}
	return Kind{}, false
}

// ByDevice is a row whose device has this name.
func ByDevice(device string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Device == device })
}

// ByModule is a row whose fallback device the module brings.
func ByModule(module string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Module == module && !k.CSum })
}

// Of is the row that an address of this IP version on a device of this name and kind stands for.
func Of(device, link string, vip int) (Kind, bool) {
	if k, ok := find(func(k Kind) bool { return k.Device == device && k.Link == link && k.VIP == vip }); ok {
		return k, true
	}
	return find(func(k Kind) bool { return k.Link == link && k.VIP == vip })
}

func find(is func(Kind) bool) (Kind, bool) {
	if i := slices.IndexFunc(Kinds, is); i >= 0 {
		return Kinds[i], true
	}
	return Kind{}, false
}

// Receives says that an interface of this kind (sysctl.Interface.Kind) unwraps packets of IPVS.
func Receives(link string) bool {
	_, ok := find(func(k Kind) bool { return k.Link == link })
	return ok
}

// UDP says that the packets come by a UDP port, which has to be opened.
func (k Kind) UDP() bool { return k.Name == "gue" }

// Type is the value that Device has: a fallback device takes packets to any address. One that takes
// checksums needs one of its own, the real server's, or it would be the same device to the kernel.
func (k Kind) Type(local netip.Addr) string {
	if k.CSum && local.IsValid() {
		return k.Link + " local " + local.String() + " icsum"
	}
	return k.Link
}

// Local is the address in a value of Type, the zero Addr where it is none of this kind or has none.
func (k Kind) Local(value string) netip.Addr {
	if w := strings.Fields(value); k.CSum && len(w) == 4 {
		if a, err := netip.ParseAddr(w[2]); err == nil && a.Is4() && value == k.Type(a) {
			return a
		}
	}
	return netip.Addr{}
}

// Is says that a device with this value is one of this kind.
func (k Kind) Is(value string) bool { return value == k.Link && !k.CSum || k.Local(value).IsValid() }

// RPFilter lets in what comes out of the tunnel: a packet whose source is a client, and a client is
// reached by another interface than the tunnel. Strict mode (1 in effect) drops it. Loose mode (2)
// lets it pass where the device has an IPv4 address and some route leads to the client; it weakens
// no other interface. On a device without an address loose mode acts like strict, and only 0 in
// effect serves. A value of 0 is left: writing 2 there would be stricter.
func RPFilter(hasAddress bool) sysctl.Rule {
	r := sysctl.Rule{
		Knob: sysctl.RPFilter, Want: 2, Good: func(v int) bool { return v != 1 },
		Why:    "take packets out of the tunnel whose clients are reached by another interface",
		Source: "Documentation/networking/ip-sysctl.rst, net/ipv4/fib_frontend.c",
	}
	if !hasAddress {
		r.Want, r.Good = 0, sysctl.OneOf(0)
		r.Why += "; the device has no IPv4 address, so loose mode drops them too"
	}
	return r
}

// A Module is a kernel module as a thing to change. Its values are "" and "loaded".
type Module struct{ Name string }

func (m Module) String() string { return "module " + m.Name }

// Command is what an operator would type.
func (m Module) Command(string) string { return "modprobe " + m.Name }

// A Device is a tunnel's device as a thing to change. Its values are "" (absent) and its type, in the
// words of `ip link add type`: "ipip", "gre local 192.0.2.11 icsum".
type Device struct{ Name string }

func (d Device) String() string { return "device " + d.Name }

// Command is what an operator would type to have the device with this type, or to have it gone.
func (d Device) Command(value string) string {
	switch value {
	case "":
		return "ip link del " + d.Name
	case "ip6tnl":
		value += " mode any"
	}
	return "ip link add " + d.Name + " type " + value
}

// A Link is a device's being up as a thing to change. Its values are "" (absent), "down" and "up".
type Link struct{ Name string }

func (l Link) String() string { return "link " + l.Name }

// Command is what an operator would type.
func (l Link) Command(value string) string { return "ip link set " + l.Name + " " + value }

// A Mode is what an ip6tnl device lets out of IPv6 packets, as a thing to change. Its values are
// "ip6ip6", "ipip6" and "any", as `ip -6 tunnel` names them; the fallback device begins with ip6ip6.
type Mode struct{ Device string }

// Fallback is the mode of the module's own device, Any takes both versions.
const (
	Fallback = "ip6ip6"
	Any      = "any"
)

// Carries says that a device in this mode takes packets of an IP version.
func Carries(mode string, version int) bool {
	return mode == Any || mode == "ip6ip6" && version == 6 || mode == "ipip6" && version == 4
}

// IsMode says that a string is a value of Mode.
func IsMode(s string) bool { return s == Any || s == "ip6ip6" || s == "ipip6" }

func (m Mode) String() string { return "mode " + m.Device }

// Command is what an operator would type.
func (m Mode) Command(value string) string {
	return "ip -6 tunnel change " + m.Device + " mode " + value
}

// A Port is a UDP port that takes GUE packets, as a thing to change. Its values are "" (closed), "gue",
// and what bars it: "fou", the other use of the same mechanism, "bound", open for some packets only, and
// "busy".
type Port struct {
	Number int
	IPv6   bool
}

func (p Port) String() string {
	if p.IPv6 {
		return fmt.Sprintf("UDP port %d (IPv6)", p.Number)
	}
	return fmt.Sprintf("UDP port %d", p.Number)
}

// Command is what an operator would type to have the port open, or closed.
func (p Port) Command(value string) string {
	c := "ip fou"
	if p.IPv6 {
		c = "ip -6 fou"
	}
	if value == "" {
		return fmt.Sprintf("%s del port %d", c, p.Number)
	}
	return fmt.Sprintf("%s add port %d %s", c, p.Number, value)
}

// Compat says that an address on a sit device is one that the kernel gives it when it goes up, made of
// an IPv4 address of the host: an IPv4-compatible one (RFC 4291, 2.5.5.1), which would become the
// source of packets to anywhere (net/ipv6/addrconf.c, add_v4_addrs).
func Compat(a netip.Prefix) bool { return a.Bits() == 96 && compatible.Contains(a.Addr()) }

var compatible = netip.MustParsePrefix("::/96")
