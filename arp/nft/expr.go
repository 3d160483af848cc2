package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// An Expr is one step of a rule. Expressions hand values on in a register: where nothing else is said,
// register 1. They are comparable.
type Expr struct {
	Name string
	num  [9]uint32 // attributes that are numbers, by the kernel's number of the attribute
	data [6]string // those that are bytes: a set's name, a value, a verdict
}

// An attr is how an expression has one attribute.
type attr byte

const (
	none   attr = iota
	number      // 32 bits, big-endian
	maybe       // the same, and left out where it is 0
	octet       // 8 bits
	text
	value // NFTA_DATA_VALUE, or NFTA_DATA_VERDICT
	blob  // bytes as they are
)

// shapes are the attributes of the expressions that rsagent's rules are made of, from number 1 on; and of those of others'
// rules that are understood.
var shapes = map[string][]attr{
	"ct":        {number, number},                                               // destination, key
	"fib":       {number, number, number},                                       // destination, result, flags
	"range":     {number, number, value, value},                                 // source, operator, from, to
	"match":     {text, number, blob},                                           // of iptables: an extension's name, revision, what it is told
	"target":    {text, number, blob},                                           // the same
	"nat":       {number},                                                       // type; to where is of no interest
	"objref":    {number},                                                       // type, where it is no map's
	"bitwise":   {number, number, number, value, value, maybe},                  // source, destination, length, mask, xor, operation
	"cmp":       {number, number, value},                                        // source, operator, value
	"exthdr":    {maybe, octet, number, number, maybe, number, maybe},           // destination, type, offset, length, flags, operation, source
	"immediate": {number, value},                                                // destination, value or verdict
	"lookup":    {text, number, maybe, none, maybe},                             // set, source, destination, its id, flags
	"meta":      {number, number, maybe},                                        // destination, key, source
	"payload":   {maybe, number, number, number, maybe, number, number, number}, // destination, base, offset, length, source, checksum: type, offset, flags
}

const (
	verdictRegister = 0
	register        = 1
	verdictPrefix   = "verdict " // no value is as long as this and a code, which tells the two apart
)

// Where a payload's offset counts from.
const (
	Network   = unix.NFT_PAYLOAD_NETWORK_HEADER
	Transport = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

// Load takes n bytes of the packet.
func Load(base, offset, n uint32) Expr {
	return Expr{Name: "payload", num: [9]uint32{1: register, 2: base, 3: offset, 4: n}}
}

// Store puts n bytes into the packet. No checksum is mended: ARP has none.
func Store(base, offset, n uint32) Expr {
	return Expr{Name: "payload", num: [9]uint32{2: base, 3: offset, 4: n, 5: register}}
}

// Meta takes what the kernel knows of the packet (unix.NFT_META_…).
func Meta(key uint32) Expr { return Expr{Name: "meta", num: [9]uint32{1: register, 2: key}} }

// In ends the rule where a set does not hold the value.
func In(set string) Expr {
	return Expr{Name: "lookup", num: [9]uint32{2: register}, data: [6]string{1: set}}
}

// Map replaces the value by what a map has for it, and ends the rule where it has nothing.
func Map(set string) Expr {
	return Expr{Name: "lookup", num: [9]uint32{2: register, 3: register}, data: [6]string{1: set}}
}

// Equals ends the rule where the value is another one.
func Equals(b string) Expr { return compare(unix.NFT_CMP_EQ, b) }

// Above ends the rule where the value is not larger.
func Above(b string) Expr { return compare(unix.NFT_CMP_GT, b) }

func compare(op uint32, b string) Expr {
	return Expr{Name: "cmp", num: [9]uint32{1: register, 2: op}, data: [6]string{3: b}}
}

// And masks the value.
func And(mask string) Expr {
	return Expr{Name: "bitwise", num: [9]uint32{1: register, 2: register, 3: uint32(len(mask))},
		data: [6]string{4: mask, 5: string(make([]byte, len(mask)))}}
}

// Value is a value of the rule's own.
func Value(b string) Expr {
	return Expr{Name: "immediate", num: [9]uint32{1: register}, data: [6]string{2: b}}
}

const maxSegment = 2 // the TCP option's kind; its value stands behind kind and length

// LoadMSS takes the maximum segment size that a TCP packet names, and ends the rule where it names none.
func LoadMSS() Expr {
	return Expr{Name: "exthdr", num: [9]uint32{1: register, 2: maxSegment, 3: 2, 4: 2, 6: unix.NFT_EXTHDR_OP_TCPOPT}}
}

// StoreMSS puts another maximum segment size there; the kernel mends the checksum.
func StoreMSS() Expr {
	return Expr{Name: "exthdr", num: [9]uint32{2: maxSegment, 3: 2, 4: 2, 6: unix.NFT_EXTHDR_OP_TCPOPT, 7: register}}
}

// The verdicts.
var (
	Drop   = verdict(0) // NF_DROP
	Accept = verdict(1) // NF_ACCEPT: ends this chain, and no other
)

func verdict(code uint32) Expr {
	return Expr{Name: "immediate", num: [9]uint32{1: verdictRegister}, data: [6]string{2: verdictPrefix + be32(code)}}
}

// Literal is the value that an expression compares with, masks by or sets; "" where it has none.
func (e Expr) Literal() string {
	switch e.Name {
	case "cmp":
		return e.data[3]
	case "immediate":
		return e.data[2]
	case "bitwise":
		return e.data[4]
	}
	return ""
}

func be32(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// encode appends NFTA_EXPR_NAME and NFTA_EXPR_DATA.
func (e Expr) encode(b []byte) []byte {
	b = appendAttr(b, unix.NFTA_EXPR_NAME, e.Name+"\x00")
	return appendNest(b, unix.NFTA_EXPR_DATA, func(b []byte) []byte {
		for i, kind := range shapes[e.Name] {
			n := uint16(i + 1)
			switch {
			case kind == number, kind == maybe && e.num[n] != 0:
				b = appendAttr(b, n, be32(e.num[n]))
			case kind == octet:
				b = appendAttr(b, n, string([]byte{byte(e.num[n])}))
			case kind == text:
				b = appendAttr(b, n, e.data[n]+"\x00")
			case kind == value:
				b = appendNest(b, n, func(b []byte) []byte { return appendValue(b, e.data[n]) })
			}
		}
		return b
	})
}

func appendValue(b []byte, v string) []byte {
	if len(v) == len(verdictPrefix)+4 && v[:len(verdictPrefix)] == verdictPrefix {
		return appendNest(b, unix.NFTA_DATA_VERDICT, func(b []byte) []byte {
			return appendAttr(b, unix.NFTA_VERDICT_CODE, v[len(verdictPrefix):])
		})
	}
	return appendAttr(b, unix.NFTA_DATA_VALUE, v)
}

// decodeExpr reads what encode writes. Of an expression that rsagent does not use only the name is kept,
// and one that has more to it than rsagent's is marked.
func decodeExpr(b []byte) (e Expr) {
	var body []byte
	each(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			e.Name = cString(v)
		case unix.NFTA_EXPR_DATA:
			body = v
		}
	})
	shape, more := shapes[e.Name], false
	each(body, func(typ uint16, v []byte) {
		kind := none
		if typ > 0 && int(typ) <= len(shape) {
			kind = shape[typ-1]
		}
		switch {
		case kind == text:
			e.data[typ] = cString(v)
		case kind == value:
			e.data[typ] = decodeValue(v)
		case kind == blob:
			e.data[typ] = string(v)
		case kind == octet && len(v) == 1:
			e.num[typ] = uint32(v[0])
		case (kind == number || kind == maybe) && len(v) == 4:
			e.num[typ] = binary.BigEndian.Uint32(v)
		default:
			for _, x := range v {
				more = more || x != 0
			}
		}
	})
	if more {
		e.Name += otherKind
	}
	return e
}

const otherKind = " of another kind"

func decodeValue(b []byte) (out string) {
	each(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_DATA_VALUE:
			out = string(v)
		case unix.NFTA_DATA_VERDICT:
			out = verdictPrefix
			each(v, func(_ uint16, v []byte) { out += string(v) }) // a jump has a chain behind the code
		}
	})
	return out
}
