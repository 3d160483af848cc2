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
	diagV6Only       = 11
	tcpClose         = 7
	tcpListen        = 10
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
	ask := make(rawMessage, diagRequestLen)
	ask[0], ask[1] = family, s.number()
	binary.NativeEndian.PutUint32(ask[4:], 1<<state)
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		req.AddData(ask)
		msgs, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < 10 {
			continue
		}
		if family == unix.AF_INET6 && errors.Is(err, unix.ENOENT) {
			return nil, nil // a kernel without IPv6
		}
		for _, m := range msgs {
			if x, ok := socket(m, s); ok {
				out = append(out, x)
			}
		}
		return out, err
	}
}

// socket takes one struct inet_diag_msg apart.
func socket(m []byte, s Service) (x Socket, ok bool) {
	if len(m) < diagMessageLen {
		return x, false
	}
	n := 4
	if m[0] == unix.AF_INET6 {
		n = 16
	}
	s.Port = binary.BigEndian.Uint16(m[4:])
	x = Socket{Service: s, Index: int(binary.NativeEndian.Uint32(m[40:]))}
	x.Addr, _ = netip.AddrFromSlice(m[8 : 8+n])
	attrs, err := nl.ParseRouteAttr(m[diagMessageLen:])
	for _, a := range attrs {
		if a.Attr.Type == diagV6Only && len(a.Value) > 0 {
			x.V6Only = a.Value[0] != 0
		}
	}
	return x, err == nil && s.Port != 0
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
