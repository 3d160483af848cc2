package realserver

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A State is how a VIP, or a set of them, fares.
type State string

// A VIP is Up where it is bound and guarded as its options ask, Drifted where the host has something
// else than the managed set says, Down where it is neither managed nor bound.
const (
	Up      State = "up"
	Drifted State = "drifted"
	Down    State = "down"
	Unknown State = "unknown"
)

// A VIPState is a VIP and how it fares.
type VIPState struct {
	VIP
	State State
}

// A Silence is what one interface does when it is asked for a VIP, or asks with it.
type Silence struct {
	Interface   string `json:"interface"` // "all" is for those still to come
	ARPIgnore   int    `json:"arp_ignore"`
	ARPAnnounce int    `json:"arp_announce"`
	Good        bool   `json:"good"`
	Rules       string `json:"rules,omitempty"` // of nftables, where they and no settings are meant
	Why         string `json:"why"`
	Asked       bool   `json:"asked"` // a VIP asks for it
	ByRules     bool   `json:"-"`     // good whatever the settings, by the rules of nftables

	Holds []netip.Addr `json:"holds,omitempty"` // VIPs that are on it too, for which it answers as for its own addresses
}

// arrival is how the VIP's packets come, in words.
func (v VIP) arrival() string {
	if p, ok := v.port(); ok {
		return fmt.Sprintf("%s port %d", v.encapsulation(), p.Number)
	}
	return v.encapsulation()
}

// An Arrival is a tunnel device, by which the director's packets arrive.
type Arrival struct {
	Device   string `json:"device"`
	Tunnel   string `json:"tunnel"`
	State    string `json:"state"`              // "up", "down" or "absent"
	RPFilter int    `json:"rp_filter"`          // in effect
	Received uint64 `json:"received"`           // packets, since the device came
	MSS      int    `json:"mss,omitempty"`      // that SYN packets from its VIPs name at the most; 0 is unknown
	Fits     int    `json:"mss_fits,omitempty"` // that passes the uplink in the director's wrapping; 0 is unknown
}

// A Status is what status tells.
type Status struct {
	State    State
	VIPs     []VIPState
	Guards   []Silence
	Tunnels  []Arrival
	Drift    []Change // what would bring the host back
	Findings []Finding
	Watching Watching

	host *Host
}

// Status compares the host with the managed set, or with the VIPs given only. One that is given and
// not managed is judged by where the host holds it, with default options. It changes nothing. With an error, all
// that is told is what there is of a watcher.
func (a *Agent) Status(given ...netip.Addr) (*Status, error) {
	r, err := a.lookAll(Keep)
	if err != nil {
		return a.unknown(), err
	}
	if len(given) == 0 {
		vips, state := r.States()
		return a.status(r, vips, state, r.Pending), nil
	}
	asIf, managed, leaving, strangers := r, r.VIPs.index(), r.Host.strangers(r.Leaving), r.Host.strangers(given)
	maps.DeleteFunc(strangers, func(a netip.Addr, _ VIP) bool { return r.VIPs.has(a) || leaving[a].Addr == a })
	if len(strangers) > 0 {
		if asIf, err = a.lookAll(Add(sorted(strangers)...)); err != nil {
			return a.unknown(), err
		}
	}
	var (
		set   Set // the VIPs given
		out   = make([]VIPState, 0, len(given))
		now   = driftOf(r.Pending, r.Findings)
		then  = driftOf(asIf.Pending, asIf.Findings)
		bound = onHost(r.VIPs, r.Host) // by index
	)
	for _, addr := range given {
		s := VIPState{New(addr), Down}
		if v, ok := managed[addr]; ok {
			s = VIPState{v, now.judge(v, true, bound[r.VIPs.find(addr)])}
		} else if v, ok := leaving[addr]; ok {
			s = VIPState{v, Drifted}
		} else if v, ok := strangers[addr]; ok {
			s = VIPState{v, then.judge(v, false, true)}
		}
		out, set = append(out, s), append(set, s.VIP)
	}
	drift := slices.DeleteFunc(slices.Clone(asIf.Pending), func(c Change) bool { return !c.concerns(set) })
	return a.status(asIf, out, together(out), drift), nil
}

func (a *Agent) unknown() *Status {
	return &Status{State: Unknown, Guards: []Silence{}, Tunnels: []Arrival{}, Watching: a.watching()}
}

// lookAll is Look for those to whom a refusal is a finding like any other.
func (a *Agent) lookAll(edit Edit) (*Result, error) {
	r, err := a.observe(edit, true)
	if r != nil && errors.Is(err, ErrRefused) {
		err = nil
	}
	return r, err
}

// concerns says that a change is about one of the VIPs of a set.
func (c Change) concerns(s Set) bool {
	d := driftOf([]Change{c}, nil)
	return slices.ContainsFunc(s, d.touches)
}

func (a *Agent) status(r *Result, vips []VIPState, s State, drift []Change) *Status {
	return &Status{State: s, VIPs: vips, Guards: r.Host.silence(r.VIPs), Tunnels: r.Host.arrivals(r.VIPs), Drift: drift, Findings: r.Findings,
		Watching: a.watching(), host: r.Host}
}

// States tells how each VIP of the set fares, and each that has yet to leave; and how the set fares as a
// whole. It has drifted too while work of a verb that was killed is left.
func (r *Result) States() ([]VIPState, State) {
	bound, d := onHost(r.VIPs, r.Host), driftOf(r.Pending, r.Findings)
	out := make([]VIPState, 0, len(r.VIPs))
	for i, v := range r.VIPs {
		out = append(out, VIPState{v, d.judge(v, r.Before.has(v.Addr), bound[i])})
	}
	for _, v := range sorted(r.Host.strangers(r.Leaving)) {
		out = append(out, VIPState{v, Drifted})
	}
	s := together(out)
	switch {
	case r.Blind:
		s = Unknown
	case len(r.Pending) > 0 && (s == Up || len(r.VIPs) == 0):
		s = Drifted
	}
	return out, s
}

// together is the state of several VIPs: where they differ, drifted.
func together(vips []VIPState) State {
	if len(vips) == 0 {
		return Down
	}
	for _, v := range vips {
		if v.State != vips[0].State {
			return Drifted
		}
	}
	return vips[0].State
}

// drift is what a plan means for VIPs, ready to be asked.
type drift struct {
	addrs   map[netip.Addr]bool
	devices map[string]bool
	guard   bool // something that all need whom the settings guard
	abouts  []func(VIP) bool
	finds   []Finding
}

func driftOf(plan []Change, finds []Finding) drift {
	d := drift{addrs: map[netip.Addr]bool{}, devices: map[string]bool{}, finds: finds}
	for _, c := range plan {
		switch a := addrOf(c.Item); {
		case c.unjudged || c.Stage == PutBack:
		case a.IsValid():
			d.addrs[a] = true
		case c.about != nil:
			d.abouts = append(d.abouts, c.about)
		case c.device != "":
			d.devices[c.device] = true
		case c.Stage == Guard:
			d.guard = true
		}
	}
	return d
}

// touches says that something the VIP needs is not so.
func (d drift) touches(v VIP) bool {
	return unserved(d.finds, v) || d.addrs[v.Addr] || d.guard && v.Addr.Is4() && v.Guard != GuardNone && v.Guard != GuardNFT ||
		slices.ContainsFunc(d.abouts, func(about func(VIP) bool) bool { return about(v) }) ||
		d.devices[v.On()] || v.Mode == TUN && d.devices[v.kind().Device]
}

func (d drift) judge(v VIP, managed, bound bool) State {
	switch {
	case !bound && !managed:
		return Down
	case !bound || d.touches(v):
		return Drifted
	}
	return Up
}

// strangers makes VIPs of addresses that the host holds where a VIP may sit, as if they had been
// started there. A copy of its own is preferred to one with a subnet.
func (h *Host) strangers(addrs []netip.Addr) map[netip.Addr]VIP {
	asked, kinds, out := map[netip.Addr]bool{}, map[string]string{}, map[netip.Addr]VIP{}
	if len(addrs) == 0 {
		return out
	}
	for _, a := range addrs {
		asked[a] = true
	}
	for _, l := range h.Links {
		if holds(l) {
			kinds[l.Name] = l.Kind
		}
	}
	for _, a := range h.Addrs {
		addr := a.Prefix.Addr()
		kind, held := kinds[a.Device]
		if _, found := out[addr]; !asked[addr] || !held || found && !a.Prefix.IsSingleIP() {
			continue
		}
		v := New(addr)
		v.AllowDirector = true // it is not entering the set
		if g, _ := arp.ParseGuard(h.value(arp.GuardTable{})); g.Drops(addr) {
			v.Guard = GuardNFT
		}
		if tunnel.Receives(kind) {
			v.Mode = TUN
			if k, ok := tunnel.Of(a.Device, kind, version(addr)); ok && k != v.kind() {
				v.Tunnel, v.Outer, v.CSum = k.Name, strconv.Itoa(k.Outer), k.CSum
			}
		}
		if v.On() != a.Device {
			v.Device = a.Device
		}
		out[addr] = v
	}
	return out
}

// silence tells of each interface that takes ARP whether it is silent about the VIPs of a set, and
// of all, which decides for interfaces still to come.
func (h *Host) silence(s Set) []Silence {
	p := &policy{set: s, host: h}
	rules, asked := arp.Rules(p.scopeHost()), map[string]bool{}
	nics, held := h.onNICs(), map[string][]netip.Addr{}
	for _, v := range s {
		for _, nic := range nics[v.Addr] {
			if v.Addr.Is4() {
				held[nic] = append(held[nic], v.Addr)
			}
		}
		for _, name := range p.resolve(v) {
			asked[name] = true
		}
		asked[sysctl.All] = asked[sysctl.All] || v.Addr.Is4() && v.Guard == GuardAll
	}
	out := []Silence{}
	for _, name := range append([]string{sysctl.All}, h.speakers()...) {
		g := Silence{Interface: name, Good: true, Asked: asked[sysctl.All] || asked[name], Holds: held[name],
			ARPIgnore:   h.Conf.Effective(name, sysctl.ARPIgnore),
			ARPAnnounce: h.Conf.Effective(name, sysctl.ARPAnnounce)}
		var good, bad []string
		for _, r := range rules {
			if v := h.Conf.Effective(name, r.Knob); r.Good(v) {
				good = append(good, fmt.Sprintf("%s %d: %s", r.Knob, v, r.Why))
			} else {
				bad = append(bad, fmt.Sprintf("%s is %d, not %d: %s", r.Knob, v, r.Want, r.Why))
			}
		}
		if g.Why = strings.Join(good, "; "); len(bad) > 0 {
			g.Good, g.Why = false, strings.Join(bad, "; ")
		}
		out = append(out, g)
	}
	table := h.hush(s)
	if len(table) > 0 && table[0].Good && !slices.ContainsFunc(s, func(v VIP) bool { return v.Addr.Is4() && !v.hushed() }) {
		for i := range out {
			if g := &out[i]; !g.Good {
				g.Good, g.Asked, g.ByRules, g.Why = true, true, true, "table arp rsagent drops what asks for the VIPs, whatever the settings"
			}
		}
	}
	return append(out, table...)
}

// arrivals tells of each tunnel device that is there, or that a VIP needs.
func (h *Host) arrivals(s Set) []Arrival {
	out := []Arrival{}
	for _, k := range tunnel.Devices() {
		l, names, a := h.link(k.Device), []string{}, Arrival{Device: k.Device, State: "absent"}
		for _, v := range s {
			if v.Mode != TUN || v.kind().Device != k.Device {
				continue
			}
			if name := v.arrival(); !slices.Contains(names, name) {
				names = append(names, name)
			}
			if n, fits := h.names(v), h.fits(v); a.Fits == 0 || n-fits > a.MSS-a.Fits {
				a.MSS, a.Fits = n, fits
			}
		}
		if len(names) == 0 && (l == nil || k.CSum) {
			continue
		}
		if len(names) == 0 {
			names = []string{k.Name}
		}
		a.Tunnel = strings.Join(names, ", ")
		if l != nil {
			a.State = h.value(tunnel.Link{Name: k.Device})
			a.RPFilter, a.Received = h.Conf.Effective(k.Device, sysctl.RPFilter), h.Received[k.Device]
		}
		out = append(out, a)
	}
	return out
}
