package loopback

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

func TestCommand(t *testing.T) {
	a := Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.1/32")}
	if got := a.Command("host"); got != "ip addr add 192.0.2.1/32 dev lo scope host" {
		t.Errorf("add: %q", got)
	}
	if got := a.Command(""); got != "ip addr del 192.0.2.1/32 dev lo" {
		t.Errorf("del: %q", got)
	}
}

// many is n addresses on lo, in several subnets of a test range.
func many(n int, scope string) (ops []Op) {
	for i := range n {
		ip := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		ops = append(ops, Op{1, Addr{Device: "lo", Prefix: netip.PrefixFrom(ip, 32)}, scope})
	}
	return ops
}

// apply fails the test where an op failed, and lets it say which.
func apply(t *testing.T, ops []Op) {
	t.Helper()
	errs, err := Apply(ops)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// onHost runs a test on a host of its own, with an open netlink handle.
func onHost(t *testing.T, f func(host *testnet.Host, h *netlink.Handle)) {
	testnet.NeedRoot(t)
	host := testnet.NewHost(t, "lo")
	host.Do(func() {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		f(host, h)
	})
}

// socket opens one of the thread's network namespace.
func socket(t *testing.T) *nl.SocketHandle {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &nl.SocketHandle{Socket: s}
}

// observe lists what is on lo.
func observe(names map[int]string) ([]Held, error) {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return Observe(&nl.SocketHandle{Socket: s}, names)
}

// TestApply adds and deletes more addresses than travel in one send, twice each, as `ip` sees it.
func TestApply(t *testing.T) {
	const n = 3*chunk + 7
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		host.Run(t, "ip", "-6", "addr", "flush", "dev", "lo") // ip lists IPv6 last
		before := host.Addrs(t, "lo")
		for range 2 { // what is there already is no failure
			apply(t, many(n, "host"))
		}
		held := host.Addrs(t, "lo")
		if len(held) != len(before)+n {
			t.Fatalf("ip shows %d addresses, want %d", len(held), len(before)+n)
		}
		for _, a := range held[len(before):] {
			if a.Scope != "host" || a.PrefixLen != 32 || a.Label != "lo" {
				t.Fatalf("ip shows %+v", a)
			}
		}
		seen, err := observe(map[int]string{1: "lo"})
		if err != nil || len(seen) != len(before)+n {
			t.Fatalf("observed %d, %v", len(seen), err)
		}
		for range 2 {
			apply(t, many(n, ""))
		}
		if left := host.Addrs(t, "lo"); !slices.Equal(left, before) {
			t.Errorf("ip shows %v, before %v", left, before)
		}
	})
}

// TestApplyIPv6: a VIP is usable at once (no duplicate address detection) and deprecated.
func TestApplyIPv6(t *testing.T) {
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		vip := Addr{Device: "lo", Prefix: netip.MustParsePrefix("2001:db8::100/128")}
		for range 2 {
			apply(t, []Op{{1, vip, "global"}, {1, Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.1/32")}, "host"}})
		}
		want := testnet.Addr{Local: "2001:db8::100", PrefixLen: 128, Scope: "global", Deprecated: true}
		if got := host.Addrs(t, "lo"); !slices.Contains(got, want) {
			t.Errorf("ip shows %+v", got)
		}
		if out := host.Run(t, "ip", "addr", "show", "dev", "lo"); strings.Contains(out, "tentative") || !strings.Contains(out, "nodad") {
			t.Errorf("ip shows %s", out)
		}
		held, err := observe(map[int]string{1: "lo"})
		if err != nil || !slices.Contains(held, Held{Addr: vip, Scope: "global"}) {
			t.Errorf("observed %v, %v", held, err)
		}
		apply(t, []Op{{1, vip, ""}})
		if got := host.Holds(t, "2001:db8::100"); len(got) != 0 {
			t.Errorf("held by %v", got)
		}
	})
}

// TestApplyFailure: one address that cannot be added fails alone, and is named, wherever in a send it
// stands.
func TestApplyFailure(t *testing.T) {
	onHost(t, func(host *testnet.Host, _ *netlink.Handle) {
		for _, bad := range []int{0, chunk - 1, chunk, 2*chunk - 1, 2 * chunk} {
			ops := many(2*chunk+1, "global")
			ops[bad].Index = 4711
			errs, err := Apply(ops)
			if err != nil {
				t.Fatal(err)
			}
			for i, err := range errs {
				if (err != nil) != (i == bad) {
					t.Fatalf("bad %d: op %d says %v", bad, i, err)
				}
			}
			if want := ops[bad].Addr.Command("global") + ": no such device"; errs[bad].Error() != want {
				t.Errorf("it says %q, want %q", errs[bad], want)
			}
			apply(t, many(2*chunk+1, ""))
		}
	})
}

// TestApplyIsExact: the same address with another prefix is another address.
func TestApplyIsExact(t *testing.T) {
	onHost(t, func(host *testnet.Host, _ *netlink.Handle) {
		host.Run(t, "ip", "addr", "add", "192.0.2.1/24", "dev", "lo")
		narrow := Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.1/32")}
		apply(t, []Op{{1, narrow, "host"}})
		if got := host.Holds(t, "192.0.2.1"); len(got) != 2 {
			t.Fatalf("held by %v", got)
		}
		apply(t, []Op{{1, narrow, ""}})
		if got := fmt.Sprint(host.Holds(t, "192.0.2.1")); got != "[lo/24]" {
			t.Errorf("held by %v", got)
		}
	})
}

// TestPeer: an address with a peer is seen with it, and goes.
func TestPeer(t *testing.T) {
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		host.Run(t, "ip", "addr", "add", "192.0.2.1", "peer", "198.51.100.9/24", "dev", "lo")
		want := Addr{"lo", netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("198.51.100.9/24")}
		held, err := observe(map[int]string{1: "lo"})
		if err != nil || !slices.ContainsFunc(held, func(a Held) bool { return a.Addr == want }) {
			t.Fatalf("observed %v, %v", held, err)
		}
		if want.Bare() || want.Subnet().String() != "198.51.100.0/24" || want.Command("") != "ip addr del 192.0.2.1 peer 198.51.100.9/24 dev lo" {
			t.Errorf("it is bare: %t, its subnet %s, it goes by %q", want.Bare(), want.Subnet(), want.Command(""))
		}
		apply(t, []Op{{1, want, ""}})
		if got := host.Holds(t, "192.0.2.1"); len(got) != 0 {
			t.Errorf("held by %v", got)
		}
	})
}

func TestDefaultRoute(t *testing.T) {
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		s := socket(t)
		if r, err := DefaultRoute(s); err != nil || r != (Route{}) {
			t.Errorf("without a route: %+v, %v", r, err)
		}
		peer := testnet.NewHost(t, "peer")
		testnet.Wire(t, host, "eth0", "192.0.2.11/24", peer, "eth0", "192.0.2.1/24")
		host.Run(t, "ip", "addr", "add", "192.0.2.12/24", "dev", "eth0")
		host.Run(t, "ip", "route", "add", "default", "via", "192.0.2.1")
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := DefaultRoute(s); err != nil || r.Source.String() != "192.0.2.11" || r.Gateway.String() != "192.0.2.1" || r.Index != eth0.Attrs().Index {
			t.Errorf("with a default route: %+v, %v", r, err)
		}
		host.Run(t, "ip", "route", "replace", "default", "via", "192.0.2.1", "src", "192.0.2.12")
		if r, err := DefaultRoute(s); err != nil || r.Source.String() != "192.0.2.12" {
			t.Errorf("with a source of its own: %+v, %v", r, err)
		}
		host.Run(t, "ip", "route", "replace", "blackhole", "default")
		if r, err := DefaultRoute(s); err != nil || r != (Route{}) {
			t.Errorf("with a blackhole: %+v, %v", r, err)
		}
	})
}

func TestDefaultRoute6(t *testing.T) {
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		s := socket(t)
		if r, err := DefaultRoute6(s); err != nil || r != (Route{}) {
			t.Errorf("without a route: %+v, %v", r, err)
		}
		testnet.Wire(t, host, "eth0", "", testnet.NewHost(t, "peer"), "eth0", "")
		host.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
		host.Run(t, "ip", "route", "add", "default", "via", "2001:db8::1")
		if r, err := DefaultRoute6(s); err != nil || r.Source.String() != "2001:db8::11" || r.Gateway.String() != "2001:db8::1" || r.Index == 0 {
			t.Errorf("with a default route: %+v, %v", r, err)
		}
		host.Run(t, "ip", "-6", "route", "replace", "blackhole", "default", "metric", "1")
		if r, err := DefaultRoute6(s); err != nil || r != (Route{}) {
			t.Errorf("with a blackhole: %+v, %v", r, err)
		}
	})
}

// What is said of blackholes and routes is what ip(8) made, and the other way round.
func TestRoutes(t *testing.T) {
	onHost(t, func(host *testnet.Host, h *netlink.Handle) {
		s := socket(t)
		testnet.Wire(t, host, "eth0", "192.0.2.11/24", testnet.NewHost(t, "peer"), "eth0", "192.0.2.1/24")
		testnet.Wire(t, host, "eth1", "", testnet.NewHost(t, "peer"), "eth0", "")
		testnet.Wire(t, host, "eth2", "", testnet.NewHost(t, "peer"), "eth0", "")
		host.Run(t, "ip", "route", "add", "203.0.113.0/24", "nexthop", "dev", "eth1", "nexthop", "dev", "eth0")
		host.Run(t, "ip", "route", "add", "203.0.113.0/24", "dev", "eth2", "table", "77")
		host.Run(t, "ip", "route", "add", "blackhole", "198.51.100.1")
		host.Run(t, "ip", "route", "add", "blackhole", "198.51.100.128/25")
		host.Run(t, "ip", "route", "add", "blackhole", "198.51.100.2", "table", "77")
		host.Run(t, "ip", "route", "add", "unreachable", "198.51.100.3")
		byName := func(name string) int {
			l, err := h.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			return l.Attrs().Index
		}
		routed, err := Routed(s)
		if want := map[int]bool{byName("eth0"): true, byName("eth1"): true}; err != nil || !maps.Equal(routed, want) {
			t.Errorf("routes lead by %v, want %v (%v)", routed, want, err)
		}
		vip4, vip6 := netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8::9")
		for _, on := range []bool{true, true, false, false} {
			for _, vip := range []netip.Addr{vip4, vip6} {
				if err := SetBlackhole(s, Blackhole{vip}, on); err != nil {
					t.Fatal(err)
				}
			}
			want := map[netip.Addr]bool{netip.MustParseAddr("198.51.100.1"): true}
			if on {
				want[vip4], want[vip6] = true, true
			}
			if got, err := Blackholes(s); err != nil || !maps.Equal(got, want) {
				t.Errorf("%v: %v, want %v (%v)", on, got, want, err)
			}
			for family, vip := range map[string]netip.Addr{"-4": vip4, "-6": vip6} {
				if got := host.Run(t, "ip", family, "route", "show", "type", "blackhole", "proto", "static", vip.String()); (got != "") != on {
					t.Errorf("%v: ip shows %q", on, got)
				}
			}
		}
		host.Run(t, "ip", "-6", "neigh", "add", "proxy", "2001:db8::7", "dev", "eth1")
		host.Run(t, "ip", "neigh", "add", "192.0.2.77", "lladdr", "02:00:00:00:00:01", "dev", "eth0")
		got, err := Proxied(s, map[int]string{byName("eth1"): "eth1"})
		if want := map[netip.Addr]string{netip.MustParseAddr("2001:db8::7"): "eth1"}; err != nil || !maps.Equal(got, want) {
			t.Errorf("proxied: %v, want %v (%v)", got, want, err)
		}
	})
}
