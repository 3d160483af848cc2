package nft

import (
	"encoding/binary"
	"errors"
	"net/netip"
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
	Unwrapped bool   // it came out of a tunnel, by which no route leads back to its sender
	On        string // the interface that has Dst; "" is not known
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

const maxSteps = 200_000 // rules and verdicts looked at for one packet, before it counts as unknown

// A judge is one packet on its way through the rules. Of each byte of the registers, and of some of its bits, it knows whether it is known.
type judge struct {
	*Ruleset
	p       Packet
	reg     [64]byte
	known   [64]bool
	bits    [64]byte // of a byte that is not known, those that are
	base    *placed  // the chain at whose hook it is
	certain bool     // it does come by the rule at hand
	may     bool     // a rule before may have accepted
	back    bool     // the rule at hand asks for the route back
	track   tracking
	mark    []byte   // nil is not known
	forks   []string // verdicts, of which one may be the rule's
	fate    Fate
	steps   int
	failed  error
}

// Judge is the fate of a packet. Which of two chains of one priority comes first is not certain where they are of different
// tables: a packet counts as dropped where it is so either way. Errors: those of reading the sets that decide.
func (rs *Ruleset) Judge(p Packet) (Fate, error) {
	fate, err := rs.judge(p, false)
	if !fate.Dropped {
		return fate, err
	}
	other, failed := rs.judge(p, true)
	if !other.Dropped {
		return other, errors.Join(err, failed)
	}
	return fate, err
}

func (rs *Ruleset) judge(p Packet, swapped bool) (Fate, error) {
	j := &judge{Ruleset: rs, p: p}
	for _, hook := range incoming {
		for _, c := range rs.bases(p.Family, hook, swapped) {
			j.base, j.may = c, false
			certain := c.kind != nat || j.track == tracked && rs.conntrack(p.Family)
			e := j.chain(c, certain, 0)
			if j.fate.Redirected {
				return Fate{Redirected: true}, j.failed
			}
			if e == through && certain && c.policy == dropCode && !j.may && j.steps < maxSteps {
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
	forkCode     = redirectCode + 2 // one of several, or none
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
		j.certain = certain
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
		case forkCode:
			certain = j.fork(c, depth) && certain
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

// fork has the packet pass all that it may come by. It tells whether it then surely goes on in this chain.
func (j *judge) fork(c *placed, depth int) (back bool) {
	back = true
	for _, v := range j.forks {
		if j.steps++; j.steps >= maxSteps {
			j.may = true
			return false
		}
		switch code, target, _ := verdictOf(v, false); code {
		case continueCode, dropCode:
		case returnCode:
			back = false
		case jumpCode, gotoCode:
			j.chain(j.find(c, target), false, depth+1)
			back = back && code != gotoCode
		default:
			j.may = true
		}
	}
	return back
}

// rule tells what a rule decides; sure is that all it asks is known to be so. What is known not to be so decides nothing.
func (j *judge) rule(c *placed, r Rule) (code uint32, target string, sure bool) {
	sure, j.back = true, false
	for _, e := range r.Exprs {
		yes, known := true, true
		switch name := strings.TrimSuffix(e.Name, otherKind); name {
		case "payload":
			if e.num[1] == 0 && j.readdressed(e) {
				return redirectCode, "", sure
			}
			j.payload(e)
		case "meta":
			if e.num[1] != 0 {
				j.meta(e)
			} else if e.num[2] == unix.NFT_META_MARK {
				j.setMark(e, sure)
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
			if yes && len(j.forks) > 0 {
				return forkCode, "", false
			}
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
			if e.num[1] != verdictRegister {
				j.set(e.num[1], []byte(e.data[2]))
			}
		case "counter", "log", "last":
		case "notrack":
			j.untrack(sure)
		case "objref":
			switch e.num[1] {
			case objCounter, objHelper, objTimeout, objSecmark, objExpect:
			default: // it may end the rule, or take the packet away; so may one out of a map
				j.may, known = true, false
			}
		case "reject":
			return dropCode, "", sure
		case "nat":
			if e.num[1] == unix.NFT_NAT_SNAT {
				return stolenCode, "", sure
			}
			return redirectCode, "", sure
		case "redir", "masq", "tproxy":
			return redirectCode, "", sure
		case "queue", "synproxy", "flow_offload", "fwd":
			return stolenCode, "", sure
		case "target":
			switch e.data[1] {
			case "REJECT", "DROP":
				return dropCode, "", sure
			case "DNAT", "REDIRECT", "NETMAP", "TPROXY":
				return redirectCode, "", sure
			case "NOTRACK":
				j.untrack(sure)
			case "CT":
				if info := []byte(e.data[3]); len(info) < 2 || binary.NativeEndian.Uint16(info)&1 != 0 { // XT_CT_NOTRACK
					j.untrack(sure)
				}
			case "LOG", "NFLOG", "MARK", "CONNMARK", "TRACE", "TCPMSS", "CLASSIFY", "DSCP", "TOS", "SECMARK", "CONNSECMARK", "CHECKSUM":
			default:
				return stolenCode, "", sure
			}
		default: // limit, quota, connlimit, dynset, numgen, socket …: it may end the rule, and may load something
			j.known, j.bits = [64]bool{}, [64]byte{}
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
