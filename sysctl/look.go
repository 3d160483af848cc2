package sysctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An Interface is a link, with what a real server asks about it.
type Interface struct {
	Name   string
	Index  int
	Master int    // ifindex of the bridge, bond, team or VRF it belongs to; 0 is none
	Kind   string // as `ip link add type KIND` names it; "" for a physical NIC and for lo
	Port   string // kind of its master: "bridge", "bond", "team", "vrf"; "" is none
	Args   string // of a tunnel: what `ip link add` would be told beside its kind, "" for one that takes packets from any to any
	Mode   string // of an ip6tnl: "ip6ip6", "ipip6" or "any"
	Alt    string // its alternative names, a blank before each
	MTU    int    // bytes
	MAC    int    // length of its hardware address, bytes: 6 on Ethernet, 4 on GRE, 20 on InfiniBand
	Up     bool
	IPv6   bool // takes IPv6 addresses: the kernel has IPv6, and disable_ipv6 is 0
	ARP    bool // asks and answers ARP: neither loopback nor NOARP
}

// Called says that i has this name, or this alternative name.
func (i Interface) Called(name string) bool {
	return i.Name == name || name != "" && strings.Contains(i.Alt+" ", " "+name+" ")
}

// Speaks says that i's own settings decide whether the host answers ARP that arrives on it. A
// port of a bridge, bond or team hands its frames to the master, whose settings count instead; a
// VRF's port is judged by its own (measured on Linux 6.1 and 6.18).
func (i Interface) Speaks() bool {
	return i.ARP && (i.Port == "" || i.Port == "vrf")
}

// devconf gives the kernel's number of each knob (include/uapi/linux/ip.h, IPV4_DEVCONF_*).
var devconf = [...]struct {
	knob   string
	number int
}{{RPFilter, 8}, {ARPAnnounce, 18}, {ARPIgnore, 19}, {PromoteSecondaries, 20}}

const (
	inetConf  = 1      // IFLA_INET_CONF, include/uapi/linux/if_link.h
	propList  = 52     // IFLA_PROP_LIST, include/uapi/linux/if_link.h
	altName   = 53     // IFLA_ALT_IFNAME, ibid.
	inet6Conf = 2      // IFLA_INET6_CONF, ibid.
	noIPv6    = 26     // DEVCONF_DISABLE_IPV6, include/uapi/linux/ipv6.h; this array begins at 0
	skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS, include/uapi/linux/rtnetlink.h
	retries   = 10     // a dump is repeated this often while others change what it lists
)

// inFiles are the settings that no dump holds: what all is combined with, and what an interface that
// is still to come will start with. Each costs as much as the dump of a small host, so what decides
// nothing is left out.
var inFiles = []Key{{All, ARPIgnore}, {All, ARPAnnounce}, {All, RPFilter}, {Default, ARPIgnore}, {Default, ARPAnnounce}, {Default, RPFilter}}

// Look lists the interfaces with their settings in one netlink dump, and reads inFiles. Five hundred
// interfaces cost an eighth of what their files would.
func (t Tree) Look(s *nl.SocketHandle) ([]Interface, Table, error) {
	msgs, err := dump(s)
	if err != nil {
		return nil, nil, fmt.Errorf("list interfaces: %w", err)
	}
	ifs := make([]Interface, 0, len(msgs))
	tab := make(Table, len(devconf)*len(msgs)+len(inFiles))
	for _, m := range msgs {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		i, conf := parse(m)
		ifs = append(ifs, i)
		for _, d := range devconf {
			if len(conf) >= 4*d.number {
				tab[Key{i.Name, d.knob}] = int(int32(binary.NativeEndian.Uint32(conf[4*(d.number-1):])))
			}
		}
	}
	for _, k := range inFiles {
		if tab[k], err = t.get(k); err != nil {
			return nil, nil, err
		}
	}
	return ifs, tab, nil
}

// Forwards reads net.ipv4.ip_forward: whether the host passes on packets that are not for it.
func (t Tree) Forwards() (bool, error) {
	v, err := t.get(Key{All, "forwarding"})
	return v != 0, err
}

// dump asks for all links. A dump that others' changes interrupted is partial, and decides nothing. The handle counts the
// requests, so that what is left of one that failed is not taken for the answer to the next.
func dump(s *nl.SocketHandle) ([][]byte, error) {
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == retries {
			return msgs, err
		}
	}
}

// parse takes one RTM_NEWLINK apart: the interface, and its array of IPv4 settings.
func parse(m []byte) (i Interface, conf []byte) {
	flags := binary.NativeEndian.Uint32(m[8:])
	i.Index = int(int32(binary.NativeEndian.Uint32(m[4:])))
	i.Up = flags&unix.IFF_UP != 0
	i.ARP = flags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) == 0
	each(m[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			i.Name = text(v)
		case propList:
			each(v, func(typ uint16, v []byte) {
				if typ == altName {
					i.Alt += " " + text(v)
				}
			})
		case unix.IFLA_ADDRESS:
			i.MAC = len(v)
		case unix.IFLA_MTU:
			if len(v) >= 4 {
				i.MTU = int(binary.NativeEndian.Uint32(v))
			}
		case unix.IFLA_MASTER:
			if len(v) >= 4 {
				i.Master = int(binary.NativeEndian.Uint32(v))
			}
		case unix.IFLA_LINKINFO:
			var data []byte
			each(v, func(typ uint16, v []byte) {
				switch typ {
				case unix.IFLA_INFO_KIND:
					i.Kind = text(v)
				case unix.IFLA_INFO_DATA:
					data = v
				case unix.IFLA_INFO_SLAVE_KIND:
					i.Port = text(v)
				}
			})
			i.tunnel(data)
		case unix.IFLA_AF_SPEC:
			each(v, func(typ uint16, v []byte) {
				family := typ
				each(v, func(typ uint16, v []byte) {
					switch {
					case family == unix.AF_INET && typ == inetConf:
						conf = v
					case family == unix.AF_INET6 && typ == inet6Conf && len(v) >= 4*(noIPv6+1):
						i.IPv6 = binary.NativeEndian.Uint32(v[4*noIPv6:]) == 0
					}
				})
			})
		}
	})
	return i, conf
}

// The attributes of tunnels (include/uapi/linux/if_tunnel.h): of ipip, ip6tnl and sit, and of gre.
const (
	iptunLocal, iptunRemote, iptunProto, iptunExternal = 2, 3, 9, 19
	greIFlags, greLocal, greRemote, greExternal        = 2, 6, 7, 18
	greChecksum                                        = 0x8000
)

// tunnel reads what a tunnel's attributes say of the packets it takes.
func (i *Interface) tunnel(data []byte) {
	local, remote, external := uint16(iptunLocal), uint16(iptunRemote), uint16(iptunExternal)
	switch i.Kind {
	case "ipip", "ip6tnl", "sit":
	case "gre", "ip6gre":
		local, remote, external = greLocal, greRemote, greExternal
	default:
		return
	}
	var args [4]string
	end := func(word string, v []byte) string {
		if a, ok := netip.AddrFromSlice(v); ok && !a.IsUnspecified() {
			return " " + word + " " + a.String()
		}
		return ""
	}
	each(data, func(typ uint16, v []byte) {
		switch {
		case typ == local:
			args[0] = end("local", v)
		case typ == remote:
			args[1] = end("remote", v)
		case typ == external:
			args[2] = " external"
		case typ == greIFlags && local == greLocal && len(v) >= 2 && binary.BigEndian.Uint16(v)&greChecksum != 0:
			args[3] = " icsum"
		case typ == iptunProto && i.Kind == "ip6tnl" && len(v) >= 1:
			switch v[0] {
			case 0:
				i.Mode = "any"
			case unix.IPPROTO_IPIP:
				i.Mode = "ipip6"
			case unix.IPPROTO_IPV6:
				i.Mode = "ip6ip6"
			}
		}
	})
	i.Args = strings.TrimPrefix(strings.Join(args[:], ""), " ")
}

// each walks a run of netlink attributes.
func each(b []byte, f func(typ uint16, v []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED, b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

func text(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}
