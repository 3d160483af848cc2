package realserver

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
)

// inPlace is which VIPs of a set, by index, are where they are to sit, as they are to be.
func inPlace(s Set, h *Host) []bool {
	bound := make([]bool, len(s))
	for _, a := range h.Addrs {
		if i := s.find(a.Prefix.Addr()); i >= 0 && a.Addr == s[i].addr() {
			bound[i] = true
		}
	}
	return bound
}

// onHost is which VIPs of a set, by index, are on an interface that may hold one.
func onHost(s Set, h *Host) []bool {
	holders, found := h.holders(), make([]bool, len(s))
	for _, a := range h.Addrs {
		if i := s.find(a.Prefix.Addr()); i >= 0 && holders[a.Device] {
			found[i] = true
		}
	}
	return found
}

// ownAddresses finds VIPs that enter the set and cannot be VIPs: what this host is known by (the source
// that the kernel picks for the default route, or the only global address of a NIC), its gateway, and
// the addresses that stand for a NIC's whole subnet. Typed on the wrong host, they would cut it off.
func ownAddresses(entering Set, h *Host) (finds []Finding) {
	if len(entering) == 0 {
		return nil
	}
	holders, count := h.holders(), map[nicFamily]int{}
	for _, a := range h.Addrs {
		if a.Scope == "global" && !holders[a.Device] {
			count[familyOf(a)]++
		}
	}
	refuse := func(v VIP, code, format string, args ...any) {
		finds = append(finds, Finding{Level: Error, Code: code, Subject: v.Addr.String(), Message: v.Addr.String() + " is " + fmt.Sprintf(format, args...),
			about: func(o VIP) bool { return o.Addr == v.Addr }})
	}
	for _, v := range entering {
		if v.Addr == h.Gateway {
			refuse(v, "gateway", "the gateway of this host's default route, not a VIP")
		}
		own := ""
		if v.Addr == h.Source {
			own = "the source of its default route"
		}
		for _, a := range h.Addrs {
			switch ip := a.Prefix.Addr(); {
			case holders[a.Device]:
			case ip == v.Addr && a.Scope == "global" && count[familyOf(a)] == 1:
				own = "the only one on " + a.Device
			case ip == v.Addr && own != "":
				own += ", on " + a.Device
			case ip.Is4() && ip != v.Addr && (v.Addr == a.Prefix.Masked().Addr() || v.Addr == broadcast(a.Prefix)) && a.Prefix.Bits() < 31:
				refuse(v, "subnet", "no host's address in %s, the subnet of %s", a.Prefix.Masked(), a.Device)
			}
		}
		if own != "" && !v.AllowDirector {
			refuse(v, "own-address", "this host's own address, %s, not a VIP (--allow-director if it is both)", own)
		}
	}
	return finds
}

// A nicFamily is a NIC, and whether IPv6 addresses are meant.
type nicFamily struct {
	nic  string
	ipv6 bool
}

func familyOf(a loopback.Held) nicFamily { return nicFamily{a.Device, a.Prefix.Addr().Is6()} }

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | uint32(1<<(32-p.Bits())-1)
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// opening is what the first look tells, before anything is changed.
func opening(j *Journal, h *Host, p []Change, stale bool) (finds []Finding) {
	if stale {
		finds = append(finds, Finding{Level: Info, Code: "journal-stale", Subject: "journal", Message: "the journal is of an earlier boot and was dropped: nothing it names exists any more"})
	}
	if len(j.Leaving) > 0 && h.Forwards {
		leaving := onHost(fromAddrs(j.Leaving), h)
		for i, a := range j.Leaving {
			if leaving[i] && !slices.Contains(j.Blackholes, a) {
				finds = append(finds, Finding{Level: Warning, Code: "forwards", Subject: a.String(),
					Message: "this host forwards: packets that the director still sends for " + a.String() + " go back to it, round and round",
					Cure:    "take this real server out of the director's table first, or: rsagent stop --blackhole"})
			}
		}
	}
	if leaks(j, h, p) {
		bound := onHost(j.VIPs, h)
		table, _ := arp.ParseGuard(h.value(arp.GuardTable{}))
		for i, v := range j.VIPs {
			if bound[i] && v.Addr.Is4() && !table.Drops(v.Addr) {
				finds = append(finds, Finding{Level: Warning, Code: "was-answering", Subject: v.Addr.String(),
					Message: fmt.Sprintf("VIP %s was bound while this host answered ARP for it, or asked as it: neighbours may have cached its MAC address", v.Addr),
					Cure:    "on the director: arping -U -I NIC " + v.Addr.String()})
			}
		}
	}
	return append(finds, muted(j, h, p)...)
}

// muted finds addresses that are no VIPs, and for which the host will answer no more either: arp_ignore 1 makes no
// difference between them.
func muted(j *Journal, h *Host, p []Change) (finds []Finding) {
	if !slices.ContainsFunc(p, func(c Change) bool {
		return c.Stage == Guard && c.Item == (sysctl.Key{Iface: sysctl.All, Knob: sysctl.ARPIgnore})
	}) {
		return nil
	}
	holders := h.holders()
	for _, a := range h.Addrs {
		ip := a.Prefix.Addr()
		if holders[a.Device] && ip.Is4() && !ip.IsLoopback() && !j.VIPs.has(ip) && !slices.Contains(j.Leaving, ip) {
			finds = append(finds, Finding{Level: Info, Code: "muted", Subject: ip.String(),
				Message: fmt.Sprintf("%s on %s is no VIP, and this host will answer ARP for it no more either", ip, a.Device),
				Cure:    "where neighbours ask for it: --arp-guard nft, which silences the VIPs only"})
		}
	}
	return finds
}

// leaks says that a plan has to mend what silences the host, and that the host is not silent as it is:
// a guard that only changes its form was one all the while.
func leaks(j *Journal, h *Host, p []Change) bool {
	rules := map[string]sysctl.Rule{}
	for _, r := range arp.Rules((&policy{set: j.VIPs, host: h}).scopeHost()) {
		rules[r.Knob] = r
	}
	return slices.ContainsFunc(p, func(c Change) bool {
		if c.Item == (arp.GuardTable{}) && c.Stage == Guard {
			return h.unhushed(j.VIPs)
		}
		key, ok := c.Item.(sysctl.Key)
		rule, isARP := rules[key.Knob]
		if !ok || !isARP || c.Stage != Guard || c.unjudged {
			return false
		}
		ifaces := []string{key.Iface}
		if key.Iface == sysctl.All {
			ifaces = h.speakers()
		}
		return slices.ContainsFunc(ifaces, func(i string) bool { return !rule.Good(h.Conf.Effective(i, key.Knob)) })
	})
}

func fromAddrs(addrs []netip.Addr) (s Set) {
	for _, a := range addrs {
		s = append(s, VIP{Addr: a})
	}
	return s
}
