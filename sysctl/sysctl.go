// Package sysctl names, judges, reads and writes the IPv4 settings that the kernel keeps for each
// network interface below /proc/sys/net/ipv4/conf.
//
// A setting is named by its parts (interface, knob), never by one dotted string: an interface name
// may itself hold dots (eth0.100), and a dotted string could not be taken apart again.
//
// For the knobs used here the kernel does not act on an interface's own value but on one combined
// with conf/all: the numeric maximum (arp_ignore, arp_announce, rp_filter) or the logical or
// (promote_secondaries, which for 0 and 1 is the maximum as well). See
// Documentation/networking/ip-sysctl.rst and include/linux/inetdevice.h (IN_DEV_MAXCONF,
// IN_DEV_ORCONF). The numbers are not ordered by strictness, so one interface's larger value can
// undo a good value of all; Rule knows how to answer that.
package sysctl

import (
	"strings"
)

// All and Default are the kernel's two pseudo interfaces: All is combined with every interface's
// own value, Default is what an interface starts with.
const (
	All     = "all"
	Default = "default"
)

// Knobs are the settings that rsagent reads and, where it must, writes.
const (
	ARPIgnore          = "arp_ignore"
	ARPAnnounce        = "arp_announce"
	RPFilter           = "rp_filter"
	PromoteSecondaries = "promote_secondaries"
)

// A Key is one setting of one interface.
type Key struct{ Iface, Knob string }

// String gives the name that sysctl(8) shows; the interface's own dots stay dots.
func (k Key) String() string { return "net.ipv4.conf." + k.Iface + "." + k.Knob }

// Command is what an operator would type to give k this value. sysctl(8) takes a name with slashes
// where a part of it holds dots.
func (k Key) Command(value string) string {
	if strings.Contains(k.Iface, ".") {
		return "sysctl -w net/ipv4/conf/" + k.Iface + "/" + k.Knob + "=" + value
	}
	return "sysctl -w " + k.String() + "=" + value
}

// A Table holds the values of settings at one moment.
type Table map[Key]int

// Effective is the value the kernel acts on: the maximum of all's value and the interface's own.
func (t Table) Effective(iface, knob string) int {
	return max(t[Key{All, knob}], t.Own(iface, knob))
}

// Own is the interface's own value; an interface that does not exist yet will start with default's.
func (t Table) Own(iface, knob string) int {
	if v, ok := t[Key{iface, knob}]; ok {
		return v
	}
	return t[Key{Default, knob}]
}

// A Setting is a key, the value that policy asks of it, and the reason.
type Setting struct {
	Key   Key
	Value int
	Why   string
}

// A Rule is one row of policy about an effective value.
type Rule struct {
	Knob   string
	Good   func(v int) bool // says whether an effective value serves
	Want   int              // what is written where it does not; Good(Want) holds
	Why    string           // the reason, as --dry-run, status and the documentation show it
	Source string           // where the kernel's behaviour is documented
}

// Everywhere returns the fewest settings that make r hold on each interface named and on those
// still to come: on all where its own value does not serve, then on each interface whose own value
// outweighs all's. A value that serves is kept, also a stricter one.
func (r Rule) Everywhere(t Table, ifaces []string) (out []Setting) {
	all := t[Key{All, r.Knob}]
	if !r.Good(all) {
		all = r.Want
		out = append(out, Setting{Key{All, r.Knob}, r.Want, r.Why})
	}
	for _, i := range ifaces {
		if !r.Good(max(all, t.Own(i, r.Knob))) {
			out = append(out, Setting{Key{i, r.Knob}, r.Want, r.Why + "; its own value outweighs that of all"})
		}
	}
	return out
}

// On returns the settings that make r hold on one interface: its own value, and all's only where
// that would outweigh any value of the interface.
func (r Rule) On(t Table, iface string) (out []Setting) {
	if r.Good(t.Effective(iface, r.Knob)) {
		return nil
	}
	if !r.Good(max(t[Key{All, r.Knob}], r.Want)) {
		out = append(out, Setting{Key{All, r.Knob}, r.Want, r.Why + "; the value of all outweighs every good one"})
	}
	return append(out, Setting{Key{iface, r.Knob}, r.Want, r.Why})
}

// OneOf makes a Rule's Good of the values that serve.
func OneOf(good ...int) func(int) bool {
	return func(v int) bool {
		for _, g := range good {
			if v == g {
				return true
			}
		}
		return false
	}
}
