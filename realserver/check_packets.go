package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rsagent/arp/nft"
	"rsagent/loopback"
	"rsagent/tunnel"
)

// ways are the NICs by which packets may come: the uplink first, then those in a VIP's subnet, then others that are up and have
// an address; a few. Not those of a VRF: at the later hooks packets come in by its device (Documentation/networking/vrf.rst).
func (c *checkup) ways() (out []NIC) {
	has, near := map[string]bool{}, map[string]bool{}
	for _, a := range c.host.Addrs {
		has[a.Device] = has[a.Device] || !a.Prefix.Addr().IsLinkLocalUnicast()
		near[a.Device] = near[a.Device] || slices.ContainsFunc(c.set, func(v VIP) bool { return v.beside(a) })
	}
	if l := c.host.uplink(); l != nil && l.Port != "vrf" {
		out = append(out, NIC{l.Name, l.Index})
	}
	for _, chosen := range []map[string]bool{near, has} {
		for _, l := range c.host.Links {
			if l.Speaks() && l.Up && chosen[l.Name] && l.Port != "vrf" && len(out) < 8 && !slices.Contains(out, NIC{l.Name, l.Index}) {
				out = append(out, NIC{l.Name, l.Index})
			}
		}
	}
	return out
}

// beside says that an address is of a subnet that the VIP is in too.
func (v VIP) beside(a loopback.Held) bool {
	return !a.Bare() && a.Prefix.Addr() != v.Addr && a.Subnet().Contains(v.Addr)
}

// by is the NIC by which a DR director most likely sends for the VIP: it reaches this host by the VIP's own segment, and where
// that is not to be told, by the uplink.
func (c *checkup) by(v VIP) NIC {
	for _, nic := range c.nics {
		if slices.ContainsFunc(c.host.Addrs, func(a loopback.Held) bool { return a.Device == nic.Name && v.beside(a) }) {
			return nic
		}
	}
	return c.nics[0]
}

// on is the one interface that has an address; "" where there are several, or none.
func (h *Host) on(ip netip.Addr) (name string) {
	for _, a := range h.Addrs {
		switch {
		case a.Prefix.Addr() != ip || a.Device == name:
		case name != "":
			return ""
		default:
			name = a.Device
		}
	}
	return name
}

// A probe is a packet that has to come through, and what it is for.
type probe struct {
	packet  nft.Packet
	vip     VIP
	what    string     // in words
	match   string     // in nft's words
	dst     netip.Addr // that is meant alone, beside match
	allow   string     // in those of firewall-cmd
	service Service
}

// needed are the packets that have to come through: what the director wraps, by the uplink; and what the clients sent, by
// a NIC or out of the tunnel. Where no service is named it is any, of TCP or of UDP.
func (c *checkup) needed() (out []probe) {
	if len(c.nics) == 0 {
		return nil
	}
	services, ways := c.services, map[tunnel.In]bool{}
	if len(services) == 0 {
		services = []Service{{}, {UDP: true}}
	}
	for _, v := range c.set {
		nic := c.by(v)
		p := nft.Packet{Family: nft.IP, Dst: v.Addr, Iface: nic.Name, Index: nic.Index, On: c.host.on(v.Addr)}
		if !c.host.holdsAddr(v.Addr) {
			p.On = v.On()
		}
		if v.Addr.Is6() {
			p.Family = nft.IP6
		}
		if v.Mode == TUN {
			if in := v.way(); !ways[in] {
				ways[in] = true
				out = append(out, c.outer(in, v, c.nics[0]))
			}
			l := c.host.link(v.kind().Device)
			if l == nil {
				continue
			}
			p.Iface, p.Index, p.Unwrapped = l.Name, l.Index, true
		}
		for _, s := range services {
			p.Protocol, p.Port = s.number(), s.Port
			x := probe{packet: p, vip: v, service: s, what: "what comes for " + v.Addr.String()}
			x.match = fmt.Sprintf("%s daddr %s", p.Family, v.Addr)
			if s.Port != 0 {
				x.what = fmt.Sprintf("%s port %d to %s", strings.ToUpper(s.protocol()), s.Port, v.Addr)
				x.match = fmt.Sprintf("%s dport %d", s.protocol(), s.Port)
				x.allow = "--add-port=" + s.String()
			}
			out = append(out, x)
		}
	}
	return out
}

// way is how the VIP's wrapped packets come.
func (v VIP) way() tunnel.In {
	in := v.in()
	if v.kind().UDP() || len(in) == 1 {
		return in[len(in)-1]
	}
	for _, i := range in { // an ip6tnl takes both versions
		if inner := map[uint8]int{4: 4, 41: 6}[i.Protocol]; inner == version(v.Addr) {
			return i
		}
	}
	return in[0]
}

// outer is a wrapped packet, to this host's own address.
func (c *checkup) outer(in tunnel.In, v VIP, nic NIC) probe {
	p := nft.Packet{Family: nft.IP, Protocol: in.Protocol, Port: in.Port, Iface: nic.Name, Index: nic.Index}
	if in.Outer == 6 {
		p.Family = nft.IP6
	}
	for _, a := range c.host.Addrs {
		if ip := a.Prefix.Addr(); a.Device == nic.Name && version(ip) == in.Outer && a.Scope == "global" && !c.set.has(ip) {
			p.Dst, p.On = ip, c.host.on(ip)
			break
		}
	}
	x := probe{packet: p, vip: v, what: fmt.Sprintf("protocol %d over IPv%d", in.Protocol, in.Outer),
		match: fmt.Sprintf("meta nfproto ipv%d meta l4proto %d", in.Outer, in.Protocol), allow: fmt.Sprintf("--add-protocol=%d", in.Protocol)}
	if in.Port != 0 {
		x.what = fmt.Sprintf("UDP port %d over IPv%d", in.Port, in.Outer)
		x.match, x.allow = fmt.Sprintf("meta nfproto ipv%d udp dport %d", in.Outer, in.Port), fmt.Sprintf("--add-port=%d/udp", in.Port)
	}
	x.what += ", which the director wraps the VIP's packets in,"
	return x
}
