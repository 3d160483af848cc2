package realserver

import (
	"fmt"
	"net/netip"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// isVIP tells the test's VIPs from the addresses of the test's hosts.
func isVIP(a netip.Addr) bool { return vips4.Contains(a) || vips6.Contains(a) }

var (
	vips4 = netip.MustParsePrefix("192.0.2.0/28")
	vips6 = netip.MustParsePrefix("2001:db8::/124")
)

var (
	vipA    = with(New(netip.MustParseAddr("192.0.2.1")), func(v *VIP) { v.Origin = Flag })
	vipAeth = with(vipA, func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"eth0"} })
	vipAnft = with(vipA, func(v *VIP) { v.Guard = GuardNFT })
	vipBnft = with(vipB, func(v *VIP) { v.Guard = GuardNFT })
	vipBrul = with(vipB, func(v *VIP) { v.MSS, v.Directors = "1400", []string{"198.51.100.2"} })
	vipAtun = with(vipA, func(v *VIP) { v.Mode = TUN })
	vipB    = with(New(netip.MustParseAddr("192.0.2.2")), func(v *VIP) { v.Mode, v.Origin = TUN, Config })
	vipBlo  = with(vipB, func(v *VIP) { v.Device = "lo" })
	vip6    = with(New(netip.MustParseAddr("2001:db8::1")), func(v *VIP) { v.Origin = Flag })
	vip6tun = with(vip6, func(v *VIP) { v.Mode = TUN })
	vip6in4 = with(vip6tun, func(v *VIP) { v.Outer = "4" })
	vip4in6 = with(vipA, func(v *VIP) { v.Mode, v.Outer = TUN, "6" })
	vipGUE  = with(vipB, func(v *VIP) { v.Tunnel, v.GUEPort = "gue", 6081 })
	vip6GUE = with(vip6tun, func(v *VIP) { v.Tunnel = "gue" })
	vipCSum = with(vipB, func(v *VIP) { v.Tunnel, v.CSum = "gre", true })
	vipBoff = with(vipB, func(v *VIP) { v.RPFilter = "off" })
	vipC    = with(New(netip.MustParseAddr("192.0.2.3")), func(v *VIP) { v.Scope, v.Origin = "global", Flag })
)

func with(v VIP, change func(*VIP)) VIP {
	change(&v)
	return v
}

// neighbour is an address on lo that is nobody's VIP, in the subnet that a wide VIP would cover.
var neighbour = loopback.Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.77/24")}

// A base is a host before rsagent: the settings that matter, tunl0 (absent, absent and not brought
// by the module, down, up), and VIP A put on lo by hand (no, /32, /24 with a neighbour).
type base struct{ allIgnore, ethIgnore, allAnnounce, ethAnnounce, allRP, tunRP, tun, hand int }

func bases() (out []base) {
	for _, allIgnore := range []int{0, 1, 2, 5} {
		for _, ethIgnore := range []int{0, 1, 3} {
			for _, allAnnounce := range []int{0, 2} {
				for _, ethAnnounce := range []int{0, 3} {
					for _, allRP := range []int{0, 1} {
						for _, tunRP := range []int{0, 1} {
							for tun := range 4 {
								for hand := range 3 {
									out = append(out, base{allIgnore, ethIgnore, allAnnounce, ethAnnounce, allRP, tunRP, tun, hand})
								}
							}
						}
					}
				}
			}
		}
	}
	return out
}

func (b base) kernel() *fake {
	f := &fake{fallback: b.tun != tunNone, tunWasUp: b.tun == tunUp, ignoreWas: b.allIgnore, leaking: map[netip.Addr]bool{}, exempt: map[netip.Addr]bool{}}
	f.host = Host{Conf: sysctl.Table{}, Dropped: map[netip.Addr]bool{}, Tables: map[Item]string{}, Ports: map[tunnel.Port]string{}, Modules: map[string]bool{"ipip": b.tun >= tunDown}}
	f.host.Links = []sysctl.Interface{{Name: "lo", Index: 1, Up: b.hand != 0, IPv6: true}, {Name: "eth0", Index: 2, Up: true, ARP: true, MAC: 6}}
	for _, i := range []string{"all", "default", "lo", "eth0"} {
		for _, k := range knobs {
			f.host.Conf[sysctl.Key{Iface: i, Knob: k}] = 0
		}
	}
	f.set("all", "arp_ignore", b.allIgnore)
	f.set("eth0", "arp_ignore", b.ethIgnore)
	f.set("all", "arp_announce", b.allAnnounce)
	f.set("eth0", "arp_announce", b.ethAnnounce)
	f.set("all", "rp_filter", b.allRP)
	f.set("default", "rp_filter", b.tunRP)
	if b.tun >= tunDown {
		f.addDevice("tunl0", "ipip")
		f.host.link("tunl0").Up = b.tun == tunUp
	}
	f.addAddr(loopback.Addr{Device: "lo", Prefix: netip.MustParsePrefix("127.0.0.1/8")}, "host")
	f.addAddr(loopback.Addr{Device: "eth0", Prefix: netip.MustParsePrefix("198.51.100.11/24")}, "global")
	if b.hand > 0 {
		f.addAddr(loopback.Addr{Device: "lo", Prefix: netip.PrefixFrom(vipA.Addr, []int{0, 32, 24}[b.hand])}, "global")
	}
	if b.hand == 2 {
		f.addAddr(neighbour, "global")
	}
	f.judge(Change{Item: sysctl.Key{}})
	f.leaks = nil
	return f
}

func (f *fake) set(iface, knob string, v int) { f.host.Conf[sysctl.Key{Iface: iface, Knob: knob}] = v }

// restored says how the host differs from the one it was, VIPs and what may stay left aside: a module,
// its device (down), lo up, a wide VIP gone.
func (f *fake) restored(b base) error {
	was := b.kernel()
	for k, v := range was.host.Conf {
		if f.host.Conf[k] != v {
			return fmt.Errorf("%s is %d, was %d", k, f.host.Conf[k], v)
		}
	}
	for _, l := range f.host.Links {
		old := was.host.link(l.Name)
		switch {
		case old == nil && (l.Up || b.tun == tunNone || l.Args != "" || l.Mode == tunnel.Any):
			return fmt.Errorf("%s is left behind: %+v", l.Name, l)
		case old != nil && l.Name != "lo" && l != *old:
			return fmt.Errorf("%+v, was %+v", l, *old)
		}
	}
	for it, rules := range f.host.Tables {
		if rules != "" {
			return fmt.Errorf("%s is left: %s", it, rules)
		}
	}
	for p := range f.host.Ports {
		return fmt.Errorf("%s is left open", p)
	}
	for a, dropped := range f.host.Dropped {
		if dropped {
			return fmt.Errorf("a blackhole route for %s is left", a)
		}
	}
	have := map[loopback.Addr]bool{}
	for _, a := range f.host.Addrs {
		have[a.Addr] = true
		if isVIP(a.Prefix.Addr()) {
			return fmt.Errorf("%s is still bound", a.Addr)
		}
	}
	for _, a := range was.host.Addrs {
		if !isVIP(a.Prefix.Addr()) && !have[a.Addr] {
			return fmt.Errorf("%s is gone", a.Addr)
		}
	}
	return nil
}
