package realserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
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

// An entryForm is an entry as the file has it.
type entryForm struct {
	Kind    string   `json:"kind"` // conf, link, device, mode, port, blackhole, table
	Name    string   `json:"name"` // of the interface; of a blackhole the VIP; of a port "4:6080", with the IP version before it; of a table its family
	Knob    string   `json:"knob,omitempty"`
	IfIndex int      `json:"ifindex,omitempty"`
	From    string   `json:"from"`
	Wrote   []string `json:"wrote"`
}

// MarshalJSON writes the entry's form.
func (e Entry) MarshalJSON() ([]byte, error) {
	f := entryForm{IfIndex: e.IfIndex, From: e.From, Wrote: e.Wrote}
	switch it := e.Item.(type) {
	case sysctl.Key:
		f.Kind, f.Name, f.Knob = "conf", it.Iface, it.Knob
	case tunnel.Link:
		f.Kind, f.Name = "link", it.Name
	case tunnel.Device:
		f.Kind, f.Name = "device", it.Name
	case tunnel.Mode:
		f.Kind, f.Name = "mode", it.Device
	case tunnel.Port:
		f.Kind, f.Name = "port", portName(it)
	case loopback.Blackhole:
		f.Kind, f.Name = "blackhole", it.VIP.String()
	case arp.GuardTable:
		f.Kind, f.Name = "table", "arp"
	case tunnel.RulesTable:
		f.Kind, f.Name = "table", "inet"
	default:
		return nil, fmt.Errorf("%s has no place in a journal", e.Item)
	}
	return json.Marshal(f)
}

// UnmarshalJSON accepts only what MarshalJSON writes of the things rsagent changes: whoever can write
// the file must not get anything else restored from it.
func (e *Entry) UnmarshalJSON(b []byte) error {
	var f entryForm
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return err
	}
	e.IfIndex, e.From, e.Wrote = f.IfIndex, f.From, f.Wrote
	valid := func(value string) bool { return value == "up" || value == "down" }
	switch f.Kind {
	case "conf":
		e.Item = sysctl.Key{Iface: f.Name, Knob: f.Knob}
		valid = func(value string) bool {
			n, err := strconv.ParseInt(value, 10, 32)
			return err == nil && strconv.FormatInt(n, 10) == value
		}
		if !slices.Contains(knobs, f.Knob) {
			return fmt.Errorf("knob %q is none that rsagent changes", f.Knob)
		}
	case "link":
		e.Item = tunnel.Link{Name: f.Name}
	case "device":
		e.Item = tunnel.Device{Name: f.Name}
		k, ok := tunnel.ByDevice(f.Name)
		valid = func(value string) bool { return ok && (value == "" || k.Is(value)) }
	case "mode":
		e.Item = tunnel.Mode{Device: f.Name}
		valid = tunnel.IsMode
	case "port":
		p, err := parsePort(f.Name)
		if err != nil {
			return err
		}
		e.Item = p
		valid = func(value string) bool { return value == "" || value == "gue" }
	case "blackhole":
		vip, err := ParseAddr(f.Name)
		if err != nil {
			return err
		}
		e.Item = loopback.Blackhole{VIP: vip}
		valid = func(value string) bool { return value == "" || value == "blackhole" }
	case "table":
		e.Item = arp.GuardTable{}
		if f.Name == "inet" {
			e.Item = tunnel.RulesTable{}
		}
		if f.Name != "arp" && f.Name != "inet" || f.From != "" {
			return fmt.Errorf("table %q is none that rsagent writes", f.Name)
		}
		valid = func(value string) bool { return value == "" || value == rules }
	default:
		return fmt.Errorf("kind %q is none that rsagent changes", f.Kind)
	}
	// What is not known by its name is known by its ifindex; its name may be any bytes then.
	pseudo := f.Name == sysctl.All || f.Name == sysctl.Default
	named := f.Kind == "device" || f.Kind == "port" || f.Kind == "table" || f.Kind == "blackhole" || f.Kind == "conf" && pseudo && f.Knob != sysctl.PromoteSecondaries
	if named != (f.IfIndex == 0) || f.IfIndex < 0 || len(f.Wrote) == 0 || strings.ContainsAny(f.Name, "/\x00") {
		return fmt.Errorf("entry %s is none that rsagent writes", e.Item)
	}
	for _, value := range append(f.Wrote, f.From) {
		if !valid(value) {
			return fmt.Errorf("%s: %q is no value of it", e.Item, value)
		}
	}
	return nil
}

// portName is a port as the file has it.
func portName(p tunnel.Port) string {
	if p.IPv6 {
		return fmt.Sprintf("6:%d", p.Number)
	}
	return fmt.Sprintf("4:%d", p.Number)
}

func parsePort(s string) (p tunnel.Port, err error) {
	ipv6, number, _ := strings.Cut(s, ":")
	p.IPv6 = ipv6 == "6"
	p.Number, err = strconv.Atoi(number)
	if err != nil || p.Number < 1 || p.Number > 65535 || portName(p) != s {
		return p, fmt.Errorf("%q is no port that rsagent opens", s)
	}
	return p, nil
}

// knobs are the settings rsagent writes.
var knobs = []string{sysctl.ARPIgnore, sysctl.ARPAnnounce, sysctl.RPFilter, sysctl.PromoteSecondaries}

// parseJournal reads a journal's file. Every value in it is checked.
func parseJournal(b []byte) (*Journal, error) {
	j := &Journal{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(j)
	if err == nil && len(bytes.TrimSpace(b[d.InputOffset():])) > 0 {
		err = errors.New("something follows the journal")
	}
	var head struct{ Version int }
	if j.Version > journalVersion || err != nil && json.Unmarshal(b, &head) == nil && head.Version > journalVersion {
		err = fmt.Errorf("its version is %d, and this rsagent knows %d", max(j.Version, head.Version), journalVersion)
	}
	if err != nil {
		return nil, err
	}
	if j.Version < 1 || j.Boot == "" {
		return nil, fmt.Errorf("it has no version or no boot id")
	}
	for i, v := range j.VIPs {
		if _, err := ParseAddr(v.Addr.String()); err != nil {
			return nil, err
		}
		if err := v.Check(); err != nil {
			return nil, fmt.Errorf("VIP %s: %w", v.Addr, err)
		}
		if i > 0 && j.VIPs[i-1].Addr.Compare(v.Addr) >= 0 {
			return nil, fmt.Errorf("VIP %s is out of order", v.Addr)
		}
		if v.Origin == 0 {
			return nil, fmt.Errorf("VIP %s has no origin", v.Addr)
		}
	}
	for _, c := range j.Undo {
		if _, err := ParseAddr(c.Addr.String()); err != nil || !ValidName(c.Device) {
			return nil, fmt.Errorf("%s is none that rsagent adds", c.addr())
		}
	}
	for i, e := range j.Changed {
		if slices.ContainsFunc(j.Changed[:i], func(o Entry) bool { return o.Item == e.Item && o.IfIndex == e.IfIndex }) {
			return nil, fmt.Errorf("%s has two entries", e.Item)
		}
	}
	for _, a := range slices.Concat(j.Leaving, j.Blackholes) {
		if _, err := ParseAddr(a.String()); err != nil {
			return nil, err
		}
	}
	return j, nil
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
		a.Proxy = a.Proxy || v.Addr.Is6()
	}
	return a
}
