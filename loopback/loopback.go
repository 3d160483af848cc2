// Package loopback holds VIPs as addresses on a device that never speaks for them on the wire: lo
// in DR, the tunnel's device in TUN. It observes addresses, and adds and deletes exactly those it
// is told to.
//
// To the kernel an IPv4 address is device, address, peer and prefix length together: 192.0.2.1/32 and
// 192.0.2.1/24 on lo are two addresses, and the wider makes its whole subnet local to the host. So an
// Addr carries them all, and a deletion names them all. Of an IPv6 address a device holds one only,
// whatever its prefix length.
package loopback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An Addr is an address on a device.
type Addr struct {
	Device string
	Prefix netip.Prefix
	Peer   netip.Prefix // of a point-to-point address; it has the prefix length then, and Prefix is a single address
}

func (a Addr) String() string {
	if a.Peer.IsValid() {
		return a.Prefix.Addr().String() + " peer " + a.Peer.String() + " dev " + a.Device
	}
	return a.Prefix.String() + " dev " + a.Device
}

// Bare says that the address stands for itself, with neither subnet nor peer.
func (a Addr) Bare() bool { return a.Prefix.IsSingleIP() && !a.Peer.IsValid() }

// Subnet is what the address makes local to the host.
func (a Addr) Subnet() netip.Prefix {
	if a.Peer.IsValid() {
		return a.Peer.Masked()
	}
	return a.Prefix.Masked()
}

// Command is what an operator would type to have the address with the scope named, or to have it
// gone where scope is "". IPv6 addresses have the scope that their prefix gives them; what keeps
// them from being announced, and from being picked as source, is nodad and a preferred lifetime of 0.
func (a Addr) Command(scope string) string {
	if scope == "" {
		return "ip addr del " + a.String()
	}
	if a.Prefix.Addr().Is6() {
		return "ip addr add " + a.String() + " nodad preferred_lft 0"
	}
	return "ip addr add " + a.String() + " scope " + scope
}

// Held is an address found on the host.
type Held struct {
	Addr
	Scope     string // as ip(8) names it: "global", "link", "host", or the number
	Secondary bool   // it goes when its primary goes, but where promote_secondaries is set
}

// scopes are the address scopes of include/uapi/linux/rtnetlink.h (enum rt_scope_t).
var scopes = map[int]string{unix.RT_SCOPE_UNIVERSE: "global", unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host"}

const retries = 10 // a dump is repeated this often while others change what it lists

// Observe lists each address of the network namespace, in one dump; names maps ifindex to
// name. An address of an interface that names does not hold came after it was made, and is left
// out. A dump that was interrupted is partial: it is taken again, and in the end an error.
func Observe(s *nl.SocketHandle, names map[int]string) ([]Held, error) {
	msgs, err := dump(s, unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]Held, 0, len(msgs))
	for _, m := range msgs {
		if a, ok := held(m, names); ok {
			out = append(out, a)
		}
	}
	return out, nil
}

// dump asks for all there is of something. What was interrupted by others' changes is partial, and asked for again.
func dump(s *nl.SocketHandle, ask int, answer uint16, what nl.NetlinkRequestData) ([][]byte, error) {
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
		req.AddData(what)
		msgs, err := req.Execute(unix.NETLINK_ROUTE, answer)
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == retries {
			return msgs, err
		}
	}
}

// held takes one RTM_NEWADDR apart (include/uapi/linux/if_addr.h). The library's own way makes two lists
// and five pointers of it, which counts where there are thousands.
func held(m []byte, names map[int]string) (h Held, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return h, false
	}
	bits, flags := int(m[1]), uint32(m[2])
	var local, address netip.Addr
	each(m[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			if len(v) >= 4 {
				flags = binary.NativeEndian.Uint32(v)
			}
		}
	})
	h.Device = names[int(binary.NativeEndian.Uint32(m[4:]))]
	h.Scope, h.Secondary = scopeName(int(m[3])), flags&unix.IFA_F_SECONDARY != 0
	h.Prefix = netip.PrefixFrom(address, bits)
	if local.IsValid() && local != address { // a point-to-point address: the other one is the peer's
		h.Prefix, h.Peer = netip.PrefixFrom(local, local.BitLen()), h.Prefix
	}
	return h, h.Prefix.IsValid() && h.Device != ""
}

// each walks a run of netlink attributes.
func each(b []byte, f func(typ uint16, v []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:]), b[unix.SizeofRtAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func scopeName(n int) string {
	if s, ok := scopes[n]; ok {
		return s
	}
	return fmt.Sprint(n)
}
