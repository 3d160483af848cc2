package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A Stage is a step of the one order there is. A stage runs only when a fresh look shows nothing
// left to do in those before it, so that look is the verification of what was done.
type Stage int

// The order, and the harm of any other.
const (
	Withdraw Stage = iota // VIPs that leave. After PutBack the host would answer ARP for them.
	Create                // modules and devices. Later, their settings could not be judged.
	Guard                 // settings, links up. After Bind the host would answer ARP for the VIP.
	Bind                  // VIPs of the set, then their other copies go: the other way round loses connections.
	PutBack               // what no VIP needs any more. Before Guard, a switch of guards would open a window.
)

func (s Stage) String() string {
	return [...]string{"withdraw", "create", "guard", "bind", "put back"}[s]
}

// A Change is one step of a plan. From and To are values of the item; "" is absent.
type Change struct {
	Stage    Stage
	Item     Item
	From, To string
	Why      string
	Keep     bool           // stays when no VIP needs it any more: to take it back would harm others
	Outcome  string         // "", then "done", "failed" or "skipped"
	unjudged bool           // has no effect, so it is done along with others and is never drift
	device   string         // the VIPs on this device need it; "" is all of them
	about    func(VIP) bool // the VIPs that need it, where device does not tell
	copy     bool           // takes away a second copy of a VIP that is bound: goes on when adding has ended
	firm     bool           // is written along with other settings even where it is so already
	later    bool           // is done when a look has shown the changes before it; foretold, so that a dry run is whole
}

// Level is how bad a finding is.
type Level string

// An Error finding is something that no change of rsagent's can mend: VIPs that it is about are not
// added, and if managed have drifted.
const (
	Error   Level = "error"
	Warning Level = "warning"
	Info    Level = "info"
)

// A Finding is something worth saying that is no change. Codes are stable.
type Finding struct {
	Level   Level  `json:"level"`
	Code    string `json:"code"`
	Subject string `json:"subject"`
	Message string `json:"message"`
	Cure    string `json:"cure"` // "" where nothing is to be done

	about func(VIP) bool // Error: which VIPs it keeps from being served; nil is all
}

// concerns says that a finding keeps a VIP from being served.
func (f Finding) concerns(v VIP) bool {
	return f.Level == Error && (f.about == nil || f.about(v))
}

func unserved(finds []Finding, v VIP) bool {
	return slices.ContainsFunc(finds, func(f Finding) bool { return f.concerns(v) })
}

// plan compares host h with what journal j says it should hold: the changes, in order, none when it
// is so, and what is worth saying.
func plan(j *Journal, h *Host) ([]Change, []Finding) {
	wants, finds := needs(j, h)
	vips, found := planVIPs(j, h, finds)
	whole := !incomplete(finds)
	finds = append(finds, found...)
	wanted := make(map[Item]bool, len(wants))
	p := make([]Change, 0, len(wants)+len(vips)+len(j.Changed))
	for _, c := range wants {
		if wanted[c.Item] {
			continue
		}
		wanted[c.Item] = true
		if c.From = h.foretold(c.Item); c.From != c.To || c.firm && pins(wants, h) {
			p = append(p, c)
		}
	}
	for _, c := range vips {
		if !addrOf(c.Item).IsValid() { // the journal has no addresses
			wanted[c.Item] = true
		}
	}
	p = append(p, vips...)
	for i := len(j.Changed) - 1; i >= 0; i-- {
		if e := j.Changed[i]; !wanted[e.Item] && whole {
			back, found := putBack(e, j, h)
			p, finds = append(p, back...), append(finds, found...)
		}
	}
	p = inOrder(p)
	if !slices.ContainsFunc(p, func(c Change) bool { return c.Stage == Guard && !c.unjudged }) {
		p = slices.DeleteFunc(p, func(c Change) bool { return c.unjudged })
	}
	return p, finds
}

// inOrder is the changes by stage, those of one as they came.
func inOrder(p []Change) []Change {
	out := make([]Change, 0, len(p))
	for s := Withdraw; s <= PutBack; s++ {
		for i := range p {
			if p[i].Stage == s {
				out = append(out, p[i])
			}
		}
	}
	return out
}

// pins says that the default of rp_filter is about to be written: the kernel has each interface follow
// it that has no IPv4 address and whose own value was never written (net/ipv4/devinet.c,
// devinet_copy_dflt_conf).
func pins(wants []Change, h *Host) bool {
	key := sysctl.Key{Iface: sysctl.Default, Knob: sysctl.RPFilter}
	return slices.ContainsFunc(wants, func(c Change) bool { return c.Item == key && h.value(key) != c.To })
}

// incomplete says that policy could not tell all that the set needs. Then nothing is put back: a bound
// VIP may rest on it.
func incomplete(finds []Finding) bool {
	return slices.ContainsFunc(finds, func(f Finding) bool { return f.Level == Error })
}

// putBack takes an entry back that no VIP needs, unless someone changed it since.
func putBack(e Entry, j *Journal, h *Host) ([]Change, []Finding) {
	now := h.value(e.Item)
	if now == e.From || now == "" {
		return nil, nil
	}
	left := func(code, why string) ([]Change, []Finding) {
		return nil, []Finding{{Level: Info, Code: code, Subject: e.Item.String(), Message: fmt.Sprintf("%s stays %s: %s", e.Item, now, why)}}
	}
	if !e.ours(now) {
		return left("left", fmt.Sprintf("someone changed it since (start found %s and wrote %s)", orAbsent(e.From), strings.Join(e.Wrote, ", ")))
	}
	why := "as it was before rsagent changed it"
	if isTable(e.Item) {
		why = "no VIP needs it any more"
	}
	switch e.Item.(type) {
	case arp.GuardTable:
		if kept := h.resting(j.VIPs, j.Leaving); len(kept) > 0 {
			g, _ := arp.ParseGuard(now)
			g.VIPs = kept
			finds := []Finding{restsOn(kept)}
			to := g.String()
			if to == now {
				return nil, finds
			}
			return []Change{{Stage: PutBack, Item: e.Item, From: now, To: to, Why: "no VIP needs more"}}, finds
		}
	case tunnel.Link, tunnel.Device, tunnel.Mode:
		if other := j.foreign(h, ifName(e.Item)); other != "" {
			return left("shared", other+" is on it too")
		}
	}
	return []Change{{Stage: PutBack, Item: e.Item, From: now, To: e.From, Why: why}}, nil
}

func orAbsent(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// foreign is an address on a device that is no VIP of rsagent's; "" is none.
func (j *Journal) foreign(h *Host, device string) string {
	for _, a := range h.Addrs {
		if a.Device == device && !a.Prefix.Addr().IsLinkLocalUnicast() && !h.compat(a) && !j.VIPs.has(a.Prefix.Addr()) && !slices.Contains(j.Leaving, a.Prefix.Addr()) {
			return a.Prefix.String()
		}
	}
	return ""
}

// planVIPs binds what is in the set and withdraws what is leaving: one pass over the addresses, one
// over the set. Another copy of a VIP goes only when a look has shown the right one there, but for IPv6:
// there a device holds one copy only, and the other has to make room. VIPs that cannot be served are
// left as they are found.
func planVIPs(j *Journal, h *Host, finds []Finding) (p []Change, more []Finding) {
	holders := h.holders()
	leaving := make(map[netip.Addr]bool, len(j.Leaving))
	for _, a := range j.Leaving {
		leaving[a] = true
	}
	undo := make(map[loopback.Addr]bool, len(j.Undo))
	for _, c := range j.Undo {
		undo[c.addr()] = twice(h, c.Addr, holders)
	}
	bound := inPlace(j.VIPs, h)
	missing := 0
	for _, there := range bound {
		if !there {
			missing++
		}
	}
	p = make([]Change, 0, missing+len(j.Leaving))
	var copies []Change
	for _, a := range h.Addrs {
		ip := a.Prefix.Addr()
		i, v := j.VIPs.find(ip), (*VIP)(nil)
		if i >= 0 {
			v = &j.VIPs[i]
		}
		switch {
		case !holders[a.Device]: // whatever the journal says
			if v != nil {
				more = append(more, onNIC(h, a))
			}
		case v == nil && undo[a.Addr]:
			p = append(p, removal(h, a, Withdraw, "start failed, and found the VIP here in another form")...)
		case v == nil && !leaving[ip]:
		case v == nil:
			p = append(p, removal(h, a, Withdraw, "no longer served here")...)
		case v.Withheld:
			p = append(p, removal(h, a, Withdraw, "its guard does not hold")...)
		case a.Addr == v.addr():
			if a.Scope != v.scope() {
				more = append(more, Finding{Level: Info, Code: "scope", Subject: ip.String(), Message: fmt.Sprintf("VIP %s keeps the scope it has, %s: to change it would cut connections", ip, a.Scope),
					Cure: "rsagent stop --vip " + ip.String() + ", and start it"})
			}
		case unserved(finds, *v):
		case a.Device == v.On() && ip.Is6():
			p = append(p, removal(h, a, Bind, "the VIP is to stand alone, without a subnet")...)
		default:
			why := "the VIP sits on " + v.On()
			if a.Device == v.On() {
				why = "it makes the whole subnet local to this host"
			}
			for _, c := range removal(h, a, Bind, why) {
				c.copy, c.later = bound[i], !bound[i]
				copies = append(copies, c)
			}
		}
	}
	for i, v := range j.VIPs {
		if !bound[i] && !v.Withheld && !unserved(finds, v) {
			p = append(p, Change{Stage: Bind, Item: v.addr(), To: v.scope(), Why: "the VIP", device: v.On()})
		}
	}
	return append(p, copies...), more
}

// twice says that a VIP has more than one copy where a VIP may sit.
func twice(h *Host, vip netip.Addr, holders map[string]bool) bool {
	n := 0
	for _, a := range h.Addrs {
		if holders[a.Device] && a.Prefix.Addr() == vip {
			n++
		}
	}
	return n > 1
}

// onNIC finds a VIP that is on a NIC too. That one is never touched; and where it is the host's own, none is told to.
func onNIC(h *Host, a loopback.Held) Finding {
	f := Finding{Level: Warning, Code: "vip-on-nic", Subject: a.Device,
		Message: fmt.Sprintf("VIP %s is on %s too, which answers for it; right only where this host is the director as well", a.Prefix.Addr(), a.Device),
		Cure:    "none if keepalived put it there; else: ip addr del " + a.Addr.String()}
	if others := slices.ContainsFunc(h.Addrs, func(b loopback.Held) bool {
		return b != a && b.Device == a.Device && b.Scope == "global" && b.Prefix.Addr().Is4() == a.Prefix.Addr().Is4()
	}); !others || a.Prefix.Addr() == h.Source {
		f.Message += "; it is this host's own address there"
		f.Cure = "rsagent stop --vip " + a.Prefix.Addr().String() + ", if it is not"
	}
	return f
}

// removal deletes an address and nothing else: where it is a primary with secondaries, those would
// go along unless promote_secondaries is set.
func removal(h *Host, a loopback.Held, stage Stage, why string) []Change {
	gone := Change{Stage: stage, Item: a.Addr, From: a.Scope, Why: why, device: a.Device}
	key := sysctl.Key{Iface: a.Device, Knob: sysctl.PromoteSecondaries}
	if a.Secondary || a.Prefix.Addr().Is6() || a.Subnet().IsSingleIP() || h.Conf.Effective(a.Device, key.Knob) != 0 {
		return []Change{gone}
	}
	for _, b := range h.Addrs {
		if b.Device == a.Device && b.Secondary && b.Subnet() == a.Subnet() {
			promote := Change{Stage: stage, Item: key, From: h.value(key), To: "1", device: a.Device,
				Why: "so that other addresses stay when " + a.Subnet().String() + " goes"}
			return []Change{promote, gone}
		}
	}
	return []Change{gone}
}
