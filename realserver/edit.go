package realserver

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Origin is who asked for a VIP, as a set: it stays until the last of them lets go.
type Origin uint8

// Who may ask.
const (
	Flag   Origin = 1 << iota // the command line or the environment
	Config                    // the config file
)

var origins = []struct {
	bit  Origin
	name string
}{{Config, "config"}, {Flag, "flag"}}

func (o Origin) String() string {
	var names []string
	for _, x := range origins {
		if o&x.bit != 0 {
			names = append(names, x.name)
		}
	}
	return strings.Join(names, ",")
}

// MarshalText writes the names, comma-separated.
func (o Origin) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText wrote; at least one origin is asked for.
func (o *Origin) UnmarshalText(b []byte) error {
	*o = 0
next:
	for word := range strings.SplitSeq(string(b), ",") {
		for _, x := range origins {
			if word == x.name {
				*o |= x.bit
				continue next
			}
		}
		return fmt.Errorf("%q is no origin", word)
	}
	return nil
}

// A Set is a set of VIPs, sorted by address.
type Set []VIP

// An Edit is what a verb is: given the managed set, the set to be.
type Edit func(Set) Set

// Add is start: a VIP that is there already takes the options given and keeps its other origin.
func Add(vips ...VIP) Edit {
	return func(s Set) Set {
		out := slices.Concat(vips, s) // where a VIP stands twice, the one given comes first
		for i, v := range vips {
			if old := s.get(v.Addr); old != nil {
				out[i].Origin |= old.Origin
			}
		}
		return out.sorted()
	}
}

// Drop is stop: the VIPs with these addresses go, whoever asked for them.
func Drop(addrs ...netip.Addr) Edit {
	gone := fromAddrs(addrs).sorted()
	return func(s Set) Set { return s.without(gone) }
}

// DropAll is stop of everything.
func DropAll(Set) Set { return nil }

// Replace is reload: what o asks for becomes vips, what others ask for stays. With no VIPs it is
// the stop of what o asked for.
func Replace(o Origin, vips ...VIP) Edit {
	return func(s Set) Set {
		var kept Set
		for _, v := range s {
			if v.Origin &^= o; v.Origin != 0 {
				kept = append(kept, v)
			}
		}
		return Add(vips...)(kept)
	}
}

// Keep is status, and a watcher's mending.
func Keep(s Set) Set { return s }

// Withhold takes the VIPs with these addresses off the host and keeps them managed, until Release or a start of them:
// a watcher's answer to a guard that does not hold.
func Withhold(addrs ...netip.Addr) Edit { return withheld(true, fromAddrs(addrs).sorted()) }

// Release has all VIPs bound again: restart, and a watcher whose guard holds again.
func Release(s Set) Set { return withheld(false, s)(s) }

func withheld(so bool, which Set) Edit {
	return func(s Set) Set {
		out := slices.Clone(s) // no set is changed in place
		for i := range out {
			if which.has(out[i].Addr) {
				out[i].Withheld = so
			}
		}
		return out
	}
}

// Or is the edit e, or other where nothing is managed.
func Or(e, other Edit) Edit {
	return func(s Set) Set {
		if len(s) == 0 {
			return other(s)
		}
		return e(s)
	}
}

func (s Set) index() map[netip.Addr]VIP {
	m := make(map[netip.Addr]VIP, len(s))
	for _, v := range s {
		m[v.Addr] = v
	}
	return m
}

func sorted(m map[netip.Addr]VIP) Set {
	s := make(Set, 0, len(m))
	for _, v := range m {
		s = append(s, v)
	}
	return s.sorted()
}

// sorted brings VIPs in order of their addresses; of those with the same the first stays. It sorts numbers: a VIP is large.
func (s Set) sorted() Set {
	order := make([]int, len(s))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(s[i].Addr.Compare(s[j].Addr), i-j) })
	out := make(Set, 0, len(s))
	for _, i := range order {
		if last := len(out) - 1; last < 0 || out[last].Addr != s[i].Addr {
			out = append(out, s[i])
		}
	}
	return out
}

// get is the VIP with this address, nil where the set has none.
func (s Set) get(a netip.Addr) *VIP {
	if i := s.find(a); i >= 0 {
		return &s[i]
	}
	return nil
}

// find is the index of the VIP with this address, -1 where the set has none. It is asked for each address of the host:
// the search of package slices would copy a VIP at each step.
func (s Set) find(a netip.Addr) int {
	i := sort.Search(len(s), func(i int) bool { return s[i].Addr.Compare(a) >= 0 })
	if i < len(s) && s[i].Addr == a {
		return i
	}
	return -1
}

func (s Set) has(a netip.Addr) bool { return s.get(a) != nil }

// without lists the VIPs of s whose addresses t does not hold.
func (s Set) without(t Set) (out Set) {
	if len(t) == 0 {
		return s
	}
	for _, v := range s {
		if !t.has(v.Addr) {
			out = append(out, v)
		}
	}
	return out
}
