package cases

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/scripts/testnet"
)

// 10.0.0.100/24 on lo makes all of 10.0.0.0/24 local: the host cannot reach
// its own network. start replaces it by the bare address.
// Seen at: resource-agents issue 78.
func TestCase15_WidePrefixOnLo(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.rs.Run(t, "ip", "addr", "add", vip+"/24", "dev", "lo")
		if s.reaches(t) {
			t.Fatal("a /24 on lo does not take the network")
		}
		s.do(t, "start", "--vip", vip)
		s.bound(t, vip, "lo")
		if !s.reaches(t) {
			t.Error("the network is still taken")
		}
		s.silent(t, vip)
		s.do(t, "stop")
	})
}

// Other addresses of that network on lo are the wide one's secondaries, and
// would go with it. They are none of rsagent's.
func TestCase15_SecondariesOfTheWidePrefixStay(t *testing.T) {
	s := newSite(t)
	promote := s.rs.IPv4Conf(t, "lo", "promote_secondaries")
	for _, a := range []string{"10.0.0.50/32", vip + "/24", "10.0.0.60/24", "10.0.0.61/24", "192.0.2.5/32"} {
		s.rs.Run(t, "ip", "addr", "add", a, "dev", "lo")
	}
	s.do(t, "start", "--vip", vip)
	s.bound(t, vip, "lo")
	s.do(t, "stop")
	s.bound(t, vip)
	s.bound(t, "10.0.0.50", "lo")
	s.bound(t, "10.0.0.60", "lo/24")
	s.bound(t, "10.0.0.61", "lo/24")
	s.bound(t, "192.0.2.5", "lo")
	s.conf(t, "lo", "promote_secondaries", promote)
}

// To the kernel the /24 is another address than the /32: removing only the
// one that start added leaves the VIP local.
// Seen at: keepalived issue 155.
func TestCase16_WidePrefixAddedBySomeoneElse(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.rs.Run(t, "ip", "addr", "add", vip+"/24", "dev", "lo")
		s.do(t, "stop")
		s.bound(t, vip)
		if !s.reaches(t) {
			t.Error("10.0.0.0/24 is not reachable")
		}
	})
}

// A host that is a keepalived master at the moment has the VIP on eth0 as
// well; that copy is keepalived's. Seen at: keepalived issue 1827.
func TestCase19_AlsoOnTheNIC(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0")
	s.restored(t, func() {
		if r := s.do(t, "start", "--vip", vip); !r.says("warning", "vip-on-nic", "eth0") {
			t.Errorf("no warning about eth0: %+v", r.Findings)
		}
		s.bound(t, vip, "eth0", "lo")
		s.ask(t, 0, "status")
		const row = "silent, but for " + vip + ", which it holds"
		if got := s.rs.Run(t, s.args("status")...); strings.Count(got, row) != 1 || !strings.Contains(got, row+"\n") {
			t.Errorf("eth0 answers for the VIP, and status says:\n%s", got)
		}
		for _, ignore := range []string{"8", "0"} { // for no address at all, and for any
			s.rs.SetIPv4Conf(t, "all", "arp_ignore", ignore)
			if got := s.rs.Try(s.args("status")...).Stdout; strings.Contains(got, "but for") || s.answers(t, "eth0", vip) != (ignore == "0") {
				t.Errorf("arp_ignore %s, and status says:\n%s", ignore, got)
			}
		}
		s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1")
		s.do(t, "stop")
		s.bound(t, vip, "eth0")
	})
}

// Silencing ARP for the host's own address cuts the host off.
// Seen at: keepalived issue 2389.
func TestCase20_OwnAddress(t *testing.T) {
	for _, c := range []struct {
		name, given string
		addrs       []string
		code        int
	}{
		{"the only one, /24", rip, []string{rip + "/24"}, 6},
		{"the only one, /32", rip, []string{rip + "/32"}, 6},
		{"the first of two, source of the default route", rip, []string{rip + "/24", vip + "/24"}, 6},
		{"the second of two", vip, []string{rip + "/24", vip + "/24"}, 0},
		{"beside it, /32", vip, []string{rip + "/24", vip + "/32"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSiteWith(t, "")
			for _, a := range c.addrs {
				s.rs.Run(t, "ip", "addr", "add", a, "dev", "eth0")
			}
			s.rs.Run(t, "ip", "route", "add", "default", "via", peerIP, "dev", "eth0", "onlink")
			s.restored(t, func() {
				r := s.ask(t, c.code, "start", "--vip", c.given)
				if !r.says("eth0") {
					t.Errorf("nothing is said about eth0: %+v", r)
				}
				if c.code == 0 {
					s.do(t, "stop")
				}
			})
			if c.code != 0 {
				s.restored(t, func() {
					s.do(t, "start", "--vip", c.given, "--allow-director")
					s.do(t, "stop")
				})
			}
		})
	}
}

// Network daemons remove addresses they do not know.
// Seen at: systemd issue 2023, netplan bug 408.
func TestCase35_AddressesFlushed(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, "--vip", vip2)
		s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
		s.rs.Run(t, "ip", "addr", "flush", "dev", "lo", "to", vip2)
		s.ask(t, 1, "status")
		if r := s.do(t, "start", "--vip", vip, "--vip", vip2); !r.Changed {
			t.Error("the VIPs were gone, and start says it changed nothing")
		}
		s.bound(t, vip, "lo")
		s.bound(t, vip2, "lo")
		s.ask(t, 0, "status")
		s.do(t, "stop")
	})
}

// With scope global, software that looks for "the host's address" finds the
// VIP. Scope host serves all the same.
// Seen at: consul issue 928, kube-vip issue 111.
func TestCase36_ScopeHostAndNoLabel(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	want := testnet.Addr{Local: vip, PrefixLen: 32, Scope: "host", Label: "lo"} // lo: no label
	if got := s.rs.Addrs(t, "lo"); !slices.Contains(got, want) {
		t.Errorf("want %+v among %+v", want, got)
	}
	s.serves(t, vip)
}

// Where no interface has an address the kernel takes any of scope global as
// source: the host would speak as the VIP. Seen at: seesaw issue 117.
func TestCase37_NeverTheSourceOfTheHost(t *testing.T) {
	s := newSiteWith(t, "")
	s.rs.Run(t, "ip", "route", "add", "default", "dev", "eth0")
	s.do(t, "start", "--vip", vip)
	if route := s.rs.Run(t, "ip", "route", "get", "192.0.2.9"); strings.Contains(route, vip) {
		t.Errorf("the host speaks as the VIP: %s", route)
	}
}

// IPv6 needs no settings: the kernel does not answer solicitations for an
// address that is on lo only. Deprecated, it is not picked as source.
// Seen at: kube-vip issue 1198.
func TestCase38_IPv6(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
	s.peer.Run(t, "ip", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad")
	s.restored(t, func() {
		sysctls := s.rs.Snapshot(t).Sysctls
		s.do(t, "start", "--vip", vip6)
		want := testnet.Addr{Local: vip6, PrefixLen: 128, Scope: "global", Deprecated: true}
		if got := s.rs.Addrs(t, "lo"); !slices.Contains(got, want) {
			t.Errorf("want %+v among %+v", want, got)
		}
		if diff := cmp.Diff(sysctls, s.rs.Snapshot(t).Sysctls); diff != "" {
			t.Errorf("IPv6 needs no settings, but:\n%s", diff)
		}
		if s.peer.Resolve(t, "eth0", vip6) != "" || s.peer.Resolve(t, "eth0", "2001:db8::11") == "" {
			t.Error("the neighbour should find the host, and not the VIP")
		}
		s.serves(t, vip6)
		s.do(t, "stop")
	})
}

// The VIP the old script bound, with its label, is taken over as it is: to
// bind it anew would cut connections. Seen at: resource-agents issue 200.
func TestCase39_BoundByTheOldScript(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo", "label", "lo:0")
		labelled := s.rs.Addrs(t, "lo")
		s.do(t, "start", "--vip", vip)
		if got := s.rs.Addrs(t, "lo"); !slices.Equal(got, labelled) {
			t.Errorf("lo had %+v, has %+v", labelled, got)
		}
		s.silent(t, vip)
		s.do(t, "stop")
		s.bound(t, vip)
	})
}

// On a lo that is down an address can be added, and serves nobody. start
// brings lo up, and stop leaves it up: others may be using it by then.
// Seen at: a review of minimal containers.
func TestLoDown(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "link", "set", "lo", "down")
	sysctls := s.rs.Snapshot(t).Sysctls
	s.do(t, "start", "--vip", vip)
	s.serves(t, vip)
	s.ask(t, 0, "status")
	s.do(t, "stop")
	s.bound(t, vip)
	if !slices.Contains(s.rs.Links(t)["lo"].Flags, "UP") {
		t.Error("lo is down again")
	}
	if diff := cmp.Diff(sysctls, s.rs.Snapshot(t).Sysctls); diff != "" {
		t.Errorf("settings differ:\n%s", diff)
	}
}
