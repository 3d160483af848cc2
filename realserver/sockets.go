package realserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Service is a port that clients call at the VIPs.
type Service struct {
	Port uint16 // 0 is any
	UDP  bool
}

// ParseService reads "80", "80/tcp" and "53/udp".
func ParseService(s string) (Service, error) {
	number, protocol, given := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != number || given && protocol != "tcp" && protocol != "udp" {
		return Service{}, fmt.Errorf("%q is no port from 1 to 65535, with /tcp or /udp behind it or nothing", s)
	}
	return Service{uint16(n), protocol == "udp"}, nil
}

func (s Service) String() string { return fmt.Sprintf("%d/%s", s.Port, s.protocol()) }

func (s Service) protocol() string {
	if s.UDP {
		return "udp"
	}
	return "tcp"
}

// number is the IP protocol's.
func (s Service) number() uint8 {
	if s.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// A Socket is one that takes what comes for it from anyone.
type Socket struct {
	Service
	Addr   netip.Addr // unspecified: any
	Index  int        // of the interface it is bound to; 0 is any
	V6Only bool       // an IPv6 one takes no IPv4
}

// Of include/uapi/linux/inet_diag.h and include/net/tcp_states.h.
const (
	sockDiagByFamily = 20
	diagRequestLen   = 56
	diagMessageLen   = 72
	diagBytecode     = 1
	diagV6Only       = 11
	diagSource       = 7
	tcpEstablished   = 1
	tcpSynRecv       = 3
	tcpFinWait1      = 4
	tcpFinWait2      = 5
	tcpClose         = 7
	tcpCloseWait     = 8
	tcpLastAck       = 9
	tcpListen        = 10
	tcpClosing       = 11
)

// sockets lists the sockets that listen, and those of UDP without a peer, of the thread's network namespace.
func sockets() ([]Socket, error) {
	out := []Socket{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		for _, udp := range []bool{false, true} {
			one, err := listening(family, udp)
			if err != nil {
				return nil, fmt.Errorf("list sockets: %w", err)
			}
			out = append(out, one...)
		}
	}
	return out, nil
}

type rawMessage []byte

func (m rawMessage) Len() int          { return len(m) }
func (m rawMessage) Serialize() []byte { return m }

func listening(family byte, udp bool) (out []Socket, err error) {
	s, state := Service{UDP: udp}, tcpListen
	if udp {
		state = tcpClose
	}
	err = diag(family, s.number(), 1<<state, nil, func(m []byte) {
		if x, ok := socket(m, s); ok {
			out = append(out, x)
		}
	})
	if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
		return nil, nil // a kernel without IPv6
	}
	return out, err
}

// diag hands on what sock_diag knows of sockets of a family and protocol that are in one of the states, which are bits: each a
// struct inet_diag_msg with attributes. A filter, nil is none, is the kernel's own.
func diag(family, protocol byte, states uint32, filter *nl.RtAttr, each func([]byte)) error {
	ask := make(rawMessage, diagRequestLen)
	ask[0], ask[1] = family, protocol
	binary.NativeEndian.PutUint32(ask[4:], states)
	req := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
	req.AddData(ask)
	if filter != nil {
		req.AddData(filter)
	}
	return execute(req, unix.NETLINK_INET_DIAG, each)
}

// execute has a dump taken again where it was interrupted, and hands on each message of the one that was not.
func execute(req *nl.NetlinkRequest, protocol int, each func([]byte)) error {
	for try := 0; ; try++ {
		msgs, err := req.Execute(protocol, 0)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < 10 {
			continue
		}
		for _, m := range msgs {
			each(m)
		}
		return err
	}
}

// socket takes one struct inet_diag_msg apart.
func socket(m []byte, s Service) (x Socket, ok bool) {
	local, _, ok := ends(m)
	if !ok {
		return x, false
	}
	s.Port = local.Port()
	x = Socket{Service: s, Addr: local.Addr(), Index: int(binary.NativeEndian.Uint32(m[40:]))}
	if v := attr(m[diagMessageLen:], diagV6Only); len(v) > 0 {
		x.V6Only = v[0] != 0
	}
	return x, s.Port != 0
}

// ends are both of a socket, as they stand in a struct inet_diag_msg.
func ends(m []byte) (local, peer netip.AddrPort, ok bool) {
	if len(m) < diagMessageLen {
		return local, peer, false
	}
	n := 4
	if m[0] == unix.AF_INET6 {
		n = 16
	}
	here, _ := netip.AddrFromSlice(m[8 : 8+n])
	there, _ := netip.AddrFromSlice(m[24 : 24+n])
	return netip.AddrPortFrom(here, binary.BigEndian.Uint16(m[4:])), netip.AddrPortFrom(there, binary.BigEndian.Uint16(m[6:])), true
}

// hears says that a socket takes what comes for a VIP.
func (s Socket) hears(v VIP, h *Host) bool {
	a := s.Addr.Unmap()
	if a != v.Addr && !(a.IsUnspecified() && (a.Is4() == v.Addr.Is4() || a.Is6() && !s.V6Only)) {
		return false
	}
	if l := h.byIndex(s.Index); s.Index != 0 {
		return l != nil && (v.Mode == TUN && l.Name == v.kind().Device || v.Mode == DR && (l.Speaks() || l.Kind == "vrf"))
	}
	return true
}

// at is where a socket listens, for people.
func (s Socket) at(h *Host) string {
	where := s.Addr.Unmap().String()
	if l := h.byIndex(s.Index); l != nil {
		where += " by " + l.Name
	}
	return where
}
