package nft

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// xt is an expression of iptables' own, as it writes them into nftables (include/uapi/linux/netfilter/nf_tables_compat.h).
func xt(kind, name string, info []byte) Expr {
	return Expr{Name: kind, num: [9]uint32{2: 3}, data: [6]string{1: name, 3: string(info)}}
}

// tcpPorts is struct xt_tcp, any source port.
func tcpPorts(from, to uint16) []byte {
	b := make([]byte, 12)
	binary.NativeEndian.PutUint16(b[2:], 65535)
	binary.NativeEndian.PutUint16(b[4:], from)
	binary.NativeEndian.PutUint16(b[6:], to)
	return b
}

// conntrack is struct xt_conntrack_mtinfo3 that asks for states; alias is that it was written as -m state.
func conntrack(states, alias uint16) []byte {
	b := make([]byte, 168)
	binary.NativeEndian.PutUint16(b[146:], 1|alias)
	binary.NativeEndian.PutUint16(b[150:], states)
	return b
}

// TestMatch judges a packet by iptables' own matches and targets: one rule before conntrack, one rule that accepts, and a
// policy that drops.
func TestMatch(t *testing.T) {
	notrack := make([]byte, 32) // struct xt_ct_target_info_v1
	binary.NativeEndian.PutUint16(notrack, 1)
	for name, c := range map[string]struct {
		port          uint16
		early, accept []Expr
		drops         bool
	}{
		"nothing":                    {port: 80, drops: true},
		"its port":                   {port: 80, accept: []Expr{xt("match", "tcp", tcpPorts(80, 80))}},
		"another port":               {port: 80, accept: []Expr{xt("match", "tcp", tcpPorts(443, 443))}, drops: true},
		"some port, of any":          {accept: []Expr{xt("match", "tcp", tcpPorts(443, 443))}},
		"the low ports, of any":      {accept: []Expr{xt("match", "tcp", tcpPorts(0, 1023))}},
		"each port":                  {accept: []Expr{xt("match", "tcp", tcpPorts(0, 65535))}},
		"new":                        {port: 80, accept: []Expr{xt("match", "conntrack", conntrack(stateNew, 0))}},
		"established":                {port: 80, accept: []Expr{xt("match", "conntrack", conntrack(6, 0))}, drops: true},
		"established, as -m state":   {port: 80, accept: []Expr{xt("match", "conntrack", conntrack(6, stateAlias))}, drops: true},
		"new, as -m state":           {port: 80, accept: []Expr{xt("match", "conntrack", conntrack(stateNew, stateAlias))}},
		"untracked":                  {port: 80, early: []Expr{xt("target", "CT", notrack)}, accept: []Expr{xt("match", "conntrack", conntrack(256, 0))}},
		"untracked, by the old name": {port: 80, early: []Expr{xt("target", "NOTRACK", nil)}, accept: []Expr{xt("match", "conntrack", conntrack(256, 0))}},
		"untracked, so not new":      {port: 80, early: []Expr{xt("target", "CT", notrack)}, accept: []Expr{xt("match", "conntrack", conntrack(stateNew, 0))}, drops: true},
		"in a zone":                  {port: 80, early: []Expr{xt("target", "CT", make([]byte, 32))}, accept: []Expr{xt("match", "conntrack", conntrack(stateNew, 0))}},
	} {
		rs := &Ruleset{index: map[place]int{}, chains: []placed{
			{family: IP, table: "raw", Chain: Chain{Name: "PREROUTING", kind: chainType, Hook: unix.NF_INET_PRE_ROUTING, Priority: -300, policy: acceptCode}},
			{family: IP, table: "filter", Chain: Chain{Name: "INPUT", kind: chainType, Hook: unix.NF_INET_LOCAL_IN, policy: dropCode}},
		}}
		if c.early != nil {
			rs.chains[0].Rules = []Rule{{Exprs: c.early}}
		}
		if c.accept != nil {
			rs.chains[1].Rules = []Rule{{Exprs: append(c.accept, Accept)}}
		}
		fate, err := rs.Judge(Packet{Family: IP, Protocol: unix.IPPROTO_TCP, Dst: netip.MustParseAddr("10.0.0.100"), Port: c.port, Iface: "eth0", Index: 7})
		if err != nil || fate.Dropped != c.drops {
			t.Errorf("%s: %+v, %v; want a drop: %v", name, fate, err, c.drops)
		}
	}
}
