package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// TestGuardNFT: with every arp_* at 0 the rules alone keep a real server silent, in both modes; it serves its share, and
// leaves no trace.
func TestGuardNFT(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newCluster(t)
		c.direct(t, mode, vip)
		agents, flags := newAgents(t, c.real), []string{"--mode", mode, "--vip", vip, "--arp-guard", "nft"}
		before := make([]testnet.Snapshot, 2)
		asker := c.client.AskARP(t, "eth0", vip, 5*time.Millisecond)
		for i, a := range agents {
			before[i] = a.host.Snapshot(t)
			a.do(t, 0, "start", flags...)
			for _, knob := range []string{"arp_ignore", "arp_announce"} {
				for _, iface := range []string{"all", "eth0", "lo"} {
					if v := a.host.IPv4Conf(t, iface, knob); v != "0" {
						t.Errorf("%s.%s is %s", iface, knob, v)
					}
				}
			}
		}
		c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
		for _, a := range agents {
			a.unchanged(t, "start", flags...)
		}
		for range cycles / 2 { // each in its turn: twenty in all
			for _, a := range agents {
				a.do(t, 0, "stop")
				a.do(t, 0, "start", flags...)
			}
		}
		asker.Await(t, 5)
		for i, a := range agents {
			a.do(t, 0, "stop")
			equal(t, a.host, before[i])
		}
		asked, replies := asker.Stop()
		if len(replies) != 1 || replies[mac(t, c.director)] == 0 {
			t.Errorf("asked %d times, and heard more than the director: %v", asked, replies)
		}
		t.Logf("asked %d times: the director answered, and nobody else", asked)
	})
}

// TestGuardNFTOnDirector: a host that directs the VIP itself is to answer for it. Seen at: keepalived, whose master went dark.
func TestGuardNFTOnDirector(t *testing.T) {
	guest(t)
	c := newClusterOf(t, testnet.NewHost(t, "rs"))
	a := newAgent(t, c.real[0])
	a.host.Run(t, "ipvsadm", "-A", "-t", vip+":80", "-s", "rr")
	before := a.host.Snapshot(t)
	if r := a.do(t, 6, "start", "--vip", vip, "--arp-guard", "nft"); r.Error == nil || !strings.Contains(r.Error.Message, "IPVS") {
		t.Errorf("it says %s", r.text)
	}
	equal(t, a.host, before)
	a.do(t, 0, "start", "--vip", vip)
	a.do(t, 0, "stop")
	a.host.Run(t, "ipvsadm", "-C")
	a.do(t, 0, "start", "--vip", vip, "--arp-guard", "nft")
	a.host.Run(t, "ipvsadm", "-A", "-t", vip+":80", "-s", "rr")
	a.do(t, 1, "status")
}

// TestNoNFTables: the kernel has no nf_tables, and cannot be made to load it: 5, and nothing is there.
func TestNoNFTables(t *testing.T) {
	guest(t)
	ipip(t, true)
	here := testnet.Here()
	here.Try("nft", "flush", "ruleset")
	write(t, "/etc/modprobe.d/lab.conf", "install nf_tables /bin/false\n")
	rs := testnet.NewHost(t, "rs")
	testnet.Wire(t, rs, "eth0", "10.9.0.11/24", testnet.NewHost(t, "peer"), "eth0", "10.9.0.1/24")
	for _, line := range strings.Split(here.Run(t, "lsmod"), "\n") { // what holds nf_tables goes first
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "nft_") {
			here.Try("modprobe", "-r", name)
		}
	}
	hostRun(t, "modprobe", "-r", "nf_tables")
	a := newAgent(t, rs)
	for _, flags := range [][]string{{"--arp-guard", "nft"}, {"--mode", "tun", "--mss", "auto"}} {
		r := a.do(t, 5, "start", append([]string{"--vip", vip}, flags...)...)
		if r.Error == nil || !strings.Contains(r.Error.Message, "nftables") {
			t.Errorf("the error does not name nftables: %s", r.text)
		}
		holds(t, rs, vip)
		for _, iface := range []string{"all", "eth0"} {
			if v := rs.IPv4Conf(t, iface, "arp_ignore"); v != "0" {
				t.Errorf("%s.arp_ignore is %s", iface, v)
			}
		}
		if isUp(t, rs, "tunl0") {
			t.Error("tunl0 is up")
		}
		a.do(t, 3, "status")
	}
	a.do(t, 0, "start", "--vip", vip)
	a.do(t, 0, "stop")
}

// upload is how much a client sends. It is more than fits the windows of a connection that gets nothing across.
const upload = 256 << 10

// sends has a client send to an echo, and counts what comes back.
type sends struct {
	s    *session
	back chan int
	done chan error
}

func (c *cluster) sends(t *testing.T, addr string) *sends {
	t.Helper()
	s, err := dial(c.client, addr, "80")
	if err != nil {
		t.Fatal(err)
	}
	u := &sends{s, make(chan int, 1), make(chan error, 1)}
	t.Cleanup(func() { s.Close() })
	s.SetDeadline(time.Now().Add(2 * hung))
	go func() {
		n, _ := io.Copy(io.Discard, io.LimitReader(s.in, upload))
		u.back <- int(n)
	}()
	go func() {
		_, err := s.Write(make([]byte, upload))
		u.done <- err
	}()
	return u
}

// retransmits counts segments that a host sent again.
func retransmits(t *testing.T, h *testnet.Host) int {
	t.Helper()
	var n int
	for _, line := range strings.Split(h.Run(t, "nstat", "-asz", "TcpRetransSegs"), "\n") {
		fmt.Sscanf(line, "TcpRetransSegs %d", &n)
	}
	return n
}

// TestCase50_MSS: the client's full segments do not fit the director's wrapping, and the client sees no ICMP. Without --mss an
// upload stalls, with it all of it comes across, also to a container behind DNAT. Seen at: kube-router 630, 1671.
func TestCase50_MSS(t *testing.T) {
	guest(t)
	loadTunnels(t)
	for _, r := range rows {
		if r.name != "ipip, 4 in 4" && r.name != "gue, 4 in 4" && r.name != "ipip, 6 in 6" {
			continue
		}
		for _, behind := range []string{"", ", behind DNAT"} {
			if behind != "" && strings.Contains(r.vip, ":") {
				continue // the container has IPv4 only
			}
			if !long() && behind == "" {
				continue
			}
			t.Run(r.name+behind, func(t *testing.T) {
				c := newClusterOf(t, testnet.NewHost(t, "rs"))
				c.addIPv6(t)
				upAll(t, c.real[0])
				c.directRow(t, r)
				c.client.Run(t, "nft", "table inet lab { chain input { type filter hook input priority 0; icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }")
				c.client.Run(t, "ip", "link", "set", "eth0", "gso_max_segs", "1") // what leaves is what a wire would carry
				a := newAgent(t, c.real[0])
				if behind != "" {
					container(t, a.host)
				}
				flags := append([]string{"--vip", r.vip}, strings.Fields(r.start)...)
				before := a.host.Snapshot(t)
				a.do(t, 0, "start", flags...)
				stalled := c.sends(t, r.vip)
				again := retransmits(t, c.client)
				testnet.Eventually(t, "the client to send again", func() bool { return retransmits(t, c.client) >= again+3 })
				if len(stalled.back) > 0 {
					t.Fatalf("%d bytes came back without --mss: nothing to be seen", <-stalled.back)
				}
				stalled.s.Close()

				a.do(t, 0, "start", append(flags, "--mss", "auto")...)
				through := c.sends(t, r.vip)
				if n, err := <-through.back, <-through.done; n != upload || err != nil {
					t.Errorf("of %d bytes %d came back: %v", upload, n, err)
				}
				want := map[string]int{"ipip, 4 in 4": 1440, "gue, 4 in 4": 1420, "ipip, 6 in 6": 1400}[r.name] - timestamps
				if out := c.client.Run(t, "ss", "-Htin", "dport", "80"); !strings.Contains(out, fmt.Sprintf(" mss:%d ", want)) {
					t.Errorf("the client's segments are not of %d bytes: %s", want, out)
				}
				through.s.Close()
				a.unchanged(t, "start", append(flags, "--mss", "auto")...)
				a.do(t, 0, "status")
				a.do(t, 0, "start", flags...)
				if rules := a.host.Run(t, "nft", "list", "tables"); strings.Contains(rules, "rsagent") {
					t.Errorf("--mss was taken away, and there is %s", rules)
				}
				a.do(t, 0, "stop")
				equal(t, a.host, before)
			})
		}
	}
}

// timestamps is what that option takes of each segment of a TCP connection between two Linux hosts.
const timestamps = 12

// container makes a namespace behind a host that forwards, to which port 80 of the VIP is passed on.
func container(t *testing.T, h *testnet.Host) {
	t.Helper()
	box := testnet.NewHost(t, "box")
	testnet.Wire(t, box, "eth0", "10.88.0.2/24", h, "box0", "10.88.0.1/24")
	box.Run(t, "ip", "route", "add", "default", "via", "10.88.0.1")
	h.SetSysctl(t, "ipv4", "ip_forward", "1")
	h.Run(t, "nft", "table ip lab { chain pre { type nat hook prerouting priority -100; ip daddr "+vip+" tcp dport 80 dnat to 10.88.0.2:80; }; }")
	serve(t, box, "80", "box")
}

// TestDirector: what others wrap is unwrapped, unless the directors are named; then theirs is, and no other.
// Seen at: CERT VU#636397.
func TestDirector(t *testing.T) {
	guest(t)
	loadTunnels(t)
	for i, x := range []struct {
		row            string
		other          string // how the client makes a tunnel of its own
		director, from string // the same director, by address and by prefix
	}{
		{"ipip, 4 in 4", "type ipip local 10.9.0.10 remote 10.9.0.11", "10.9.0.2", "10.9.0.0/29"},
		{"ipip, 6 in 6", "type ip6tnl mode ip6ip6 local fd00:9::10 remote fd00:9::11 encaplimit none", "fd00:9::2", "fd00:9::/125"},
		{"ipip, 6 in 4", "type sit local 10.9.0.10 remote 10.9.0.11", "10.9.0.2", "10.9.0.0/29"},
		{"gre, 4 in 4", "type gre local 10.9.0.10 remote 10.9.0.11", "10.9.0.2", "10.9.0.0/29"},
		{"gue, 4 in 4", "type ipip local 10.9.0.10 remote 10.9.0.11 encap gue encap-sport auto encap-dport 6080", "10.9.0.2", "10.9.0.0/29"},
		{"gue, 4 in 4", "type ipip local 10.9.0.10 remote 10.9.0.11", "10.9.0.2", "10.9.0.0/29"}, // plain, to the same device
	} {
		if !long() && i%3 != 1 {
			continue
		}
		t.Run(x.row+", "+strings.Fields(x.other)[1], func(t *testing.T) {
			var r row
			for _, o := range rows {
				if o.name == x.row {
					r = o
				}
			}
			c := newClusterOf(t, testnet.NewHost(t, "rs"))
			c.addIPv6(t)
			upAll(t, c.real[0])
			c.directRow(t, r)
			a := newAgent(t, c.real[0])
			before := a.host.Snapshot(t)
			flags := append([]string{"--vip", r.vip}, strings.Fields(r.start)...)
			c.client.Run(t, append([]string{"ip", "link", "add", "own0"}, strings.Fields(x.other)...)...)
			c.client.Run(t, "ip", "link", "set", "own0", "up")

			a.do(t, 0, "start", flags...)
			echo := a.host.Echo(t, "udp", r.vip)
			taken := func() bool { // is what the client wraps answered?
				c.client.Run(t, "ip", "route", "replace", r.vip, "dev", "own0")
				defer c.client.Run(t, "ip", "route", "del", r.vip, "dev", "own0")
				return c.client.Call("udp", echo) == nil
			}
			if !taken() {
				t.Fatalf("what the client wraps is not taken, with nobody named: nothing to be seen\n%s", c.client.Run(t, "ip", "-s", "link", "show", "own0"))
			}
			var named []string
			for _, director := range []string{x.director, x.from} {
				named = append(flags[:len(flags):len(flags)], "--director", director)
				a.do(t, 0, "start", named...)
				c.expectServed(t, 2, map[string]int{"rs1": 2}, r.vip)
				a.unchanged(t, "start", named...)
			}
			a.host.Run(t, "nft", "flush", "table", "inet", "rsagent")
			a.do(t, 1, "status")
			a.do(t, 0, "start", named...)
			was := received(t, a.host, r.device)
			if taken() || received(t, a.host, r.device) != was {
				t.Error("with a director named, what the client wraps is taken")
			}
			c.expectServed(t, 2, map[string]int{"rs1": 2}, r.vip)
			a.do(t, 0, "stop")
			equal(t, a.host, before)
		})
	}
}

// received is how many packets came out of a device.
func received(t *testing.T, h *testnet.Host, dev string) int {
	t.Helper()
	var links []struct {
		Stats64 struct{ Rx struct{ Packets int } }
	}
	if err := json.Unmarshal([]byte(h.Run(t, "ip", "-j", "-s", "link", "show", dev)), &links); err != nil || len(links) != 1 {
		t.Fatalf("%s: %v, %v", dev, links, err)
	}
	return links[0].Stats64.Rx.Packets
}
