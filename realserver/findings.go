package realserver

import (
	"fmt"
	"net/netip"
	"slices"
)

// onHost is which VIPs of a set are on an interface that may hold one.
func onHost(s Set, h *Host) map[netip.Addr]bool {
	holders, found := h.holders(), map[netip.Addr]bool{}
	for _, a := range h.Addrs {
		if holders[a.Device] && s.has(a.Prefix.Addr()) {
			found[a.Prefix.Addr()] = true
		}
	}
	return found
}

// ownAddresses finds VIPs that enter the set and are what this host is known by: the source that the
// kernel picks for the default route, or the only global IPv4 address of a NIC. The director's VIP
// typed on the wrong host, and a host that stop would cut off.
func ownAddresses(entering Set, h *Host) (finds []Finding) {
	if len(entering) == 0 {
		return nil
	}
	holders, count := h.holders(), map[string]int{}
	for _, a := range h.Addrs {
		if a.Scope == "global" && a.Prefix.Addr().Is4() && !holders[a.Device] {
			count[a.Device]++
		}
	}
	own := map[netip.Addr]string{}
	for _, a := range h.Addrs {
		if !holders[a.Device] && a.Scope == "global" && a.Prefix.Addr().Is4() && (count[a.Device] == 1 || a.Prefix.Addr() == h.Source) {
			own[a.Prefix.Addr()] = a.Device
		}
	}
	for _, v := range entering {
		if dev, ok := own[v.Addr]; ok && !v.AllowDirector {
			finds = append(finds, Finding{Error, "own-address", v.Addr.String(),
				fmt.Sprintf("%s is this host's own address on %s, not a VIP (--allow-director if it is both)", v.Addr, dev), "rsagent start --vip VIP"})
		}
	}
	return finds
}

// opening is what the first look tells, before anything is changed.
func opening(j *Journal, h *Host, p []Change, stale bool) (finds []Finding) {
	if stale {
		finds = append(finds, Finding{Info, "journal-stale", "journal", "the journal is of an earlier boot and was dropped: nothing it names exists any more", ""})
	}
	if len(j.Leaving) > 0 && h.Forwards {
		leaving := onHost(fromAddrs(j.Leaving), h)
		for _, a := range j.Leaving {
			if leaving[a] && !slices.Contains(j.Blackholes, a) {
				finds = append(finds, Finding{Warning, "forwards", a.String(),
					"this host forwards: packets that the director still sends for " + a.String() + " go back to it, round and round",
					"take this real server out of the director's table first, or: rsagent stop --blackhole"})
			}
		}
	}
	if guards(p) {
		bound := onHost(j.VIPs, h)
		for _, v := range j.VIPs {
			if bound[v.Addr] && v.Addr.Is4() {
				finds = append(finds, Finding{Warning, "was-answering", v.Addr.String(),
					fmt.Sprintf("VIP %s was bound while this host answered ARP for it: neighbours may have cached its MAC address", v.Addr),
					"on the director: arping -U -I NIC " + v.Addr.String()})
			}
		}
	}
	return finds
}

// guards says that a plan has to mend what silences the host.
func guards(p []Change) bool {
	for _, c := range p {
		if c.Stage == Guard && c.device == "" && !c.unjudged {
			return true
		}
	}
	return false
}

func fromAddrs(addrs []netip.Addr) (s Set) {
	for _, a := range addrs {
		s = append(s, VIP{Addr: a})
	}
	return s
}
