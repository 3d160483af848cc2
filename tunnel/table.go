package tunnel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rsagent/arp/nft"
)

// A family is where IPv4 or IPv6 has a packet's source.
type family struct {
	name   string
	number string // as nftables has it: NFPROTO_IPV4, NFPROTO_IPV6
	offset uint32
	size   uint32
	keys   nft.Type
}

var families = map[int]family{
	4: {"ip", "\x02", 12, 4, nft.IPv4},
	6: {"ip6", "\x0a", 8, 16, nft.IPv6},
}

func (f family) is() []nft.Expr {
	return []nft.Expr{nft.Meta(unix.NFT_META_NFPROTO), nft.Equals(f.number)}
}

func (f family) source() nft.Expr { return nft.Load(nft.Network, f.offset, f.size) }

// within ends a rule where the source is not in a prefix, in the form that nft(8) gives it: whole bytes
// are compared as they are, others behind a mask.
func (f family) within(p netip.Prefix) []nft.Expr {
	network := string(p.Masked().Addr().AsSlice())
	if p.Bits()%8 == 0 {
		n := p.Bits() / 8
		return []nft.Expr{nft.Load(nft.Network, f.offset, uint32(n)), nft.Equals(network[:n])}
	}
	mask := make([]byte, f.size)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []nft.Expr{f.source(), nft.And(string(mask)), nft.Equals(network)}
}

// afterNAT is where a packet's source is what the client will see, also that of a container behind DNAT:
// behind NF_IP_PRI_NAT_SRC, 100.
const afterNAT = 150

// table is the rules in nftables' terms.
func (r Rules) table() nft.Table {
	t := nft.Table{Family: nft.Inet, Name: nft.Own}
	if len(r.MSS) > 0 {
		c := nft.Chain{Name: "mss", Hook: nft.InetPostrouting, Priority: afterNAT}
		for _, m := range r.MSS {
			for _, version := range []int{4, 6} {
				set := nft.Set{Name: fmt.Sprintf("mss%d_%d", version, m.Size), Keys: families[version].keys,
					Elements: nft.Addrs(slices.DeleteFunc(slices.Clone(m.VIPs), func(a netip.Addr) bool { return a.Is4() != (version == 4) }))}
				if len(set.Elements) > 0 {
					t.Sets = append(t.Sets, set)
					c.Rules = append(c.Rules, lower(families[version], set.Name, m.Size))
				}
			}
		}
		t.Chains = append(t.Chains, c)
	}
	if len(r.Take) > 0 {
		c := nft.Chain{Name: "directors", Hook: nft.InetInput}
		for _, e := range r.Take {
			for _, p := range e.From {
				c.Rules = append(c.Rules, e.In.rule(&p))
			}
			c.Rules = append(c.Rules, e.In.rule(nil))
		}
		t.Chains = append(t.Chains, c)
	}
	return t
}

// lower has SYN packets name no larger segment size. Those that name a smaller one, or none, are left.
func lower(f family, set string, size int) nft.Rule {
	const flags, syn = 13, "\x02"
	n := string(binary.BigEndian.AppendUint16(nil, uint16(size)))
	return nft.Rule{
		Text: fmt.Sprintf("%s saddr @%s tcp flags & syn == syn tcp option maxseg size > %d tcp option maxseg size set %d", f.name, set, size, size),
		Exprs: append(f.is(), f.source(), nft.In(set),
			nft.Meta(unix.NFT_META_L4PROTO), nft.Equals("\x06"),
			nft.Load(nft.Transport, flags, 1), nft.And(syn), nft.Equals(syn),
			nft.LoadMSS(), nft.Above(n), nft.Value(n), nft.StoreMSS()),
	}
}

// rule accepts what comes in from a director, or drops what comes from anyone.
func (i In) rule(from *netip.Prefix) nft.Rule {
	const destinationPort = 2
	f := families[i.Outer]
	r := nft.Rule{Text: fmt.Sprintf("meta nfproto ipv%d meta l4proto %d", i.Outer, i.Protocol),
		Exprs: append(f.is(), nft.Meta(unix.NFT_META_L4PROTO), nft.Equals(string([]byte{i.Protocol})))}
	if i.Protocol == unix.IPPROTO_UDP {
		r.Text = fmt.Sprintf("meta nfproto ipv%d udp dport %d", i.Outer, i.Port)
		r.Exprs = append(r.Exprs, nft.Load(nft.Transport, destinationPort, 2), nft.Equals(string(binary.BigEndian.AppendUint16(nil, i.Port))))
	}
	if from == nil {
		r.Text, r.Exprs = r.Text+" drop", append(r.Exprs, nft.Drop)
		return r
	}
	r.Text += fmt.Sprintf(" %s saddr %s accept", f.name, short(*from))
	r.Exprs = append(append(r.Exprs, f.within(*from)...), nft.Accept)
	return r
}

// ReadRules is the table's value, as the kernel has it.
func ReadRules(c *nft.Conn) (string, error) {
	t, found, err := c.Read(nft.Inet, nft.Own)
	if err != nil || !found {
		return "", err
	}
	var r Rules
	for _, s := range t.Sets {
		var version, size int
		if n, _ := fmt.Sscanf(s.Name, "mss%d_%d", &version, &size); n < 2 {
			continue
		}
		i := slices.IndexFunc(r.MSS, func(m MSS) bool { return m.Size == size })
		if i < 0 {
			i = len(r.MSS)
			r.MSS = append(r.MSS, MSS{Size: size})
		}
		for _, e := range s.Elements {
			r.MSS[i].VIPs = append(r.MSS[i].VIPs, nft.Addr(e.Key))
		}
	}
	for _, ch := range t.Chains {
		for _, rule := range ch.Rules {
			if in, from, ok := parseRule(rule); ok && ch.Name == "directors" {
				r.Take = take(r.Take, in, from...)
			}
		}
	}
	if r.Sort(); !r.table().Equal(t) {
		return nft.Foreign, nil
	}
	return r.String(), nil
}

// parseRule reads what In.rule made. That there is nothing else to the rule is found out by making it again.
func parseRule(r nft.Rule) (in In, from []netip.Prefix, ok bool) {
	var words []string
	for _, e := range r.Exprs {
		if w := e.Literal(); w != "" {
			words = append(words, w)
		}
	}
	if len(words) < 3 || len(words[1]) != 1 {
		return in, nil, false
	}
	in = In{Outer: 4, Protocol: words[1][0]}
	if words[0] == families[6].number {
		in.Outer = 6
	}
	words = words[2 : len(words)-1] // the last is the verdict
	if in.Protocol == unix.IPPROTO_UDP {
		if len(words) == 0 || len(words[0]) != 2 {
			return in, nil, false
		}
		in.Port, words = binary.BigEndian.Uint16([]byte(words[0])), words[1:]
	}
	switch len(words) {
	case 1:
		network := words[0] + strings.Repeat("\x00", max(0, int(families[in.Outer].size)-len(words[0])))
		from = append(from, netip.PrefixFrom(nft.Addr(network), 8*len(words[0])))
	case 2:
		bits := 0
		for _, b := range []byte(words[0]) {
			for ; b != 0; b <<= 1 {
				bits++
			}
		}
		from = append(from, netip.PrefixFrom(nft.Addr(words[1]), bits))
	}
	return in, from, true
}

// SetRules brings the table to a value, in one transaction. A value that is none is an error, and nothing
// is changed.
func SetRules(c *nft.Conn, value string) error {
	if value == "" {
		return c.Delete(nft.Inet, nft.Own)
	}
	r, ok := ParseRules(value)
	if !ok {
		return fmt.Errorf("%s: %q is no value of it", RulesTable{}, value)
	}
	return c.Replace(r.table())
}
