package loopback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// far is an address that nobody routes in particular (the 6to4 anycast address, withdrawn by RFC
// 7526), so that a lookup of it finds the default route. Nothing is sent to it.
var far = netip.AddrFrom4([4]byte{192, 88, 99, 1})

// far6 is one of the prefix for documentation (RFC 9637), for the same purpose.
var far6 = netip.AddrFrom16([16]byte{0x3f, 0xff, 15: 1})

// A Route is the default route: what the kernel picks as source for it, the address that this host is
// known by; the gateway it goes to; and the ifindex it goes by. Each is zero where there is none.
type Route struct {
	Source, Gateway netip.Addr
	Index           int
}

// DefaultRoute looks IPv4's up.
func DefaultRoute(s *nl.SocketHandle) (Route, error) { return lookUp(s, far) }

// DefaultRoute6 looks IPv6's up.
func DefaultRoute6(s *nl.SocketHandle) (Route, error) { return lookUp(s, far6) }

func lookUp(s *nl.SocketHandle, to netip.Addr) (Route, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family(to), Dst_len: uint8(to.BitLen())}})
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return Route{}, nil // none, or a route of type unreachable, prohibit or blackhole
	}
	if err != nil {
		return Route{}, fmt.Errorf("look up the default route: %w", err)
	}
	if len(msgs) == 0 {
		return Route{}, nil
	}
	r := parseRoute(msgs[0])
	if r.kind != unix.RTN_UNICAST { // IPv6 answers with such a route where IPv4 answers with an error
		return Route{}, nil
	}
	return r.Route, nil
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Routed is the set of ifindexes by which IPv4 routes of the main table lead.
func Routed(s *nl.SocketHandle) (map[int]bool, error) {
	msgs, err := dump(s, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := map[int]bool{}
	for _, m := range msgs {
		if r := parseRoute(m); r.table == unix.RT_TABLE_MAIN {
			out[r.Index] = true
			for _, hop := range r.hops {
				out[hop] = true
			}
		}
	}
	delete(out, 0)
	return out, nil
}

// A route is what one RTM_NEWROUTE says.
type route struct {
	Route
	to    netip.Prefix
	table int
	kind  uint8 // RTN_UNICAST and so on
	hops  []int // the ifindexes of a route by several ways
}

// parseRoute takes one RTM_NEWROUTE apart (include/uapi/linux/rtnetlink.h).
func parseRoute(m []byte) (r route) {
	if len(m) < unix.SizeofRtMsg {
		return r
	}
	bits := int(m[1])
	r.table, r.kind = int(m[4]), m[7]
	each(m[unix.SizeofRtMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.RTA_DST:
			ip, _ := netip.AddrFromSlice(v)
			r.to = netip.PrefixFrom(ip, bits)
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(v)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(v)
		case unix.RTA_OIF:
			r.Index = number(v)
		case unix.RTA_TABLE:
			r.table = number(v)
		case unix.RTA_MULTIPATH:
			for len(v) >= unix.SizeofRtNexthop { // length, flags, hops, ifindex, and attributes behind
				r.hops = append(r.hops, number(v[4:]))
				n := max(int(binary.NativeEndian.Uint16(v)), unix.SizeofRtNexthop)
				v = v[min((n+3)&^3, len(v)):]
			}
		}
	})
	return r
}

func number(v []byte) int {
	if len(v) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(v))
}
