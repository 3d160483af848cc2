package realserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rsagent/sysctl"
	"rsagent/tunnel"
)

// ruled says that nftables has something to do for a VIP in TUN mode.
func (v VIP) ruled() bool { return v.MSS != "" || len(v.Directors) > 0 }

// tunnelRules lowers the segment size of the VIPs that ask for it, and closes the ways in that each VIP
// by them names directors for.
func (p *policy) tunnelRules() {
	var r tunnel.Rules
	open := map[tunnel.In]VIP{}
	for _, v := range p.set {
		for _, in := range v.in() {
			if _, known := open[in]; v.Mode == TUN && len(v.Directors) == 0 && !known {
				open[in] = v
			}
		}
	}
	for _, v := range p.set {
		if v.MSS != "" {
			if n, ok := p.mss(v); ok {
				r.Lower(v.Addr, n)
			}
		}
		for _, s := range v.Directors {
			from, _ := tunnel.ParsePrefix(s) // Check has read it
			for _, in := range v.in() {
				if o, ok := open[in]; ok {
					p.find(Warning, "director-open", in.String(), fmt.Sprintf("packets by %s are taken from anyone: VIP %s comes by it too, and names no director", in, o.Addr), "give it its --director")
				} else {
					r.Admit(in, from)
				}
			}
		}
	}
	it := tunnel.RulesTable{}
	if r.Sort(); r.String() == "" || p.foreign(it, VIP.ruled) {
		return
	}
	var why []string
	if len(r.MSS) > 0 {
		why = append(why, "name a segment size that fits the wire with the director's wrapping around")
	}
	if len(r.Take) > 0 {
		why = append(why, "unwrap packets of the directors only")
	}
	p.need(Guard, it, r.String(), strings.Join(why, "; ")).about = VIP.ruled
}

// in is by which ways the VIP's packets come in.
func (v VIP) in() []tunnel.In {
	if v.Mode != TUN {
		return nil
	}
	port, _ := v.port()
	return v.kind().In(uint16(port.Number))
}

// mss is the segment size that a VIP is to name; ok is false where there is no telling.
func (p *policy) mss(v VIP) (n int, ok bool) {
	fits := p.host.fits(v)
	if v.MSS == AutoMSS {
		if l := p.host.uplink(); l == nil {
			p.refuse(func(o VIP) bool { return o.MSS == AutoMSS }, "no-uplink", v.Addr.String(), "there is no uplink to tell the segment size by", "take --mss N")
			return 0, false
		} else if fits < tunnel.LeastMSS {
			p.refuse(func(o VIP) bool { return o.Addr == v.Addr && o.MSS == AutoMSS }, "small-mtu", v.Addr.String(), fmt.Sprintf("segments of %d bytes are what fits the MTU of %s, %d, with the director's wrapping around, and each host may send %d",
				fits, l.Name, l.MTU, tunnel.LeastMSS), "raise the MTU, or take --mss N (from "+strconv.Itoa(tunnel.LeastMSS)+" on; larger packets are fragmented)")
			return 0, false
		}
		return fits, true
	}
	n, ok = v.mss()
	if ok && fits > 0 && n > fits {
		p.find(Warning, "mss", v.Addr.String(), fmt.Sprintf("segments of %d bytes do not fit: the uplink takes %d with the director's wrapping around", n, fits), "take --mss auto")
	}
	return n, ok
}

// uplink is the interface by which clients and directors are reached: the default route's, or else the NIC
// with the smallest MTU. nil is none.
func (h *Host) uplink() *sysctl.Interface {
	if l := h.byIndex(h.Uplink); l != nil {
		return l
	}
	var least *sysctl.Interface
	for i, l := range h.Links {
		if l.Speaks() && (least == nil || l.MTU < least.MTU) {
			least = &h.Links[i]
		}
	}
	return least
}

// headers is what IP and TCP take of a packet of the VIP's, without options.
func (v VIP) headers() int {
	if v.Addr.Is6() {
		return 60
	}
	return 40
}

// fits is the segment size that passes the uplink in the director's wrapping; 0 is unknown.
func (h *Host) fits(v VIP) int {
	l := h.uplink()
	if l == nil || v.Mode != TUN {
		return 0
	}
	return max(0, l.MTU-tunnel.Overhead(v.encapsulation(), v.outer())-v.headers())
}

// names is the segment size that SYN packets from the VIP name at the most; 0 is unknown.
func (h *Host) names(v VIP) int {
	l := h.uplink()
	if l == nil {
		return 0
	}
	n := l.MTU - v.headers()
	r, _ := tunnel.ParseRules(h.value(tunnel.RulesTable{}))
	for _, m := range r.MSS {
		if slices.Contains(m.VIPs, v.Addr) {
			n = min(n, m.Size)
		}
	}
	return n
}
