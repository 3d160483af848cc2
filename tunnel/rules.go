package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
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
// Rules, and nft.Foreign.
type RulesTable struct{}

func (RulesTable) String() string { return "table inet " + nft.Own }

// Command is what an operator would type to have the rules, or to have them gone.
func (RulesTable) Command(value string) string {
	script := nft.Delete(nft.Inet, nft.Own)
	if value != "" {
		r, ok := ParseRules(value)
		if !ok {
			return nft.NoWords(value)
		}
		script = r.table().Script()
	}
	return nft.Command(script)
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
	words := strings.Split(s, " ")
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
	sort.Slice(r.MSS, func(i, j int) bool { return r.MSS[i].Size < r.MSS[j].Size })
	for i := range r.MSS {
		slices.SortFunc(r.MSS[i].VIPs, netip.Addr.Compare)
	}
	sort.Slice(r.Take, func(i, j int) bool { return r.Take[i].In.String() < r.Take[j].In.String() })
	for i := range r.Take {
		from := r.Take[i].From
		sort.Slice(from, func(a, b int) bool { return from[a].String() < from[b].String() })
		r.Take[i].From = slices.Compact(from)
	}
}
