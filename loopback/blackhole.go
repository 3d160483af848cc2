package loopback

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Blackhole is a route that drops what comes for a VIP which this host no longer holds. A host that
// forwards would send it back to the director, which would send it here again, until its TTL ends. As
// long as the VIP is an address of the host the route has no effect: local addresses come first.
// Its values are "" and "blackhole".
type Blackhole struct{ VIP netip.Addr }

func (b Blackhole) String() string { return "route " + b.prefix().String() }

// Command is what an operator would type to have the route, or to have it gone.
func (b Blackhole) Command(value string) string {
	if value == "" {
		return "ip route del blackhole " + b.prefix().String()
	}
	return "ip route add blackhole " + b.prefix().String()
}

func (b Blackhole) prefix() netip.Prefix { return netip.PrefixFrom(b.VIP, b.VIP.BitLen()) }

// Blackholes lists the blackhole routes for single addresses in the main table.
func Blackholes(s *nl.SocketHandle) (map[netip.Addr]bool, error) {
	msgs, err := dump(s, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{})
	if err != nil {
		return nil, fmt.Errorf("list blackhole routes: %w", err)
	}
	out := map[netip.Addr]bool{}
	for _, m := range msgs {
		if r := parseRoute(m); r.kind == unix.RTN_BLACKHOLE && r.table == unix.RT_TABLE_MAIN && r.to.IsSingleIP() {
			out[r.to.Addr()] = true
		}
	}
	return out, nil
}

// SetBlackhole adds the route or deletes it. That it was so already is no failure.
func SetBlackhole(s *nl.SocketHandle, b Blackhole, on bool) error {
	typ, flags, msg, so := unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewRtMsg(), unix.EEXIST
	if !on {
		typ, flags, msg, so = unix.RTM_DELROUTE, 0, nl.NewRtDelMsg(), unix.ESRCH
	}
	msg.Family, msg.Dst_len = family(b.VIP), uint8(b.VIP.BitLen())
	msg.Type, msg.Protocol = unix.RTN_BLACKHOLE, unix.RTPROT_STATIC
	req := nl.NewNetlinkRequest(typ, flags|unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, b.VIP.AsSlice()))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, so) {
		return fmt.Errorf("set %s on=%t: %w", b, on, err)
	}
	return nil
}
