package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errChanged says that others changed the rules while they were read.
var errChanged = errors.New("the rules changed while they were read")

// Read is the table with this name; found is false where there is none.
func (c *Conn) Read(f Family, name string) (t Table, found bool, err error) {
	for range retries {
		if t, found, err = c.read(f, name); !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("read table %s %s: %w", f, name, err)
	}
	return t, found, err
}

// A reader collects answers that all must be of one generation of the rules.
type reader struct {
	*Conn
	family     Family
	table      string
	generation uint16
	begun      bool
	of         Family // of the answer that is handed on
}

func (c *Conn) read(f Family, name string) (t Table, found bool, err error) {
	r := &reader{Conn: c, family: f, table: name}
	t = Table{Family: f, Name: name}
	err = r.ask(unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, unix.NFTA_TABLE_NAME, "", 0, func(b []byte) {
		each(b, func(typ uint16, v []byte) {
			if typ == unix.NFTA_TABLE_FLAGS {
				t.Dormant = number32(v)&dormant != 0
			}
		})
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, ErrUnsupported) {
		return t, false, nil // without nf_tables the question itself is invalid
	}
	if err == nil {
		err = r.ask(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFTA_SET_TABLE, "", 0, func(b []byte) { t.Sets = append(t.Sets, decodeSet(b)) })
	}
	for i := range t.Sets {
		if err == nil {
			s := &t.Sets[i]
			err = r.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFTA_SET_ELEM_LIST_TABLE, s.Name, unix.NFTA_SET_ELEM_LIST_SET, func(b []byte) { s.Elements = append(s.Elements, decodeElements(b)...) })
		}
	}
	if err == nil {
		err = r.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFTA_CHAIN_TABLE, "", 0, func(b []byte) {
			if ch, table := decodeChain(b); table == name {
				t.Chains = append(t.Chains, ch)
			}
		})
	}
	if err == nil {
		err = r.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFTA_RULE_TABLE, "", 0, func(b []byte) {
			rule, table, chain := decodeRule(b)
			for i := range t.Chains {
				if table == name && t.Chains[i].Name == chain {
					t.Chains[i].Rules = append(t.Chains[i].Rules, rule)
				}
			}
		})
	}
	if errors.Is(err, unix.ENOENT) { // it was there a moment ago
		err = errChanged
	}
	return t, true, err
}

// ask sends one request about the table, and where second is given about the thing of that name in it, and
// hands on each answer's attributes.
func (r *reader) ask(typ, flags uint16, tableAttr uint16, second string, secondAttr uint16, take func([]byte)) error {
	b := &batch{seq: r.seq + 1}
	b.add(typ, flags, r.family, func(b []byte) []byte {
		if r.table != "" {
			b = appendAttr(b, tableAttr, r.table+"\x00")
		}
		if second != "" {
			b = appendAttr(b, secondAttr, second+"\x00")
		}
		return b
	})
	seq := b.seq - 1
	r.seq = seq
	if err := r.send(b.b); err != nil {
		return err
	}
	var failed error
	err := r.receive(func(h header, body []byte) bool {
		switch {
		case h.seq != seq:
			return false
		case h.typ == unix.NLMSG_ERROR:
			failed = errors.Join(failed, failure(body))
			return true
		case h.typ == unix.NLMSG_DONE:
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				failed = errors.Join(failed, unix.Errno(-code))
			}
			return true
		}
		generation := binary.BigEndian.Uint16(body[2:])
		if h.flags&unix.NLM_F_DUMP_INTR != 0 || r.begun && generation != r.generation {
			failed = errChanged
		}
		r.begun, r.generation = true, generation
		r.of = Family(body[0])
		take(body[4:])
		return false
	})
	return errors.Join(err, failed)
}

func number32(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

func decodeSet(b []byte) (s Set) {
	each(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_SET_NAME:
			s.Name = cString(v)
		case unix.NFTA_SET_FLAGS:
			s.Flags = number32(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.Keys.number = number32(v)
		case unix.NFTA_SET_KEY_LEN:
			s.Keys.size = number32(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.Values.number = number32(v)
		case unix.NFTA_SET_DATA_LEN:
			s.Values.size = number32(v)
		}
	})
	return s
}

func decodeElements(b []byte) (out []Element) {
	each(b, func(typ uint16, v []byte) {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		each(v, func(_ uint16, v []byte) {
			var e Element
			each(v, func(typ uint16, v []byte) {
				switch typ {
				case unix.NFTA_SET_ELEM_KEY:
					e.Key = decodeValue(v)
				case unix.NFTA_SET_ELEM_DATA:
					e.Value = decodeValue(v)
				case unix.NFTA_SET_ELEM_FLAGS:
					e.flags |= number32(v)
				case setElemKeyEnd:
					e.flags |= ranged
				case unix.NFTA_SET_ELEM_EXPR:
					e.flags |= hedge(v)
				case setElemExprs:
					each(v, func(_ uint16, v []byte) { e.flags |= hedge(v) })
				}
			})
			out = append(out, e)
		})
	})
	return out
}

// hedge is the flag of an element with an expression that may end the rule which finds it: a limit, a quota.
func hedge(expr []byte) uint32 {
	switch decodeExpr(expr).Name {
	case "counter", "last":
		return 0
	}
	return hedged
}

func decodeChain(b []byte) (c Chain, table string) {
	hooked, policy, kind := false, uint32(acceptCode), ""
	each(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = cString(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = cString(v)
		case unix.NFTA_CHAIN_POLICY:
			policy = number32(v)
		case unix.NFTA_CHAIN_TYPE:
			kind = cString(v)
		case unix.NFTA_CHAIN_HOOK:
			hooked = true
			each(v, func(typ uint16, v []byte) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook = number32(v)
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = int32(number32(v))
				}
			})
		}
	})
	c.Other = !hooked || policy != acceptCode || kind != chainType
	c.policy = policy
	if hooked {
		c.kind = kind
	}
	return c, table
}

func decodeRule(b []byte) (r Rule, table, chain string) {
	each(b, func(typ uint16, v []byte) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			table = cString(v)
		case unix.NFTA_RULE_CHAIN:
			chain = cString(v)
		case unix.NFTA_RULE_HANDLE:
			if len(v) == 8 {
				r.Handle = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			each(v, func(_ uint16, v []byte) { r.Exprs = append(r.Exprs, decodeExpr(v)) })
		}
	})
	return r, table, chain
}
