package realserver

import (
	"fmt"
	"net/netip"
	"slices"

	"rsagent/arp"
	"rsagent/arp/nft"
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

// claim notes that the tables the set needs are rsagent's, before it makes them, or where it finds them
// made: stopped means absent.
func (j *Journal) claim(h *Host) {
	for _, it := range j.VIPs.tables() {
		known := slices.ContainsFunc(j.Changed, func(e Entry) bool { return e.Item == it })
		if !known && h.value(it) != nft.Foreign {
			j.Changed = append(slices.Clip(j.Changed), Entry{Item: it, Wrote: []string{rules}})
		}
	}
}

// adopt takes over a table of rsagent's that nobody's journal knows: it was lost, and a verb that leaves nothing
// managed takes the table away, but for what rests on it.
func (j *Journal) adopt(h *Host) {
	if len(j.VIPs) > 0 {
		return
	}
	for _, it := range h.orphans(j) {
		if it != (tunnel.RulesTable{}) || len(h.unmanaged(j)) == 0 {
			j.Changed = append(slices.Clip(j.Changed), Entry{Item: it, Wrote: []string{rules}})
		}
	}
}

// orphans are rsagent's tables that the journal knows nothing of, and that no VIP managed needs.
func (h *Host) orphans(j *Journal) (out []Item) {
	needed := j.VIPs.tables()
	for _, it := range []Item{arp.GuardTable{}, tunnel.RulesTable{}} {
		known := slices.ContainsFunc(j.Changed, func(e Entry) bool { return e.Item == it })
		if value := h.value(it); value != "" && value != nft.Foreign && !known && !slices.Contains(needed, it) {
			out = append(out, it)
		}
	}
	return out
}

// unmanaged are the addresses that may be VIPs, and are neither of the set nor leaving it: the rules may be theirs.
func (h *Host) unmanaged(j *Journal) (out []netip.Addr) {
	holders := h.holders()
	for _, a := range h.Addrs {
		ip := a.Prefix.Addr()
		if holders[a.Device] && a.Bare() && !ip.IsLoopback() && !h.compat(a) && !j.VIPs.has(ip) && !slices.Contains(j.Leaving, ip) {
			out = append(out, ip)
		}
	}
	return out
}

// orphaned tells of tables that no VIP managed needs, and of what rests on them.
func orphaned(j *Journal, h *Host) (out []Finding) {
	for _, it := range h.orphans(j) {
		f := Finding{Level: Warning, Code: "orphaned-rules", Subject: it.String(), Cure: "nft delete " + it.String(),
			Message: it.String() + " decides what comes out of tunnels here, and no VIP that is managed needs it"}
		if it == (arp.GuardTable{}) {
			g, _ := arp.ParseGuard(h.value(it))
			f.Code, f.Message = "orphaned-guard", fmt.Sprintf("%s silences this host (%s), and no VIP that is managed needs it", it, g)
			if kept := h.resting(j.VIPs, j.Leaving); len(kept) > 0 {
				f = restsOn(kept)
			}
		}
		out = append(out, f)
	}
	return out
}

// foreign finds a table of rsagent's name that somebody else made.
func (p *policy) foreign(it Item, about func(VIP) bool) bool {
	if p.host.value(it) != nft.Foreign || p.made(it) {
		return false
	}
	p.refuse(about, "foreign-table", it.String(), it.String()+" is there, and is not as rsagent makes it", "nft delete "+it.String()+", or rename it")
	return true
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
