package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"rsagent/loopback"
)

// A VIP that rsagent does not manage is judged by where the host has it.
func TestStatusOfAStranger(t *testing.T) {
	for _, test := range []struct {
		name, device, scope string
		guard, rpFilter     int
		code                int
		want                string
	}{
		{"bound and guarded", "lo", "host", 1, 0, 0, "dr lo up"},
		{"no guard", "lo", "host", 0, 0, 1, "dr lo drifted"},
		{"another guard", "lo", "host", 3, 0, 0, "dr lo up"},
		{"that guard, but scope global", "lo", "global", 3, 0, 1, "dr lo drifted"},
		{"on a dummy", "dummy0", "global", 1, 0, 0, "dr dummy0 up"},
		{"on the tunnel", "tunl0", "global", 1, 0, 0, "tun tunl0 up"},
		{"on the tunnel, filtered", "tunl0", "global", 1, 1, 1, "tun tunl0 drifted"},
		{"on a NIC", "eth0", "global", 1, 0, 3, "dr lo down"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.host.Links[2].Up = true
			w.hold(test.device, "10.0.0.100/32", test.scope)
			for k := range w.host.Conf {
				switch {
				case k.Iface == "all" && k.Knob == "arp_ignore":
					w.host.Conf[k] = test.guard
				case k.Iface == "all" && k.Knob == "arp_announce":
					w.host.Conf[k] = 2
				case k.Knob == "rp_filter":
					w.host.Conf[k] = test.rpFilter
				}
			}
			w.must(test.code, "status", "--vip", "10.0.0.100", "-o", "json")
			var r report
			if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if got := string(r.VIPs[0].Mode) + " " + r.VIPs[0].Device + " " + string(r.VIPs[0].State); len(r.VIPs) != 1 || got != test.want {
				t.Errorf("%s, want %s\n%s", got, test.want, &w.out)
			}
			if w.changes > 0 {
				t.Error("status changed the host")
			}
		})
	}
}

// What status says once something has happened to a host that held 10.0.0.1 and 10.0.0.2.
func TestStatus(t *testing.T) {
	gone := func(prefix string) func(*world) {
		return func(w *world) {
			var left []loopback.Held
			for _, a := range w.host.Addrs {
				if a.Prefix.String() != prefix {
					left = append(left, a)
				}
			}
			w.host.Addrs = left
		}
	}
	const two = "--vip 10.0.0.1,10.0.0.2"
	for _, test := range []struct {
		name, start string
		happens     func(*world)
		args        string
		code        int
		want        string // state, the VIPs' states, and what has drifted
	}{
		{"nothing", two, func(*world) {}, "", 0, "up: 1 up, 2 up"},
		{"one is gone", two, gone("10.0.0.1/32"), "", 1, "drifted: 1 drifted, 2 up: 10.0.0.1/32 dev lo"},
		{"one is gone, the other asked for", two, gone("10.0.0.1/32"), "--vip 10.0.0.2", 0, "up: 2 up"},
		{"one is gone and asked for", two, gone("10.0.0.1/32"), "--vip 10.0.0.1", 1, "drifted: 1 drifted: 10.0.0.1/32 dev lo"},
		{"one asked for twice, as a stranger", two, func(*world) {}, "--vip 10.0.0.2,10.0.0.1/32,10.0.0.1,10.0.0.3", 1, "drifted: 1 up, 2 up, 3 down"},
		{"a wide copy", two, func(w *world) { w.hold("lo", "10.0.0.1/24", "host") }, "", 1, "drifted: 1 drifted, 2 up: 10.0.0.1/24 dev lo"},
		{"a wide stranger beside its own", two, func(w *world) {
			w.hold("dummy0", "10.0.0.3/32", "host")
			w.hold("lo", "10.0.0.3/24", "host")
		}, "--vip 10.0.0.3", 1, "drifted: 3 drifted: 10.0.0.3/24 dev lo"},
		{"on another device", two, func(w *world) { gone("10.0.0.1/32")(w); w.hold("dummy0", "10.0.0.1/32", "host") }, "", 1, "drifted: 1 drifted, 2 up: 10.0.0.1/32 dev lo, 10.0.0.1/32 dev dummy0"},
		{"on a NIC too", two, func(w *world) { w.hold("eth0", "10.0.0.1/32", "global") }, "", 0, "up: 1 up, 2 up"},
		{"lo is down", two, func(w *world) { w.host.Links[0].Up = false }, "", 1, "drifted: 1 drifted, 2 drifted: link lo"},
		{"guard gone", two, func(w *world) { w.set1("all", "arp_announce", 0) }, "", 1, "drifted: 1 drifted, 2 drifted: net.ipv4.conf.all.arp_announce"},
		{"guard outweighed", two, func(w *world) { w.set1("eth0", "arp_ignore", 3); w.set1("eth0", "arp_announce", 3) }, "", 1,
			"drifted: 1 drifted, 2 drifted: net.ipv4.conf.eth0.arp_announce"},
		{"guard gone, which one never needed", two + " --arp-guard none; start --vip 10.0.0.3", func(w *world) { w.set1("all", "arp_ignore", 0) }, "", 1,
			"drifted: 1 up, 2 up, 3 drifted: net.ipv4.conf.all.arp_ignore"},
		{"only that one asked for", two + " --arp-guard none; start --vip 10.0.0.3", func(w *world) { w.set1("all", "arp_ignore", 0) }, "--vip 10.0.0.1", 0, "up: 1 up"},
		{"someone else's value, as good", two, func(w *world) { w.set1("all", "arp_ignore", 2) }, "", 0, "up: 1 up, 2 up"},
		{"what has no effect", two, func(w *world) { w.set1("lo", "arp_ignore", 0) }, "", 0, "up: 1 up, 2 up"},
		{"tunnel down", "--vip 10.0.0.1 --mode tun --device dummy0; start --vip 10.0.0.2", func(w *world) { w.host.Links[2].Up = false }, "", 1,
			"drifted: 1 drifted, 2 up: link tunl0"},
		{"tunnel filtered", "--vip 10.0.0.1 --mode tun; start --vip 10.0.0.2", func(w *world) { w.set1("tunl0", "rp_filter", 1) }, "", 1,
			"drifted: 1 drifted, 2 up: net.ipv4.conf.tunl0.rp_filter"},
		{"filter closed that was to be off", "--vip 10.0.0.1 --mode tun --rp-filter off; start --vip 10.0.0.2", func(w *world) { w.set1("all", "rp_filter", 1); w.set1("eth0", "rp_filter", 2) }, "", 1,
			"drifted: 1 drifted, 2 up: net.ipv4.conf.tunl0.rp_filter, net.ipv4.conf.lo.rp_filter, net.ipv4.conf.dummy0.rp_filter, net.ipv4.conf.default.rp_filter, net.ipv4.conf.all.rp_filter"},
		{"tunnel of another kind", "--vip 10.0.0.1 --mode tun", func(w *world) { w.host.Links[2].Kind = "dummy" }, "", 1, "drifted: 1 drifted"},
		{"stop failed", two, func(w *world) {
			w.fail["10.0.0.1/32 dev lo"] = errors.New("x")
			w.must(1, "stop", "--vip", "10.0.0.1")
		}, "", 1, "drifted: 2 up, 1 drifted: 10.0.0.1/32 dev lo"},
		{"stop failed, and that one asked for", two, func(w *world) {
			w.fail["10.0.0.1/32 dev lo"] = errors.New("x")
			w.must(1, "stop", "--vip", "10.0.0.1")
		}, "--vip 10.0.0.1", 1, "drifted: 1 drifted: 10.0.0.1/32 dev lo"},
		{"put back failed", two, func(w *world) {
			w.fail["net.ipv4.conf.all.arp_ignore"] = errors.New("x")
			w.must(1, "stop")
		}, "", 1, "drifted: : net.ipv4.conf.all.arp_ignore"},
		{"a part put back failed", two + "; start --vip 10.0.0.3 --mode tun", func(w *world) {
			w.fail["link tunl0"] = errors.New("x")
			w.must(1, "stop", "--vip", "10.0.0.3")
		}, "", 1, "drifted: 1 up, 2 up: link tunl0"},
		{"its only address on a NIC is a stranger on lo", two, func(w *world) { w.hold("lo", "10.0.0.11/32", "host") }, "--vip 10.0.0.11", 0, "up: 11 up"},
		{"the host refuses", two + " --arp-guard interface --interface eth0", func(w *world) { w.host.Links[1].ARP = false }, "", 1, "drifted: 1 drifted, 2 drifted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			for call := range strings.SplitSeq("start "+test.start, "; ") {
				w.must(0, strings.Fields(call)...)
			}
			test.happens(w)
			changes := w.changes
			w.must(test.code, append(strings.Fields("status -o json"), strings.Fields(test.args)...)...)
			var r report
			if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			var vips, drift []string
			for _, v := range r.VIPs {
				vips = append(vips, strings.TrimPrefix(v.Address, "10.0.0.")+" "+string(v.State))
			}
			got := string(r.State) + ": " + strings.Join(vips, ", ")
			for _, c := range r.Changes {
				drift = append(drift, c.Item)
			}
			if len(drift) > 0 {
				got += ": " + strings.Join(drift, ", ")
			}
			if got != test.want {
				t.Errorf("%s\nwant: %s\n%s", got, test.want, &w.out)
			}
			if r.Changed || w.changes != changes || r.Error != nil {
				t.Errorf("%+v; changes %d -> %d", r, changes, w.changes)
			}
		})
	}
}
