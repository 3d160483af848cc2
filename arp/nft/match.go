package nft

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// at is where a register begins: 1 to 4 are of 16 bytes, from 8 on of 4 (NFT_REG32_00).
func at(reg uint32) int {
	switch {
	case reg >= 1 && reg <= 4:
		return int(reg-1) * 16
	case reg >= 8 && reg < 24:
		return int(reg-8) * 4
	}
	return 0
}

// set fills a register; the kernel fills the last four bytes up with zeros.
func (j *judge) set(reg uint32, b []byte) {
	b = append(b, make([]byte, -len(b)&3)...)
	for n := range j.span(reg, len(b)) {
		j.reg[at(reg)+n], j.known[at(reg)+n], j.bits[at(reg)+n] = b[n], true, 0
	}
}

func (j *judge) span(reg uint32, n int) int { return min(n, len(j.reg)-at(reg)) }

// forget makes all that a register can hold unknown.
func (j *judge) forget(reg uint32) {
	for n := range j.span(reg, 16) {
		j.known[at(reg)+n], j.bits[at(reg)+n] = false, 0
	}
}

// take is what a register holds, and which bytes of it are known.
func (j *judge) take(reg uint32, n int) ([]byte, []bool) {
	from, to := at(reg), at(reg)+j.span(reg, n)
	return j.reg[from:to], j.known[from:to]
}

func (j *judge) payload(e Expr) {
	reg, base, offset, n := e.num[1], e.num[2], int(e.num[3]), int(e.num[4])
	if reg == 0 { // it is written to
		return
	}
	j.forget(reg)
	var b, bits [40]byte
	put := func(at int, v ...byte) {
		for i, x := range v {
			b[at+i], bits[at+i] = x, 0xff
		}
	}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && j.p.Family == IP:
		b[0], bits[0] = 0x40, 0xf0 // it may have options
		put(9, j.p.Protocol)
		put(16, j.p.Dst.AsSlice()...)
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		put(6, j.p.Protocol)
		put(24, j.p.Dst.AsSlice()...)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && j.p.Port != 0:
		put(2, byte(j.p.Port>>8), byte(j.p.Port))
		if j.p.Protocol == unix.IPPROTO_TCP {
			b[13], bits[13] = 2, 0x3f // SYN; those of ECN may be set
		}
	}
	j.set(reg, make([]byte, n))
	for i := range j.span(reg, n) {
		j.known[at(reg)+i] = false
		if from := offset + i; from < len(b) {
			j.reg[at(reg)+i], j.known[at(reg)+i], j.bits[at(reg)+i] = b[from], bits[from] == 0xff, bits[from]
		}
	}
}

func (j *judge) meta(e Expr) {
	j.forget(e.num[1])
	switch e.num[2] {
	case unix.NFT_META_NFPROTO:
		j.set(e.num[1], []byte{byte(j.p.Family)})
	case unix.NFT_META_L4PROTO:
		j.set(e.num[1], []byte{j.p.Protocol})
	case unix.NFT_META_PROTOCOL:
		p := uint16(unix.ETH_P_IP)
		if j.p.Family == IP6 {
			p = unix.ETH_P_IPV6
		}
		j.set(e.num[1], binary.BigEndian.AppendUint16(nil, p))
	case unix.NFT_META_IIFNAME:
		j.set(e.num[1], []byte(Name(j.p.Iface)))
	case unix.NFT_META_IIF:
		j.set(e.num[1], binary.NativeEndian.AppendUint32(nil, uint32(j.p.Index)))
	case unix.NFT_META_PKTTYPE:
		j.set(e.num[1], []byte{unix.PACKET_HOST})
	case unix.NFT_META_MARK:
		if j.mark != nil {
			j.set(e.num[1], j.mark)
		}
	}
}

// setMark has a rule set the packet's mark. What it was before, nobody knows.
func (j *judge) setMark(e Expr, sure bool) {
	v, known := j.take(e.num[3], 4)
	if j.mark = nil; sure && j.certain && !slices.Contains(known, false) {
		j.mark = slices.Clone(v)
	}
}

// readdressed says that a rule writes to the packet's destination, or its port.
func (j *judge) readdressed(e Expr) bool {
	over := func(from, to uint32) bool { return e.num[3] < to && from < e.num[3]+e.num[4] }
	switch e.num[2] {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		return j.p.Family == IP && over(16, 20) || j.p.Family == IP6 && over(24, 40)
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		return over(2, 4)
	}
	return false
}

// The kinds of objects that a rule refers to and that have it go on (include/uapi/linux/netfilter/nf_tables.h).
const (
	objCounter = 1
	objHelper  = 3
	objTimeout = 7
	objSecmark = 8
	objExpect  = 9
)

// fib is known where it asks for the route back by the interface that the packet came in by, and there is none; and of what kind
// the destination is. To one interface alone an address is local only if it is on that (net/ipv4/fib_frontend.c,
// __inet_dev_addr_type): a VIP on lo is not to any NIC.
func (j *judge) fib(e Expr) {
	const bySource, byIface, toType = 1, 8, 3 // NFTA_FIB_F_SADDR, NFTA_FIB_F_IIF, NFT_FIB_RESULT_ADDRTYPE
	const byDestination = 2
	reg, result, flags := e.num[1], e.num[2], e.num[3]
	j.forget(reg)
	switch {
	case j.p.Unwrapped && result != toType && flags&bySource != 0 && flags&byIface != 0:
		j.set(reg, make([]byte, 16))
		j.back = true
	case result == toType && flags&byDestination != 0 && flags&byIface != 0 && j.p.On != j.p.Iface:
		if j.p.On != "" {
			j.set(reg, binary.NativeEndian.AppendUint32(nil, unix.RTN_UNICAST))
		}
	case result == toType && flags&byDestination != 0:
		j.set(reg, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
	}
}

func (j *judge) bitwise(e Expr) {
	n := int(e.num[3])
	in, known := j.take(e.num[1], n)
	in, known = slices.Clone(in), slices.Clone(known)
	bits := j.bits
	j.forget(e.num[2])
	if e.num[6] != 0 || len(e.data[4]) < len(in) || len(e.data[5]) < len(in) || strings.HasSuffix(e.Name, otherKind) {
		return
	}
	for i := range in {
		if mask := e.data[4][i]; i < j.span(e.num[2], n) && (known[i] || mask&^bits[at(e.num[1])+i] == 0) {
			j.reg[at(e.num[2])+i], j.known[at(e.num[2])+i] = in[i]&mask^e.data[5][i], true
		}
	}
}

// equal says whether a register holds a value; known is false where that cannot be told.
func equal(in []byte, known []bool, v string) (yes, sure bool) {
	sure = len(in) >= len(v)
	for i := range min(len(in), len(v)) {
		if known[i] && in[i] != v[i] {
			return false, true
		}
		sure = sure && known[i]
	}
	return true, sure
}

func (j *judge) cmp(e Expr) (yes, known bool) {
	v := e.data[3]
	in, sure := j.take(e.num[1], len(v))
	if e.num[2] == unix.NFT_CMP_EQ || e.num[2] == unix.NFT_CMP_NEQ {
		yes, known = equal(in, sure, v)
		return yes == (e.num[2] == unix.NFT_CMP_EQ), known
	}
	if slices.Contains(sure, false) {
		return true, false
	}
	switch order := bytes.Compare(in, []byte(v)); e.num[2] {
	case unix.NFT_CMP_LT:
		return order < 0, true
	case unix.NFT_CMP_LTE:
		return order <= 0, true
	case unix.NFT_CMP_GT:
		return order > 0, true
	default:
		return order >= 0, true
	}
}

func (j *judge) within(e Expr) (yes, known bool) {
	from, to := e.data[3], e.data[4]
	in, sure := j.take(e.num[1], len(from))
	if slices.Contains(sure, false) {
		return true, false
	}
	yes = bytes.Compare(in, []byte(from)) >= 0 && bytes.Compare(in, []byte(to)) <= 0
	return yes == (e.num[2] == unix.NFT_RANGE_EQ), true
}

// What xt_conntrack.h has otherwise than nftables, or beside.
const (
	xtUntracked = 1 << 8  // XT_CONNTRACK_STATE_UNTRACKED
	stateAlias  = 1 << 13 // XT_CONNTRACK_STATE_ALIAS: it was written as -m state
)

// match is what iptables' own extensions ask: those that have no counterpart in nftables' words, or had none once. See
// include/uapi/linux/netfilter/xt_tcpudp.h, xt_conntrack.h.
func (j *judge) match(e Expr) (yes, known bool) {
	info, e16 := []byte(e.data[3]), binary.NativeEndian
	switch name := e.data[1]; {
	case name == "comment":
		return true, true
	case (name == "tcp" && len(info) >= 12 && info[8] == 0 && info[11] == 0 || name == "udp" && len(info) >= 9 && info[8] == 0) &&
		e16.Uint16(info) == 0 && e16.Uint16(info[2:]) == 65535:
		if name == "tcp" && info[9] != 0 && info[10]&info[9]&0x3f != 2&info[9] { // flags asked for, and not those of a SYN
			return false, true
		}
		if name == "tcp" && info[9]&^0x3f != 0 { // those of ECN
			return true, false
		}
		if from, to := e16.Uint16(info[4:]), e16.Uint16(info[6:]); j.p.Port == 0 {
			return true, from == 0 && to == 65535
		}
		return e16.Uint16(info[4:]) <= j.p.Port && j.p.Port <= e16.Uint16(info[6:]), true
	case name == "conntrack" && e.num[2] >= 2 && len(info) >= 152 && e16.Uint16(info[146:])&^stateAlias == 1: // asks for the state, and no more
		state, known := j.state()
		if state == stateUntracked {
			state = xtUntracked
		}
		return (uint32(e16.Uint16(info[150:]))&state != 0) != (e16.Uint16(info[148:])&1 != 0), known
	}
	return true, false
}
