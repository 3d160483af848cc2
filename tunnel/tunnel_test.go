package tunnel

import (
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

func TestKinds(t *testing.T) {
	for _, k := range Kinds {
		if byName, ok := ByName(k.Name); !ok || byName != k {
			t.Errorf("%s is not found by name", k.Name)
		}
		if byDevice, ok := ByDevice(k.Device); !ok || byDevice != k || !Receives(k.Link) {
			t.Errorf("%s is not found by device", k.Device)
		}
	}
	if _, ok := ByName("vxlan"); ok || Receives("vxlan") {
		t.Error("vxlan is no tunnel of IPVS")
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Module{"ipip"}.Command("loaded"), "modprobe ipip"},
		{Device{"tunl0"}.Command("ipip"), "ip link add tunl0 type ipip"},
		{Device{"tunl0"}.Command(""), "ip link del tunl0"},
		{Link{"tunl0"}.Command("up"), "ip link set tunl0 up"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
