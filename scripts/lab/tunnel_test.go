package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// upOnce raises a tunl0 that is down, and lowers it: the first time, the kernel makes its IPv6 settings, which stay.
func upOnce(t *testing.T, h *testnet.Host) {
	t.Helper()
	if _, there := h.Links(t)["tunl0"]; there && !isUp(t, h, "tunl0") {
		h.Run(t, "ip", "link", "set", "tunl0", "up")
		h.Run(t, "ip", "link", "set", "tunl0", "down")
	}
}

// newTunnelSite is a cluster with one real server, which the director reaches by tunnel.
func newTunnelSite(t *testing.T) (*cluster, agent) {
	t.Helper()
	c := newClusterOf(t, testnet.NewHost(t, "rs"))
	c.direct(t, "tun", vip)
	return c, newAgent(t, c.real[0])
}

func (c *cluster) arrives(t *testing.T) {
	t.Helper()
	c.expectServed(t, 2, map[string]int{"rs1": 2}, vip)
}

// TestCase25_FirstStart: the module is not loaded, twenty times. Seen at: kube-router 273, felix 928.
func TestCase25_FirstStart(t *testing.T) {
	guest(t)
	c, a := newTunnelSite(t)
	for range 20 {
		ipip(t, false)
		a.start(t, "tun", vip)
		holds(t, a.host, vip, "tunl0")
		c.arrives(t)
		a.do(t, 0, "stop")
		holds(t, a.host, vip)
		if isUp(t, a.host, "tunl0") {
			t.Error("tunl0 is up after stop")
		}
	}
}

// TestCase26_TunnelLink: tunl0 goes down again only if rsagent raised it. Seen at: katran 116.
func TestCase26_TunnelLink(t *testing.T) {
	guest(t)
	ipip(t, true)
	for _, state := range []string{"down", "up"} {
		t.Run(state, func(t *testing.T) {
			c, a := newTunnelSite(t)
			a.host.Run(t, "ip", "link", "set", "tunl0", state)
			before := a.host.Snapshot(t)
			a.start(t, "tun", vip)
			if !isUp(t, a.host, "tunl0") {
				t.Error("tunl0 is down after start")
			}
			c.arrives(t)
			a.do(t, 0, "stop")
			if isUp(t, a.host, "tunl0") != (state == "up") {
				t.Errorf("tunl0 was %s, and is not after stop", state)
			}
			equal(t, a.host, before)
		})
	}
}

// TestCase28_TunnelOfAnother: someone else has an address on tunl0; it stays, and so does a link that it needs up, even if it
// was rsagent that raised it. Seen at: felix 2887.
func TestCase28_TunnelOfAnother(t *testing.T) {
	guest(t)
	ipip(t, true)
	for _, state := range []string{"down", "up"} {
		t.Run(state, func(t *testing.T) {
			c, a := newTunnelSite(t)
			a.host.Run(t, "ip", "addr", "add", "10.8.0.1/32", "dev", "tunl0")
			a.host.Run(t, "ip", "link", "set", "tunl0", state)
			if r := a.do(t, 0, "start", "--mode", "tun", "--vip", vip); !r.warns("warning", "10.8.0.1") {
				t.Errorf("no warning names 10.8.0.1: %s", r.text)
			}
			c.arrives(t)
			a.do(t, 0, "stop")
			holds(t, a.host, vip)
			holds(t, a.host, "10.8.0.1", "tunl0")
			if !isUp(t, a.host, "tunl0") {
				t.Error("tunl0 is down after stop, under another's address")
			}
		})
	}
}

// TestCase29_NoModule: the kernel cannot be made to load ipip. start says why, and leaves nothing half-done: not even the VIP
// that would have needed no tunnel, while the one that was there stays. Seen at: lisa 4106, libipvs 4.
func TestCase29_NoModule(t *testing.T) {
	guest(t)
	block := map[string]func(t *testing.T){
		"install line": func(t *testing.T) {
			write(t, "/etc/modprobe.d/lab.conf", "install ipip /bin/true\n")
		},
		"no modprobe": noModprobe,
	}
	for name, f := range block {
		t.Run(name, func(t *testing.T) {
			_, a := newTunnelSite(t)
			a.host.Snapshot(t) // so that nft's own module is there
			ipip(t, false)
			f(t)
			a.start(t, "dr", "10.9.0.101")
			config := filepath.Join(t.TempDir(), "rsagent.yaml")
			write(t, config, "vips: [10.9.0.102, {address: "+vip+", mode: tun}]\n")
			before := a.host.Snapshot(t)
			r := a.do(t, 5, "start", "--config", config)
			if r.Error == nil || r.Error.Code != 5 || !strings.Contains(r.Error.Message, "ipip") {
				t.Errorf("the error does not name ipip: %s", r.text)
			}
			equal(t, a.host, before)
			a.do(t, 3, "status", "--vip", vip)
			if r := a.do(t, 0, "status"); len(r.VIPs) != 1 || r.VIPs[0].Address != "10.9.0.101" {
				t.Errorf("more is managed than before: %s", r.text)
			}
		})
	}
}

// TestCase29_ModuleThere: the kernel has ipip, and nothing could load it: as where it is built in. It is the device that
// decides.
func TestCase29_ModuleThere(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	before := a.host.Snapshot(t)
	noModprobe(t)
	a.start(t, "tun", vip)
	c.arrives(t)
	a.unchanged(t, "start", "--mode", "tun", "--vip", vip)
	a.do(t, 0, "stop")
	equal(t, a.host, before)
}

func noModprobe(t *testing.T) {
	hostRun(t, "mv", "/usr/sbin/modprobe", "/usr/sbin/modprobe.away")
	t.Cleanup(func() { hostRun(t, "mv", "/usr/sbin/modprobe.away", "/usr/sbin/modprobe") })
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

// TestCase30_NoFallbackDevice: with fb_tunnels_only_for_init_net=2 a namespace has no tunl0. rsagent makes its own, and takes
// it away again. Seen at: kata 7028.
func TestCase30_NoFallbackDevice(t *testing.T) {
	guest(t)
	ipip(t, true)
	here := testnet.Here()
	was := here.Sysctl(t, "core", "fb_tunnels_only_for_init_net")
	here.SetSysctl(t, "core", "fb_tunnels_only_for_init_net", "2")
	t.Cleanup(func() { here.SetSysctl(t, "core", "fb_tunnels_only_for_init_net", was) })
	c, a := newTunnelSite(t)
	if _, there := a.host.Links(t)["tunl0"]; there {
		t.Fatal("tunl0 is there: nothing to be seen")
	}
	before := a.host.Snapshot(t)
	a.start(t, "tun", vip)
	c.arrives(t)
	a.unchanged(t, "start", "--mode", "tun", "--vip", vip)
	a.do(t, 0, "stop")
	equal(t, a.host, before)
}
