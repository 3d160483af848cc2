package lab

import (
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

const reversePath = "TcpExtIPReversePathFilter"

// refused waits until the reverse path filter has dropped a packet of a connection that stays open in the trying, and
// returns where its end is told.
func (c *cluster) refused(t *testing.T) chan error {
	t.Helper()
	before := dropped(t, c.real[0])[reversePath]
	end := make(chan error, 1)
	go func() {
		s, err := dial(c.client, vip, "80")
		if err == nil {
			s.Close()
		}
		end <- err
	}()
	testnet.Eventually(t, "the reverse path filter to drop a packet", func() bool {
		return dropped(t, c.real[0])[reversePath] > before || len(end) > 0
	})
	if len(end) > 0 {
		t.Fatalf("was to be dropped, and was not: %v", <-end)
	}
	return end
}

// TestCase09_StrictAll: tunl0 at 0 is of no use while `all` is at 1. With the VIP bound by hand a connection hangs; start lets
// it through, with `all` as it was. Seen at: katran 24, kube-router 1791.
func TestCase09_StrictAll(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.host.SetIPv4Conf(t, "all", "arp_ignore", "1") // or the client would go past the director to the VIP bound by hand
	a.host.SetIPv4Conf(t, "all", "arp_announce", "2")
	a.host.SetIPv4Conf(t, "all", "rp_filter", "1")
	a.host.SetIPv4Conf(t, "tunl0", "rp_filter", "0")
	a.host.Run(t, "ip", "link", "set", "tunl0", "up") // all the time: where it is down, the client is told so, and gives up
	before := a.host.Snapshot(t)
	a.host.Run(t, "ip", "addr", "add", vip+"/32", "dev", "tunl0")
	waiting := c.refused(t)
	a.start(t, "tun", vip)
	if err := <-waiting; err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
	c.arrives(t)
	if got := a.host.IPv4Conf(t, "all", "rp_filter"); got != "1" {
		t.Errorf("all.rp_filter is %s, want 1", got)
	}
	a.do(t, 0, "stop")
	equal(t, a.host, before)
}

// TestCase10_BareTunnel: on a tunnel without an address loose mode drops too. status sees that someone set it, and says why
// nothing arrives. Seen at: katran 28, keepalived 620.
func TestCase10_BareTunnel(t *testing.T) {
	guest(t)
	ipip(t, true)
	for _, at := range []string{"tunl0", "all"} {
		t.Run(at, func(t *testing.T) {
			c, a := newTunnelSite(t)
			a.host.SetIPv4Conf(t, "all", "rp_filter", "0")
			a.host.SetIPv4Conf(t, "tunl0", "rp_filter", "0")
			a.do(t, 0, "start", "--mode", "tun", "--device", "lo", "--vip", vip)
			holds(t, a.host, vip, "lo")
			c.arrives(t)
			a.do(t, 0, "status")

			a.host.SetIPv4Conf(t, at, "rp_filter", "2")
			waiting := c.refused(t)
			r := a.do(t, 1, "status")
			if r.State != "drifted" || !strings.Contains(r.text, "rp_filter") {
				t.Errorf("status does not speak of rp_filter: %s", r.text)
			}
			a.host.SetIPv4Conf(t, at, "rp_filter", "0")
			if err := <-waiting; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCase11_LooseIsKept: where rp_filter is off, 2 would be stricter: it stays off. Seen at: kube-router 1791.
func TestCase11_LooseIsKept(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	for _, name := range []string{"all", "default", "eth0", "tunl0", "lo"} {
		a.host.SetIPv4Conf(t, name, "rp_filter", "0")
	}
	a.host.Run(t, "ip", "route", "del", "default")
	a.start(t, "tun", vip)
	c.arrives(t)
	if got := a.host.IPv4Conf(t, "tunl0", "rp_filter"); got != "0" {
		t.Errorf("tunl0.rp_filter is %s, want 0", got)
	}
}

// TestCase12_Udev: when tunl0 appears, udev has systemd-sysctl write rp_filter=1 to it, some time later. start waits for that:
// packets arrive, and still do when all is quiet. Seen at: cilium 10645, aws-gwlb handler 22.
func TestCase12_Udev(t *testing.T) {
	guest(t)
	c, here := newUdevSite(t)
	a := newAgent(t, here)
	for range 15 {
		ipip(t, false)
		a.start(t, "tun", vip)
		c.arrives(t)
		hostRun(t, "udevadm", "settle")
		time.Sleep(time.Second)
		if got := here.IPv4Conf(t, "tunl0", "rp_filter"); got != "2" {
			t.Fatalf("tunl0.rp_filter is %s a second later, want 2", got)
		}
		c.arrives(t)
		a.do(t, 0, "stop")
	}
}

// TestCase12_UdevCanFail: the classic script opens rp_filter at once, and udev closes it again.
func TestCase12_UdevCanFail(t *testing.T) {
	guest(t)
	_, here := newUdevSite(t)
	for range 15 {
		ipip(t, false)
		classic{here}.start(t, "tun", vip)
		hostRun(t, "udevadm", "settle")
		time.Sleep(time.Second)
		got := here.IPv4Conf(t, "tunl0", "rp_filter")
		classic{here}.stop(t, "tun", vip)
		if got == "1" {
			return
		}
	}
	t.Error("udev never closed what the script had opened: TestCase12_Udev cannot fail")
}

// newUdevSite is a cluster whose real server is the guest itself, with strict filtering from sysctl.d for each interface
// that appears.
func newUdevSite(t *testing.T) (*cluster, *testnet.Host) {
	t.Helper()
	here := testnet.Here()
	ipip(t, false)
	restore(t, here, "all", "rp_filter")
	restore(t, here, "default", "rp_filter")
	restore(t, here, "lo", "rp_filter")
	write(t, "/etc/sysctl.d/99-lab.conf", "net.ipv4.conf.*.rp_filter = 1\n")
	hostRun(t, "/lib/systemd/systemd-sysctl")
	c := newClusterOf(t, here)
	hostRun(t, "udevadm", "settle")
	c.direct(t, "tun", vip)
	return c, here
}

func restore(t *testing.T, h *testnet.Host, iface, knob string) {
	t.Helper()
	was := h.IPv4Conf(t, iface, knob)
	t.Cleanup(func() { h.SetIPv4Conf(t, iface, knob, was) })
}
