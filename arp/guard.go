package arp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rsagent/arp/nft"
)

// A Guard is silence by nftables, the modern form of the arptables recipe: no setting is touched. What
// asks for a VIP is dropped as it comes in, so nothing is answered; and a request of the host's own that
// would carry the VIP as its sender goes out with the interface's address in its place. On an interface
// without an address of its own such a request is dropped.
//
// It holds on every interface, also those to come, and so it also silences one that holds the VIP: a
// director, or keepalived's master, must not have it.
type Guard struct {
	VIPs    []netip.Addr // IPv4, sorted
	Senders []Sender     // sorted by interface; of one interface the first that suits counts
}

// A Sender is the address that an interface asks with in a VIP's place. It is to be of the subnet of what is
// asked for, as with arp_announce 2: a neighbour with a reverse path filter pays no heed to another.
type Sender struct {
	Interface string
	Addr      netip.Addr
	Subnet    netip.Prefix // of what is asked for; the zero Prefix is any, and the last of its interface
}

// Drops says that requests for a VIP are dropped.
func (g Guard) Drops(vip netip.Addr) bool {
	_, found := slices.BinarySearchFunc(g.VIPs, vip, netip.Addr.Compare)
	return found
}

// GuardTable is the guard as a thing to change: the whole table. Its values are "" (absent), a Guard's
// String, and nft.Foreign.
type GuardTable struct{}

func (GuardTable) String() string { return "table arp " + nft.Own }

// Command is what an operator would type to have the guard, or to have it gone.
func (GuardTable) Command(value string) string {
	script := nft.Delete(nft.ARP, nft.Own)
	if value != "" {
		g, ok := ParseGuard(value)
		if !ok {
			return nft.NoWords(value)
		}
		for _, s := range g.Senders {
			if !nft.Writable(s.Interface) {
				return "false # nft(8) has no way to write the name " + strconv.Quote(s.Interface) + "; rsagent has"
			}
		}
		script = g.table().Script()
	}
	return nft.Command(script)
}

// String says what is dropped, and who sends what: "drop 192.0.2.100 send eth0=192.0.2.11", and where it
// depends on what is asked for, "eth0=10.0.0.11@10.0.0.0/8 eth0=192.0.2.11".
func (g Guard) String() string {
	words := []string{"drop"}
	for _, a := range g.VIPs {
		words = append(words, a.String())
	}
	words = append(words, "send")
	for _, s := range g.Senders {
		w := s.Interface + "=" + s.Addr.String()
		if s.Subnet.IsValid() {
			w += "@" + s.Subnet.String()
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// ParseGuard reads what String wrote. No interface's name has a single-byte blank in it, but it may have
// any other sign, the blanks of Unicode among them (net/core/dev.c, dev_valid_name).
func ParseGuard(s string) (g Guard, ok bool) {
	words := strings.Split(s, " ")
	send := slices.Index(words, "send")
	if send < 1 || words[0] != "drop" {
		return g, false
	}
	for _, w := range words[1:send] {
		a, err := netip.ParseAddr(w)
		if err != nil {
			return g, false
		}
		g.VIPs = append(g.VIPs, a)
	}
	for _, w := range words[send+1:] {
		i := strings.LastIndex(w, "=")
		addr, subnet, near := strings.Cut(w[i+1:], "@")
		s := Sender{Interface: w[:max(0, i)]}
		var err, err2 error
		s.Addr, err = netip.ParseAddr(addr)
		if near {
			s.Subnet, err2 = netip.ParsePrefix(subnet)
		}
		if i < 1 || err != nil || err2 != nil {
			return g, false
		}
		g.Senders = append(g.Senders, s)
	}
	return g, true
}

// MAC is the length of the hardware addresses, in bytes, for which the rules hold.
const MAC = 6

// Where an ARP packet between IPv4 hosts with such hardware addresses has its IP addresses (RFC 826).
const (
	senderIP = 14
	targetIP = 24
)

// table is the guard in nftables' terms.
func (g Guard) table() nft.Table {
	senders := nft.Set{Name: "senders", Keys: nft.IfName, Values: nft.IPv4}
	fromVIP := []nft.Expr{nft.Load(nft.Network, senderIP, 4), nft.In("vips")}
	var near []nft.Rule // for what is rewritten by one, none of the others matches
	for _, s := range g.Senders {
		if s.Subnet.IsValid() {
			near = append(near, s.rule(fromVIP))
			continue
		}
		senders.Elements = append(senders.Elements, nft.Element{Key: nft.Name(s.Interface), Value: string(s.Addr.AsSlice())})
	}
	return nft.Table{Family: nft.ARP, Name: nft.Own,
		Sets: []nft.Set{{Name: "vips", Keys: nft.IPv4, Elements: nft.Addrs(g.VIPs)}, senders},
		Chains: []nft.Chain{
			{Name: "input", Hook: nft.ARPInput, Rules: []nft.Rule{
				{Text: "arp daddr ip @vips drop", Exprs: []nft.Expr{nft.Load(nft.Network, targetIP, 4), nft.In("vips"), nft.Drop}},
			}},
			{Name: "output", Hook: nft.ARPOutput, Rules: append(near, []nft.Rule{
				{Text: "arp saddr ip @vips arp saddr ip set oifname map @senders", Exprs: append(slices.Clip(fromVIP),
					nft.Meta(unix.NFT_META_OIFNAME), nft.Map("senders"), nft.Store(nft.Network, senderIP, 4))},
				{Text: "arp saddr ip @vips drop", Exprs: append(slices.Clip(fromVIP), nft.Drop)},
			}...)},
		}}
}

// rule has a request for an address of the subnet go out with this sender.
func (s Sender) rule(fromVIP []nft.Expr) nft.Rule {
	network, mask := s.Subnet.Masked().Addr().As4(), net.CIDRMask(s.Subnet.Bits(), 32)
	return nft.Rule{
		Text: fmt.Sprintf("oifname %s arp saddr ip @vips arp daddr ip & %s == %s arp saddr ip set %s", nft.IfName.Text(nft.Name(s.Interface)), net.IP(mask), s.Subnet.Masked().Addr(), s.Addr),
		Exprs: append(append([]nft.Expr{nft.Meta(unix.NFT_META_OIFNAME), nft.Equals(nft.Name(s.Interface))}, fromVIP...),
			nft.Load(nft.Network, targetIP, 4), nft.And(string(mask)), nft.Equals(string(network[:])),
			nft.Value(string(s.Addr.AsSlice())), nft.Store(nft.Network, senderIP, 4)),
	}
}

// parseSender reads what rule made. That there is nothing else to it is found out by making it again.
func parseSender(r nft.Rule) (s Sender, ok bool) {
	var words []string
	for _, e := range r.Exprs {
		if w := e.Literal(); w != "" {
			words = append(words, w)
		}
	}
	if len(words) != 4 || len(words[1]) != 4 || len(words[2]) != 4 || len(words[3]) != 4 {
		return s, false
	}
	bits, _ := net.IPMask(words[1]).Size()
	return Sender{nft.Interface(words[0]), nft.Addr(words[3]), netip.PrefixFrom(nft.Addr(words[2]), bits)}, true
}

// ReadGuard is the table's value, as the kernel has it.
func ReadGuard(c *nft.Conn) (string, error) {
	t, found, err := c.Read(nft.ARP, nft.Own)
	if err != nil || !found {
		return "", err
	}
	var g Guard
	for _, e := range t.Set("vips").Elements {
		g.VIPs = append(g.VIPs, nft.Addr(e.Key))
	}
	for _, ch := range t.Chains {
		for _, r := range ch.Rules {
			if s, ok := parseSender(r); ok {
				g.Senders = append(g.Senders, s)
			}
		}
	}
	for _, e := range t.Set("senders").Elements {
		g.Senders = append(g.Senders, Sender{Interface: nft.Interface(e.Key), Addr: nft.Addr(e.Value)})
	}
	slices.SortFunc(g.VIPs, netip.Addr.Compare)
	sort.SliceStable(g.Senders, func(i, j int) bool { return g.Senders[i].Interface < g.Senders[j].Interface })
	if !g.table().Equal(t) {
		return nft.Foreign, nil
	}
	return g.String(), nil
}

// SetGuard brings the table to a value, in one transaction. A value that is none is an error, and nothing
// is changed: a VIP may rest on what is there.
func SetGuard(c *nft.Conn, value string) error {
	if value == "" {
		return c.Delete(nft.ARP, nft.Own)
	}
	g, ok := ParseGuard(value)
	if !ok {
		return fmt.Errorf("%s: %q is no value of it", GuardTable{}, value)
	}
	return c.Replace(g.table())
}
