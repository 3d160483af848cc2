package loopback

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Proxied lists the IPv6 addresses that this host answers neighbour solicitations for as a proxy, and on which interface:
// it does not ask whose they are. names maps ifindex to name.
func Proxied(s *nl.SocketHandle, names map[int]string) (map[netip.Addr]string, error) {
	const size, flags, destination = 12, 10, 1 // struct ndmsg, its ndm_flags, NDA_DST (include/uapi/linux/neighbour.h)
	ask := make(raw, size)
	ask[0], ask[flags] = unix.AF_INET6, unix.NTF_PROXY
	msgs, err := dump(s, unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, ask)
	if err != nil {
		return nil, fmt.Errorf("list NDP proxies: %w", err)
	}
	out := map[netip.Addr]string{}
	for _, m := range msgs {
		if len(m) < size || m[flags]&unix.NTF_PROXY == 0 {
			continue
		}
		each(m[size:], func(typ uint16, v []byte) {
			if ip, ok := netip.AddrFromSlice(v); ok && typ == destination && names[number(m[4:])] != "" {
				out[ip] = names[number(m[4:])]
			}
		})
	}
	return out, nil
}

// raw is a message's head as it is.
type raw []byte

func (r raw) Len() int          { return len(r) }
func (r raw) Serialize() []byte { return r }
