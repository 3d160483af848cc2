// Package realserver is what a real server is: a managed set of VIPs, and a host brought to hold
// exactly that set, silently.
//
// A verb is a pure edit of the managed set (edit.go). What follows is the same for every verb: look
// at the host, plan (plan.go, policy.go), note in the journal what is about to be done (journal.go),
// do the first stage of the plan, and look again, until nothing is left (converge.go).
package realserver

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"rsagent/loopback"
	"rsagent/tunnel"
)

// Mode is how the director forwards.
type Mode string

// DR leaves the packet as it is and rewrites its MAC address; TUN wraps it in another one.
const (
	DR  Mode = "dr"
	TUN Mode = "tun"
)

// What a VIP's Guard can be.
const (
	GuardAll       = "all"       // every interface, also those still to come, by conf/all
	GuardInterface = "interface" // the interfaces named
	GuardNFT       = "nft"       // every interface, by nftables
	GuardNone      = "none"      // no neighbour shares a segment with the director
)

// A VIP is one managed address with its options. New gives the defaults.
type VIP struct {
	Addr          netip.Addr `json:"address"`
	Mode          Mode       `json:"mode"`
	Device        string     `json:"device,omitempty"`   // "" is lo in DR, the tunnel's device in TUN
	Tunnel        string     `json:"tunnel,omitempty"`   // TUN: the encapsulation, see tunnel.Kinds
	Outer         string     `json:"outer,omitempty"`    // TUN: IP version of the outer packets, "4" or "6"; "" is the VIP's
	GUEPort       int        `json:"gue-port,omitempty"` // TUN, gue: the director's --tun-port; 0 is DefaultGUEPort
	CSum          bool       `json:"csum,omitempty"`     // TUN, gre: the director adds checksums
	Scope         string     `json:"scope"`              // of an IPv4 address: "host" or "global"
	Guard         string     `json:"arp-guard"`
	Interfaces    []string   `json:"interface,omitempty"` // of GuardInterface
	IfIndexes     []int      `json:"ifindex,omitempty"`   // of Interfaces when the VIP came: they may be renamed
	RPFilter      string     `json:"rp-filter,omitempty"` // TUN: "" and "loose", or "off"
	MSS           string     `json:"mss,omitempty"`       // TUN: the largest segment size that SYN packets name, or "auto"
	Directors     []string   `json:"director,omitempty"`  // TUN: who may send, see tunnel.ParsePrefix; none is anyone
	AllowDirector bool       `json:"allow-director,omitempty"`
	Origin        Origin     `json:"origin"`
	Withheld      bool       `json:"withheld,omitempty"` // by a watcher: managed and not bound, see Withhold
}

// New is a VIP with default options: DR, scope host, every interface guarded.
func New(addr netip.Addr) VIP {
	return VIP{Addr: addr, Mode: DR, Scope: "host", Guard: GuardAll}
}

// ParseAddr reads a VIP's address: a unicast address, bare or with /32 or /128. The error says what is
// wrong with it. Names are not looked up.
func ParseAddr(s string) (netip.Addr, error) {
	bare, bits, slash := strings.Cut(s, "/")
	a, err := netip.ParseAddr(bare)
	switch {
	case err != nil || a.Zone() != "" && !a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%s is an IPv4 address in IPv6 form; write %s", a, a.Unmap())
	case a.IsUnspecified(), thisNetwork.Contains(a), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.Addr{}, fmt.Errorf("%s is no host's address", a)
	case a.IsLoopback():
		return netip.Addr{}, fmt.Errorf("%s is a loopback address", a)
	case a.IsMulticast():
		return netip.Addr{}, fmt.Errorf("%s is a multicast address", a)
	case a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%s is a link-local address", a)
	case slash && bits != fmt.Sprint(a.BitLen()):
		return netip.Addr{}, fmt.Errorf("%s: a VIP is a single address, without a prefix length (or with /%d)", s, a.BitLen())
	}
	return a, nil
}

var thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // RFC 1122, 3.2.1.3

// An OptionError says which option of a VIP cannot be.
type OptionError struct{ Option, Reason string }

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// Check says whether the options can be and go together, with an *OptionError where they do not. It
// knows nothing of the host.
func (v VIP) Check() error {
	bad := func(option, format string, args ...any) error {
		return &OptionError{option, fmt.Sprintf(format, args...)}
	}
	among := func(option, value string, words ...string) error {
		if slices.Contains(words, value) {
			return nil
		}
		return bad(option, "%q is none of %s", value, strings.Join(words, ", "))
	}
	if err := among("mode", string(v.Mode), string(DR), string(TUN)); err != nil {
		return err
	}
	if err := among("scope", v.Scope, "host", "global"); err != nil {
		return err
	}
	if err := among("arp-guard", v.Guard, GuardAll, GuardInterface, GuardNFT, GuardNone); err != nil {
		return err
	}
	if err := v.checkTunnel(bad, among); err != nil {
		return err
	}
	if v.Device != "" && !ValidName(v.Device) {
		return bad("device", "%q is no interface name", v.Device)
	}
	if v.Guard == GuardInterface && len(v.Interfaces) == 0 {
		return bad("interface", "guard interface needs the name of one at least")
	}
	if v.Guard != GuardInterface && len(v.Interfaces) > 0 {
		return bad("interface", "goes with arp-guard interface only")
	}
	if len(v.IfIndexes) > 0 && len(v.IfIndexes) != len(v.Interfaces) {
		return bad("interface", "%d of them, %d ifindexes", len(v.Interfaces), len(v.IfIndexes))
	}
	for _, name := range v.Interfaces {
		if !validAltName(name) {
			return bad("interface", "%q is no interface name", name)
		}
		if name == "lo" {
			return bad("interface", "lo takes no ARP: guarding it has no effect")
		}
	}
	return nil
}

// checkTunnel is Check for what goes with TUN.
func (v VIP) checkTunnel(bad func(option, format string, args ...any) error, among func(option, value string, words ...string) error) error {
	if v.Mode == DR {
		for _, o := range []struct {
			name  string
			given bool
		}{{"tunnel", v.Tunnel != ""}, {"outer", v.Outer != ""}, {"gue-port", v.GUEPort != 0}, {"csum", v.CSum}, {"rp-filter", v.RPFilter != ""},
			{"mss", v.MSS != ""}, {"director", len(v.Directors) > 0}} {
			if o.given {
				return bad(o.name, "goes with mode tun only")
			}
		}
		return nil
	}
	if err := among("tunnel", v.encapsulation(), tunnel.Names()...); err != nil {
		return err
	}
	if err := among("outer", cmp.Or(v.Outer, "4"), "4", "6"); err != nil {
		return err
	}
	if err := among("rp-filter", cmp.Or(v.RPFilter, "loose"), "loose", "off"); err != nil {
		return err
	}
	switch {
	case v.GUEPort != 0 && v.Tunnel != "gue":
		return bad("gue-port", "goes with tunnel gue only")
	case v.GUEPort < 0 || v.GUEPort > 65535:
		return bad("gue-port", "is no port from 1 to 65535")
	case v.CSum && v.Tunnel != "gre":
		return bad("csum", "goes with tunnel gre only")
	}
	if _, ok := v.mss(); !ok && v.MSS != "" && v.MSS != AutoMSS {
		return bad("mss", "%q is neither auto nor a number from %d to %d", v.MSS, tunnel.LeastMSS, tunnel.LargestMSS)
	}
	if _, ok := v.row(); !ok {
		return bad("outer", "%s in IPv%d around IPv%d with these options is not taken", v.encapsulation(), v.outer(), version(v.Addr))
	}
	for _, s := range v.Directors {
		p, err := tunnel.ParsePrefix(s)
		switch a := p.Addr(); {
		case err != nil:
			return bad("director", "%q is neither an address nor a prefix%s", s, why(err))
		case a.Is4In6(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), p.Bits() == 0:
			return bad("director", "%s is where no director is", s)
		case version(a) != v.outer():
			return bad("director", "%s is IPv%d, and the director's packets come by IPv%d", s, version(a), v.outer())
		}
	}
	return nil
}

// why is what the error adds to that something is no prefix: not where it only names the function that could not read it.
func why(err error) string {
	if s := err.Error(); !strings.Contains(s, "Parse") {
		return ": " + s
	}
	return ""
}

// AutoMSS has the segment size follow the uplink.
const AutoMSS = "auto"

// mss is the segment size asked for; ok is false where it is no number, or none that can be.
func (v VIP) mss() (n int, ok bool) {
	n, err := strconv.Atoi(v.MSS)
	return n, err == nil && strconv.Itoa(n) == v.MSS && n >= tunnel.LeastMSS && n <= tunnel.LargestMSS
}

// ValidName says whether the kernel would take s for an interface's name (net/core/dev.c,
// dev_valid_name), leaving out the names of its pseudo interfaces, and what is no text: the journal
// could not hold it.
func ValidName(s string) bool { return validName(s, 15) }

// validAltName is ValidName for an alternative name, which may be longer (include/uapi/linux/if.h, ALTIFNAMSIZ).
func validAltName(s string) bool { return validName(s, 127) }

func validName(s string, longest int) bool {
	if s == "" || len(s) > longest || s == "." || s == ".." || s == "all" || s == "default" || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || r <= ' ' || r == 0x7f })
}

// kind is the tunnel of a VIP in TUN mode.
func (v VIP) kind() tunnel.Kind {
	if k, ok := v.row(); ok {
		return k
	}
	return tunnel.Kinds[0]
}

func (v VIP) row() (tunnel.Kind, bool) {
	return tunnel.Find(v.encapsulation(), version(v.Addr), v.outer(), v.CSum)
}

func (v VIP) encapsulation() string { return cmp.Or(v.Tunnel, tunnel.Kinds[0].Name) }

// outer is the IP version of the packets around.
func (v VIP) outer() int {
	switch v.Outer {
	case "4":
		return 4
	case "6":
		return 6
	}
	return version(v.Addr)
}

// DefaultGUEPort is the port that IANA assigned to GUE. ipvsadm has no default, and its manual's example is this one.
const DefaultGUEPort = 6080

// port is the UDP port by which the VIP's packets come; ok is false where they come by none.
func (v VIP) port() (p tunnel.Port, ok bool) {
	return tunnel.Port{Number: cmp.Or(v.GUEPort, DefaultGUEPort), IPv6: v.outer() == 6}, v.Mode == TUN && v.kind().UDP()
}

func version(a netip.Addr) int {
	if a.Is6() {
		return 6
	}
	return 4
}

// On is the device the VIP sits on.
func (v VIP) On() string {
	switch {
	case v.Device != "":
		return v.Device
	case v.Mode == TUN:
		return v.kind().Device
	}
	return "lo"
}

// asks is what the VIP asks for, without who asked and when.
func (v VIP) asks() VIP {
	v.Origin, v.IfIndexes, v.Withheld = 0, nil, false
	return v
}

// scope is the address scope the VIP is bound with; IPv6 has no choice.
func (v VIP) scope() string {
	if v.Addr.Is6() {
		return "global"
	}
	return v.Scope
}

// addr is the VIP where it is to sit, an address of its own with no subnet.
func (v VIP) addr() loopback.Addr {
	return loopback.Addr{Device: v.On(), Prefix: netip.PrefixFrom(v.Addr, v.Addr.BitLen())}
}
