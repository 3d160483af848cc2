package realserver

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
)

// hushed says that a VIP is guarded by nftables.
func (v VIP) hushed() bool { return v.Guard == GuardNFT && v.Addr.Is4() }

// nftGuard silences by nftables the VIPs that ask for it. What no VIP needs any more leaves the table
// only when a look has shown all else to hold, as any guard that is put back.
func (p *policy) nftGuard() {
	nics := p.host.onNICs()
	var want arp.Guard
	for _, v := range p.set {
		if v.hushed() {
			want.VIPs = append(want.VIPs, v.Addr)
			p.mayHush(v, strings.Join(nics[v.Addr], ", "))
		}
	}
	for _, l := range p.host.Links {
		switch own := p.host.senders(l.Name, p.set); {
		case !l.Speaks():
		case l.MAC != arp.MAC: // down too: it may go up at any time
			p.refuse(VIP.hushed, "arp-hardware", l.Name, fmt.Sprintf("%s takes ARP with hardware addresses of %d bytes, and the rules of --arp-guard nft hold for %d only", l.Name, l.MAC, arp.MAC), "take --arp-guard all")
		case len(own) > 0:
			want.Senders = append(want.Senders, own...)
		case l.Up:
			p.refuse(VIP.hushed, "no-address", l.Name, l.Name+" has no IPv4 address of its own to ask with in a VIP's place, as --arp-guard nft needs", "take --arp-guard all")
		}
	}
	sort.SliceStable(want.Senders, func(i, j int) bool { return want.Senders[i].Interface < want.Senders[j].Interface })

	it := arp.GuardTable{}
	now := p.host.value(it)
	if p.foreign(it, VIP.hushed) {
		return
	}
	if kept := p.host.resting(p.set, p.leaving); len(kept) > 0 {
		p.finds = append(p.finds, restsOn(kept))
		want.VIPs = append(want.VIPs, kept...)
		slices.SortFunc(want.VIPs, netip.Addr.Compare)
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

// senders are the addresses that an interface asks with in a VIP's place: of each of its subnets one, where
// it has several, and one for all else, as with arp_announce 2 (net/ipv4/devinet.c, inet_select_addr). One that
// may move away, as keepalived's do (without a subnet, or secondary), is taken only where there is no other.
func (h *Host) senders(name string, vips Set) (out []arp.Sender) {
	var own []loopback.Held
	for _, a := range h.Addrs {
		if ip := a.Prefix.Addr(); a.Device == name && ip.Is4() && a.Scope != "host" && !vips.has(ip) {
			own = append(own, a)
		}
	}
	rank := func(a loopback.Held) (n int) {
		if a.Bare() {
			n += 4
		}
		if a.Secondary {
			n += 2
		}
		if a.Prefix.Addr() != h.Source {
			n++
		}
		return n
	}
	sort.SliceStable(own, func(i, j int) bool { return rank(own[i]) < rank(own[j]) })
	if len(own) == 0 {
		return nil
	}
	for _, a := range own {
		subnet := a.Subnet()
		if !a.Bare() && !slices.ContainsFunc(out, func(s arp.Sender) bool { return s.Subnet == subnet }) {
			out = append(out, arp.Sender{Interface: name, Addr: a.Prefix.Addr(), Subnet: subnet})
		}
	}
	if len(out) == 1 {
		out = nil
	}
	sort.Slice(out, func(i, j int) bool { // the narrower first, as routes go
		a, b := out[i].Subnet, out[j].Subnet
		return cmp.Or(b.Bits()-a.Bits(), a.Addr().Compare(b.Addr())) < 0
	})
	return append(out, arp.Sender{Interface: name, Addr: own[0].Prefix.Addr()})
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

// resting are the addresses that the table found silences, that are bound where a VIP may sit, and that are neither
// of the set nor leaving it: without the table the host might answer for them.
func (h *Host) resting(s Set, leaving []netip.Addr) (out []netip.Addr) {
	g, _ := arp.ParseGuard(h.value(arp.GuardTable{}))
	bound := onHost(fromAddrs(g.VIPs), h)
	for i, a := range g.VIPs {
		if bound[i] && !s.has(a) && !slices.Contains(leaving, a) {
			out = append(out, a)
		}
	}
	return out
}

func restsOn(vips []netip.Addr) Finding {
	var words []string
	for _, a := range vips {
		words = append(words, a.String())
	}
	return Finding{Level: Warning, Code: "unmanaged-guard", Subject: arp.GuardTable{}.String(),
		Message: fmt.Sprintf("%s goes on silencing %s, bound here and not managed", arp.GuardTable{}, strings.Join(words, ", ")),
		Cure:    "rsagent start --arp-guard nft --vip " + strings.Join(words, ",") + ", or stop"}
}
