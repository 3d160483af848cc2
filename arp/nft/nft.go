// Package nft writes, reads and deletes whole nftables tables: the few that rsagent makes.
//
// A table is plain data. It is written in one transaction that replaces whatever stood under its name,
// so there is no moment at which half of it holds, and read back in full, so that what the kernel has
// can be compared with what was meant. Of nftables' expressions only those are known that rsagent's own
// rules are made of; a table with others is read, and equals none of rsagent's. Ruleset reads what others made, as far as
// it takes to tell whether a packet is dropped.
//
// See include/uapi/linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c.
package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// A Family is what kind of packets a table sees.
type Family uint8

// The families of rsagent's tables, by the kernel's numbers (include/uapi/linux/netfilter.h).
const (
	Inet Family = 1 // IPv4 and IPv6
	IP   Family = 2
	ARP  Family = 3
	IP6  Family = 10
)

func (f Family) String() string {
	switch f {
	case ARP:
		return "arp"
	case IP:
		return "ip"
	case IP6:
		return "ip6"
	}
	return "inet"
}

// Own is the name of rsagent's tables, and Foreign the value of one that has the name and other rules.
const (
	Own     = "rsagent"
	Foreign = "other rules"
)

// Command is how an operator would have nft(8) take a script.
func Command(script string) string { return "nft '" + strings.ReplaceAll(script, "'", `'\''`) + "'" }

// NoWords is a command that fails, as nft(8) has no words for what is wanted: who runs it with the rest must not
// bind a VIP unguarded.
func NoWords(what string) string { return "false # nft has no words for " + strconv.Quote(what) }

// Where a chain hooks in. ARP has numbers of its own (include/uapi/linux/netfilter_arp.h).
const (
	ARPInput        = 0
	ARPOutput       = 1
	InetInput       = 1
	InetPostrouting = 4
)

// A Table is one table with all that is in it.
type Table struct {
	Family  Family
	Name    string
	Dormant bool // it is there and does nothing
	Sets    []Set
	Chains  []Chain
}

// A Set holds keys of one type; where Values has a type, it is a map, and each key has a value.
type Set struct {
	Name     string
	Keys     Type
	Values   Type // the zero Type: a set
	Flags    uint32
	Elements []Element
}

// An Element is a key, and in a map its value, as the kernel has them in a register.
type Element struct {
	Key, Value string
	flags      uint32
}

// A Type is a kind of key: nft(8)'s name and number of it, and its length in bytes.
type Type struct {
	name   string
	number uint32
	size   uint32
}

// The types of rsagent's sets (nft's include/datatype.h).
var (
	IPv4   = Type{"ipv4_addr", 7, 4}
	IPv6   = Type{"ipv6_addr", 8, 16}
	IfName = Type{"ifname", 41, 16}
)

// A Chain is a base chain of type filter with policy accept.
type Chain struct {
	Name     string
	Hook     uint32
	Priority int32
	Other    bool // of another type or policy, or none that packets come by
	Rules    []Rule
	kind     string // its type; "" is none that packets come by
	policy   uint32
}

// A Rule is what is done, in order. Text says the same in nft's words; a rule that was read has none.
type Rule struct {
	Text   string
	Exprs  []Expr
	Handle uint64 // that the kernel gave it
}

// Addrs makes elements of addresses.
func Addrs(addrs []netip.Addr) (out []Element) {
	for _, a := range addrs {
		out = append(out, Element{Key: string(a.AsSlice())})
	}
	return out
}

// Addr is an address of four or sixteen bytes; the zero Addr where they are none.
func Addr(b string) netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(b))
	return a
}

// Name makes a key of an interface's name, and back.
func Name(iface string) string {
	return iface + strings.Repeat("\x00", max(0, int(IfName.size)-len(iface)))
}

// Interface is the name in a key of type IfName.
func Interface(key string) string { return strings.TrimRight(key, "\x00") }

// sorted brings what has no order of its own into one, so that equal tables are equal.
func (t Table) sorted() Table {
	t.Sets, t.Chains = slices.Clone(t.Sets), slices.Clone(t.Chains)
	sort.Slice(t.Sets, func(i, j int) bool { return t.Sets[i].Name < t.Sets[j].Name })
	sort.Slice(t.Chains, func(i, j int) bool { return t.Chains[i].Name < t.Chains[j].Name })
	for i, s := range t.Sets {
		s.Elements = slices.Clone(s.Elements)
		slices.SortFunc(s.Elements, func(a, b Element) int {
			return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
		})
		t.Sets[i].Elements = slices.Compact(s.Elements)
	}
	return t
}

// Equal says that two tables do the same in the same way.
func (t Table) Equal(u Table) bool {
	t, u = t.sorted(), u.sorted()
	return t.Family == u.Family && t.Name == u.Name && t.Dormant == u.Dormant &&
		slices.EqualFunc(t.Sets, u.Sets, func(a, b Set) bool {
			return a.Name == b.Name && a.Keys.number == b.Keys.number && a.Values.number == b.Values.number &&
				a.flags() == b.flags() && slices.Equal(a.Elements, b.Elements)
		}) &&
		slices.EqualFunc(t.Chains, u.Chains, func(a, b Chain) bool {
			return a.Name == b.Name && a.Hook == b.Hook && a.Priority == b.Priority && a.Other == b.Other &&
				slices.EqualFunc(a.Rules, b.Rules, func(a, b Rule) bool { return slices.Equal(a.Exprs, b.Exprs) })
		})
}

func (s Set) flags() uint32 {
	if s.Values.size > 0 {
		return s.Flags | setMap
	}
	return s.Flags
}

// Set is the set with this name; the zero Set where there is none.
func (t Table) Set(name string) Set {
	for _, s := range t.Sets {
		if s.Name == name {
			return s
		}
	}
	return Set{}
}

// Delete is what nft(8) takes to delete a table.
func Delete(f Family, name string) string { return fmt.Sprintf("delete table %s %s", f, name) }

// Script is what nft(8) takes to have this table in place of any of its name, on one line.
func (t Table) Script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s; %s; table %s %s {", t.Family, t.Name, Delete(t.Family, t.Name), t.Family, t.Name)
	for _, s := range t.Sets {
		kind, typ := "set", s.Keys.name
		if s.Values.size > 0 {
			kind, typ = "map", typ+" : "+s.Values.name
		}
		fmt.Fprintf(&b, " %s %s { type %s;", kind, s.Name, typ)
		var words []string
		for _, e := range s.Elements {
			word := s.Keys.Text(e.Key)
			if s.Values.size > 0 {
				word += " : " + s.Values.Text(e.Value)
			}
			words = append(words, word)
		}
		if len(words) > 0 {
			fmt.Fprintf(&b, " elements = { %s };", strings.Join(words, ", "))
		}
		b.WriteString(" };")
	}
	for _, c := range t.Chains {
		fmt.Fprintf(&b, " chain %s { type filter hook %s priority %d;", c.Name, c.hook(t.Family), c.Priority)
		for _, r := range c.Rules {
			b.WriteString(" " + r.Text + ";")
		}
		b.WriteString(" };")
	}
	return b.String() + " }"
}

func (c Chain) hook(f Family) string {
	switch {
	case f == ARP && c.Hook == ARPOutput:
		return "output"
	case f == Inet && c.Hook == InetPostrouting:
		return "postrouting"
	}
	return "input"
}

// Text writes a key as nft(8) does.
func (t Type) Text(key string) string {
	if t == IfName {
		return quote(Interface(key))
	}
	return Addr(key).String()
}

// Writable says that nft(8) has a way to write an interface's name.
func Writable(name string) bool {
	return !strings.Contains(name, `"`) && !(strings.HasSuffix(name, "*") && strings.Contains(name, `\`))
}

// quote writes an interface's name for nft(8). An asterisk at its end would be a wildcard; where there is one,
// nft(8) takes every backslash for an escape.
func quote(name string) string {
	if n, found := strings.CutSuffix(name, "*"); found {
		name = n + `\*`
	}
	return `"` + name + `"`
}
