package realserver

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A Host is one look at the host. It is plain data, and never more than one stage old when it
// decides something.
type Host struct {
	Links    []sysctl.Interface
	Conf     sysctl.Table
	Addrs    []loopback.Held
	Source   netip.Addr             // what the kernel picks as source for the default route
	Gateway  netip.Addr             // where the default route goes
	Uplink   int                    // ifindex by which it goes; 0 is none
	Forwards bool                   // ip_forward: packets that are not for this host are passed on
	Modules  map[string]bool        // which modules of tunnels are there; none where they were not asked for
	Received map[string]uint64      // packets that came out of each tunnel device
	Dropped  map[netip.Addr]bool    // addresses with a blackhole route; nil where they were not asked for
	Tables   map[Item]string        // values of rsagent's nftables tables; nil where they were not asked for
	Directs  map[netip.Addr]bool    // addresses in this host's own IPVS table; nil where they were not asked for
	Proxied  map[netip.Addr]string  // IPv6 addresses for which it is an NDP proxy, and on which interface; nil where they were not asked for
	Ports    map[tunnel.Port]string // UDP ports that are open or in use; nil where they were not asked for
}

// value is what the host has for an item.
func (h *Host) value(it Item) string {
	switch it := it.(type) {
	case sysctl.Key:
		if v, ok := h.Conf[it]; ok {
			return strconv.Itoa(v)
		}
	case tunnel.Module:
		if h.Modules[it.Name] {
			return "loaded"
		}
	case loopback.Blackhole:
		if h.Dropped[it.VIP] {
			return "blackhole"
		}
	case arp.GuardTable, tunnel.RulesTable:
		return h.Tables[it]
	case tunnel.Device:
		if l := h.link(it.Name); l != nil {
			return strings.TrimSpace(l.Kind + " " + l.Args)
		}
	case tunnel.Port:
		return h.Ports[it]
	case tunnel.Mode:
		if l := h.link(it.Device); l != nil {
			return l.Mode
		}
	case loopback.Addr:
		for _, a := range h.Addrs {
			if a.Addr == it {
				return a.Scope
			}
		}
	case tunnel.Link:
		if l := h.link(it.Name); l != nil && l.Up {
			return "up"
		} else if l != nil {
			return "down"
		}
	}
	return ""
}

// foretold is the value, or what the kernel will give an item whose device is still to come.
func (h *Host) foretold(it Item) string {
	if v := h.value(it); v != "" {
		return v
	}
	switch it := it.(type) {
	case sysctl.Key:
		return strconv.Itoa(h.Conf.Own(it.Iface, it.Knob))
	case tunnel.Link:
		return "down"
	case tunnel.Mode: // as the module brings the device, or as rsagent makes it
		if k, _ := tunnel.ByDevice(it.Device); h.Modules[k.Module] {
			return tunnel.Any
		}
		return tunnel.Fallback
	}
	return ""
}

// rip is this host's own IPv4 address, by which a director knows it: the source for the default route,
// or else the only global address on its NICs. The zero Addr is none, or that there are several.
func (h *Host) rip() (rip netip.Addr) {
	holders := h.holders()
	for _, a := range h.Addrs {
		switch ip := a.Prefix.Addr(); {
		case !ip.Is4() || holders[a.Device] || a.Scope != "global":
		case ip == h.Source:
			return ip
		case rip.IsValid():
			rip = netip.IPv4Unspecified()
		default:
			rip = ip
		}
	}
	if rip.IsUnspecified() {
		return netip.Addr{}
	}
	return rip
}

// baseline is the host's settings as they would be had rsagent changed nothing: each entry that
// still holds what rsagent wrote is taken back, in a copy. Policy judges this, so that what rsagent
// wrote is never a reason to keep it, or not to.
func (h *Host) baseline(entries []Entry) sysctl.Table {
	t := maps.Clone(h.Conf)
	for _, e := range entries {
		if k, ok := e.Item.(sysctl.Key); ok && e.ours(h.value(k)) {
			t[k], _ = strconv.Atoi(e.From) // decoding the journal made sure that it is a number
		}
	}
	return t
}

func (h *Host) link(name string) *sysctl.Interface {
	for i := range h.Links {
		if h.Links[i].Name == name {
			return &h.Links[i]
		}
	}
	return nil
}

func (h *Host) byIndex(index int) *sysctl.Interface {
	for i := range h.Links {
		if h.Links[i].Index == index {
			return &h.Links[i]
		}
	}
	return nil
}

// called is the interface with this name, or else with this alternative name.
func (h *Host) called(name string) *sysctl.Interface {
	if l := h.link(name); l != nil {
		return l
	}
	for i := range h.Links {
		if h.Links[i].Called(name) {
			return &h.Links[i]
		}
	}
	return nil
}

// speakers names the interfaces whose settings decide about ARP.
func (h *Host) speakers() (names []string) {
	for _, l := range h.Links {
		if l.Speaks() {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return names
}

// guardable names the interfaces that take ARP or may come to: a port may leave its bridge, and NOARP
// be taken off. Not those that may hold a VIP, which have no ARP by their nature.
func (h *Host) guardable() (names []string) {
	for _, l := range h.Links {
		if !holds(l) {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return names
}

// speaker resolves an interface, by ifindex or else by name, to the one whose settings decide for it: the master of a port of a
// bridge, bond or team.
func (h *Host) speaker(name string, index int) *sysctl.Interface {
	l := h.byIndex(index)
	if l == nil {
		l = h.called(name)
	}
	for hops := 0; l != nil && l.ARP && !l.Speaks() && l.Master != 0 && hops < 8; hops++ {
		l = h.byIndex(l.Master)
	}
	return l
}

// holds says that a VIP may sit on this interface: it carries no ARP of its own, so that a copy of
// the VIP on it is a real server's. A copy on any other interface is somebody else's.
func holds(l sysctl.Interface) bool {
	return l.Name == "lo" || tunnel.Receives(l.Kind) || l.Kind == "dummy" || l.Kind == "vrf"
}

// uplinkVRF names the VRF of the interfaces by which packets come in; "" is none, or not all of them.
func (h *Host) uplinkVRF() (vrf string) {
	for _, l := range h.Links {
		if !l.Speaks() || !l.Up {
			continue
		}
		addressed := slices.ContainsFunc(h.Addrs, func(a loopback.Held) bool { return a.Device == l.Name && a.Prefix.Addr().Is4() })
		if master := h.byIndex(l.Master); l.Port == "vrf" && master != nil {
			vrf = master.Name
		} else if addressed {
			return ""
		}
	}
	return vrf
}

// compat says that an address is one that the kernel gives a sit device when it goes up.
func (h *Host) compat(a loopback.Held) bool {
	if !tunnel.Compat(a.Prefix) {
		return false
	}
	l := h.link(a.Device)
	return l != nil && l.Kind == "sit"
}

// holdsAddr says that an address is on some interface.
func (h *Host) holdsAddr(ip netip.Addr) bool {
	return slices.ContainsFunc(h.Addrs, func(a loopback.Held) bool { return a.Prefix.Addr() == ip })
}

// onNICs tells of each address that is not where VIPs are held which interfaces have it.
func (h *Host) onNICs() map[netip.Addr][]string {
	m, holders := map[netip.Addr][]string{}, h.holders()
	for _, a := range h.Addrs {
		if !holders[a.Device] {
			m[a.Prefix.Addr()] = append(m[a.Prefix.Addr()], a.Device)
		}
	}
	return m
}

// holders is the set of names of the interfaces that may hold a VIP.
func (h *Host) holders() map[string]bool {
	m := map[string]bool{}
	for _, l := range h.Links {
		if holds(l) {
			m[l.Name] = true
		}
	}
	return m
}
