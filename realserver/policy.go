package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A policy collects what a set of VIPs needs of a host, but for the VIPs themselves.
type policy struct {
	set   Set
	host  *Host
	base  sysctl.Table // the host's settings had rsagent changed nothing
	holes []netip.Addr // VIPs to be dropped by a route
	made  func(Item) bool
	needs []Change
	finds []Finding
}

// needs is policy applied to the host's baseline: what must be so for the set to be served, and
// served silently. Findings of level error are what no change of rsagent's can bring about.
func needs(j *Journal, h *Host) ([]Change, []Finding) {
	p := &policy{set: j.VIPs, host: h, base: h.baseline(j.Changed), holes: j.Blackholes}
	p.made = func(it Item) bool {
		return slices.ContainsFunc(j.Changed, func(e Entry) bool { return e.Item == it })
	}
	for _, a := range p.holes {
		p.find(Info, "blackhole", a.String(), "what comes for "+a.String()+" is dropped by a route that stop left; its next start removes it", "rsagent stop --vip "+a.String())
	}
	for _, a := range p.holes { // before the VIP goes; as long as it is there, the route has no effect
		p.need(Withdraw, loopback.Blackhole{VIP: a}, "blackhole", "a host that forwards would send its packets back to the director, round and round")
	}
	p.guards()
	p.nftGuard()
	p.devices()
	return p.needs, p.finds
}

func (p *policy) need(stage Stage, it Item, to, why string) *Change {
	p.needs = append(p.needs, Change{Stage: stage, Item: it, To: to, Why: why})
	return &p.needs[len(p.needs)-1]
}

func (p *policy) settings(dev string, settings []sysctl.Setting) {
	for _, x := range settings {
		p.need(Guard, x.Key, strconv.Itoa(x.Value), x.Why).device = dev
	}
}

func (p *policy) find(level Level, code, subject, message, cure string) {
	p.add(Finding{Level: level, Code: code, Subject: subject, Message: message, Cure: cure})
}

// refuse finds what keeps the VIPs it is about from being served.
func (p *policy) refuse(about func(VIP) bool, code, subject, message, cure string) {
	p.add(Finding{Error, code, subject, message, cure, about})
}

// add keeps a finding once, however many VIPs lead to it.
func (p *policy) add(f Finding) {
	if !slices.ContainsFunc(p.finds, func(o Finding) bool { return o.Code == f.Code && o.Message == f.Message }) {
		p.finds = append(p.finds, f)
	}
}

// guards silences ARP: everywhere for the VIPs that ask for it, and on the interfaces named.
func (p *policy) guards() {
	everywhere, names := false, []string(nil)
	for _, v := range p.set {
		if v.Addr.Is6() {
			continue // Linux answers no neighbour solicitation for an address that is on lo only
		}
		if v.Guard == GuardNone {
			p.find(Info, "no-guard", v.Addr.String(), fmt.Sprintf("this host answers ARP for %s, as its guard is none: right only where it shares no segment with the director", v.Addr), "")
		}
		everywhere = everywhere || v.Guard == GuardAll
		names = append(names, p.resolve(v)...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var out []sysctl.Setting
	for _, r := range arp.Rules(p.scopeHost()) {
		if everywhere {
			all := r.Everywhere(p.base, append(p.host.guardable(), sysctl.Default))
			if len(all) > 0 {
				p.decorate(r)
			}
			out = append(out, all...)
			continue
		}
		for _, name := range names {
			out = append(out, r.On(p.base, name)...)
		}
		if len(names) > 0 {
			p.uncovered(r, names)
		}
	}
	p.settings("", out)
}

// decorate writes a rule to lo, as the classic recipe does. It comes before what counts: a run killed
// in between is then seen not to be done.
func (p *policy) decorate(r sysctl.Rule) {
	key := sysctl.Key{Iface: "lo", Knob: r.Knob}
	p.need(Guard, key, strconv.Itoa(r.Want), "as the classic recipe writes; the kernel pays no heed to it").unjudged = true
}

// scopeHost says that each VIP, as it is bound or will be, has scope host.
func (p *policy) scopeHost() bool {
	for _, v := range p.set {
		if v.Addr.Is4() && v.Scope != "host" {
			return false
		}
	}
	holders := p.host.holders()
	for _, a := range p.host.Addrs {
		if a.Prefix.Addr().Is4() && a.Scope != "host" && holders[a.Device] && p.set.has(a.Prefix.Addr()) {
			return false
		}
	}
	return true
}

// resolve turns the interfaces that a VIP names into those whose settings decide.
func (p *policy) resolve(v VIP) (out []string) {
	for i, name := range v.Interfaces {
		index := 0
		if len(v.IfIndexes) > 0 {
			index = v.IfIndexes[i]
		}
		l := p.host.speaker(name, index)
		about := func(o VIP) bool { return slices.Contains(o.Interfaces, name) }
		switch {
		case l == nil:
			p.refuse(about, "no-interface", name, "there is no interface "+name+" to guard", "ip -br link")
		case !l.ARP:
			p.refuse(about, "no-arp", name, name+" takes no ARP: guarding it has no effect", "ip -br link")
		default:
			if l.Name != name {
				p.find(Info, "guarded-as", name, name+" is guarded by the settings of "+l.Name+", its master or its new name", "")
			}
			out = append(out, l.Name)
		}
	}
	return out
}

// uncovered tells of interfaces that would answer and were not named.
func (p *policy) uncovered(r sysctl.Rule, names []string) {
	for _, name := range p.host.speakers() {
		if v := p.host.Conf.Effective(name, r.Knob); !slices.Contains(names, name) && !r.Good(v) {
			p.find(Warning, "uncovered", name, fmt.Sprintf("%s is not guarded: its %s is %d in effect", name, r.Knob, v),
				"add --interface "+name+", or take --arp-guard all")
		}
	}
}

// devices brings what the VIPs sit on and, in TUN mode, arrive by.
func (p *policy) devices() {
	done := map[string]bool{}
	for _, v := range p.set {
		if v.Mode == TUN && !done["tunnel "+v.kind().Device] {
			done["tunnel "+v.kind().Device] = true
			p.tunnel(v.kind())
		}
		if on := v.On(); !done[on] {
			done[on] = true
			p.device(on, v)
		}
		if v.Addr.Is6() && !done["ipv6 "+v.On()] {
			done["ipv6 "+v.On()] = true
			p.takesIPv6(v.On())
		}
	}
}

// tunnel brings a tunnel's module, its device, the device up, and rp_filter opened on it.
func (p *policy) tunnel(k tunnel.Kind) {
	l := p.host.link(k.Device)
	if l != nil && l.Kind != k.Link {
		p.refuse(by(k), "device-kind", k.Device, fmt.Sprintf("%s is of kind %q, not %s", k.Device, l.Kind, k.Link),
			"give it another name: ip link set "+k.Device+" name NAME")
		return
	}
	device, module := tunnel.Device{Name: k.Device}, tunnel.Module{Name: k.Module}
	if l == nil && !p.host.Modules[k.Module] {
		c := p.need(Create, module, "loaded", "it brings "+k.Device+", which unwraps the director's packets")
		c.Keep, c.device = true, k.Device
	} else if l == nil || p.made(device) {
		p.need(Create, device, k.Link, "this network namespace has none, and it unwraps the director's packets").device = k.Device
	}
	for _, a := range p.host.Addrs {
		if a.Device == k.Device && !a.Prefix.Addr().IsLinkLocalUnicast() && !p.set.has(a.Prefix.Addr()) {
			p.find(Warning, "shared", k.Device, fmt.Sprintf("%s is on %s too: someone else uses it; stop will leave that address, and the device up", a.Prefix, k.Device), "")
		}
	}
	p.rpFilter(k)
	p.need(Guard, tunnel.Link{Name: k.Device}, "up", "the director's packets arrive by it").device = k.Device
}

// rpFilter opens the reverse path filter of a tunnel device, and no other.
func (p *policy) rpFilter(k tunnel.Kind) {
	rule := tunnel.RPFilter(p.addressed(k.Device))
	settings := rule.On(p.base, k.Device)
	for _, x := range settings {
		if x.Key.Iface == sysctl.All {
			p.refuse(by(k), "rp-filter", k.Device, fmt.Sprintf("packets out of %s are dropped: net.ipv4.conf.all.rp_filter is %d, and the device has no IPv4 address, so no value of its own helps",
				k.Device, p.base[x.Key]), "put the VIP on "+k.Device+" (leave out --device)")
			return
		}
	}
	p.settings(k.Device, settings)
}

// by is about the VIPs whose packets arrive by a tunnel.
func by(k tunnel.Kind) func(VIP) bool {
	return func(v VIP) bool { return v.Mode == TUN && v.kind() == k }
}

// addressed says whether a device has an IPv4 address, or will have one.
func (p *policy) addressed(device string) bool {
	for _, v := range p.set {
		if v.On() == device {
			return true
		}
	}
	for _, a := range p.host.Addrs {
		if a.Device == device && a.Prefix.Addr().Is4() && !p.set.has(a.Prefix.Addr()) { // a copy of a VIP that sits elsewhere goes
			return true
		}
	}
	return false
}

// device brings up what a VIP sits on.
func (p *policy) device(name string, v VIP) {
	if _, ok := tunnel.ByDevice(name); ok && v.Mode == TUN {
		return // tunnel saw to it
	}
	l, about := p.host.link(name), func(v VIP) bool { return v.On() == name }
	switch {
	case l == nil:
		p.refuse(about, "no-device", name, "there is no interface "+name+" to hold the VIP", "ip link add "+name+" type dummy")
		return
	case !holds(*l):
		p.refuse(about, "device-kind", name, name+" speaks on the wire and would answer ARP for the VIP; it may be on lo, a tunnel, a dummy or a VRF device", "leave out --device")
		return
	}
	c := p.need(Guard, tunnel.Link{Name: name}, "up", "nothing is served from an interface that is down")
	c.device, c.Keep = name, name == "lo"
}

// takesIPv6 finds an interface that must not hold an IPv6 VIP, or on which the kernel would refuse it.
func (p *policy) takesIPv6(name string) {
	l, about := p.host.link(name), func(v VIP) bool { return v.Addr.Is6() && v.On() == name }
	switch {
	case l == nil:
	case !l.IPv6:
		p.refuse(about, "ipv6-disabled", name, "IPv6 is disabled on "+name, "sysctl -w net.ipv6.conf."+name+".disable_ipv6=0")
	case l.Kind == "vrf": // net/ipv6/ndisc.c, ndisc_recv_ns: a port of a VRF answers for its master's addresses
		p.refuse(about, "vrf-ipv6", name, name+" is a VRF, and its ports answer neighbour solicitations for what is on it", "leave out --device")
	}
}
