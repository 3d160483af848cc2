package tunnel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rsagent/arp/nft"
)

// Rules are what nftables does for VIPs in TUN mode: it lowers the maximum segment size that their SYN
// packets name, so that what the director wraps still fits the wire, and takes encapsulated packets from
// the directors only. Whoever else reached the fallback device, which unwraps packets from anywhere,
// could send into this network under any source (CERT VU#636397).
type Rules struct {
	MSS  []MSS   // sorted by size
	Take []Entry // sorted
}

// An MSS is a segment size, in bytes, and the VIPs that name no larger one.
type MSS struct {
	Size int // 536 to 65495
	VIPs []netip.Addr
}

// The least is what every IPv4 host must take (RFC 9293, 3.7.1), the largest what fits an IPv4 packet
// with its headers.
const (
	LeastMSS   = 536
	LargestMSS = 65495
)

// An Entry is a way in, and those from whom it is taken.
type Entry struct {
	In   In
	From []netip.Prefix // sorted
}

// In is a way in for encapsulated packets: a protocol, over IPv4 or IPv6; where it is UDP, a port.
type In struct {
	Outer    int // IP version of the outer packets
	Protocol uint8
	Port     uint16
}

// String is "ip:4", "ip6:41", "ip:udp:6080".
func (i In) String() string {
	family := "ip"
	if i.Outer == 6 {
		family = "ip6"
	}
	if i.Protocol == unix.IPPROTO_UDP {
		return fmt.Sprintf("%s:udp:%d", family, i.Port)
	}
	return fmt.Sprintf("%s:%d", family, i.Protocol)
}

// parseIn reads what String wrote.
func parseIn(s string) (In, bool) {
	for _, outer := range []int{4, 6} {
		i := In{Outer: outer}
		rest, ok := strings.CutPrefix(s, strings.TrimSuffix(i.String(), "0"))
		if !ok {
			continue
		}
		bits := 8
		if port, udp := strings.CutPrefix(rest, "udp:"); udp {
			rest, bits, i.Protocol = port, 16, unix.IPPROTO_UDP
		}
		n, err := strconv.ParseUint(rest, 10, bits)
		if bits == 16 {
			i.Port = uint16(n)
		} else {
			i.Protocol = uint8(n)
		}
		return i, err == nil
	}
	return In{}, false
}

// In is by which ways packets come to a kind's device; port is that of a kind that has one. What its
// device takes beside, plain, is among them: a way in that is left open closes none.
func (k Kind) In(port uint16) (out []In) {
	switch k.Link {
	case "ipip":
		out = append(out, In{k.Outer, unix.IPPROTO_IPIP, 0})
	case "sit":
		out = append(out, In{k.Outer, unix.IPPROTO_IPV6, 0})
	case "ip6tnl":
		out = append(out, In{k.Outer, unix.IPPROTO_IPIP, 0}, In{k.Outer, unix.IPPROTO_IPV6, 0})
	case "gre", "ip6gre":
		out = append(out, In{k.Outer, unix.IPPROTO_GRE, 0})
	}
	if k.UDP() {
		out = append(out, In{k.Outer, unix.IPPROTO_UDP, port})
	}
	return out
}

// Overhead is what an encapsulation adds to a packet at the most, in bytes: GRE with its checksum, GUE
// with remote checksum offload. outer is the IP version of the outer packet.
func Overhead(encapsulation string, outer int) int {
	n := 20
	switch encapsulation {
	case "gre":
		n = 28
	case "gue":
		n = 40
	}
	if outer == 6 {
		n += 20
	}
	return n
}

// RulesTable is Rules as a thing to change: the whole table. Its values are "" (absent), the String of
// Rules, and Foreign.
type RulesTable struct{}

// Foreign is the value of a table that has rsagent's name and other rules.
const Foreign = "other rules"

const tableName = "rsagent"

func (RulesTable) String() string { return "table inet " + tableName }

// Command is what an operator would type to have the rules, or to have them gone.
func (RulesTable) Command(value string) string {
	script := nft.Delete(nft.Inet, tableName)
	if r, ok := ParseRules(value); ok {
		script = r.table().Script()
	}
	return "nft '" + script + "'"
}

// String is "mss 1440 192.0.2.100 take ip:4 from 192.0.2.2 198.51.100.0/24".
func (r Rules) String() string {
	var words []string
	for _, m := range r.MSS {
		words = append(words, "mss", strconv.Itoa(m.Size))
		for _, a := range m.VIPs {
			words = append(words, a.String())
		}
	}
	for _, t := range r.Take {
		words = append(words, "take", t.In.String(), "from")
		for _, p := range t.From {
			words = append(words, short(p))
		}
	}
	return strings.Join(words, " ")
}

// short writes a single address without its length.
func short(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// ParsePrefix reads an address, or a prefix in its proper form.
func ParsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err == nil && p.Masked() != p {
			err = fmt.Errorf("%s has bits set behind its length; the network is %s", p, p.Masked())
		}
		return p, err
	}
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = fmt.Errorf("%s has a zone", a)
	}
	return netip.PrefixFrom(a, a.BitLen()), err
}

// ParseRules reads what String wrote.
func ParseRules(s string) (r Rules, ok bool) {
	words := strings.Fields(s)
	next := func() string { // the next word, "" at the end
		if len(words) == 0 {
			return ""
		}
		w := words[0]
		words = words[1:]
		return w
	}
	for len(words) > 0 {
		switch next() {
		case "mss":
			n, err := strconv.Atoi(next())
			if err != nil {
				return r, false
			}
			m := MSS{Size: n}
			for len(words) > 0 && words[0] != "mss" && words[0] != "take" {
				a, err := netip.ParseAddr(next())
				if err != nil {
					return r, false
				}
				m.VIPs = append(m.VIPs, a)
			}
			r.MSS = append(r.MSS, m)
		case "take":
			in, ok := parseIn(next())
			if !ok || next() != "from" {
				return r, false
			}
			e := Entry{In: in}
			for len(words) > 0 && words[0] != "take" {
				p, err := ParsePrefix(next())
				if err != nil {
					return r, false
				}
				e.From = append(e.From, p)
			}
			r.Take = append(r.Take, e)
		default:
			return r, false
		}
	}
	return r, len(r.MSS)+len(r.Take) > 0
}

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
	t := nft.Table{Family: nft.Inet, Name: tableName}
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
	t, found, err := c.Read(nft.Inet, tableName)
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
		return Foreign, nil
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

// take adds those from whom a way in is taken.
func take(entries []Entry, in In, from ...netip.Prefix) []Entry {
	for i := range entries {
		if entries[i].In == in {
			entries[i].From = append(entries[i].From, from...)
			return entries
		}
	}
	return append(entries, Entry{in, from})
}

// Lower adds a VIP that is to name no larger segment size.
func (r *Rules) Lower(vip netip.Addr, size int) {
	for i := range r.MSS {
		if r.MSS[i].Size == size {
			r.MSS[i].VIPs = append(r.MSS[i].VIPs, vip)
			return
		}
	}
	r.MSS = append(r.MSS, MSS{size, []netip.Addr{vip}})
}

// Admit adds those from whom a way in is taken.
func (r *Rules) Admit(in In, from ...netip.Prefix) { r.Take = take(r.Take, in, from...) }

// Sort brings the rules into the one order in which equal rules are equal.
func (r *Rules) Sort() {
	slices.SortFunc(r.MSS, func(a, b MSS) int { return a.Size - b.Size })
	for i := range r.MSS {
		slices.SortFunc(r.MSS[i].VIPs, netip.Addr.Compare)
	}
	slices.SortFunc(r.Take, func(a, b Entry) int { return strings.Compare(a.In.String(), b.In.String()) })
	for i := range r.Take {
		slices.SortFunc(r.Take[i].From, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
		r.Take[i].From = slices.Compact(r.Take[i].From)
	}
}

// SetRules brings the table to a value, in one transaction.
func SetRules(c *nft.Conn, value string) error {
	if r, ok := ParseRules(value); ok {
		return c.Replace(r.table())
	}
	return c.Delete(nft.Inet, tableName)
}
