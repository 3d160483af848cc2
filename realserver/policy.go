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
	set     Set
	host    *Host
	base    sysctl.Table // the host's settings had rsagent changed nothing
	holes   []netip.Addr // VIPs to be dropped by a route
	changed []Entry      // what rsagent has changed
	needs   []Change
	finds   []Finding
}

// needs is policy applied to the host's baseline: what must be so for the set to be served, and
// served silently. Findings of level error are what no change of rsagent's can bring about.
func needs(j *Journal, h *Host) ([]Change, []Finding) {
	p := &policy{set: j.VIPs, host: h, base: h.baseline(j.Changed), holes: j.Blackholes, changed: j.Changed}
	for _, a := range p.holes {
		p.find(Info, "blackhole", a.String(), "what comes for "+a.String()+" is dropped by a route that stop left; its next start removes it", "rsagent stop --vip "+a.String())
	}
	for _, a := range p.holes { // before the VIP goes; as long as it is there, the route has no effect
		p.need(Withdraw, loopback.Blackhole{VIP: a}, "blackhole", "a host that forwards would send its packets back to the director, round and round")
	}
	p.guards()
	tables := p.set.tables()
	if slices.Contains(tables, Item(arp.GuardTable{})) {
		p.nftGuard()
	}
	p.devices()
	if slices.Contains(tables, Item(tunnel.RulesTable{})) {
		p.tunnelRules()
	}
	return p.needs, p.finds
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
			p.refuse(about, "no-interface", name, "there is no interface "+name+" to guard", "ip -br link")
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

// tunnel brings a tunnel's module, its device, and the device up, in a mode that takes what is sent.
func (p *policy) tunnel(k tunnel.Kind) {
	device := tunnel.Device{Name: k.Device}
	found := p.host.value(device)
	if p.taken(k) {
		p.refuse(by(k), "device-kind", k.Device, fmt.Sprintf("%s is of type %q, not %q", k.Device, found, p.typeOf(k)),
			"give it another name: ip link set "+k.Device+" name NAME")
		return
	}
	if found == "" && !p.host.Modules[k.Module] {
		why := "it brings " + k.Device + ", which unwraps the director's packets"
		if k.CSum {
			why = "it knows the kind of " + k.Device
		}
		c := p.need(Create, tunnel.Module{Name: k.Module}, "loaded", why)
		c.Keep, c.device = true, k.Device
	}
	p.create(k, device, found)
	raised := p.made(tunnel.Link{Name: k.Device})
	for _, a := range p.host.Addrs {
		switch {
		case a.Device != k.Device || a.Prefix.Addr().IsLinkLocalUnicast() || p.set.has(a.Prefix.Addr()):
		case p.host.compat(a) && raised:
			p.need(Guard, a.Addr, "", "the kernel put it there when "+k.Device+" went up, and would take it for the source of packets to anywhere").device = k.Device
		default:
			p.find(Warning, "shared", k.Device, fmt.Sprintf("%s is on %s too: someone else uses it; stop will leave that address, and the device up", a.Prefix, k.Device), "")
		}
	}
	p.mode(k)
	p.need(Guard, tunnel.Link{Name: k.Device}, "up", "the director's packets arrive by it").device = k.Device
}

// taken says that a device of the name is there, and is something else.
func (p *policy) taken(k tunnel.Kind) bool {
	found := p.host.value(tunnel.Device{Name: k.Device})
	return found != "" && !k.Is(found)
}

// create makes a device that no module brings, or none brought.
func (p *policy) create(k tunnel.Kind, device tunnel.Device, found string) {
	value, why := found, "this network namespace has none, and it unwraps the director's packets"
	if k.CSum {
		why = "it unwraps packets with checksums, which gre0 drops"
		if local := k.Local(found); found != "" && !p.host.holdsAddr(local) {
			p.refuse(by(k), "tunnel-local", k.Device, fmt.Sprintf("%s takes packets to %s, which is no address of this host any more", k.Device, local), "rsagent stop, and start again")
		}
	}
	switch {
	case found != "" && p.made(device):
	case found == "" && k.CSum:
		if rip := p.host.rip(); !rip.IsValid() {
			p.refuse(by(k), "no-rip", k.Device, "packets with checksums need a device with this host's own address, and there is no default route to tell which of its IPv4 addresses that is", "ip route add default via GATEWAY")
			return
		}
		value = p.typeOf(k)
	case found == "" && (p.host.Modules[k.Module] || p.made(device)):
		value = k.Link
	default:
		return
	}
	p.need(Create, device, value, why).device = k.Device
}

// typeOf is what a device of this kind is to be.
func (p *policy) typeOf(k tunnel.Kind) string { return k.Type(p.host.rip()) }

// mode has an ip6tnl device let out what the director wraps. It judges the mode that the device would
// have had rsagent changed nothing.
func (p *policy) mode(k tunnel.Kind) {
	if k.Link != "ip6tnl" {
		return
	}
	m := tunnel.Mode{Device: k.Device}
	now := p.host.foretold(m)
	if i := slices.IndexFunc(p.changed, func(e Entry) bool { return e.Item == m && e.ours(now) }); i >= 0 {
		now = p.changed[i].From
	}
	for _, v := range p.set {
		if by(k)(v) && !tunnel.Carries(now, version(v.Addr)) {
			p.need(Guard, m, tunnel.Any, fmt.Sprintf("as %s it would drop IPv%d in IPv6", now, version(v.Addr))).device = k.Device
			return
		}
	}
}

// port opens a UDP port for GUE.
func (p *policy) port(port tunnel.Port) {
	about := func(v VIP) bool { own, ok := v.port(); return ok && own == port }
	found := p.host.Ports[port]
	if found == "fou" || found == "busy" {
		how := "in use by another program"
		if found == "fou" {
			how = "open for FOU without GUE's header"
		}
		p.refuse(about, "port-busy", port.String(), fmt.Sprintf("%s is %s", port, how), "take another with --gue-port, and tell the director: --tun-port")
		return
	}
	if !p.host.Modules[tunnel.FOU] {
		c := p.need(Create, tunnel.Module{Name: tunnel.FOU}, "loaded", "it takes the director's packets out of UDP")
		c.Keep, c.about = true, about
	}
	if found == "" || p.made(port) { // one that someone else opened serves as well, and is theirs
		p.need(Create, port, "gue", "the director's packets come to it").about = about
	}
}

// rpFilters opens the reverse path filter for IPv4 that comes out of a tunnel.
func (p *policy) rpFilters() {
	var devices []tunnel.Kind
	off := false
	for _, v := range p.set {
		if v.Mode != TUN || v.Addr.Is6() || p.taken(v.kind()) {
			continue
		}
		off = off || v.RPFilter == "off"
		if !slices.ContainsFunc(devices, func(k tunnel.Kind) bool { return k.Device == v.kind().Device }) {
			devices = append(devices, v.kind())
		}
	}
	if off {
		p.rpFilterOff(devices)
		return
	}
	for _, k := range devices {
		p.rpFilter(k)
	}
}

// rpFilter opens the reverse path filter of a tunnel device, and no other.
func (p *policy) rpFilter(k tunnel.Kind) {
	rule := tunnel.RPFilter(p.addressed(k.Device))
	settings := rule.On(p.base, k.Device)
	for _, x := range settings {
		if x.Key.Iface == sysctl.All {
			p.refuse(by(k), "rp-filter", k.Device, fmt.Sprintf("packets out of %s are dropped: net.ipv4.conf.all.rp_filter is %d, and the device has no IPv4 address, so no value of its own helps",
				k.Device, p.base[x.Key]), "put the VIP on "+k.Device+" (leave out --device), or take --rp-filter off")
			return
		}
	}
	p.settings(k.Device, settings)
}

// rpFilterOff is the classic recipe, 0 on the tunnel's device and on all, made so that no other
// interface is filtered less than before: each is given, as its own, what it had in effect.
func (p *policy) rpFilterOff(devices []tunnel.Kind) {
	if !slices.ContainsFunc(devices, func(k tunnel.Kind) bool { return p.base.Effective(k.Device, sysctl.RPFilter) != 0 }) {
		return
	}
	set := func(iface string, value int, why string) *Change {
		c := p.need(Guard, sysctl.Key{Iface: iface, Knob: sysctl.RPFilter}, strconv.Itoa(value), why)
		c.about = func(v VIP) bool { return v.Mode == TUN && v.Addr.Is4() }
		return c
	}
	names := []string{}
	for _, k := range devices {
		// Said even where it is 0: the kernel would have it follow what is written to default.
		set(k.Device, 0, "take packets out of the tunnel, whatever their source").firm = true
		names = append(names, k.Device)
	}
	all := p.base[sysctl.Key{Iface: sysctl.All, Knob: sysctl.RPFilter}]
	if all == 0 {
		return
	}
	pinned := []string{}
	for _, l := range p.host.Links {
		if !slices.Contains(names, l.Name) {
			pinned = append(pinned, l.Name)
		}
	}
	for _, i := range append(pinned, sysctl.Default) { // default last: it changes interfaces whose own value was never written
		if own := p.base.Own(i, sysctl.RPFilter); own < all {
			set(i, all, "stays in effect when all is 0")
		}
	}
	set(sysctl.All, 0, "its value would outweigh the tunnel's")
}

// by is about the VIPs whose packets arrive by a tunnel's device.
func by(k tunnel.Kind) func(VIP) bool {
	return func(v VIP) bool { return v.Mode == TUN && v.kind().Device == k.Device }
}

// addressed says whether a device has an IPv4 address, or will have one.
func (p *policy) addressed(device string) bool {
	for _, v := range p.set {
		if v.On() == device && v.Addr.Is4() {
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
