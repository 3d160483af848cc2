package lab

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// TestOwnDevices: with fb_tunnels_only_for_init_net=2 a namespace has no fallback devices. rsagent makes one of each kind,
// and takes it away again.
func TestOwnDevices(t *testing.T) {
	guest(t)
	loadTunnels(t)
	here := testnet.Here()
	was := here.Sysctl(t, "core", "fb_tunnels_only_for_init_net")
	here.SetSysctl(t, "core", "fb_tunnels_only_for_init_net", "2")
	t.Cleanup(func() { here.SetSysctl(t, "core", "fb_tunnels_only_for_init_net", was) })
	for _, r := range rows {
		switch r.name {
		case "ipip, 4 in 6", "gre, 4 in 4":
		case "ipip, 6 in 6", "ipip, 6 in 4", "gre, 4 in 6", "gue, 6 in 6":
			if !long() {
				continue
			}
		default:
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c := newClusterOf(t, testnet.NewHost(t, "rs"))
			c.addIPv6(t)
			c.directRow(t, r)
			a := newAgent(t, c.real[0])
			if _, there := a.host.Links(t)[r.device]; there {
				t.Fatalf("%s is there: nothing to be seen", r.device)
			}
			before := a.host.Snapshot(t)
			flags := append([]string{"--vip", r.vip}, strings.Fields(r.start)...)
			a.do(t, 0, "start", flags...)
			noCompat(t, a.host)
			c.expectServed(t, 2, map[string]int{"rs1": 2}, r.vip)
			a.unchanged(t, "start", flags...)
			a.do(t, 0, "stop")
			equal(t, a.host, before)
		})
	}
}

// TestPort: a port that is open for GUE already serves, and stays open. One that a program has is refused before anything
// is touched.
func TestPort(t *testing.T) {
	guest(t)
	loadTunnels(t)
	rs := testnet.NewHost(t, "rs")
	upAll(t, rs)
	a := newAgent(t, rs)
	gue := []string{"--vip", vip, "--mode", "tun", "--tunnel", "gue", "--gue-port", "6090"}
	t.Run("open", func(t *testing.T) {
		rs.Run(t, "ip", "fou", "add", "port", "6090", "gue")
		before := rs.Snapshot(t)
		a.do(t, 0, "start", gue...)
		a.do(t, 0, "stop")
		equal(t, rs, before)
		if show := rs.Run(t, "ip", "fou", "show"); !strings.Contains(show, "6090") {
			t.Errorf("the port that was open is closed: %q", show)
		}
		rs.Run(t, "ip", "fou", "del", "port", "6090")
	})
	t.Run("moved", func(t *testing.T) {
		a.do(t, 0, "start", gue...)
		a.do(t, 0, "start", append(gue[:len(gue)-1:len(gue)-1], "6091")...)
		if show := rs.Run(t, "ip", "fou", "show"); strings.Contains(show, "6090") || !strings.Contains(show, "6091") {
			t.Errorf("the port was to move to 6091: %q", show)
		}
		a.do(t, 0, "stop")
		if show := rs.Run(t, "ip", "fou", "show"); show != "" {
			t.Errorf("open after stop: %q", show)
		}
	})
	t.Run("gone", func(t *testing.T) {
		a.do(t, 0, "start", gue...)
		rs.Run(t, "ip", "fou", "del", "port", "6090")
		a.do(t, 1, "status")
		a.do(t, 0, "restart")
		a.do(t, 0, "status")
		a.do(t, 0, "stop")
	})
	t.Run("busy", func(t *testing.T) {
		var l net.PacketConn
		var err error
		rs.Do(func() { l, err = net.ListenPacket("udp4", "127.0.0.1:6090") })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		before := rs.Snapshot(t)
		if r := a.do(t, 6, "start", gue...); r.Error == nil || !strings.Contains(r.Error.Message, "6090") {
			t.Errorf("the error does not name the port: %s", r.text)
		}
		equal(t, rs, before)
	})
	t.Run("bound", func(t *testing.T) {
		rs.Run(t, "ip", "fou", "add", "port", "6090", "gue", "local", "127.0.0.1")
		a.do(t, 6, "start", gue...)
		rs.Run(t, "ip", "fou", "del", "port", "6090", "local", "127.0.0.1")
	})
	t.Run("fou", func(t *testing.T) {
		rs.Run(t, "ip", "fou", "add", "port", "6090", "ipproto", "4")
		a.do(t, 6, "start", gue...)
		rs.Run(t, "ip", "fou", "del", "port", "6090")
	})
}

// TestMode: ip6tnl0 goes back to the mode it had; one that takes what is asked for is kept; a mode changed by someone else
// meanwhile is left.
func TestMode(t *testing.T) {
	guest(t)
	loadTunnels(t)
	for _, test := range []struct{ before, meanwhile, started, stopped string }{
		{"ip6ip6", "", "any", "ip6ip6"}, {"ipip6", "", "ipip6", "ipip6"}, {"any", "", "any", "any"}, {"ip6ip6", "ipip6", "any", "ipip6"},
	} {
		t.Run(test.before+" "+test.meanwhile, func(t *testing.T) {
			rs := testnet.NewHost(t, "rs")
			upAll(t, rs)
			a := newAgent(t, rs)
			mode := func(m string) { rs.Run(t, "ip", "-6", "tunnel", "change", "ip6tnl0", "mode", m) }
			is := func(want string) {
				t.Helper()
				words := map[string]string{"any": "any/ipv6", "ip6ip6": "ipv6/ipv6", "ipip6": "ip/ipv6"}
				if show := rs.Run(t, "ip", "-6", "tunnel", "show", "ip6tnl0"); !strings.Contains(show, " "+words[want]+" ") {
					t.Errorf("ip6tnl0 is not in mode %s: %s", want, show)
				}
			}
			mode(test.before)
			a.do(t, 0, "start", "--vip", vip, "--mode", "tun", "--outer", "6")
			is(test.started)
			if test.meanwhile != "" {
				mode(test.meanwhile)
			}
			a.do(t, 0, "status")
			a.do(t, 0, "stop")
			is(test.stopped)
		})
	}
}

// TestNoRight: fou, which only modprobe loads, and no right to load it: 4, and nothing is touched.
func TestNoRight(t *testing.T) {
	guest(t)
	loadTunnels(t)
	rs := testnet.NewHost(t, "rs")
	upAll(t, rs)
	a := newAgent(t, rs)
	hostRun(t, "modprobe", "-r", "fou")
	t.Cleanup(func() { hostRun(t, "modprobe", "fou") })
	before := rs.Snapshot(t)
	r := rs.Try("setpriv", "--bounding-set", "-sys_module", "--inh-caps", "-sys_module", a.bin, "start", "--state-dir", a.state, "--vip", vip, "--mode", "tun", "--tunnel", "gue")
	if r.Code != 4 || !strings.Contains(r.Stderr, "CAP_SYS_MODULE") || !strings.Contains(r.Stderr, "fou") {
		t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	equal(t, rs, before)
}

// TestRPFilterOff: 0 on the tunnel's device and on all, no other interface filtered less, and all as before in the end;
// also where a default is written that interfaces without an address follow.
func TestRPFilterOff(t *testing.T) {
	guest(t)
	loadTunnels(t)
	for _, strict := range []string{"1", "2"} {
		t.Run(strict, func(t *testing.T) {
			c := newClusterOf(t, testnet.NewHost(t, "rs"))
			c.direct(t, "tun", vip)
			a := newAgent(t, c.real[0])
			for iface, v := range map[string]string{"all": strict, "default": "0", "eth0": "0", "lo": "0"} {
				a.host.SetIPv4Conf(t, iface, "rp_filter", v)
			}
			a.host.Run(t, "ip", "link", "add", "dummy7", "type", "dummy")
			before := a.host.Snapshot(t)
			a.do(t, 0, "start", "--mode", "tun", "--vip", vip, "--rp-filter", "off", "--device", "lo")
			c.arrives(t)
			a.host.Run(t, "ip", "link", "add", "dummy8", "type", "dummy")
			for iface, want := range map[string]string{"all": "0", "tunl0": "0", "eth0": strict, "lo": strict, "dummy7": strict, "dummy8": strict, "default": strict} {
				if got := a.host.IPv4Conf(t, iface, "rp_filter"); got != want {
					t.Errorf("%s.rp_filter is %s, want %s", iface, got, want)
				}
			}
			a.unchanged(t, "start", "--mode", "tun", "--vip", vip, "--rp-filter", "off", "--device", "lo")
			a.host.SetIPv4Conf(t, "all", "rp_filter", strict)
			a.do(t, 1, "status")
			a.do(t, 0, "restart")
			c.arrives(t)
			a.do(t, 0, "stop")
			a.host.Run(t, "ip", "link", "del", "dummy8")
			equal(t, a.host, before)
		})
	}
}

// TestUnderUnit: what the systemd units allow (scripts/systemd) is enough for devices, modes and ports.
func TestUnderUnit(t *testing.T) {
	guest(t)
	loadTunnels(t)
	rs := testnet.NewHost(t, "rs")
	upAll(t, rs)
	a := newAgent(t, rs)
	before, shown := rs.Snapshot(t), tunnels(t, rs)
	run := func(args ...string) {
		t.Helper()
		r := testnet.Here().Try(append([]string{"systemd-run", "--quiet", "--wait", "--pipe", "-p", "NetworkNamespacePath=/run/netns/" + rs.Name,
			"-p", "CapabilityBoundingSet=CAP_NET_ADMIN CAP_SYS_MODULE", "-p", "ProtectSystem=strict", "-p", "ReadWritePaths=" + filepath.Dir(a.state), "-p", "ProtectProc=invisible",
			"-p", "RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET", "-p", "SystemCallArchitectures=native", "-p", "SystemCallFilter=@system-service @module",
			a.bin}, append(args, "--state-dir", a.state)...)...)
		if r.Code != 0 {
			t.Fatalf("%v: exit %d: %s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	run("start", "--vip", vip, "--mode", "tun", "--outer", "6")
	run("start", "--vip", "10.9.0.101,"+vip6, "--mode", "tun", "--tunnel", "gue")
	run("start", "--vip", "10.9.0.102", "--mode", "tun", "--tunnel", "gre")
	holds(t, rs, vip, "ip6tnl0")
	holds(t, rs, "10.9.0.101", "tunl0")
	holds(t, rs, vip6, "ip6tnl0")
	holds(t, rs, "10.9.0.102", "gre0")
	run("status")
	run("stop")
	equal(t, rs, before)
	if after := tunnels(t, rs); after != shown {
		t.Errorf("tunnels and ports before:\n%s\nafter stop:\n%s", shown, after)
	}
}
