package loopback

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// chunk is how many messages travel in one send. Each may come back as an error that takes some
// 700 bytes of socket memory, and a default receive buffer holds about 270 of them.
const chunk = 64

const (
	headerLen  = 20 // struct nlmsghdr and the error code behind it
	maxMessage = 92 // IPv6: nlmsghdr 16, ifaddrmsg 8, two addresses of 20 each, flags 8, lifetimes 20
	patience   = 5  // seconds to wait for the kernel's answer to one send
)

// An Op is an address to add (Scope set) or to delete (Scope "").
type Op struct {
	Index int // ifindex of Addr.Device
	Addr  Addr
	Scope string
}

// Apply sends ops in order over one socket, many to a send, and returns an error for each: nil where
// it was done, or found done already (EEXIST on add, EADDRNOTAVAIL on delete: the caller looks
// again anyway). The kernel works them off one after the other and answers only those that failed;
// the last of each send asks for an answer, which tells that the send is through. The second result
// is the socket's own failure: what became of the ops is unknown then.
//
// One message a send, each acknowledged, costs two to three times as much (measured at 64 and 1,000
// addresses); beyond that the kernel's own cost rules.
func Apply(ops []Op) ([]error, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return make([]error, len(ops)), fmt.Errorf("open netlink socket: %w", err)
	}
	defer unix.Close(fd)
	// Without the option an error carries the whole request along: no harm but size.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}); err != nil {
		return make([]error, len(ops)), fmt.Errorf("set netlink timeout: %w", err)
	}
	errs := make([]error, len(ops))
	buf := make([]byte, 0, chunk*maxMessage)
	for lo := 0; lo < len(ops); lo += chunk {
		hi := min(lo+chunk, len(ops))
		buf = buf[:0]
		for i := lo; i < hi; i++ {
			buf = appendMessage(buf, ops[i], uint32(i+1), i == hi-1)
		}
		if err := send(fd, buf); err != nil {
			return errs, fmt.Errorf("send to netlink: %w", err)
		}
		if err := answers(fd, ops, errs, lo, hi); err != nil {
			return errs, fmt.Errorf("receive from netlink: %w", err)
		}
	}
	return errs, nil
}

func send(fd int, b []byte) error {
	for {
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != unix.EINTR {
			return err
		}
	}
}

// answers reads until the answer to message hi, the last of a send, and files the failures.
func answers(fd int, ops []Op, errs []error, lo, hi int) error {
	in := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, in, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for b := in[:n]; len(b) >= headerLen; {
			size := int(binary.NativeEndian.Uint32(b))
			seq := int(binary.NativeEndian.Uint32(b[8:]))
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR && lo < seq && seq <= hi {
				errs[seq-1] = failure(ops[seq-1], unix.Errno(-int32(binary.NativeEndian.Uint32(b[16:]))))
				if seq == hi {
					return nil
				}
			}
			if size < headerLen {
				break
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// failure is nil where the kernel says that o was so already.
func failure(o Op, code unix.Errno) error {
	switch {
	case code == 0,
		code == unix.EEXIST && o.Scope != "",
		o.Scope == "" && (code == unix.EADDRNOTAVAIL || code == unix.ENODEV): // the device took it along
		return nil
	}
	return fmt.Errorf("%s: %w", o.Addr.Command(o.Scope), code)
}

func appendMessage(b []byte, o Op, seq uint32, ack bool) []byte {
	e := binary.NativeEndian
	typ, flags, scope := uint16(unix.RTM_DELADDR), uint16(unix.NLM_F_REQUEST), 0
	if o.Scope != "" {
		typ, flags, scope = unix.RTM_NEWADDR, flags|unix.NLM_F_CREATE|unix.NLM_F_EXCL, scopeNumber(o.Scope)
	}
	if ack {
		flags |= unix.NLM_F_ACK
	}
	start, ip := len(b), o.Addr.Prefix.Addr()
	family := byte(unix.AF_INET)
	if ip.Is6() {
		family, scope = unix.AF_INET6, unix.RT_SCOPE_UNIVERSE
	}
	b = e.AppendUint32(b, 0) // the length, when it is known
	b = e.AppendUint16(b, typ)
	b = e.AppendUint16(b, flags)
	b = e.AppendUint32(b, seq)
	b = e.AppendUint32(b, 0) // port: the kernel fills it in
	network := o.Addr.Prefix
	if o.Addr.Peer.IsValid() {
		network = o.Addr.Peer
	}
	b = append(b, family, byte(network.Bits()), 0, byte(scope))
	b = e.AppendUint32(b, uint32(o.Index))
	b = appendAttr(b, unix.IFA_LOCAL, ip.AsSlice())
	b = appendAttr(b, unix.IFA_ADDRESS, network.Addr().AsSlice())
	if ip.Is6() && o.Scope != "" {
		b = appendAttr(b, unix.IFA_FLAGS, e.AppendUint32(nil, unix.IFA_F_NODAD))
		b = appendAttr(b, unix.IFA_CACHEINFO, deprecated())
	}
	e.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	return append(b, value...) // each value is a multiple of four bytes long
}

// deprecated is a struct ifa_cacheinfo: preferred lifetime 0, valid for ever, two times the kernel fills in.
func deprecated() []byte {
	b := binary.NativeEndian.AppendUint32(nil, 0)
	b = binary.NativeEndian.AppendUint32(b, math.MaxUint32)
	return append(b, make([]byte, 8)...)
}

// scopeNumber is the kernel's number of a scope that a VIP may have.
func scopeNumber(name string) int {
	for n, s := range scopes {
		if s == name {
			return n
		}
	}
	return unix.RT_SCOPE_HOST // validation lets no other name through; host is the silent side
}
