package realserver

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/loopback"
)

// TestArrivals: what comes out of each tunnel's device, and one that a VIP needs and that is not there.
func TestArrivals(t *testing.T) {
	h := hostWith(func(f *fake) {
		f.addDevice("tunl0", "ipip")
		f.addDevice("sit0", "sit")
		f.host.link("tunl0").Up = true
		f.host.Received = map[string]uint64{"tunl0": 7}
	})
	got := h.arrivals(Set{vipAtun, vipGUE, vip6GUE})
	for i := range got {
		got[i].MSS, got[i].Fits = 0, 0 // the segments are another test's
	}
	want := []Arrival{
		{Device: "tunl0", Tunnel: "ipip, gue port 6081", State: "up", Received: 7},
		{Device: "ip6tnl0", Tunnel: "gue port 6080", State: "absent"},
		{Device: "sit0", Tunnel: "ipip", State: "down"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestStrangersOnTunnels: a VIP that someone bound on a tunnel's device is judged as one that arrives by it.
func TestStrangersOnTunnels(t *testing.T) {
	h := hostWith(func(f *fake) {
		for device, value := range map[string]string{"tunl0": "ipip", "ip6tnl0": "ip6tnl", "sit0": "sit", "gre0": "gre", "ip6gre0": "ip6gre", "grecsum0": "gre local 198.51.100.11 icsum", "mine": "ipip"} {
			f.addDevice(device, value)
		}
	})
	for _, c := range []struct{ addr, device, want string }{
		{"192.0.2.1/32", "tunl0", "ipip 4 tunl0"}, {"192.0.2.1/32", "mine", "ipip 4 mine by tunl0"},
		{"192.0.2.1/32", "ip6tnl0", "ipip 6 ip6tnl0"}, {"2001:db8::1/128", "ip6tnl0", "ipip 6 ip6tnl0"},
		{"2001:db8::1/128", "sit0", "ipip 4 sit0"}, {"192.0.2.1/32", "gre0", "gre 4 gre0"}, {"2001:db8::1/128", "ip6gre0", "gre 6 ip6gre0"},
		{"2001:db8::1/128", "grecsum0", "gre 4 grecsum0"},
	} {
		at := addr(c.addr, c.device)
		h.Addrs = h.Addrs[:0]
		h.Addrs = append(h.Addrs, loopback.Held{Addr: at, Scope: "global"})
		ip := at.Prefix.Addr()
		v := h.strangers([]netip.Addr{ip})[ip]
		got := v.kind().Name + map[int]string{4: " 4 ", 6: " 6 "}[v.kind().Outer] + v.On()
		if v.kind().Device != v.On() {
			got += " by " + v.kind().Device
		}
		if got != c.want || v.Check() != nil || v.Mode != TUN {
			t.Errorf("%s on %s: %s (%v), want %s", c.addr, c.device, got, v.Check(), c.want)
		}
	}
}
