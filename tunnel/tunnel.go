// Package tunnel knows what a real server in TUN mode needs of the kernel: the module and the device
// that take an encapsulated packet apart, the device up, and rp_filter open just enough for the
// packet that comes out of it.
package tunnel

import "rsagent/sysctl"

// A Kind is one way in which an IPVS director wraps packets (ipvsadm -i, --tun-type), and what the
// real server needs to unwrap them.
type Kind struct {
	Name   string // of the encapsulation, as --tunnel takes it
	Device string // the fallback device, which takes packets from any director to any address
	Module string // brings the device
	Link   string // the device's kind, as `ip link add type` names it
	Source string // where the kernel does it
}

// Kinds is the table of what a director can send and rsagent can receive.
var Kinds = []Kind{
	{Name: "ipip", Device: "tunl0", Module: "ipip", Link: "ipip", Source: "net/ipv4/ipip.c"},
}

// Names lists the encapsulations.
func Names() (names []string) {
	for _, k := range Kinds {
		names = append(names, k.Name)
	}
	return names
}

// ByName finds a kind by the name of its encapsulation.
func ByName(name string) (Kind, bool) {
	for _, k := range Kinds {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// ByDevice finds the kind whose device has this name.
func ByDevice(device string) (Kind, bool) {
	for _, k := range Kinds {
		if k.Device == device {
			return k, true
		}
	}
	return Kind{}, false
}

// Receives says that an interface of this kind (sysctl.Interface.Kind) unwraps packets of IPVS.
func Receives(kind string) bool {
	for _, k := range Kinds {
		if k.Link == kind {
			return true
		}
	}
	return false
}

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

// A Device is a tunnel's device as a thing to change. Its values are "" (absent) and its kind.
type Device struct{ Name string }

func (d Device) String() string { return "device " + d.Name }

// Command is what an operator would type to have the device with this kind, or to have it gone.
func (d Device) Command(kind string) string {
	if kind == "" {
		return "ip link del " + d.Name
	}
	return "ip link add " + d.Name + " type " + kind
}

// A Link is a device's being up as a thing to change. Its values are "" (absent), "down" and "up".
type Link struct{ Name string }

func (l Link) String() string { return "link " + l.Name }

// Command is what an operator would type.
func (l Link) Command(value string) string { return "ip link set " + l.Name + " " + value }
