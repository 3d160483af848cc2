package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A policy collects what a set of VIPs needs of a host, but for the VIPs themselves.
type policy struct {
	set     Set
	host    *Host
	base    sysctl.Table // the host's settings had rsagent changed nothing
	holes   []netip.Addr // VIPs to be dropped by a route
	leaving []netip.Addr // VIPs to go
	changed []Entry      // what rsagent has changed
	needs   []Change
	finds   []Finding
}

// needs is policy applied to the host's baseline: what must be so for the set to be served, and
// served silently. Findings of level error are what no change of rsagent's can bring about.
func needs(j *Journal, h *Host) ([]Change, []Finding) {
	p := &policy{set: j.VIPs, host: h, base: h.baseline(j.Changed), holes: j.Blackholes, leaving: j.Leaving, changed: j.Changed}
	for _, a := range p.holes {
		p.find(Info, "blackhole", a.String(), "what comes for "+a.String()+" is dropped by a route that stop left; its next start removes it", "rsagent stop --vip "+a.String())
	}
	for _, a := range p.holes { // before the VIP goes; as long as it is there, the route has no effect
		p.need(Withdraw, loopback.Blackhole{VIP: a}, "blackhole", "a host that forwards would send its packets back to the director, round and round")
	}
	p.withheld()
	p.guards()
	tables := p.set.tables()
	if slices.Contains(tables, Item(arp.GuardTable{})) {
		p.nftGuard()
	}
	if slices.Contains(tables, Item(tunnel.RulesTable{})) {
		p.tunnelRules() // before the tunnel takes anything
	}
	p.devices()
	return p.needs, p.finds
}

// withheld takes care of what still comes for VIPs that a watcher took off the host.
func (p *policy) withheld() {
	for _, v := range p.set {
		if !v.Withheld {
			continue
		}
		p.find(Warning, "withheld", v.Addr.String(), "VIP "+v.Addr.String()+" is not bound: its guard did not hold, and rsagent watch took it off",
			"rsagent restart, where what undid the guard has ended; a watcher does so by itself")
		if p.host.Forwards {
			p.need(Withdraw, loopback.Blackhole{VIP: v.Addr}, "blackhole", "a host that forwards would send its packets back to the director, round and round")
		}
	}
}

func (p *policy) need(stage Stage, it Item, to, why string) *Change {
	p.needs = append(p.needs, Change{Stage: stage, Item: it, To: to, Why: why})
	return &p.needs[len(p.needs)-1]
}

// made says that the journal has an entry for an item.
func (p *policy) made(it Item) bool {
	return slices.ContainsFunc(p.changed, func(e Entry) bool { return e.Item == it })
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
		if nic := p.host.Proxied[v.Addr]; nic != "" {
			p.find(Warning, "proxy-ndp", nic, fmt.Sprintf("this host is an NDP proxy for %s on %s: where it forwards, it answers neighbour solicitations for it", v.Addr, nic), "ip -6 neigh del proxy "+v.Addr.String()+" dev "+quote(nic))
		}
		if v.Addr.Is6() {
			continue // Linux answers no neighbour solicitation for an address that is on lo only
		}
		everywhere = everywhere || v.Guard == GuardAll
		names = append(names, p.resolve(v)...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if !everywhere {
		p.unguarded(names)
	}
	var out []sysctl.Setting
	for _, r := range arp.Rules(p.scopeHost()) {
		if everywhere {
			all := r.Everywhere(p.base, append(p.host.guardable(), sysctl.Default))
			if len(all) > 0 || p.made(sysctl.Key{Iface: "lo", Knob: r.Knob}) { // someone may have made all good otherwise since
				p.decorate(r)
			}
			out = append(out, all...)
			continue
		}
		for _, name := range names {
			out = append(out, r.On(p.base, name)...)
		}
	}
	if !everywhere && len(names) > 0 {
		p.uncovered(names)
	}
	p.settings("", out)
}

// unguarded tells of the VIPs with no guard for which the host does answer: the settings may be good by themselves.
func (p *policy) unguarded(names []string) {
	ignore := arp.Rules(p.scopeHost())[0]
	if !slices.ContainsFunc(p.host.speakers(), func(i string) bool {
		return !slices.Contains(names, i) && !ignore.Good(p.base.Effective(i, ignore.Knob))
	}) {
		return
	}
	for _, v := range p.set {
		if v.Addr.Is4() && v.Guard == GuardNone {
			p.find(Info, "no-guard", v.Addr.String(), fmt.Sprintf("this host answers ARP for %s, as its guard is none: right only where it shares no segment with the director", v.Addr), "")
		}
	}
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

// noARP is the code of an interface named that cannot be guarded.
const noARP = "no-arp"

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
			p.refuse(about, "no-interface", name, "there is no interface "+name+" to guard",
				fmt.Sprintf("rsagent start --vip %s --arp-guard interface --interface NAME, of one that is there (ip -br link); or rsagent stop --vip %s", v.Addr, v.Addr))
		case !l.ARP:
			p.refuse(about, noARP, name, name+" takes no ARP: guarding it has no effect", "ip -br link")
		default:
			if l.Name != name {
				p.find(Info, "guarded-as", name, name+" is guarded by the settings of "+l.Name+", its master or its new name", "")
			}
			out = append(out, l.Name)
		}
	}
	return out
}

// uncovered tells of interfaces that were not named, and what they do.
func (p *policy) uncovered(names []string) {
	var vips []string
	for _, v := range p.set {
		if v.Guard == GuardInterface {
			vips = append(vips, v.Addr.String())
		}
	}
	what := vips[0]
	if len(vips) > 1 {
		what = fmt.Sprintf("%s and %d more", what, len(vips)-1)
	}
	for _, name := range p.host.speakers() {
		if does := p.leaking(name, what); does != "" && !slices.Contains(names, name) {
			p.find(Warning, "uncovered", name, name+" is not guarded: it "+does,
				"add --interface "+quote(name)+", or take --arp-guard all")
		}
	}
}

// leaking says what an interface does about a VIP, and by which values; "" is nothing.
func (p *policy) leaking(name, vip string) string {
	var does, values []string
	for i, r := range arp.Rules(p.scopeHost()) {
		if v := p.host.Conf.Effective(name, r.Knob); !r.Good(v) {
			does = append(does, [...]string{"answers ARP for " + vip, "may ask by ARP as " + vip}[i])
			values = append(values, fmt.Sprintf("%s %d", r.Knob, v))
		}
	}
	if len(does) == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s)", strings.Join(does, ", and "), strings.Join(values, ", "))
}

// devices brings what the VIPs sit on and, in TUN mode, arrive by.
func (p *policy) devices() {
	p.rpFilters()
	done := map[string]bool{}
	first := func(what string) bool {
		was := done[what]
		done[what] = true
		return !was
	}
	for _, v := range p.set {
		if v.Mode == TUN && first("tunnel "+v.kind().Device) {
			p.tunnel(v.kind())
		}
		if port, ok := v.port(); ok && first(port.String()) {
			p.port(port)
		}
		if on := v.On(); first(on) {
			p.device(on, v)
		}
		if beyondVRF(v) && first("vrf") {
			p.vrf()
		}
		if v.Addr.Is6() && first("ipv6 "+v.On()) {
			p.takesIPv6(v.On())
		}
	}
}

// device brings up what a VIP sits on.
func (p *policy) device(name string, v VIP) {
	if slices.ContainsFunc(p.set, func(o VIP) bool { return o.Mode == TUN && o.kind().Device == name }) {
		return // tunnel sees to it
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

// vrf finds that the VIPs' packets come in by a VRF: a lookup there need not find what is on lo, which is
// none of its ports (net/l3mdev, and the order of `ip rule`).
func (p *policy) vrf() {
	if vrf := p.host.uplinkVRF(); vrf != "" {
		p.refuse(beyondVRF, "vrf", "lo", "the uplink is in VRF "+vrf+", and a VIP on lo is not", "--device "+vrf)
	}
}

func beyondVRF(v VIP) bool { return v.Mode == DR && v.Addr.Is4() && v.On() == "lo" }

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
