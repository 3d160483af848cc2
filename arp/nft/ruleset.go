package nft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Ruleset is what nftables does with packets of IPv4 and IPv6, whoever made the rules: iptables too, where it is the
// one that writes them here (iptables-nft). rsagent's own tables are not in it.
type Ruleset struct {
	chains   []placed
	index    map[place]int // of chains
	sets     []placedSet
	elements func(s placedSet) ([]Element, error)
}

// A place is where a chain, a set or a table is; a table's has no name.
type place struct {
	family      Family
	table, name string
}

// A placed chain is one with the table it is in.
type placed struct {
	Chain
	family Family
	table  string
	owned  bool // by a process, which alone may write to it
}

type placedSet struct {
	Set
	family Family
	table  string
}

const (
	setElemKeyEnd = 10         // NFTA_SET_ELEM_KEY_END
	setElemExprs  = 11         // NFTA_SET_ELEM_EXPRESSIONS
	hedged        = 1 << 30    // an element that is found only now and then; no flag of the kernel's
	ranged        = 1 << 31    // an element with KEY_END; no flag of the kernel's
	intervalEnd   = 1          // NFT_SET_ELEM_INTERVAL_END
	catchAll      = 2          // NFT_SET_ELEM_CATCHALL
	intervals     = 4          // NFT_SET_INTERVAL
	verdicts      = 0xffffff00 // NFT_DATA_VERDICT, the type of a verdict map's values
	owner         = 2          // NFT_TABLE_F_OWNER
)

// Ruleset reads the rules. Sets are read when a packet is judged by them, so c has to stay open as long.
func (c *Conn) Ruleset() (*Ruleset, error) {
	for try := 0; ; try++ {
		rs, err := c.ruleset()
		switch {
		case errors.Is(err, ErrUnsupported), errors.Is(err, unix.EINVAL): // without nf_tables the question itself is invalid
			return &Ruleset{}, nil
		case errors.Is(err, errChanged) && try < retries:
			continue
		case err != nil:
			return nil, fmt.Errorf("read the rules of nftables: %w", err)
		}
		return rs, nil
	}
}

func (c *Conn) ruleset() (*Ruleset, error) {
	r, rs, flags := &reader{Conn: c}, &Ruleset{index: map[place]int{}}, map[place]uint32{}
	seen := func(table string) bool { // what sleeps does nothing, and what is rsagent's has its own tests
		f, ok := flags[place{r.of, table, ""}]
		return ok && f&dormant == 0
	}
	err := r.ask(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, 0, "", 0, func(b []byte) {
		name, f := "", uint32(0)
		each(b, func(typ uint16, v []byte) {
			switch typ {
			case unix.NFTA_TABLE_NAME:
				name = cString(v)
			case unix.NFTA_TABLE_FLAGS:
				f = number32(v)
			}
		})
		if name != Own && (r.of == Inet || r.of == IP || r.of == IP6) {
			flags[place{r.of, name, ""}] = f
		}
	})
	if err == nil && len(flags) > 0 {
		err = r.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, 0, "", 0, func(b []byte) {
			if ch, table := decodeChain(b); seen(table) {
				rs.index[place{r.of, table, ch.Name}] = len(rs.chains)
				rs.chains = append(rs.chains, placed{ch, r.of, table, flags[place{r.of, table, ""}]&owner != 0})
			}
		})
	}
	if err == nil && len(flags) > 0 {
		err = r.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, 0, "", 0, func(b []byte) {
			rule, table, chain := decodeRule(b)
			if i, ok := rs.index[place{r.of, table, chain}]; ok {
				rs.chains[i].Rules = append(rs.chains[i].Rules, rule)
			}
		})
	}
	if err == nil && len(flags) > 0 {
		err = r.ask(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, 0, "", 0, func(b []byte) {
			if s, table := decodeSet(b), setTable(b); seen(table) {
				rs.sets = append(rs.sets, placedSet{s, r.of, table})
			}
		})
	}
	read := map[place][]Element{}
	rs.elements = func(s placedSet) (out []Element, err error) {
		k := place{s.family, s.table, s.Name}
		if out, ok := read[k]; ok {
			return out, nil
		}
		one := &reader{Conn: c, family: s.family, table: s.table}
		err = one.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFTA_SET_ELEM_LIST_TABLE, s.Name, unix.NFTA_SET_ELEM_LIST_SET,
			func(b []byte) { out = append(out, decodeElements(b)...) })
		read[k] = out
		return out, err
	}
	return rs, err
}

func setTable(b []byte) (table string) {
	each(b, func(typ uint16, v []byte) {
		if typ == unix.NFTA_SET_TABLE {
			table = cString(v)
		}
	})
	return table
}

// nat is the type of chains that conntrack has new connections come by. Whatever their priorities say, which are for the order
// among them, all of a hook have one place (net/netfilter/nf_nat_proto.c).
const nat = "nat"

var natPriority = map[uint32]int32{unix.NF_INET_PRE_ROUTING: -100, unix.NF_INET_LOCAL_IN: 100} // NF_IP_PRI_NAT_DST, NF_IP_PRI_NAT_SRC

// bases are the chains that packets of a family come by at a hook, in the order of their priorities. Of two that have the same,
// the one that came later is the first (net/netfilter/core.c, nf_hook_entries_grow). The kernel lists them by table: which
// came later is certain in one table alone, and swapped has the tables the other way round.
func (rs *Ruleset) bases(f Family, hook uint32, swapped bool) (out []*placed) {
	table := map[place]int{}
	for i := range rs.chains {
		c := &rs.chains[i]
		at := place{c.family, c.table, ""}
		if _, known := table[at]; !known {
			table[at] = len(table)
		}
		if c.kind != "" && c.Hook == hook && (c.family == f || c.family == Inet) {
			out = append(out, c)
		}
	}
	slices.Reverse(out)
	slices.SortStableFunc(out, func(a, b *placed) int {
		first := func(c *placed) int32 {
			if c.kind == nat {
				return natPriority[hook]
			}
			return c.Priority
		}
		later := 0
		if swapped {
			later = cmp.Compare(table[place{a.family, a.table, ""}], table[place{b.family, b.table, ""}])
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Priority, b.Priority), later)
	})
	return out
}

// asking are what has the kernel track connections, as an expression of nftables, or as a match or target of iptables.
var asking = []string{"ct", "nat", "masq", "redir", "connlimit", "synproxy", "conntrack", "state", "connmark", "connbytes", "helper",
	"CT", "DNAT", "SNAT", "REDIRECT", "MASQUERADE", "NETMAP", "CONNMARK", "CONNSECMARK", "SYNPROXY"}

// conntrack says that a rule has the kernel track connections of an IP version. Without, no chain of type nat is come by.
func (rs *Ruleset) conntrack(f Family) bool {
	return slices.ContainsFunc(rs.chains, func(c placed) bool {
		return (c.family == f || c.family == Inet) && slices.ContainsFunc(c.Rules, func(r Rule) bool {
			return slices.ContainsFunc(r.Exprs, func(e Expr) bool {
				name := strings.TrimSuffix(e.Name, otherKind)
				return slices.Contains(asking, name) || (name == "match" || name == "target") && slices.Contains(asking, e.data[1])
			})
		})
	})
}

// find is a chain of the same table; nil is none.
func (rs *Ruleset) find(of *placed, name string) *placed {
	if i, ok := rs.index[place{of.family, of.table, name}]; ok {
		return &rs.chains[i]
	}
	return nil
}

// Empty says that no packet comes by any rule.
func (rs *Ruleset) Empty() bool { return len(rs.chains) == 0 }
