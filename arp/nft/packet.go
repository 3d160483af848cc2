package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Packet is what is known of one that comes in: the first of a connection, of whose sender nothing is known.
type Packet struct {
	Family    Family // IP or IP6
	Protocol  uint8
	Dst       netip.Addr
	Port      uint16 // its destination port
	Iface     string // that it comes in by
	Index     int
	Unwrapped bool // it came out of a tunnel, by which no route leads back to its sender
}

// A Fate is what becomes of a packet, as far as that is certain. The zero Fate is a packet that passes, or of which the
// rules ask more than is known.
type Fate struct {
	Dropped     bool
	Redirected  bool // it is, or may be, given another destination
	Family      Family
	Table       string
	Chain       string
	Handle      uint64 // of the rule; 0 is the chain's policy
	Owned       bool   // the table belongs to a process, which alone may write to it
	ReversePath bool   // the rule asks for the route back
}

// The hooks that a packet for this host comes by (include/uapi/linux/netfilter.h).
var incoming = []uint32{unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN}

// What a chain can end in.
type end int

const (
	through end = iota // to its end, or by return
	accepted
	dropped
)

const maxSteps = 200_000 // rules looked at for one packet, before it counts as unknown

// A judge is one packet on its way through the rules. Of each byte of the registers it knows whether it is known.
type judge struct {
	*Ruleset
	p      Packet
	reg    [64]byte
	known  [64]bool
	may    bool // a rule before may have accepted
	back   bool // the rule at hand asks for the route back
	fate   Fate
	steps  int
	failed error
}

// Judge is the fate of a packet. Errors: those of reading the sets that decide.
func (rs *Ruleset) Judge(p Packet) (Fate, error) {
	j := &judge{Ruleset: rs, p: p}
	for _, hook := range incoming {
		for _, c := range rs.bases(p.Family, hook) {
			j.may = false
			e := j.chain(c, true, 0)
			if j.fate.Redirected {
				return Fate{Redirected: true}, j.failed
			}
			if e == through && c.policy == dropCode && !j.may && j.steps < maxSteps {
				j.drop(c, Rule{})
				e = dropped
			}
			if e == dropped {
				return j.fate, j.failed
			}
		}
	}
	return Fate{}, j.failed
}

func (j *judge) drop(c *placed, r Rule) {
	j.fate = Fate{Dropped: true, Family: c.family, Table: c.table, Chain: c.Name, Handle: r.Handle, Owned: c.owned, ReversePath: j.back}
}

// The verdicts, by the kernel's codes (include/uapi/linux/netfilter.h, nf_tables.h).
const (
	dropCode     = 0
	continueCode = ^uint32(0) // NFT_CONTINUE, -1
	jumpCode     = ^uint32(2) // NFT_JUMP, -3
	gotoCode     = ^uint32(3) // NFT_GOTO, -4
	returnCode   = ^uint32(4) // NFT_RETURN, -5
	redirectCode = 1 << 16    // none of the kernel's: it gets another destination
	stolenCode   = redirectCode + 1
)

// chain has the packet pass a chain. certain is that it does come by it.
func (j *judge) chain(c *placed, certain bool, depth int) end {
	if c == nil || depth > 16 {
		j.may = true
		return through
	}
	for _, r := range c.Rules {
		if j.steps++; j.steps >= maxSteps {
			j.may = true
			return through
		}
		code, target, sure := j.rule(c, r)
		sure = sure && certain
		switch code {
		case continueCode:
		case dropCode:
			switch {
			case sure && j.may:
				return accepted // whatever it met before decides
			case sure:
				j.drop(c, r)
				return dropped
			}
		case returnCode:
			if sure {
				return through
			}
			certain = false
		case jumpCode, gotoCode:
			if e := j.chain(j.find(c, target), sure, depth+1); e != through {
				return e
			}
			if code == gotoCode && sure {
				return through
			}
			certain = certain && (code != gotoCode)
		default: // accepted, or no longer here
			j.fate.Redirected = j.fate.Redirected || code == redirectCode
			if sure {
				return accepted
			}
			j.may = true
		}
	}
	return through
}

// rule tells what a rule decides; sure is that all it asks is known to be so. What is known not to be so decides nothing.
func (j *judge) rule(c *placed, r Rule) (code uint32, target string, sure bool) {
	sure, j.back = true, false
	for _, e := range r.Exprs {
		yes, known := true, true
		switch name := strings.TrimSuffix(e.Name, otherKind); name {
		case "payload":
			j.payload(e)
		case "meta":
			if e.num[1] != 0 {
				j.meta(e)
			}
		case "ct":
			j.ct(e)
		case "fib":
			j.fib(e)
		case "bitwise":
			j.bitwise(e)
		case "cmp":
			yes, known = j.cmp(e)
		case "range":
			yes, known = j.within(e)
		case "lookup":
			var verdict string
			yes, known, verdict = j.lookup(c, e)
			if verdict != "" && yes && known {
				return verdictOf(verdict, sure)
			}
		case "match":
			yes, known = j.match(e)
		case "immediate":
			if e.num[1] == verdictRegister {
				if code, target, sure = verdictOf(e.data[2], sure); code != continueCode {
					return code, target, sure
				}
			}
			j.forget(e.num[1])
		case "counter", "log", "last", "notrack", "objref":
		case "reject":
			return dropCode, "", sure
		case "nat", "redir", "masq":
			return redirectCode, "", sure
		case "queue", "tproxy", "synproxy", "flow_offload", "fwd":
			return stolenCode, "", sure
		case "target":
			switch e.data[1] {
			case "REJECT", "DROP":
				return dropCode, "", sure
			case "DNAT", "REDIRECT", "NETMAP":
				return redirectCode, "", sure
			case "LOG", "NFLOG", "MARK", "CONNMARK", "TRACE", "CT", "TCPMSS", "CLASSIFY", "DSCP", "TOS", "SECMARK", "CONNSECMARK", "CHECKSUM":
			default:
				return stolenCode, "", sure
			}
		default: // limit, quota, connlimit, dynset, numgen, socket …: it may end the rule, and may load something
			for n := range j.known {
				j.known[n] = false
			}
			known = false
		}
		if known && !yes {
			return continueCode, "", false
		}
		sure = sure && known
	}
	return continueCode, "", sure
}

// verdictOf takes a verdict's value apart: code, and the chain it leads to.
func verdictOf(v string, sure bool) (code uint32, target string, _ bool) {
	v, ok := strings.CutPrefix(v, verdictPrefix)
	if !ok || len(v) < 4 {
		return continueCode, "", sure
	}
	return number32([]byte(v[:4])), cString([]byte(v[4:])), sure
}

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
		j.reg[at(reg)+n], j.known[at(reg)+n] = b[n], true
	}
}

func (j *judge) span(reg uint32, n int) int { return min(n, len(j.reg)-at(reg)) }

// forget makes all that a register can hold unknown.
func (j *judge) forget(reg uint32) {
	for n := range j.span(reg, 16) {
		j.known[at(reg)+n] = false
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
	var b [40]byte
	var known [40]bool
	put := func(at int, v ...byte) {
		for i, x := range v {
			b[at+i], known[at+i] = x, true
		}
	}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && j.p.Family == IP:
		put(0, 0x45)
		put(9, j.p.Protocol)
		put(16, j.p.Dst.AsSlice()...)
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		put(6, j.p.Protocol)
		put(24, j.p.Dst.AsSlice()...)
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && j.p.Port != 0:
		put(2, byte(j.p.Port>>8), byte(j.p.Port))
		if j.p.Protocol == unix.IPPROTO_TCP {
			put(13, 2) // SYN
		}
	}
	j.set(reg, make([]byte, n))
	for i := range j.span(reg, n) {
		if from := offset + i; from < len(b) {
			j.reg[at(reg)+i], j.known[at(reg)+i] = b[from], known[from]
		} else {
			j.known[at(reg)+i] = false
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
	}
}

const stateNew = 8 // NF_CT_STATE_BIT(IP_CT_NEW), include/uapi/linux/netfilter/nf_conntrack_common.h

func (j *judge) ct(e Expr) {
	j.forget(e.num[1])
	if e.num[2] == unix.NFT_CT_STATE {
		j.set(e.num[1], binary.NativeEndian.AppendUint32(nil, stateNew))
	}
}

// fib is known where it asks for the route back by the interface that the packet came in by, and there is none.
func (j *judge) fib(e Expr) {
	const bySource, byIface, toType = 1, 8, 3 // NFTA_FIB_F_SADDR, NFTA_FIB_F_IIF, NFT_FIB_RESULT_ADDRTYPE
	const byDestination = 2
	reg, result, flags := e.num[1], e.num[2], e.num[3]
	j.forget(reg)
	switch {
	case j.p.Unwrapped && result != toType && flags&bySource != 0 && flags&byIface != 0:
		j.set(reg, make([]byte, 16))
		j.back = true
	case result == toType && flags&byDestination != 0:
		j.set(reg, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
	}
}

func (j *judge) bitwise(e Expr) {
	n := int(e.num[3])
	in, known := j.take(e.num[1], n)
	in, known = slices.Clone(in), slices.Clone(known)
	j.forget(e.num[2])
	if e.num[6] != 0 || len(e.data[4]) < len(in) || len(e.data[5]) < len(in) || strings.HasSuffix(e.Name, otherKind) {
		return
	}
	for i := range in {
		if mask := e.data[4][i]; i < j.span(e.num[2], n) && (known[i] || mask == 0) {
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

// lookup asks a set. Of a verdict map it tells the verdict too.
func (j *judge) lookup(c *placed, e Expr) (yes, known bool, verdict string) {
	i := slices.IndexFunc(j.sets, func(s placedSet) bool {
		return s.family == c.family && s.table == c.table && s.Name == e.data[1]
	})
	if i < 0 {
		j.forget(e.num[3])
		return true, false, ""
	}
	s := j.sets[i]
	n := int(s.Keys.size)
	key, sure := j.take(e.num[2], n)
	key, sure = slices.Clone(key), slices.Clone(sure)
	isMap, isVerdict := s.Flags&setMap != 0, s.Values.number == verdicts
	if isMap && !isVerdict {
		j.forget(e.num[3])
	}
	unknown := func() (bool, bool, string) {
		j.may = j.may || isVerdict // where it leads is not known
		return true, false, ""
	}
	if !slices.Contains(sure, true) {
		return unknown()
	}
	elements, err := j.elements(s)
	if err != nil {
		j.failed = err
		return unknown()
	}
	found, known := holds(s.Set, elements, key, sure)
	inverted := e.num[5]&1 != 0 // NFT_LOOKUP_F_INV
	switch {
	case !known:
		return unknown()
	case found == nil || inverted:
		return (found == nil) == inverted, true, ""
	case isVerdict:
		return true, true, found.Value
	case isMap:
		j.set(e.num[3], []byte(found.Value))
	}
	return true, true, ""
}

// holds finds a key in a set's elements; nil is none.
func holds(s Set, elements []Element, key []byte, sure []bool) (found *Element, known bool) {
	complete := !slices.Contains(sure, false)
	var all *Element
	known = true
	for i := range elements {
		e := &elements[i]
		switch {
		case e.flags&catchAll != 0:
			all = e
		case e.flags&ranged != 0:
			return nil, false // of several parts, each from here to there
		case s.Flags&intervals != 0:
			if !complete {
				return nil, false
			}
			if e.Key <= string(key) && (found == nil || e.Key > found.Key || e.Key == found.Key && e.flags&intervalEnd == 0) {
				found = e
			}
		default:
			yes, certain := equal(key, sure, e.Key)
			if yes && certain {
				return e, true
			}
			known = known && (certain || !yes)
		}
	}
	if found != nil && found.flags&intervalEnd != 0 {
		found = nil
	}
	if found == nil && known {
		found = all
	}
	return found, known
}

// match is what iptables' own extensions ask: those that have no counterpart in nftables' words, or had none once. See
// include/uapi/linux/netfilter/xt_tcpudp.h, xt_conntrack.h.
func (j *judge) match(e Expr) (yes, known bool) {
	info, e16 := []byte(e.data[3]), binary.NativeEndian
	switch name := e.data[1]; {
	case name == "comment":
		return true, true
	case (name == "tcp" && len(info) >= 12 && info[8] == 0 && info[11] == 0 || name == "udp" && len(info) >= 9 && info[8] == 0) &&
		e16.Uint16(info) == 0 && e16.Uint16(info[2:]) == 65535:
		if name == "tcp" && info[9] != 0 && info[10]&info[9] != 2&info[9] { // flags asked for, and not those of a SYN
			return false, true
		}
		return e16.Uint16(info[4:]) <= j.p.Port && j.p.Port <= e16.Uint16(info[6:]), true
	case name == "conntrack" && e.num[2] >= 2 && len(info) >= 152 && e16.Uint16(info[146:]) == 1: // asks for the state, and no more
		return (e16.Uint16(info[150:])&stateNew != 0) != (e16.Uint16(info[148:])&1 != 0), true
	}
	return true, false
}
