package realserver

import (
	"fmt"
	"slices"
	"strconv"

	"rsagent/sysctl"
	"rsagent/tunnel"
)

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

// ports is what keeps a port from being opened, in words.
var ports = map[string]string{
	"busy":  "in use by another program",
	"fou":   "open for FOU, without GUE's header",
	"bound": "open for some addresses or one interface only (ip fou show)",
}

// port opens a UDP port for GUE.
func (p *policy) port(port tunnel.Port) {
	about := func(v VIP) bool { own, ok := v.port(); return ok && own == port }
	found := p.host.Ports[port]
	if how, taken := ports[found]; taken {
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
