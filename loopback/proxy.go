package loopback

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Proxied lists the IPv6 addresses that this host answers neighbour solicitations for as a proxy, and on which interface:
// it does not ask whose they are. names maps ifindex to name.
func Proxied(h *netlink.Handle, names map[int]string) (map[netip.Addr]string, error) {
	out := map[netip.Addr]string{}
	for try := 0; ; try++ {
		entries, err := h.NeighProxyList(0, netlink.FAMILY_V6)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < retries {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list NDP proxies: %w", err)
		}
		for _, e := range entries {
			if ip, ok := netip.AddrFromSlice(e.IP); ok && names[e.LinkIndex] != "" {
				out[ip] = names[e.LinkIndex]
			}
		}
		return out, nil
	}
}
