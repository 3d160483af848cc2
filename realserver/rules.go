package realserver

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/arp/nft"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// isTable says that an item is one of rsagent's nftables tables, which carry its name. From when a set
// needs one until the host is seen to be without, the journal has an entry for it: then it is rsagent's,
// whatever others do to it. One that the journal knows nothing of, and that is not made as rsagent makes
// it, is somebody else's.
func isTable(it Item) bool {
	return it == arp.GuardTable{} || it == tunnel.RulesTable{}
}

// rules is what the journal has for a table that rsagent wrote.
const rules = "rules"

// tables lists the tables that a set needs.
func (s Set) tables() (out []Item) {
	hushed, ruled := false, false
	for i := range s {
		v := &s[i] // a VIP is large, and most sets need none
		hushed = hushed || v.Guard == GuardNFT && v.hushed()
		ruled = ruled || v.Mode == TUN && v.ruled()
	}
	if hushed {
		out = append(out, arp.GuardTable{})
	}
	if ruled {
		out = append(out, tunnel.RulesTable{})
	}
	return out
}

// hushed says that a VIP is guarded by nftables.
func (v VIP) hushed() bool { return v.Guard == GuardNFT && v.Addr.Is4() }

// ruled says that nftables has something to do for a VIP in TUN mode.
func (v VIP) ruled() bool { return v.MSS != "" || len(v.Directors) > 0 }

// claim notes that the tables the set needs are rsagent's, before it makes them, or where it finds them
// made: stopped means absent.
func (j *Journal) claim(h *Host) {
	for _, it := range j.VIPs.tables() {
		known := slices.ContainsFunc(j.Changed, func(e Entry) bool { return e.Item == it })
		if !known && h.value(it) != arp.Foreign {
			j.Changed = append(slices.Clip(j.Changed), Entry{Item: it, Wrote: []string{rules}})
		}
	}
}

// nftGuard silences by nftables the VIPs that ask for it. What no VIP needs any more leaves the table
// only when a look has shown all else to hold, as any guard that is put back.
func (p *policy) nftGuard() {
	nics, holders := map[netip.Addr]string{}, p.host.holders()
	for _, a := range p.host.Addrs {
		if !holders[a.Device] {
			nics[a.Prefix.Addr()] = a.Device
		}
	}
	var want arp.Guard
	for _, v := range p.set {
		if v.hushed() {
			want.VIPs = append(want.VIPs, v.Addr)
			p.mayHush(v, nics[v.Addr])
		}
	}
	for _, l := range p.host.Links {
		switch own := p.host.own(l.Name, p.set); {
		case !l.Speaks():
		case own.IsValid():
			want.Senders = append(want.Senders, arp.Sender{Interface: l.Name, Addr: own})
		case l.Up:
			p.refuse(VIP.hushed, "no-address", l.Name, l.Name+" has no IPv4 address of its own to ask with in a VIP's place, as --arp-guard nft needs", "take --arp-guard all")
		}
	}
	slices.SortFunc(want.Senders, func(a, b arp.Sender) int { return strings.Compare(a.Interface, b.Interface) })

	it := arp.GuardTable{}
	now := p.host.value(it)
	if p.foreign(it, VIP.hushed) {
		return
	}
	stage, why := Guard, "drop ARP requests for the VIP, and never send one with the VIP as its sender"
	if old, ok := arp.ParseGuard(now); ok {
		wider := want
		wider.VIPs = slices.Concat(want.VIPs, old.VIPs)
		slices.SortFunc(wider.VIPs, netip.Addr.Compare)
		wider.VIPs = slices.Compact(wider.VIPs)
		if wider.String() == now {
			stage, why = PutBack, "no VIP needs more"
		} else {
			want = wider
		}
	}
	p.need(stage, it, want.String(), why).about = VIP.hushed
}

// foreign finds a table of rsagent's name that somebody else made.
func (p *policy) foreign(it Item, about func(VIP) bool) bool {
	if p.host.value(it) != arp.Foreign || p.made(it) {
		return false
	}
	p.refuse(about, "foreign-table", it.String(), it.String()+" is there, and is not as rsagent makes it", "nft delete "+it.String()+", or rename it")
	return true
}

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
		if fits < tunnel.LeastMSS {
			p.refuse(func(o VIP) bool { return o.MSS == AutoMSS }, "no-uplink", v.Addr.String(), "there is no uplink to tell the segment size by", "take --mss N")
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

// mayHush finds where this host is to answer for a VIP after all: the nft guard silences each interface.
func (p *policy) mayHush(v VIP, nic string) {
	about := func(o VIP) bool { return o.Addr == v.Addr && o.hushed() }
	if nic != "" {
		p.refuse(about, "nft-on-nic", v.Addr.String(), fmt.Sprintf("VIP %s is on %s, which --arp-guard nft would silence too", v.Addr, nic), "take --arp-guard all")
	}
	if p.host.Directs[v.Addr] {
		p.refuse(about, "nft-director", v.Addr.String(), fmt.Sprintf("this host directs %s (it is in its IPVS table), and --arp-guard nft would silence it", v.Addr), "take --arp-guard all")
	}
}

// unhushed says that some VIP that is to be guarded by nftables is not, and not by settings either.
func (h *Host) unhushed(s Set) bool {
	g, _ := arp.ParseGuard(h.value(arp.GuardTable{}))
	if !slices.ContainsFunc(s, func(v VIP) bool { return v.hushed() && !g.Drops(v.Addr) }) {
		return false
	}
	return slices.ContainsFunc(h.silence(s), func(g Silence) bool { return g.Interface != sysctl.All && g.Rules == "" && !g.Good })
}

// hush tells of the nft guard, where a set asks for it.
func (h *Host) hush(s Set) (out []Silence) {
	if h.Tables == nil || !slices.ContainsFunc(s, VIP.hushed) {
		return nil
	}
	it, good := arp.GuardTable{}, true
	value := h.value(it)
	g, _ := arp.ParseGuard(value)
	for _, v := range s {
		good = good && (!v.hushed() || g.Drops(v.Addr))
	}
	why := "it drops what asks for the VIPs, and sends no request with one as its sender"
	if !good {
		why = "it does not drop what asks for each VIP that rests on it"
	}
	return []Silence{{Interface: it.String(), Rules: orAbsent(value), Good: good, Asked: true, Why: why}}
}

// own is the first IPv4 address of an interface that is no VIP; the zero Addr is none.
func (h *Host) own(name string, vips Set) netip.Addr {
	for _, a := range h.Addrs {
		if ip := a.Prefix.Addr(); a.Device == name && ip.Is4() && a.Scope != "host" && !vips.has(ip) {
			return ip
		}
	}
	return netip.Addr{}
}

// readTables reads the tables that rsagent may have made. The kernel shows them to CAP_NET_ADMIN only.
func (h *Host) readTables() error {
	h.Tables = map[Item]string{}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	if h.Tables[arp.GuardTable{}], err = arp.ReadGuard(c); err != nil {
		return err
	}
	h.Tables[tunnel.RulesTable{}], err = tunnel.ReadRules(c)
	return err
}

// setTable brings a table to a value.
func setTable(it Item, value string) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	if it == (tunnel.RulesTable{}) {
		return tunnel.SetRules(c, value)
	}
	return arp.SetGuard(c, value)
}

// directs are the addresses that this host's own IPVS table is about; none where it has no IPVS.
func directs() map[netip.Addr]bool {
	b, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if err != nil {
		return nil
	}
	return parseIPVS(string(b))
}

// parseIPVS reads /proc/net/ip_vs: "TCP  C0000264:0050 rr", "TCP  [2001:0db8:0000:…]:0050 rr"; a service
// by firewall mark names no address. See net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_show.
func parseIPVS(s string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for line := range strings.Lines(s) {
		words := strings.Fields(line)
		if len(words) < 2 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, words[0]) {
			continue
		}
		host := words[1][:max(0, strings.LastIndex(words[1], ":"))]
		if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			out[a] = true
		} else if n, err := strconv.ParseUint(host, 16, 32); err == nil && len(host) == 8 {
			out[netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})] = true
		}
	}
	return out
}
