package realserver

import (
	"net/netip"
	"reflect"
	"slices"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// journalVersion is that of the file's form. A newer one is not understood, and not touched.
const journalVersion = 1

// A Journal names, at each moment, everything that rsagent may have done to the host. It is written
// before a change and again when the change is seen to be gone, so that whatever kills rsagent, the
// next verb knows what to finish or take back. VIPs have no entries: stopped means absent.
type Journal struct {
	Version    int          `json:"version"`
	Boot       string       `json:"boot"`                 // boot id: nothing outlives a reboot
	VIPs       Set          `json:"vips"`                 // the managed set
	Leaving    []netip.Addr `json:"leaving,omitempty"`    // VIPs to go, not yet seen gone
	Undo       []Copy       `json:"undo,omitempty"`       // copies of VIPs to go as long as the VIP has another
	Blackholes []netip.Addr `json:"blackholes,omitempty"` // VIPs that stop left a blackhole route for
	Changed    []Entry      `json:"changed,omitempty"`    // in the order in which they were first changed
}

// A Copy is a VIP on one device, an address of its own. It is what start adds beside what it finds.
type Copy struct {
	Addr   netip.Addr `json:"address"`
	Device string     `json:"device"`
}

func (c Copy) addr() loopback.Addr { return VIP{Addr: c.Addr, Device: c.Device}.addr() }

// An Entry is one thing changed: what it was before the first change, and every value written since.
// The last of them may not have reached the kernel when a run was killed.
type Entry struct {
	Item    Item
	IfIndex int // of the interface it belongs to, which may be renamed; 0 is none
	From    string
	Wrote   []string
}

// ours says that the item holds what rsagent wrote.
func (e Entry) ours(now string) bool {
	return slices.Contains(e.Wrote, now) || isTable(e.Item) && now != ""
}

// snapshot is a copy that later changes of j leave alone. The managed set is never changed in place.
func (j *Journal) snapshot() *Journal {
	c := *j
	c.Leaving, c.Undo, c.Blackholes = slices.Clone(j.Leaving), slices.Clone(j.Undo), slices.Clone(j.Blackholes)
	c.Changed = slices.Clone(j.Changed)
	for i, e := range c.Changed {
		c.Changed[i].Wrote = slices.Clone(e.Wrote)
	}
	return &c
}

// same says that a snapshot, nil is none, is of j as it is now. It may say no where nothing has changed.
func (c *Journal) same(j *Journal) bool {
	if c == nil || len(c.VIPs) != len(j.VIPs) || len(c.VIPs) > 0 && &c.VIPs[0] != &j.VIPs[0] {
		return false
	}
	a, b := *c, *j
	a.VIPs, b.VIPs = nil, nil
	return reflect.DeepEqual(a, b)
}

// edit moves the journal to the set the verb wants. What it drops is leaving, and so are the VIPs
// given, managed or not, unless the set holds them. Those get a blackhole route, or are rid of it.
func (j *Journal) edit(e Edit, blackhole bool, given ...netip.Addr) {
	old := j.VIPs
	j.VIPs = e(old)
	j.Undo = slices.DeleteFunc(slices.Clone(j.Undo), func(c Copy) bool { return j.VIPs.has(c.Addr) })
	gone := slices.DeleteFunc(slices.Clone(given), j.VIPs.has)
	for _, v := range old.without(j.VIPs) {
		gone = append(gone, v.Addr)
	}
	j.leave(gone...)
	kept := slices.DeleteFunc(slices.Clone(j.Blackholes), func(a netip.Addr) bool { return j.VIPs.has(a) || slices.Contains(gone, a) })
	if blackhole {
		kept = append(kept, gone...)
	}
	slices.SortFunc(kept, netip.Addr.Compare)
	j.Blackholes = slices.Compact(kept)
}

// leave adds to the VIPs that are to go; one that is in the set is not.
func (j *Journal) leave(addrs ...netip.Addr) {
	gone := slices.DeleteFunc(slices.Concat(j.Leaving, addrs), j.VIPs.has)
	slices.SortFunc(gone, netip.Addr.Compare)
	j.Leaving = slices.Compact(gone)
}

// record notes the changes that are about to be made.
func (j *Journal) record(h *Host, changes []Change) {
	for _, c := range changes {
		index, journalled := ifIndex(h, c.Item)
		if c.Keep || c.Stage == PutBack || !journalled {
			continue
		}
		if i := slices.IndexFunc(j.Changed, func(e Entry) bool { return e.Item == c.Item }); i < 0 {
			j.Changed = append(j.Changed, Entry{c.Item, index, c.From, []string{c.To}})
		} else if !j.Changed[i].ours(c.To) {
			j.Changed[i].Wrote = append(j.Changed[i].Wrote, c.To)
		}
	}
}

// ifIndex says whether an item has entries in the journal, and whose interface's it is.
func ifIndex(h *Host, it Item) (index int, journalled bool) {
	switch it.(type) {
	case sysctl.Key, tunnel.Link, tunnel.Mode:
		if l := h.link(ifName(it)); l != nil {
			index = l.Index
		}
		return index, true
	case tunnel.Device, tunnel.Port, loopback.Blackhole:
		return 0, true // the first has no ifindex before it is made, the others never
	}
	return 0, false
}

// follow brings the entries to the names that their interfaces have now. An interface that has gone
// took its settings along: there is nothing to restore, on it or on one that took its name.
func (j *Journal) follow(h *Host) {
	j.Changed = slices.DeleteFunc(j.Changed, func(e Entry) bool { return e.IfIndex != 0 && !changes(e.Item, h.byIndex(e.IfIndex)) })
	for i, e := range j.Changed {
		if e.IfIndex != 0 {
			j.Changed[i].Item = renamed(e.Item, h.byIndex(e.IfIndex).Name)
		}
	}
}

// changes says that an item is one that rsagent changes on such an interface; nil is none. Whoever can
// write the file must not get a NIC taken down by it.
func changes(it Item, l *sysctl.Interface) bool {
	switch it := it.(type) {
	case sysctl.Key:
		return l != nil && (it.Knob != sysctl.PromoteSecondaries || holds(*l))
	case tunnel.Link:
		return l != nil && holds(*l) && l.Name != "lo"
	case tunnel.Mode:
		return l != nil && l.Kind == "ip6tnl"
	}
	return false
}

// pin notes which interfaces the VIPs mean that name some: a name may come to mean another.
func (j *Journal) pin(h *Host) {
	for i, v := range j.VIPs {
		if len(v.IfIndexes) > 0 || len(v.Interfaces) == 0 {
			continue
		}
		var indexes []int
		for _, name := range v.Interfaces {
			if l := h.called(name); l != nil {
				indexes = append(indexes, l.Index)
			}
		}
		if len(indexes) == len(v.Interfaces) {
			j.VIPs = slices.Clone(j.VIPs) // the set before is not to change
			j.VIPs[i].IfIndexes = indexes
		}
	}
}

// settle drops what the last look h, and the plan p made of it, show to be over.
func (j *Journal) settle(h *Host, p []Change) {
	pending := make(map[Item]bool, len(p))
	for _, c := range p {
		pending[c.Item] = true
	}
	wants, finds := needs(j, h)
	for _, c := range wants {
		pending[c.Item] = true
	}
	if !incomplete(finds) {
		j.Changed = slices.DeleteFunc(j.Changed, func(e Entry) bool { return !pending[e.Item] })
	}
	j.Undo = slices.DeleteFunc(j.Undo, func(c Copy) bool { return !pending[c.addr()] })
	still := map[netip.Addr]bool{}
	holders := h.holders()
	for _, a := range h.Addrs {
		if holders[a.Device] {
			still[a.Prefix.Addr()] = true
		}
	}
	j.Leaving = slices.DeleteFunc(j.Leaving, func(a netip.Addr) bool { return !still[a] })
}

// forget drops an entry that turned out not to be rsagent's.
func (j *Journal) forget(it Item) {
	j.Changed = slices.DeleteFunc(j.Changed, func(e Entry) bool { return e.Item == it })
}

// also is what the journal is about beside what every look takes in.
func (j *Journal) also() Also {
	a := Also{Routes: len(j.Blackholes) > 0, Tables: len(j.VIPs.tables()) > 0, Found: len(j.VIPs) == 0}
	for _, e := range j.Changed {
		a.Tables = a.Tables || isTable(e.Item)
		switch e.Item.(type) {
		case loopback.Blackhole:
			a.Routes = true
		case tunnel.Port:
			a.Ports = true
		}
	}
	for _, v := range j.VIPs {
		if _, ok := v.port(); ok {
			a.Ports = true
		}
		a.Tunnel = a.Tunnel || v.Mode == TUN
		a.Routes = a.Routes || v.Withheld
		a.Proxy = a.Proxy || v.Addr.Is6()
	}
	return a
}
