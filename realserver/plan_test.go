package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// steps writes a plan as an operator reads it: "stage: command".
func steps(p []Change) (out []string) {
	for _, c := range p {
		out = append(out, c.Stage.String()+": "+c.Item.Command(c.To))
	}
	return out
}

func codes(finds []Finding) (out []string) {
	for _, f := range finds {
		out = append(out, string(f.Level)+" "+f.Code+" "+f.Subject)
	}
	return out
}

// a host with nothing set: lo down, eth0, no tunnel; change makes it another.
func hostWith(change func(*fake)) *Host {
	f := base{}.kernel()
	if change != nil {
		change(f)
	}
	return &f.host
}

func (f *fake) link(l sysctl.Interface) {
	f.host.Links = append(f.host.Links, l)
	for _, k := range knobs {
		f.set(l.Name, k, 0)
	}
}

// vrf puts eth0 in a VRF.
func (f *fake) vrf() {
	f.link(sysctl.Interface{Name: "vrf0", Index: 7, Kind: "vrf", Up: true})
	eth0 := f.host.link("eth0")
	eth0.Master, eth0.Port = 7, "vrf"
}

func addr(s, dev string) loopback.Addr {
	return loopback.Addr{Device: dev, Prefix: netip.MustParsePrefix(s)}
}

func TestPlan(t *testing.T) {
	guardAll := []string{
		"guard: sysctl -w net.ipv4.conf.all.arp_ignore=1",
		"guard: sysctl -w net.ipv4.conf.all.arp_announce=2",
	}
	lo := []string{
		"guard: sysctl -w net.ipv4.conf.lo.arp_ignore=1",
		"guard: sysctl -w net.ipv4.conf.lo.arp_announce=2",
	}
	for _, c := range []struct {
		name string
		set  Set
		host *Host
		want []string
	}{
		{"nothing managed", nil, hostWith(nil), nil},
		{"DR", Set{vipA}, hostWith(nil), slices.Concat(lo, guardAll, []string{
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host"})},
		{"TUN, foretold from default", Set{vipB}, hostWith(func(f *fake) { f.set("default", "rp_filter", 1) }), slices.Concat(
			[]string{"create: modprobe ipip"}, lo, guardAll, []string{
				"guard: sysctl -w net.ipv4.conf.tunl0.rp_filter=2", "guard: ip link set tunl0 up",
				"bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"TUN, nothing to open", Set{vipB}, hostWith(func(f *fake) { f.addDevice("tunl0", "ipip") }), slices.Concat(lo, guardAll,
			[]string{"guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"the module is there, the device is not", Set{vipB}, hostWith(func(f *fake) { f.host.Modules["ipip"] = true }), slices.Concat(
			[]string{"create: ip link add tunl0 type ipip"}, lo, guardAll,
			[]string{"guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"arp_ignore 3 on eth0 serves scope host", Set{vipA}, hostWith(func(f *fake) { f.set("eth0", "arp_ignore", 3) }), slices.Concat(lo, guardAll, []string{
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host"})},
		{"arp_ignore 3 on eth0 leaks scope global", Set{vipC}, hostWith(func(f *fake) { f.set("eth0", "arp_ignore", 3) }), []string{
			lo[0], lo[1], guardAll[0], "guard: sysctl -w net.ipv4.conf.eth0.arp_ignore=1", guardAll[1],
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.3/32 dev lo scope global"}},
		{"no guard asked for", Set{with(vipA, func(v *VIP) { v.Guard = GuardNone })}, hostWith(nil), []string{
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host"}},
		{"an interface's guard", Set{vipAeth}, hostWith(nil), []string{
			"guard: sysctl -w net.ipv4.conf.eth0.arp_ignore=1", "guard: sysctl -w net.ipv4.conf.eth0.arp_announce=2",
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host"}},
		{"a bridge's port: the bridge counts", Set{vipAeth}, hostWith(func(f *fake) {
			f.link(sysctl.Interface{Name: "br0", Index: 3, Kind: "bridge", ARP: true, MAC: 6})
			f.host.Links[1].Master, f.host.Links[1].Port = 3, "bridge"
		}), []string{
			"guard: sysctl -w net.ipv4.conf.br0.arp_ignore=1", "guard: sysctl -w net.ipv4.conf.br0.arp_announce=2",
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host"}},
		{"a wide VIP: the narrow one first", Set{vipA}, hostWith(func(f *fake) { f.addAddr(addr("192.0.2.1/24", "lo"), "global") }), slices.Concat(lo, guardAll, []string{
			"guard: ip link set lo up", "bind: ip addr add 192.0.2.1/32 dev lo scope host", "bind: ip addr del 192.0.2.1/24 dev lo"})},
		{"IPv6 needs no guard", Set{vip6}, hostWith(nil), []string{
			"guard: ip link set lo up", "bind: ip addr add 2001:db8::1/128 dev lo nodad preferred_lft 0"}},
		{"IPv6 beside IPv4", Set{vipA, vip6}, hostWith(nil), slices.Concat(lo, guardAll, []string{"guard: ip link set lo up",
			"bind: ip addr add 192.0.2.1/32 dev lo scope host", "bind: ip addr add 2001:db8::1/128 dev lo nodad preferred_lft 0"})},
		{"IPv4 in IPv6: the device lets it out", Set{vip4in6}, hostWith(func(f *fake) { f.addDevice("ip6tnl0", "ip6tnl"); f.host.link("ip6tnl0").Mode = "ip6ip6" }),
			slices.Concat(lo, guardAll, []string{"guard: ip -6 tunnel change ip6tnl0 mode any", "guard: ip link set ip6tnl0 up", "bind: ip addr add 192.0.2.1/32 dev ip6tnl0 scope host"})},
		{"IPv6 in IPv6 needs no other mode, and no rp_filter", Set{vip6tun}, hostWith(func(f *fake) {
			f.addDevice("ip6tnl0", "ip6tnl")
			f.host.link("ip6tnl0").Mode = "ip6ip6"
			f.set("all", "rp_filter", 1)
		}), []string{"guard: ip link set ip6tnl0 up", "bind: ip addr add 2001:db8::1/128 dev ip6tnl0 nodad preferred_lft 0"}},
		{"IPv4 in IPv6, foretold", Set{vip4in6}, hostWith(func(f *fake) { f.set("default", "rp_filter", 1) }), slices.Concat([]string{"create: modprobe ip6_tunnel"}, lo, guardAll,
			[]string{"guard: sysctl -w net.ipv4.conf.ip6tnl0.rp_filter=2", "guard: ip -6 tunnel change ip6tnl0 mode any", "guard: ip link set ip6tnl0 up",
				"bind: ip addr add 192.0.2.1/32 dev ip6tnl0 scope host"})},
		{"IPv6 in IPv4", Set{vip6in4}, hostWith(nil), []string{"create: modprobe sit", "guard: ip link set sit0 up",
			"bind: ip addr add 2001:db8::1/128 dev sit0 nodad preferred_lft 0"}},
		{"GRE with checksums", Set{vipCSum}, hostWith(nil), slices.Concat([]string{"create: modprobe ip_gre", "create: ip link add grecsum0 type gre local 198.51.100.11 icsum"}, lo, guardAll,
			[]string{"guard: ip link set grecsum0 up", "bind: ip addr add 192.0.2.2/32 dev grecsum0 scope host"})},
		{"GUE", Set{vipGUE}, hostWith(nil), slices.Concat([]string{"create: modprobe ipip", "create: modprobe fou", "create: ip fou add port 6081 gue"}, lo, guardAll,
			[]string{"guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"GUE, the port is open", Set{vip6GUE}, hostWith(func(f *fake) {
			f.host.Modules["fou"] = true
			f.host.Ports[tunnel.Port{Number: 6080, IPv6: true}] = "gue"
		}), []string{"create: modprobe ip6_tunnel", "guard: ip link set ip6tnl0 up", "bind: ip addr add 2001:db8::1/128 dev ip6tnl0 nodad preferred_lft 0"}},
		{"GUE and ipip share a device", Set{vipA, vipGUE, with(vipC, func(v *VIP) { v.Mode = TUN })}, hostWith(func(f *fake) {
			f.host.Modules["fou"] = true
			f.addDevice("tunl0", "ipip")
			f.host.link("lo").Up = true
		}), slices.Concat([]string{"create: ip fou add port 6081 gue"}, lo, guardAll, []string{"guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.1/32 dev lo scope host",
			"bind: ip addr add 192.0.2.2/32 dev tunl0 scope host", "bind: ip addr add 192.0.2.3/32 dev tunl0 scope global"})},
		{"rp_filter off: the others first, all last", Set{vipBoff}, hostWith(func(f *fake) {
			f.addDevice("tunl0", "ipip")
			f.set("all", "rp_filter", 1)
			f.set("lo", "rp_filter", 2)
		}), slices.Concat(lo, guardAll, []string{"guard: sysctl -w net.ipv4.conf.tunl0.rp_filter=0", "guard: sysctl -w net.ipv4.conf.eth0.rp_filter=1",
			"guard: sysctl -w net.ipv4.conf.default.rp_filter=1", "guard: sysctl -w net.ipv4.conf.all.rp_filter=0", "guard: ip link set tunl0 up",
			"bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"rp_filter off, where it is", Set{vipBoff}, hostWith(func(f *fake) { f.addDevice("tunl0", "ipip") }), slices.Concat(lo, guardAll, []string{
			"guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"rp_filter off on the device only", Set{vipBoff}, hostWith(func(f *fake) { f.addDevice("tunl0", "ipip"); f.set("tunl0", "rp_filter", 1) }), slices.Concat(lo, guardAll, []string{
			"guard: sysctl -w net.ipv4.conf.tunl0.rp_filter=0", "guard: ip link set tunl0 up", "bind: ip addr add 192.0.2.2/32 dev tunl0 scope host"})},
		{"a dummy to hold it", Set{with(vipA, func(v *VIP) { v.Device = "dummy0" })}, hostWith(func(f *fake) {
			f.link(sysctl.Interface{Name: "dummy0", Index: 3, Kind: "dummy"})
		}), slices.Concat(lo, guardAll, []string{"guard: ip link set dummy0 up", "bind: ip addr add 192.0.2.1/32 dev dummy0 scope host"})},
	} {
		p, finds := plan(&Journal{VIPs: c.set}, c.host)
		if d := cmp.Diff(c.want, steps(p)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if incomplete(finds) {
			t.Errorf("%s: %v", c.name, finds)
		}
		for _, change := range p {
			if change.Why == "" {
				t.Errorf("%s: %s has no reason", c.name, change.Item)
			}
		}
	}
}

// TestPlanSecondLook: what a look shows after the narrow VIP is there.
func TestPlanSecondLook(t *testing.T) {
	h := hostWith(func(f *fake) {
		f.set("all", "arp_ignore", 1)
		f.set("all", "arp_announce", 2)
		f.host.Links[0].Up = true
		f.addAddr(addr("192.0.2.1/24", "lo"), "global")
		f.addAddr(neighbour, "global")
		f.addAddr(addr("192.0.2.1/32", "lo"), "host")
	})
	p, _ := plan(&Journal{VIPs: Set{vipA}}, h)
	want := []string{"bind: sysctl -w net.ipv4.conf.lo.promote_secondaries=1", "bind: ip addr del 192.0.2.1/24 dev lo"}
	if d := cmp.Diff(want, steps(p)); d != "" {
		t.Error(d)
	}
}

// TestPutBack: what start changed goes back, but not over what someone else has set since, and not
// under what someone else has put there.
func TestPutBack(t *testing.T) {
	key := sysctl.Key{Iface: "all", Knob: "arp_ignore"}
	entry := Entry{Item: key, From: "0", Wrote: []string{"1"}}
	for now, want := range map[int]string{0: "[] []", 1: "[put back: sysctl -w net.ipv4.conf.all.arp_ignore=0] []", 2: "[] [info left net.ipv4.conf.all.arp_ignore]"} {
		p, finds := plan(&Journal{Changed: []Entry{entry}}, hostWith(func(f *fake) { f.set("all", "arp_ignore", now) }))
		if got := fmt.Sprint(steps(p), codes(finds)); got != want {
			t.Errorf("now %d: %s, want %s", now, got, want)
		}
	}
}

// TestFollow: an interface may be renamed, or replaced by another of its name.
func TestFollow(t *testing.T) {
	j := &Journal{Changed: []Entry{{Item: sysctl.Key{Iface: "eth0", Knob: "arp_ignore"}, IfIndex: 2, From: "0", Wrote: []string{"1"}}}}
	j.follow(hostWith(func(f *fake) { f.host.Links[1].Name = "lan0" }))
	if len(j.Changed) != 1 || j.Changed[0].Item != (sysctl.Key{Iface: "lan0", Knob: "arp_ignore"}) {
		t.Errorf("renamed: %+v", j.Changed)
	}
	j.follow(hostWith(func(f *fake) { f.host.Links[1].Index = 7 }))
	if len(j.Changed) != 0 {
		t.Errorf("replaced: %+v", j.Changed)
	}
}

// TestUndoOnNIC: a journal that names a copy of a VIP on a NIC, as rsagent never writes one, takes no address
// off it.
func TestUndoOnNIC(t *testing.T) {
	f := base{}.kernel()
	nic := loopback.Addr{Device: "eth0", Prefix: netip.PrefixFrom(vipA.Addr, 32)}
	f.addAddr(nic, "global")
	for _, device := range []string{"lo", "dummy0"} {
		f.addAddr(loopback.Addr{Device: device, Prefix: netip.PrefixFrom(vipA.Addr, 32)}, "host")
	}
	f.link(sysctl.Interface{Name: "dummy0", Index: 9, Kind: "dummy"})
	undo := []Copy{{vipA.Addr, "eth0"}, {vipA.Addr, "lo"}}
	p, _ := plan(&Journal{Undo: undo, Leaving: []netip.Addr{vipA.Addr}}, &f.host)
	if has := func(a loopback.Addr) bool {
		return slices.ContainsFunc(p, func(c Change) bool { return c.Item == a })
	}; has(nic) || !has(undo[1].addr()) {
		t.Errorf("the plan is %v", p)
	}
}
