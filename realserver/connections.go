package realserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Connection is one of TCP to a VIP, in which data may still be on its way.
type Connection struct {
	VIP, Peer netip.Addr
	Port      uint16 // the peer's
}

// unfinished are the states of TCP, as bits, in which one side may still wait for what the other has sent. A server that has
// written all and closed is in FIN_WAIT1 until its client has acknowledged the last byte; one whose client closed first is in
// CLOSE_WAIT while it still writes, in LAST_ACK or CLOSING until the end of that has arrived. In SYN_RECV the client may take
// the connection to be there already. In FIN_WAIT2 a server that still has its socket may read on, see orphan. Not TIME_WAIT.
const unfinished = 1<<tcpEstablished | 1<<tcpSynRecv | 1<<tcpFinWait1 | 1<<tcpFinWait2 | 1<<tcpCloseWait | 1<<tcpLastAck | 1<<tcpClosing

// orphan says of a struct inet_diag_msg that it is a connection in FIN_WAIT2 which no program has any more (idiag_inode is 0): all
// has been acknowledged, nobody reads what may come, and only the client's end is waited for, which costs it nothing if it gets
// no answer.
func orphan(m []byte) bool {
	return len(m) >= diagMessageLen && m[1] == tcpFinWait2 && binary.NativeEndian.Uint32(m[68:]) == 0
}

// connections lists those of the thread's network namespace: the ones that end in a socket here, and the ones that are sent on
// to another address by DNAT, to a container, say, whose sockets are not to be seen from here.
func connections(vips []netip.Addr) (out []Connection, err error) {
	var four, six []netip.Addr
	for _, a := range vips {
		if a.Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	for _, x := range []struct {
		family byte // of the sockets: those of IPv6 may speak IPv4
		vips   []netip.Addr
	}{{unix.AF_INET, four}, {unix.AF_INET6, four}, {unix.AF_INET6, six}} {
		if len(x.vips) == 0 {
			continue
		}
		is := among(x.vips)
		err := diag(x.family, unix.IPPROTO_TCP, unfinished, within(x.vips), func(m []byte) {
			if local, peer, ok := ends(m); ok && is[local.Addr().Unmap()] && !orphan(m) {
				out = append(out, Connection{local.Addr().Unmap(), peer.Addr().Unmap(), peer.Port()})
			}
		})
		if errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: it has no tcp_diag", ErrUnsupported)
		}
		if err != nil {
			return nil, fmt.Errorf("list connections: %w", err)
		}
	}
	if !tracks() {
		return out, nil
	}
	is := among(vips)
	err = tracked(func(m []byte) {
		if c, ok := redirected(m); ok && is[c.VIP] {
			out = append(out, c)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list connections that DNAT sends on: %w", err)
	}
	return out, nil
}

func among(addrs []netip.Addr) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		m[a] = true
	}
	return m
}

// within is a filter of sock_diag (INET_DIAG_REQ_BYTECODE): what all these addresses of one version have in common, as a prefix,
// so that the kernel need not tell of each connection of a busy host. IPv4 in a socket of IPv6 counts as IPv4.
func within(vips []netip.Addr) *nl.RtAttr {
	first, last := slices.MinFunc(vips, netip.Addr.Compare), slices.MaxFunc(vips, netip.Addr.Compare)
	bits := first.BitLen()
	for p, _ := first.Prefix(bits); !p.Contains(last); p, _ = first.Prefix(bits) {
		bits--
	}
	family := byte(unix.AF_INET6)
	if first.Is4() {
		family = unix.AF_INET
	}
	host := []byte{family, byte(bits), 0, 0, 0xff, 0xff, 0xff, 0xff} // struct inet_diag_hostcond: any port
	host = append(host, first.AsSlice()...)
	size := 4 + len(host)
	op := []byte{diagSource, byte(size)} // struct inet_diag_bc_op: where to go on, if so and if not; behind the end by 4 is no
	op = binary.NativeEndian.AppendUint16(op, uint16(size+4))
	return nl.NewRtAttr(diagBytecode, append(op, host...))
}

// Of include/uapi/linux/netfilter/nf_conntrack_common.h and nf_conntrack_tcp.h.
const (
	natDestination = 1 << 5 // IPS_DST_NAT
	trackedAlive   = 1<<nl.TCP_CONNTRACK_SYN_RECV | 1<<nl.TCP_CONNTRACK_ESTABLISHED | 1<<nl.TCP_CONNTRACK_FIN_WAIT |
		1<<nl.TCP_CONNTRACK_CLOSE_WAIT | 1<<nl.TCP_CONNTRACK_LAST_ACK
)

// tracks says that this network namespace has connections tracked. It is asked first, so that nf_conntrack is not loaded only to
// find nothing; the part of it that lists them may be.
func tracks() bool {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	return err == nil && strings.TrimSpace(string(text)) != "0"
}

// tracked hands on what conntrack knows, of both IP versions. A kernel that can filter by status leaves out what has no DNAT,
// an older one tells of all.
func tracked(each func([]byte)) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(natDestination)))
	err := execute(req, unix.NETLINK_NETFILTER, each)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		err = fmt.Errorf("%w: it has no nf_conntrack_netlink", ErrUnsupported)
	}
	return err
}

// redirected takes one message of conntrack apart: a connection that is alive, and answered from another address than it was
// made to. Where DNAT has changed the port only, its socket is here. The states are those of both ends together: where one has
// closed, it cannot be told which, nor whether all has arrived.
func redirected(m []byte) (c Connection, ok bool) {
	if len(m) < nl.SizeofNfgenmsg {
		return c, false
	}
	m = m[nl.SizeofNfgenmsg:]
	if p := attr(m, nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_NUM); len(p) != 1 || p[0] != unix.IPPROTO_TCP {
		return c, false
	}
	if s := attr(m, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE); len(s) != 1 || trackedAlive&(1<<s[0]) == 0 {
		return c, false
	}
	end := func(tuple, four, six uint16) netip.Addr {
		b := attr(m, tuple, nl.CTA_TUPLE_IP, four)
		if b == nil {
			b = attr(m, tuple, nl.CTA_TUPLE_IP, six)
		}
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	port := attr(m, nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_SRC_PORT)
	c.VIP, c.Peer = end(nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST), end(nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	answers := end(nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	if len(port) != 2 || !c.VIP.IsValid() || !c.Peer.IsValid() || !answers.IsValid() {
		return c, false
	}
	c.Port = binary.BigEndian.Uint16(port)
	return c, answers != c.VIP
}

// attr is the value of the attribute at the end of a path of nested ones; nil where there is none.
func attr(b []byte, path ...uint16) []byte {
next:
	for _, typ := range path {
		for len(b) >= unix.SizeofRtAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return nil
			}
			if binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK == typ {
				b = b[unix.SizeofRtAttr:n]
				continue next
			}
			b = b[min((n+3)&^3, len(b)):]
		}
		return nil
	}
	return b
}
