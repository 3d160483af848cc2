package realserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

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
