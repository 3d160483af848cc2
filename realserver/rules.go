package realserver

import (
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

// adopt takes over a guard that silences and that nobody's journal knows: it was lost, and a verb that leaves
// nothing managed takes the table away, but for what rests on it.
func (j *Journal) adopt(h *Host) {
	it := arp.GuardTable{}
	known := slices.ContainsFunc(j.Changed, func(e Entry) bool { return e.Item == it })
	if _, ok := arp.ParseGuard(h.value(it)); ok && len(j.VIPs) == 0 && !known {
		j.Changed = append(slices.Clip(j.Changed), Entry{Item: it, Wrote: []string{rules}})
	}
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
