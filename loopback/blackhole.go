package loopback

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
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

func (b Blackhole) route() *netlink.Route {
	bits := b.VIP.BitLen()
	return &netlink.Route{Type: unix.RTN_BLACKHOLE, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC,
		Dst: &net.IPNet{IP: b.VIP.AsSlice(), Mask: net.CIDRMask(bits, bits)}}
}

// Blackholes lists the blackhole routes for single addresses in the main table.
func Blackholes(h *netlink.Handle) (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	want := &netlink.Route{Type: unix.RTN_BLACKHOLE, Table: unix.RT_TABLE_MAIN}
	for try := 0; ; try++ {
		routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, want, netlink.RT_FILTER_TYPE|netlink.RT_FILTER_TABLE)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < retries {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list blackhole routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			ip, ok := netip.AddrFromSlice(r.Dst.IP)
			if ones, bits := r.Dst.Mask.Size(); ok && ones == bits {
				out[ip.Unmap()] = true
			}
		}
		return out, nil
	}
}

// SetBlackhole adds the route or deletes it. That it was so already is no failure. It is no method of
// the item: items are held in an interface, and by a method that takes the handle the linker would keep
// each of the handle's own (0.8 MB).
func SetBlackhole(h *netlink.Handle, b Blackhole, on bool) error {
	var err error
	if on {
		if err = h.RouteAdd(b.route()); errors.Is(err, unix.EEXIST) {
			return nil
		}
	} else if err = h.RouteDel(b.route()); errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set %s on=%t: %w", b, on, err)
	}
	return nil
}
