package cases

import (
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// A host that forwards, and no longer holds the VIP, sends its packets back to
// where they came from, which sends them here again, until their TTL ends.
// Stop says so; a blackhole route ends it, and the next start removes that.
// Seen at: a review of hosts with containers.
func TestCase58_ForwardingHost(t *testing.T) {
	const vip = loopVIP
	s := newSite(t)
	client := loop(t, s)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		if n := s.frames(t, client); n != 1 {
			t.Fatalf("one packet for a VIP that is served made %d frames", n)
		}
		if r := s.ask(t, 0, "stop"); !r.says("round and round", vip) {
			t.Errorf("stop on a host that forwards found only %+v", r.Findings)
		}
		if n := s.frames(t, client); n < 10 {
			t.Fatalf("one packet for a VIP that is gone made %d frames: there is no loop to end", n)
		}

		s.do(t, "start", "--vip", vip)
		if r := s.do(t, "stop", "--blackhole"); r.says("round and round") {
			t.Errorf("stop --blackhole warns of what it prevents: %+v", r.Findings)
		}
		s.bound(t, vip)
		if n := s.frames(t, client); n != 1 {
			t.Errorf("with a blackhole route one packet made %d frames", n)
		}
		s.ask(t, 3, "status")

		s.do(t, "start", "--vip", vip)
		if out := s.rs.Run(t, "ip", "route", "show", "table", "main", "type", "blackhole"); out != "" {
			t.Errorf("start leaves the route: %s", out)
		}
		s.serves(t, vip)
		s.do(t, "stop", "--blackhole")
		s.do(t, "stop", "--vip", vip) // without it the route goes
	})
}

// A blackhole route of someone else's is neither taken for rsagent's nor taken away.
func TestBlackholeOfSomeoneElse(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "route", "add", "blackhole", vip+"/32", "proto", "bird")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.serves(t, vip)
		s.do(t, "stop", "--blackhole")
		s.do(t, "start", "--vip", vip)
		s.do(t, "stop", "--vip", vip)
	})
}

// loopVIP is of no subnet of the real server's: that would ask for it by ARP,
// and here nobody answers.
const loopVIP = "192.0.2.100"

// loop makes both hosts forward, and each the other's way to the VIP. A client
// is behind the neighbour: a host drops what comes back with its own address.
func loop(t *testing.T, s *site) (client *testnet.Host) {
	t.Helper()
	client = testnet.NewHost(t, "client")
	testnet.Wire(t, client, "eth0", "10.1.0.2/24", s.peer, "eth1", "10.1.0.1/24")
	client.Run(t, "ip", "route", "add", "default", "via", "10.1.0.1")
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	s.peer.SetSysctl(t, "ipv4", "ip_forward", "1")
	s.rs.Run(t, "ip", "route", "add", "default", "via", peerIP)
	s.peer.Run(t, "ip", "route", "add", loopVIP+"/32", "via", rip)
	return client
}

// frames sends one packet to the VIP and counts how often it crosses the wire
// between neighbour and real server.
func (s *site) frames(t *testing.T, client *testnet.Host) int {
	t.Helper()
	testnet.Need(t, "tcpdump", "bash")
	wire := s.peer.Start(t, "tcpdump", "-l", "-n", "-i", "eth0", "udp and dst host "+loopVIP)
	wire.Await(t, "listening on")
	client.Run(t, "bash", "-c", "echo one >/dev/udp/"+loopVIP+"/9")
	client.Run(t, "bash", "-c", "echo last >/dev/udp/"+loopVIP+"/10") // comes after all frames of the first
	wire.Await(t, loopVIP+".10")
	return strings.Count(wire.Stop(), loopVIP+".9:")
}
