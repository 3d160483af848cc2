package tunnel

import (
	"net/netip"
	"testing"

	"rsagent/sysctl"
)

// TestRPFilter holds the rule to what was measured on Linux 6.1, 6.12 and 6.18: whether a packet out
// of the tunnel passes, with a default route, by the value in effect and by whether the device has an
// IPv4 address.
func TestRPFilter(t *testing.T) {
	for _, m := range []struct {
		value                int
		addressed, unaddress bool
	}{{0, true, true}, {1, false, false}, {2, true, false}} {
		if got := RPFilter(true).Good(m.value); got != m.addressed {
			t.Errorf("%d with an address: good is %t", m.value, got)
		}
		if got := RPFilter(false).Good(m.value); got != m.unaddress {
			t.Errorf("%d without an address: good is %t", m.value, got)
		}
	}
}

// TestRPFilterOpensOnlyTheTunnel: only a value of 1 in effect is changed, and only on the device.
func TestRPFilterOpensOnlyTheTunnel(t *testing.T) {
	for all := range 3 {
		for own := range 3 {
			tab := sysctl.Table{{Iface: sysctl.All, Knob: sysctl.RPFilter}: all, {Iface: "tunl0", Knob: sysctl.RPFilter}: own}
			got := RPFilter(true).On(tab, "tunl0")
			if want := max(all, own) == 1; (len(got) > 0) != want {
				t.Errorf("all %d, tunl0 %d: %v", all, own, got)
			}
			for _, s := range got {
				if s.Key.Iface != "tunl0" || s.Value != 2 {
					t.Errorf("all %d, tunl0 %d: writes %v", all, own, s)
				}
			}
		}
	}
}

// TestKinds: each row is found by what the director sends, and by where its packets come out; rows that
// share a device agree about it.
func TestKinds(t *testing.T) {
	seen := map[Kind]bool{}
	for _, k := range Kinds {
		key := Kind{Name: k.Name, VIP: k.VIP, Outer: k.Outer, CSum: k.CSum}
		if seen[key] {
			t.Errorf("%+v stands twice", key)
		}
		seen[key] = true
		if found, ok := Find(k.Name, k.VIP, k.Outer, k.CSum); !ok || found != k {
			t.Errorf("%+v is not found", k)
		}
		if d, ok := ByDevice(k.Device); !ok || d.Link != k.Link || d.Module != k.Module || d.CSum != k.CSum {
			t.Errorf("%+v shares its device with %+v", k, d)
		}
		if m, ok := ByModule(k.Module); !ok || m.CSum || m.Link != k.Link {
			t.Errorf("%s brings %+v", k.Module, m)
		}
		if of, ok := Of(k.Device, k.Link, k.VIP); !ok || of.Device != k.Device || of.VIP != k.VIP {
			t.Errorf("an address on %s stands for %+v", k.Device, of)
		}
		if !Receives(k.Link) {
			t.Errorf("%s does not receive", k.Link)
		}
	}
	for _, name := range Names() {
		for _, vip := range []int{4, 6} {
			for _, outer := range []int{4, 6} {
				if !seen[Kind{Name: name, VIP: vip, Outer: outer}] {
					t.Errorf("no row for IPv%d in %s in IPv%d", vip, name, outer)
				}
			}
		}
	}
	if of, ok := Of("mine", "ipip", 4); !ok || of.Device != "tunl0" {
		t.Errorf("an ipip device of another name stands for %+v", of)
	}
	if _, ok := Find("vxlan", 4, 4, false); ok || Receives("vxlan") || Receives("gretap") {
		t.Error("vxlan is no tunnel of IPVS, and gretap speaks ARP")
	}
}

func TestType(t *testing.T) {
	fallback, _ := Find("gre", 4, 4, false)
	own, _ := Find("gre", 4, 4, true)
	value := own.Type(netip.MustParseAddr("192.0.2.11"))
	if value != "gre local 192.0.2.11 icsum" || own.Local(value) != netip.MustParseAddr("192.0.2.11") || !own.Is(value) || fallback.Is(value) {
		t.Errorf("own: %q", value)
	}
	if got := fallback.Type(netip.MustParseAddr("192.0.2.11")); got != "gre" || !fallback.Is(got) || own.Is(got) {
		t.Errorf("fallback: %q", got)
	}
	for _, other := range []string{"", "gre remote 192.0.2.1", "gre local 192.0.2.11", "gre local x icsum", "gre local 2001:db8::1 icsum", "gre local 192.0.2.011 icsum", "gre external icsum x"} {
		if own.Is(other) || fallback.Is(other) {
			t.Errorf("%q is taken", other)
		}
	}
}

func TestCarries(t *testing.T) {
	for mode, want := range map[string][2]bool{"ip6ip6": {false, true}, "ipip6": {true, false}, "any": {true, true}, "": {}, "gre": {}} {
		if got := [2]bool{Carries(mode, 4), Carries(mode, 6)}; got != want {
			t.Errorf("%q: %v", mode, got)
		}
		if IsMode(mode) != (want != [2]bool{}) {
			t.Errorf("%q: IsMode", mode)
		}
	}
}

func TestCompat(t *testing.T) {
	for s, want := range map[string]bool{"::10.9.0.11/96": true, "::127.0.0.1/96": true, "::10.9.0.11/128": false, "2001:db8::1/96": false, "fe80::1/64": false, "10.9.0.11/24": false} {
		if Compat(netip.MustParsePrefix(s)) != want {
			t.Error(s)
		}
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Module{"ipip"}.Command("loaded"), "modprobe ipip"},
		{Device{"tunl0"}.Command("ipip"), "ip link add tunl0 type ipip"},
		{Device{"tunl0"}.Command(""), "ip link del tunl0"},
		{Device{"ip6tnl0"}.Command("ip6tnl"), "ip link add ip6tnl0 type ip6tnl mode any"},
		{Device{"grecsum0"}.Command("gre local 192.0.2.11 icsum"), "ip link add grecsum0 type gre local 192.0.2.11 icsum"},
		{Mode{"ip6tnl0"}.Command("any"), "ip -6 tunnel change ip6tnl0 mode any"},
		{Port{6080, false}.Command("gue"), "ip fou add port 6080 gue"},
		{Port{6080, true}.Command("gue"), "ip -6 fou add port 6080 gue"},
		{Port{6080, true}.Command(""), "ip -6 fou del port 6080"},
		{Link{"tunl0"}.Command("up"), "ip link set tunl0 up"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
