package realserver

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// TestShrinkIsPutBack: a VIP goes from nftables to settings while another stays. The rules are about both
// until the settings have been seen to hold.
func TestShrinkIsPutBack(t *testing.T) {
	f := base{tun: tunUp}.kernel()
	f.host.Tables[arp.GuardTable{}] = "drop 192.0.2.1 192.0.2.2 send eth0=198.51.100.11"
	j := &Journal{VIPs: Set{vipA, vipBnft}}
	j.claim(&f.host)
	p, _ := plan(j, &f.host)
	seen := false
	for _, c := range p {
		if c.Item == (arp.GuardTable{}) {
			seen = true
			if c.Stage != PutBack || c.To != "drop 192.0.2.2 send eth0=198.51.100.11" {
				t.Errorf("in stage %s the rules become %q", c.Stage, c.To)
			}
		}
	}
	if !seen {
		t.Errorf("the rules stay about both: %v", p)
	}
}

// TestParseIPVS reads what Linux 6.1 shows in /proc/net/ip_vs.
func TestParseIPVS(t *testing.T) {
	got := parseIPVS(`IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C0000264:0050 rr
  -> C000020B:0050      Route   1      0          0
UDP  C0000265:0035 wrr persistent 360 FFFFFFFF
TCP  [2001:0db8:0000:0000:0000:0000:0000:0064]:0050 rr
FWM  00000001 rr
  -> C000020C:0000      Tunnel  1      0          0
`)
	want := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.100"): true, netip.MustParseAddr("192.0.2.101"): true, netip.MustParseAddr("2001:db8::64"): true}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTunnelRules: what nftables is to do for VIPs in TUN mode, on a host with eth0 of MTU 1500.
func TestTunnelRules(t *testing.T) {
	tun := func(addr string, change func(*VIP)) VIP {
		return with(New(netip.MustParseAddr(addr)), func(v *VIP) { v.Mode, v.Origin = TUN, Flag; change(v) })
	}
	auto := func(v *VIP) { v.MSS = AutoMSS }
	for _, c := range []struct {
		name string
		set  Set
		mtu  int // of a second NIC, by which the default route goes; 0 is none
		want string
		says []string // codes of findings, beside what the bare host leads to
	}{
		{name: "nothing asked", set: Set{tun("192.0.2.1", func(*VIP) {})}},
		{name: "ipip", set: Set{tun("192.0.2.1", auto)}, want: "mss 1440 192.0.2.1"},
		{name: "gre", set: Set{tun("192.0.2.1", func(v *VIP) { auto(v); v.Tunnel = "gre" })}, want: "mss 1432 192.0.2.1"},
		{name: "gue", set: Set{tun("192.0.2.1", func(v *VIP) { auto(v); v.Tunnel = "gue" })}, want: "mss 1420 192.0.2.1"},
		{name: "6in6", set: Set{tun("2001:db8::1", auto)}, want: "mss 1400 2001:db8::1"},
		{name: "6in4", set: Set{tun("2001:db8::1", func(v *VIP) { auto(v); v.Outer = "4" })}, want: "mss 1420 2001:db8::1"},
		{name: "4in6", set: Set{tun("192.0.2.1", func(v *VIP) { auto(v); v.Outer = "6" })}, want: "mss 1420 192.0.2.1"},
		{name: "6 in gue over 6", set: Set{tun("2001:db8::1", func(v *VIP) { auto(v); v.Tunnel = "gue" })}, want: "mss 1380 2001:db8::1"},
		{name: "another uplink", set: Set{tun("192.0.2.1", auto)}, mtu: 9000, want: "mss 8940 192.0.2.1"},
		{name: "the smallest MTU that does", set: Set{tun("192.0.2.1", auto)}, mtu: 596, want: "mss 536 192.0.2.1"},
		{name: "an MTU too small", set: Set{tun("192.0.2.1", func(v *VIP) { auto(v); v.Tunnel = "gue" })}, mtu: 576, says: []string{"small-mtu"}},
		{name: "a number", set: Set{tun("192.0.2.1", func(v *VIP) { v.MSS = "536" })}, want: "mss 536 192.0.2.1"},
		{name: "a number that does not fit", set: Set{tun("192.0.2.1", func(v *VIP) { v.MSS = "1441" })}, want: "mss 1441 192.0.2.1", says: []string{"mss"}},
		{name: "a number that just fits", set: Set{tun("192.0.2.1", func(v *VIP) { v.MSS = "1440" })}, want: "mss 1440 192.0.2.1"},
		{name: "directors", set: Set{tun("192.0.2.1", func(v *VIP) { v.Directors = []string{"198.51.100.0/24"} }), tun("192.0.2.2", func(v *VIP) { v.Directors = []string{"192.0.2.9"} })},
			want: "take ip:4 from 192.0.2.9 198.51.100.0/24"},
		{name: "a director of one of two", set: Set{tun("192.0.2.1", func(v *VIP) { v.Directors = []string{"192.0.2.9"} }), tun("192.0.2.2", func(*VIP) {})}, says: []string{"director-open"}},
		{name: "a director, and a VIP in DR", set: Set{vipA, tun("192.0.2.2", func(v *VIP) { v.Directors = []string{"192.0.2.9"} })}, want: "take ip:4 from 192.0.2.9"},
		{name: "a director by gue", set: Set{tun("192.0.2.1", func(v *VIP) { v.Tunnel, v.GUEPort, v.Directors = "gue", 5555, []string{"192.0.2.9"} })},
			want: "take ip:4 from 192.0.2.9 take ip:udp:5555 from 192.0.2.9"},
		{name: "a director by gre", set: Set{tun("192.0.2.1", func(v *VIP) { v.Tunnel, v.Directors = "gre", []string{"192.0.2.9"} })}, want: "take ip:47 from 192.0.2.9"},
		{name: "a director by IPv6", set: Set{tun("2001:db8::1", func(v *VIP) { v.Directors = []string{"2001:db8::9"} })}, want: "take ip6:4 from 2001:db8::9 take ip6:41 from 2001:db8::9"},
		{name: "6in4 from a director", set: Set{tun("2001:db8::1", func(v *VIP) { v.Outer, v.Directors = "4", []string{"192.0.2.9"} })}, want: "take ip:41 from 192.0.2.9"},
	} {
		f := base{tun: tunUp}.kernel()
		f.host.link("eth0").MTU = 1500
		if c.mtu > 0 {
			f.link(sysctl.Interface{Name: "eth1", Index: 7, ARP: true, MAC: 6, MTU: c.mtu})
			f.host.Uplink = 7
		}
		for _, v := range c.set {
			if err := v.Check(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		p, finds := plan(&Journal{VIPs: c.set}, &f.host)
		got := ""
		for _, change := range p {
			if change.Item == (tunnel.RulesTable{}) && change.Stage == Guard {
				got = change.To
			}
		}
		if got != c.want {
			t.Errorf("%s: the rules are %q, want %q", c.name, got, c.want)
		}
		for _, code := range []string{"mss", "director-open", "small-mtu", "no-uplink"} {
			said := slices.ContainsFunc(finds, func(f Finding) bool { return f.Code == code })
			if said != slices.Contains(c.says, code) {
				t.Errorf("%s: finding %s is said: %t", c.name, code, said)
			}
		}
	}
}

// TestRulesBeforeLink: a tunnel is closed to others before it takes anything, and until it takes nothing more.
func TestRulesBeforeLink(t *testing.T) {
	b := newBench(t)
	b.on(base{tun: tunDown}.kernel())
	for _, verb := range []Edit{Add(vipBrul), DropAll} {
		r, err, _ := b.converge(verb)
		if err != nil {
			t.Fatal(err)
		}
		at := func(it Item) int {
			return slices.IndexFunc(r.Changes, func(c Change) bool { return c.Item == it })
		}
		rules, link := at(tunnel.RulesTable{}), at(tunnel.Link{Name: "tunl0"})
		if rules < 0 || link < 0 || (rules < link) != (len(r.VIPs) > 0) {
			t.Errorf("with %d VIPs the rules are change %d, the link is %d", len(r.VIPs), rules, link)
		}
	}
}

// TestArrivalsNameSegments: status tells what segments are named, and what fits.
func TestArrivalsNameSegments(t *testing.T) {
	f := base{tun: tunUp}.kernel()
	f.host.link("eth0").MTU = 1500
	set := Set{vipB}
	for _, c := range []struct {
		rules     string
		mtu       int
		mss, fits int
	}{
		{"", 1500, 1460, 1440}, {"mss 1440 " + vipB.Addr.String(), 1500, 1440, 1440}, {"mss 1440 192.0.2.9", 1500, 1460, 1440},
		{"mss 1440 " + vipB.Addr.String(), 1400, 1360, 1340}, {"", 0, -40, 0},
	} {
		f.host.link("eth0").MTU = c.mtu
		f.host.Tables[tunnel.RulesTable{}] = c.rules
		for _, a := range f.host.arrivals(set) {
			if a.Device == "tunl0" && (a.Fits != c.fits || c.fits > 0 && a.MSS != c.mss) {
				t.Errorf("rules %q, MTU %d: %d named, %d fit, want %d and %d", c.rules, c.mtu, a.MSS, a.Fits, c.mss, c.fits)
			}
		}
	}
}

// TestSenders: what an interface asks with in a VIP's place.
func TestSenders(t *testing.T) {
	for _, c := range []struct{ addrs, source, want string }{
		{"192.0.2.11/24", "", "192.0.2.11"},
		{"10.0.0.9/24 192.0.2.11/24", "", "10.0.0.9@10.0.0.0/24 192.0.2.11@192.0.2.0/24 10.0.0.9"},
		{"10.0.0.9/24 192.0.2.11/24", "192.0.2.11", "10.0.0.9@10.0.0.0/24 192.0.2.11@192.0.2.0/24 192.0.2.11"},
		{"10.0.0.9/8 10.1.0.9/16", "", "10.1.0.9@10.1.0.0/16 10.0.0.9@10.0.0.0/8 10.0.0.9"},
		{"192.0.2.50/32 192.0.2.11/24", "", "192.0.2.11"},           // keepalived's came first
		{"192.0.2.11/24 192.0.2.50/24", "192.0.2.50", "192.0.2.11"}, // the second is secondary
		{"192.0.2.50/32 192.0.2.11/24", "192.0.2.50", "192.0.2.11"}, //
		{"192.0.2.50/32", "", "192.0.2.50"},                         // a cloud's
		{"192.0.2.50/32 192.0.2.51/32", "192.0.2.51", "192.0.2.51"}, //
		{"192.0.2.1/24 192.0.2.11/24", "", "192.0.2.11"},            // never a VIP of the set
		{"192.0.2.1/24", "", ""}, //
	} {
		f := base{}.kernel()
		f.host.Addrs = nil
		for _, a := range strings.Fields(c.addrs) {
			f.addAddr(loopback.Addr{Device: "eth0", Prefix: netip.MustParsePrefix(a)}, "global")
		}
		f.host.Source, _ = netip.ParseAddr(c.source)
		want := []string{}
		for _, w := range strings.Fields(c.want) {
			want = append(want, "eth0="+w)
		}
		got := strings.TrimPrefix(arp.Guard{Senders: f.host.senders("eth0", Set{vipA})}.String(), "drop send")
		if strings.TrimSpace(got) != strings.Join(want, " ") {
			t.Errorf("%s, source %q: got %q, want %q", c.addrs, c.source, got, want)
		}
	}
}

// TestHardwareAddresses: the rules find the addresses of a packet where Ethernet has them, and nowhere else.
func TestHardwareAddresses(t *testing.T) {
	for mac, refused := range map[int]bool{0: true, 4: true, 6: false, 20: true} {
		for _, up := range []bool{false, true} {
			f := base{}.kernel()
			f.link(sysctl.Interface{Name: "nic", Index: 7, ARP: true, MAC: mac, Up: up})
			f.addAddr(loopback.Addr{Device: "nic", Prefix: netip.MustParsePrefix("203.0.113.11/24")}, "global")
			_, finds := plan(&Journal{VIPs: Set{vipAnft, vipBlo}}, &f.host)
			if unserved(finds, vipAnft) != refused || unserved(finds, vipBlo) {
				t.Errorf("%d bytes, up %t: %v", mac, up, finds)
			}
		}
	}
}

// TestRulesOfALostJournal: they are told of, stay while an address that may be a VIP rests on them, and go with the last.
func TestRulesOfALostJournal(t *testing.T) {
	for _, ruled := range []VIP{vipBrul, with(vipBlo, func(v *VIP) { v.Directors = vipBrul.Directors })} {
		rulesOfALostJournal(t, ruled)
	}
}

func rulesOfALostJournal(t *testing.T, ruled VIP) {
	t.Helper()
	b := newBench(t)
	b.on(base{tun: tunUp}.kernel())
	orphaned := func(r *Result) bool {
		return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == "orphaned-rules" })
	}
	rules := func() string { return b.host.Tables[tunnel.RulesTable{}] }
	for _, step := range []struct {
		verb   Edit
		given  []netip.Addr
		lost   bool
		stay   bool
		orphan bool
	}{
		{verb: Add(ruled), stay: true},
		{lost: true, verb: Add(vipA), stay: true, orphan: true},
		{verb: DropAll, stay: true, orphan: true},
		{verb: Drop(vipB.Addr), given: []netip.Addr{vipB.Addr}},
		{verb: Add(ruled), stay: true},
		{lost: true, verb: Add(ruled), stay: true},
		{verb: DropAll},
	} {
		if step.lost {
			os.Remove(b.journal())
		}
		if _, err, _ := b.converge(step.verb, step.given...); err != nil {
			t.Fatal(err)
		}
		r, err := (&Agent{Kernel: b.kernel(), StateDir: b.dir, here: testPlace}).Look(Keep)
		if err != nil {
			t.Fatal(err)
		}
		if (rules() != "") != step.stay || orphaned(r) != step.orphan {
			t.Errorf("%+v: the rules are %q, found orphaned: %t", step, rules(), orphaned(r))
		}
	}
}
