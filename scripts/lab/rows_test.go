package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

const vip6 = "fd00:9::100"

// A row is one way in which an IPVS director sends, and what start is told to take it.
type row struct {
	name     string
	vip      string
	outer    int    // IP version of the real server's address as the director knows it
	director string // how it forwards, in the words of ipvsadm
	start    string
	device   string // where the VIP is to be
}

var rows = []row{
	{"DR, IPv4", vip, 4, "-g", "", "lo"},
	{"DR, IPv6", vip6, 6, "-g", "", "lo"},
	{"ipip, 4 in 4", vip, 4, "-i", "--mode tun", "tunl0"},
	{"ipip, 6 in 6", vip6, 6, "-i", "--mode tun", "ip6tnl0"},
	{"ipip, 4 in 6", vip, 6, "-i", "--mode tun --outer 6", "ip6tnl0"},
	{"ipip, 6 in 4", vip6, 4, "-i", "--mode tun --outer 4", "sit0"},
	{"gre, 4 in 4", vip, 4, "-i --tun-type gre", "--mode tun --tunnel gre", "gre0"},
	{"gre, 6 in 4", vip6, 4, "-i --tun-type gre", "--mode tun --tunnel gre --outer 4", "gre0"},
	{"gre, 4 in 6", vip, 6, "-i --tun-type gre", "--mode tun --tunnel gre --outer 6", "ip6gre0"},
	{"gre, 6 in 6", vip6, 6, "-i --tun-type gre", "--mode tun --tunnel gre", "ip6gre0"},
	{"gre with checksums, 4 in 4", vip, 4, "-i --tun-type gre --tun-csum", "--mode tun --tunnel gre --csum", "grecsum0"},
	{"gre with checksums, 6 in 4", vip6, 4, "-i --tun-type gre --tun-csum", "--mode tun --tunnel gre --csum --outer 4", "grecsum0"},
	{"gue, 4 in 4", vip, 4, "-i --tun-type gue --tun-port 6080 --tun-nocsum", "--mode tun --tunnel gue", "tunl0"},
	{"gue with checksums, another port", vip, 4, "-i --tun-type gue --tun-port 7777 --tun-csum", "--mode tun --tunnel gue --gue-port 7777", "tunl0"},
	{"gue with remote checksum", vip, 4, "-i --tun-type gue --tun-port 6080 --tun-remcsum", "--mode tun --tunnel gue", "tunl0"},
	{"gue, 6 in 4", vip6, 4, "-i --tun-type gue --tun-port 6080 --tun-nocsum", "--mode tun --tunnel gue --outer 4", "sit0"},
	{"gue, 4 in 6", vip, 6, "-i --tun-type gue --tun-port 6080 --tun-csum", "--mode tun --tunnel gue --outer 6", "ip6tnl0"},
	{"gue, 6 in 6", vip6, 6, "-i --tun-type gue --tun-port 6080 --tun-csum", "--mode tun --tunnel gue", "ip6tnl0"},
}

// long says that each row is tried; the short form, of make test, has a few of each test's.
func long() bool { return os.Getenv("RSAGENT_TEST_ROWS") == "all" }

// TestRows: each row serves its share, is silent to ARP and neighbour solicitations all the while, does nothing twice,
// and leaves no trace.
func TestRows(t *testing.T) {
	guest(t)
	loadTunnels(t)
	c := newCluster(t)
	c.addIPv6(t)
	agents := newAgents(t, c.real)
	before, shown := make([]testnet.Snapshot, len(agents)), make([]string, len(agents))
	for i, h := range c.real {
		h.SetIPv4Conf(t, "all", "rp_filter", "1")
		upAll(t, h)
		before[i], shown[i] = h.Snapshot(t), tunnels(t, h)
	}
	for i, r := range rows {
		if !long() && i%6 != 4 { // ipip is in TestServe
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c.directRow(t, r)
			asker := c.ask(t, r.vip)
			flags := append([]string{"--vip", r.vip}, strings.Fields(r.start)...)
			for _, a := range agents {
				if got := a.do(t, 0, "start", flags...); !got.Changed || got.State != "up" {
					t.Errorf("start says: %s", got.text)
				}
				holds(t, a.host, r.vip, r.device)
				noCompat(t, a.host)
			}
			c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, r.vip)
			started := tunnels(t, agents[0].host)
			agents[0].unchanged(t, "start", flags...)
			if again := tunnels(t, agents[0].host); again != started {
				t.Errorf("a second start changes\n%s\nto\n%s", started, again)
			}
			agents[0].do(t, 0, "status")
			for i, a := range agents {
				a.do(t, 0, "stop")
				holds(t, a.host, r.vip)
				equal(t, a.host, before[i])
				if after := tunnels(t, a.host); after != shown[i] {
					t.Errorf("tunnels and ports before:\n%s\nafter stop:\n%s", shown[i], after)
				}
			}
			asker.Await(t, 5)
			asked, replies := asker.Stop()
			if len(replies) != 1 || replies[mac(t, c.director)] == 0 {
				t.Errorf("asked %d times, and heard more than the director: %v", asked, replies)
			}
			if !t.Failed() {
				t.Logf("| %s | 20 of 20, 10 each | asked %d times: silent | second start: nothing | after stop: as before |", r.name, asked)
			}
		})
	}
}

// loadTunnels loads every module of a tunnel, for good: what a first load brings to each namespace is no trace of rsagent's.
func loadTunnels(t *testing.T) {
	t.Helper()
	hostRun(t, "modprobe", "-a", "ipip", "ip6_tunnel", "sit", "ip_gre", "ip6_gre", "fou")
}

// fallbacks are the modules' own devices.
var fallbacks = []string{"tunl0", "ip6tnl0", "sit0", "gre0", "ip6gre0"}

// upAll raises each tunnel device once: the first time, the kernel makes settings that stay.
func upAll(t *testing.T, h *testnet.Host) {
	t.Helper()
	for _, dev := range fallbacks {
		h.Run(t, "ip", "link", "set", dev, "up")
		h.Run(t, "ip", "link", "set", dev, "down")
	}
}

// tunnels is what `ip` tells of tunnels and FOU ports.
func tunnels(t *testing.T, h *testnet.Host) string {
	t.Helper()
	return h.Run(t, "ip", "fou", "show") + h.Run(t, "ip", "-6", "fou", "show") + h.Run(t, "ip", "-6", "tunnel", "show") + h.Run(t, "ip", "tunnel", "show")
}

// addIPv6 gives each host an IPv6 address that ends as its IPv4 address does.
func (c *cluster) addIPv6(t *testing.T) {
	t.Helper()
	for i, h := range append([]*testnet.Host{c.client, c.director}, c.real...) {
		h.Run(t, "ip", "addr", "add", fmt.Sprintf("fd00:9::%d/64", []int{10, 2, 11, 12}[i]), "dev", "eth0", "nodad")
	}
}

// directRow makes the director share out port 80 of the row's VIP. An IPv6 VIP is deprecated before IPVS looks for its own
// source address: with the VIP as source, a real server that has it too drops the packets.
func (c *cluster) directRow(t *testing.T, r row) {
	t.Helper()
	real := func(i int) string { return realAddr(i) + ":80" }
	if r.outer == 6 {
		real = func(i int) string { return fmt.Sprintf("[fd00:9::%d]:80", 11+i) }
	}
	service := r.vip + ":80"
	addr := []string{r.vip + "/32", "dev", "eth0"}
	if strings.Contains(r.vip, ":") {
		service = "[" + r.vip + "]:80"
		addr = []string{r.vip + "/128", "dev", "eth0", "nodad", "preferred_lft", "0"}
	}
	c.director.Run(t, append([]string{"ip", "addr", "add"}, addr...)...)
	t.Cleanup(func() {
		c.director.Try("ipvsadm", "-C")
		c.director.Try("ip", "addr", "del", addr[0], "dev", "eth0")
	})
	c.director.Run(t, "ipvsadm", "-A", "-t", service, "-s", "rr")
	for i := range c.real {
		c.director.Run(t, append([]string{"ipvsadm", "-a", "-t", service, "-r", real(i)}, strings.Fields(r.director)...)...)
	}
}

// ask has the client ask for an address, by the means of its version.
func (c *cluster) ask(t *testing.T, addr string) *testnet.Asker {
	t.Helper()
	if strings.Contains(addr, ":") {
		return c.client.AskND(t, "eth0", addr, 5*time.Millisecond)
	}
	return c.client.AskARP(t, "eth0", addr, 5*time.Millisecond)
}

// noCompat: no address that the kernel made of an IPv4 address is there to be the source of packets to anywhere.
// Seen at: case 62.
func noCompat(t *testing.T, h *testnet.Host) {
	t.Helper()
	for dev := range maps.Keys(h.Links(t)) {
		for _, a := range h.Addrs(t, dev) {
			if ip := netip.MustParseAddr(a.Local); ip.Is6() && netip.MustParsePrefix("::/96").Contains(ip) && !ip.IsLoopback() {
				t.Errorf("%s is on %s", ip, dev)
			}
		}
	}
	if routes := h.Run(t, "ip", "-6", "route", "show", "table", "all"); strings.Contains(routes, "::/96 ") {
		t.Errorf("a route to ::/96 is there:\n%s", routes)
	}
	if r := h.Try("ip", "-6", "route", "get", "2001:db8::1"); strings.Contains(r.Stdout, "src ::") {
		t.Errorf("packets to anywhere come from %s", r.Stdout)
	}
}
