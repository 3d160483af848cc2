package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that the kernel has no nf_tables, or not what a table is made of.
var ErrUnsupported = errors.New("nftables is not in this kernel")

const (
	headerLen  = 20  // struct nlmsghdr and struct nfgenmsg
	patience   = 10  // seconds to wait for the kernel
	retries    = 10  // a table is read this often while others change the rules
	inMessage  = 500 // elements in a message: the kernel takes 64 kB of them
	setMap     = 8   // NFT_SET_MAP
	subsystem  = unix.NFNL_SUBSYS_NFTABLES << 8
	dormant    = 1 // NFT_TABLE_F_DORMANT
	chainType  = "filter"
	acceptCode = 1 // NF_ACCEPT
)

// nameOrder is nft(8)'s own note on a set, that its keys are in the host's byte order (libnftnl's
// NFTNL_UDATA_SET_KEYBYTEORDER: type, length, BYTEORDER_HOST_ENDIAN).
var nameOrder = "\x00\x04" + string(binary.NativeEndian.AppendUint32(nil, 1))

// A Conn is a connection to the nf_tables of the network namespace in which it was opened.
type Conn struct {
	fd  int
	seq uint32
	in  []byte
}

// Open connects. The errors of all of Conn: ErrUnsupported; unix.EPERM, as even reading needs CAP_NET_ADMIN.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrUnsupported
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience})
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // an error need not carry the request along
	}
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &Conn{fd: fd, in: make([]byte, 64<<10)}, nil
}

// There says that the kernel can be asked without its loading nf_tables for that: the module is there, or the
// kernel takes no modules. Where it is built into one that does, There does not know.
func There() bool {
	_, loaded := os.Stat("/sys/module/nf_tables")
	_, modular := os.Stat("/proc/modules")
	return loaded == nil || errors.Is(modular, fs.ErrNotExist)
}

// Close gives the socket back.
func (c *Conn) Close() { unix.Close(c.fd) }

// A batch is a transaction being written. Sequence numbers say which message an answer is about.
type batch struct {
	b    []byte
	last int // where its last message begins
	seq  uint32
}

func (t *batch) message(typ, flags uint16, family Family, resource uint16, body func([]byte) []byte) {
	start := len(t.b)
	t.last = start
	e := binary.NativeEndian
	t.b = e.AppendUint32(t.b, 0) // the length, when it is known
	t.b = e.AppendUint16(t.b, typ)
	t.b = e.AppendUint16(t.b, flags|unix.NLM_F_REQUEST)
	t.b = e.AppendUint32(t.b, t.seq)
	t.b = e.AppendUint32(t.b, 0)
	t.b = append(t.b, byte(family), unix.NFNETLINK_V0)
	t.b = binary.BigEndian.AppendUint16(t.b, resource)
	if body != nil {
		t.b = body(t.b)
	}
	e.PutUint32(t.b[start:], uint32(len(t.b)-start))
	t.seq++
}

func (t *batch) add(typ, flags uint16, family Family, body func([]byte) []byte) {
	t.message(subsystem|typ, flags, family, 0, body)
}

// Replace has the table in place of any of its name, in one transaction.
func (c *Conn) Replace(t Table) error {
	err := c.commit(func(b *batch) {
		named := func(b []byte) []byte { return appendAttr(b, unix.NFTA_TABLE_NAME, t.Name+"\x00") }
		b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.Family, named) // so that there is one to delete
		b.add(unix.NFT_MSG_DELTABLE, 0, t.Family, named)
		b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.Family, named)
		for i, s := range t.Sets {
			b.set(t, s, uint32(i+1))
		}
		for _, ch := range t.Chains {
			b.chain(t, ch)
		}
	})
	if errors.Is(err, unix.ENOENT) { // nothing is asked for but what the transaction makes, and the kernel's own
		err = fmt.Errorf("%w: it lacks the family %s, or an expression: %w", ErrUnsupported, t.Family, err)
	}
	if err != nil {
		return fmt.Errorf("write table %s %s: %w", t.Family, t.Name, err)
	}
	return nil
}

// Delete has no table of this name. That there is none is no failure.
func (c *Conn) Delete(f Family, name string) error {
	err := c.commit(func(b *batch) {
		b.add(unix.NFT_MSG_DELTABLE, 0, f, func(b []byte) []byte { return appendAttr(b, unix.NFTA_TABLE_NAME, name+"\x00") })
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table %s %s: %w", f, name, err)
	}
	return nil
}

func (t *batch) set(tab Table, s Set, id uint32) {
	t.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, tab.Family, func(b []byte) []byte {
		b = appendAttr(b, unix.NFTA_SET_TABLE, tab.Name+"\x00")
		b = appendAttr(b, unix.NFTA_SET_NAME, s.Name+"\x00")
		b = appendAttr(b, unix.NFTA_SET_FLAGS, be32(s.flags()))
		b = appendAttr(b, unix.NFTA_SET_KEY_TYPE, be32(s.Keys.number))
		b = appendAttr(b, unix.NFTA_SET_KEY_LEN, be32(s.Keys.size))
		b = appendAttr(b, unix.NFTA_SET_ID, be32(id))
		if s.Keys == IfName { // for nft(8)'s eyes: without it a name is shown back to front
			b = appendAttr(b, unix.NFTA_SET_USERDATA, nameOrder)
		}
		if s.Values.size > 0 {
			b = appendAttr(b, unix.NFTA_SET_DATA_TYPE, be32(s.Values.number))
			b = appendAttr(b, unix.NFTA_SET_DATA_LEN, be32(s.Values.size))
		}
		return b
	})
	for part := range slices.Chunk(s.Elements, inMessage) {
		t.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, tab.Family, func(b []byte) []byte {
			b = appendAttr(b, unix.NFTA_SET_ELEM_LIST_TABLE, tab.Name+"\x00")
			b = appendAttr(b, unix.NFTA_SET_ELEM_LIST_SET, s.Name+"\x00")
			return appendNest(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
				for _, e := range part {
					b = appendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
						b = appendNest(b, unix.NFTA_SET_ELEM_KEY, func(b []byte) []byte { return appendAttr(b, unix.NFTA_DATA_VALUE, e.Key) })
						if s.Values.size > 0 {
							b = appendNest(b, unix.NFTA_SET_ELEM_DATA, func(b []byte) []byte { return appendAttr(b, unix.NFTA_DATA_VALUE, e.Value) })
						}
						return b
					})
				}
				return b
			})
		})
	}
}

func (t *batch) chain(tab Table, c Chain) {
	t.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, tab.Family, func(b []byte) []byte {
		b = appendAttr(b, unix.NFTA_CHAIN_TABLE, tab.Name+"\x00")
		b = appendAttr(b, unix.NFTA_CHAIN_NAME, c.Name+"\x00")
		b = appendNest(b, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
			b = appendAttr(b, unix.NFTA_HOOK_HOOKNUM, be32(c.Hook))
			return appendAttr(b, unix.NFTA_HOOK_PRIORITY, be32(uint32(c.Priority)))
		})
		b = appendAttr(b, unix.NFTA_CHAIN_POLICY, be32(acceptCode))
		return appendAttr(b, unix.NFTA_CHAIN_TYPE, chainType+"\x00")
	})
	for _, r := range c.Rules {
		t.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, tab.Family, func(b []byte) []byte {
			b = appendAttr(b, unix.NFTA_RULE_TABLE, tab.Name+"\x00")
			b = appendAttr(b, unix.NFTA_RULE_CHAIN, c.Name+"\x00")
			return appendNest(b, unix.NFTA_RULE_EXPRESSIONS, func(b []byte) []byte {
				for _, e := range r.Exprs {
					b = appendNest(b, unix.NFTA_LIST_ELEM, e.encode)
				}
				return b
			})
		})
	}
}

// commit sends a transaction and waits for what became of it: all of it holds, or nothing.
func (c *Conn) commit(fill func(*batch)) error {
	b := &batch{seq: c.seq + 1}
	first := b.seq
	b.message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	fill(b)
	last := b.seq - 1
	binary.NativeEndian.PutUint16(b.b[b.last+6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|binary.NativeEndian.Uint16(b.b[b.last+6:]))
	b.message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	c.seq = b.seq - 1
	if err := c.send(b.b); err != nil {
		return err
	}
	var failed error
	err := c.receive(func(h header, body []byte) bool {
		if h.typ != unix.NLMSG_ERROR || h.seq < first || h.seq > last {
			return false
		}
		if failed == nil {
			failed = failure(body)
		}
		return h.seq == last || h.seq == first // an error of the first is about all
	})
	return errors.Join(err, failed)
}

// send has the whole transaction travel in one piece, as it must: the kernel's limit on what waits in a
// socket is lifted for one that is larger.
func (c *Conn) send(b []byte) error {
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(b)+64<<10); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("send to nftables: %w", err)
	}
	for {
		if err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != unix.EINTR {
			return err
		}
	}
}

// A header is that of a message that came.
type header struct {
	typ, flags uint16
	seq        uint32
}

// receive hands on messages until one is the last that is waited for.
func (c *Conn) receive(last func(h header, body []byte) bool) error {
	e := binary.NativeEndian
	for {
		n, _, err := unix.Recvfrom(c.fd, c.in, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive from nftables: %w", err)
		}
		for b := c.in[:n]; len(b) >= headerLen; {
			size := int(e.Uint32(b))
			if size < headerLen || size > len(b) {
				break
			}
			if last(header{e.Uint16(b[4:]), e.Uint16(b[6:]), e.Uint32(b[8:])}, b[16:size]) {
				return nil
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// failure is the error that an answer tells of; nil is none. A kernel without nf_tables does not know the
// subsystem; one without a family, or without an expression, says that there is no such thing.
func failure(body []byte) error {
	switch code := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); code {
	case 0:
		return nil
	case unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT:
		return fmt.Errorf("%w: %w", ErrUnsupported, code)
	default:
		return code
	}
}

// appendAttr appends one attribute.
func appendAttr(b []byte, typ uint16, v string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, -len(v)&3)...)
}

// appendNest appends an attribute that holds others.
func appendNest(b []byte, typ uint16, inner func([]byte) []byte) []byte {
	start := len(b)
	b = inner(appendAttr(b, typ|unix.NLA_F_NESTED, ""))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// each walks a run of attributes.
func each(b []byte, f func(typ uint16, v []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:n]) // without the flags NESTED and NET_BYTEORDER
		b = b[min((n+3)&^3, len(b)):]
	}
}

func cString(v []byte) string {
	s, _, _ := strings.Cut(string(v), "\x00")
	return s
}
