package realserver

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/arp"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

func TestFindings(t *testing.T) {
	guarded := func(f *fake) {
		f.set("all", "arp_ignore", 1)
		f.set("all", "arp_announce", 2)
		f.host.Links[0].Up = true
	}
	for _, c := range []struct {
		name string
		set  Set
		host *Host
		want []string
	}{
		{"all well", Set{vipA}, hostWith(guarded), nil},
		{"keepalived's master", Set{vipA}, hostWith(func(f *fake) { guarded(f); f.addAddr(addr("192.0.2.1/32", "eth0"), "global") }),
			[]string{"warning vip-on-nic eth0"}},
		{"the tunnel's name is taken", Set{vipB}, hostWith(func(f *fake) { guarded(f); f.link(sysctl.Interface{Name: "tunl0", Index: 9, Kind: "veth"}) }),
			[]string{"error device-kind tunl0"}},
		{"no such device", Set{with(vipA, func(v *VIP) { v.Device = "dummy7" })}, hostWith(guarded), []string{"error no-device dummy7"}},
		{"a device that speaks", Set{with(vipA, func(v *VIP) { v.Device = "eth0" })}, hostWith(guarded), []string{"error device-kind eth0"}},
		{"no such interface", Set{with(vipAeth, func(v *VIP) { v.Interfaces = []string{"eth7"} })}, hostWith(guarded), []string{"error no-interface eth7"}},
		{"an interface without ARP", Set{with(vipAeth, func(v *VIP) { v.Interfaces = []string{"tun7"} })}, hostWith(func(f *fake) {
			guarded(f)
			f.link(sysctl.Interface{Name: "tun7", Index: 7})
		}), []string{"error no-arp tun7"}},
		{"an interface left uncovered", Set{vipAeth}, hostWith(func(f *fake) { f.link(sysctl.Interface{Name: "eth1", Index: 3, ARP: true, MAC: 6}) }),
			[]string{"warning uncovered eth1"}},
		{"no guard", Set{vipAnone}, hostWith(func(f *fake) { f.host.Links[0].Up = true }), []string{"info no-guard 192.0.2.1"}},
		{"no guard, and silent all the same", Set{vipAnone}, hostWith(guarded), nil},
		{"no guard beside guard all", Set{vipAnone, vipC}, hostWith(func(f *fake) { f.host.Links[0].Up = true }), nil},
		{"no guard beside the guard of each interface", Set{vipAnone, with(vipC, func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"eth0"} })}, hostWith(nil), nil},
		{"IPv6 is disabled", Set{vip6}, hostWith(func(f *fake) { f.host.Links[0].IPv6 = false }), []string{"error ipv6-disabled lo"}},
		{"VIP on lo, bare tunnel, all strict", Set{vipBlo}, hostWith(func(f *fake) { guarded(f); f.set("all", "rp_filter", 1) }), []string{"error rp-filter tunl0"}},
		{"VIP on lo, bare tunnel, all loose", Set{vipBlo}, hostWith(func(f *fake) { guarded(f); f.set("all", "rp_filter", 2) }), []string{"error rp-filter tunl0"}},
		{"the tunnel's name is another tunnel's", Set{vipB}, hostWith(func(f *fake) { guarded(f); f.addDevice("tunl0", "ipip remote 203.0.113.1") }),
			[]string{"error device-kind tunl0"}},
		{"the port is taken", Set{vip6GUE}, hostWith(func(f *fake) { guarded(f); f.host.Ports[tunnel.Port{Number: 6080, IPv6: true}] = "busy" }),
			[]string{"error port-busy UDP port 6080 (IPv6)"}},
		{"the port is taken in the other version", Set{vip6GUE}, hostWith(func(f *fake) { guarded(f); f.host.Ports[tunnel.Port{Number: 6080}] = "busy" }), nil},
		{"the port is open for FOU", Set{vipGUE}, hostWith(func(f *fake) { guarded(f); f.host.Ports[tunnel.Port{Number: 6081}] = "fou" }),
			[]string{"error port-busy UDP port 6081"}},
		{"the port is open for one address", Set{vipGUE}, hostWith(func(f *fake) { guarded(f); f.host.Ports[tunnel.Port{Number: 6081}] = "bound" }),
			[]string{"error port-busy UDP port 6081"}},
		{"checksums, and no own address", Set{vipCSum}, hostWith(func(f *fake) { guarded(f); f.addAddr(addr("198.51.100.12/24", "eth0"), "global") }),
			[]string{"error no-rip grecsum0"}},
		{"checksums, and the source is known", Set{vipCSum}, hostWith(func(f *fake) {
			guarded(f)
			f.addAddr(addr("198.51.100.12/24", "eth0"), "global")
			f.host.Source = netip.MustParseAddr("198.51.100.12")
		}), nil},
		{"checksums, and the address has gone", Set{vipCSum}, hostWith(func(f *fake) { guarded(f); f.addDevice("grecsum0", "gre local 198.51.100.99 icsum") }),
			[]string{"error tunnel-local grecsum0"}},
		{"sit0 was up", Set{vip6in4}, hostWith(func(f *fake) { f.addDevice("sit0", "sit"); f.setLink(f.host.link("sit0"), true) }),
			[]string{"warning shared sit0", "warning shared sit0"}},
		{"the uplink is in a VRF", Set{vipA, vip6}, hostWith(func(f *fake) { guarded(f); f.vrf() }), []string{"error vrf lo"}},
		{"the uplink is in a VRF, and so is the VIP", Set{with(vipA, func(v *VIP) { v.Device = "vrf0" })}, hostWith(func(f *fake) { guarded(f); f.vrf() }), nil},
		{"a VRF beside the uplink", Set{vipA}, hostWith(func(f *fake) {
			guarded(f)
			f.vrf()
			f.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, MAC: 6, Up: true})
			f.addAddr(addr("203.0.113.9/24", "eth1"), "global")
		}), nil},
		{"VIP on lo, a tunnel with an address", Set{vipBlo}, hostWith(func(f *fake) {
			guarded(f)
			f.set("all", "rp_filter", 2)
			f.addDevice("tunl0", "ipip")
			f.addAddr(addr("203.0.113.9/32", "tunl0"), "global")
		}), []string{"warning shared tunl0"}},
	} {
		_, finds := plan(&Journal{VIPs: c.set}, c.host)
		if d := cmp.Diff(c.want, codes(finds)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

var vipAnone = with(vipA, func(v *VIP) { v.Guard = GuardNone })

// TestWords: what a finding says, and that its cure does no harm.
func TestWords(t *testing.T) {
	eth1 := func(f *fake) { f.link(sysctl.Interface{Name: "eth1", Index: 3, ARP: true, MAC: 6}) }
	for _, c := range []struct {
		name string
		set  Set
		host *Host
		code string
		want string
	}{
		{"uncovered", Set{vipAeth}, hostWith(eth1), "uncovered",
			"eth1 is not guarded: it answers ARP for 192.0.2.1, and may ask by ARP as 192.0.2.1 (arp_ignore 0, arp_announce 0) (add --interface eth1, or take --arp-guard all)"},
		{"half uncovered, several VIPs", Set{vipAeth, with(vipC, func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"eth0"} })},
			hostWith(func(f *fake) { eth1(f); f.set("eth1", "arp_announce", 2) }), "uncovered",
			"eth1 is not guarded: it answers ARP for 192.0.2.1 and 1 more (arp_ignore 0) (add --interface eth1, or take --arp-guard all)"},
		{"on a NIC", Set{vipA}, hostWith(func(f *fake) { f.addAddr(addr("192.0.2.1/24", "eth0"), "global") }), "vip-on-nic",
			"VIP 192.0.2.1 is on eth0 too, which answers for it; right only where this host is the director as well (none if keepalived put it there; else: ip addr del 192.0.2.1/24 dev eth0)"},
		{"the only address", Set{with(vipA, func(v *VIP) { v.Addr = netip.MustParseAddr("198.51.100.11") })}, hostWith(nil), "vip-on-nic",
			"VIP 198.51.100.11 is on eth0 too, which answers for it; right only where this host is the director as well; it is this host's own address there (rsagent stop --vip 198.51.100.11, if it is not)"},
		{"the source of the default route", Set{vipA}, hostWith(func(f *fake) { f.addAddr(addr("192.0.2.1/24", "eth0"), "global"); f.host.Source = vipA.Addr }), "vip-on-nic",
			"VIP 192.0.2.1 is on eth0 too, which answers for it; right only where this host is the director as well; it is this host's own address there (rsagent stop --vip 192.0.2.1, if it is not)"},
		{"a NIC is gone", Set{with(vipAeth, func(v *VIP) { v.Interfaces = []string{"eth7"} })}, hostWith(nil), "no-interface",
			"there is no interface eth7 to guard (rsagent start --vip 192.0.2.1 --arp-guard interface --interface NAME, of one that is there (ip -br link); or rsagent stop --vip 192.0.2.1)"},
	} {
		_, finds := plan(&Journal{VIPs: c.set}, c.host)
		got := ""
		for _, f := range finds {
			if f.Code == c.code {
				got += f.Message + " (" + f.Cure + ")"
			}
		}
		if got != c.want {
			t.Errorf("%s: %s\nwant: %s", c.name, got, c.want)
		}
	}
}

// TestWasAnswering: a VIP that the nftables guard silenced had not been answered for, whatever the settings were.
func TestWasAnswering(t *testing.T) {
	for table, want := range map[string][]string{"": {"warning was-answering 192.0.2.1"}, "drop 192.0.2.1 send eth0=198.51.100.11": nil,
		"drop 192.0.2.9 send eth0=198.51.100.11": {"warning was-answering 192.0.2.1"}} {
		h := hostWith(func(f *fake) { f.addAddr(addr("192.0.2.1/32", "lo"), "host"); f.host.Tables[arp.GuardTable{}] = table })
		j := &Journal{VIPs: Set{vipA}, Changed: []Entry{{Item: arp.GuardTable{}, Wrote: []string{rules}}}}
		p, _ := plan(j, h)
		if got := codes(opening(j, h, p, false)); !slices.Equal(got, want) {
			t.Errorf("table %q: %v, want %v", table, got, want)
		}
	}
}

// TestMuted: guard all silences addresses too that are no VIPs; that is said when it is set.
func TestMuted(t *testing.T) {
	add := func(f *fake) {
		f.addAddr(addr("203.0.113.5/32", "lo"), "global")
		f.addAddr(addr("127.0.0.2/8", "lo"), "host")
		f.addAddr(addr("192.0.2.1/32", "lo"), "host")
	}
	for _, c := range []struct {
		name string
		vip  VIP
		host *Host
		want []string
	}{
		{"all", vipA, hostWith(add), []string{"info muted 203.0.113.5"}},
		{"nft", with(vipA, func(v *VIP) { v.Guard = GuardNFT }), hostWith(add), nil},
		{"silent before", vipA, hostWith(func(f *fake) { add(f); f.set("all", "arp_ignore", 1) }), nil},
	} {
		j := &Journal{VIPs: Set{c.vip}}
		p, _ := plan(j, c.host)
		got := slices.DeleteFunc(codes(opening(j, c.host, p, false)), func(s string) bool { return strings.Contains(s, "answering") })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSilentByNFT: an interface is silent where the table drops what asks for each VIP, whatever its settings.
func TestSilentByNFT(t *testing.T) {
	nft := with(vipA, func(v *VIP) { v.Guard = GuardNFT })
	for _, c := range []struct {
		set   Set
		table string
		good  bool
	}{
		{Set{nft}, "drop 192.0.2.1 send eth0=198.51.100.11", true},
		{Set{nft}, "", false},
		{Set{nft, with(vipAnone, func(v *VIP) { v.Addr = vipC.Addr })}, "drop 192.0.2.1 send eth0=198.51.100.11", false},
	} {
		h := hostWith(func(f *fake) { f.host.Tables[arp.GuardTable{}] = c.table })
		for _, g := range h.silence(c.set) {
			if g.Rules == "" && (g.Good != c.good || g.ByRules != c.good) {
				t.Errorf("%v, table %q: %+v", c.set, c.table, g)
			}
		}
	}
}

// TestBareTunnel: a VIP on lo behind a tunnel without an address, whose own rp_filter is loose, drifts
// and says why (seen at katran 28 and keepalived 620).
func TestBareTunnel(t *testing.T) {
	h := hostWith(func(f *fake) {
		f.set("all", "arp_ignore", 1)
		f.set("all", "arp_announce", 2)
		f.host.Links[0].Up = true
		f.addDevice("tunl0", "ipip")
		f.host.link("tunl0").Up = true
		f.set("tunl0", "rp_filter", 2)
		f.addAddr(addr("192.0.2.2/32", "lo"), "host")
	})
	p, _ := plan(&Journal{VIPs: Set{vipBlo}}, h)
	if len(p) != 1 || p[0].Item != (sysctl.Key{Iface: "tunl0", Knob: "rp_filter"}) || p[0].To != "0" || !strings.Contains(p[0].Why, "no IPv4 address") {
		t.Errorf("the plan is %+v", p)
	}
}

func TestOwnAddresses(t *testing.T) {
	own := VIP{Addr: netip.MustParseAddr("198.51.100.11")}
	second := with(own, func(v *VIP) { v.Addr = netip.MustParseAddr("198.51.100.12") })
	h := hostWith(func(f *fake) { f.host.Source = own.Addr })
	two := hostWith(func(f *fake) { f.host.Source = own.Addr; f.addAddr(addr("198.51.100.12/24", "eth0"), "global") })
	noRoute := hostWith(nil)
	for _, c := range []struct {
		name    string
		vip     VIP
		host    *Host
		refused bool
	}{
		{"the source of the default route", own, h, true},
		{"the same, where there are two", own, two, true},
		{"the second of two", second, two, false},
		{"the only one, no default route", own, noRoute, true},
		{"allowed", with(own, func(v *VIP) { v.AllowDirector = true }), h, false},
		{"a VIP", vipA, h, false},
	} {
		if got := len(ownAddresses(Set{c.vip}, c.host)) > 0; got != c.refused {
			t.Errorf("%s: refused is %t", c.name, got)
		}
	}
}
