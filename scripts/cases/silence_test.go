package cases

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// The window of the classic script: at no moment of start, stop and start
// again may one of a stream of requests be answered.
// Seen at: seesaw issue 111, keepalived issue 2450.
func TestCase02_AskedWithoutPause(t *testing.T) {
	s := newSite(t)
	s.unheard(t, func(asker *testnet.Asker) {
		for range 10 {
			s.ask(t, 0, "start", "--vip", vip)
			asker.Await(t, 10)
			s.ask(t, 0, "stop")
			asker.Await(t, 10)
			s.ask(t, 0, "start", "--vip", vip, "--vip", vip2)
			asker.Await(t, 10)
			s.ask(t, 0, "restart")
			s.ask(t, 0, "stop", "--vip", vip2)
			s.ask(t, 0, "stop", "--vip", vip)
		}
	}, vip, vip2)
}

// A VIP that the old script left behind without guards has been answered for;
// rsagent mends that and says that neighbours may still have this host's MAC
// in their caches. Seen at: seesaw issue 111.
func TestCase44_GuardsGoneVIPThere(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("an address without guards is not answered for")
	}
	if r := s.do(t, "start", "--vip", vip); !r.Changed || !r.says("warning", "cache") {
		t.Errorf("want a change and a warning, got %+v", r)
	}
	s.silent(t, vip)
	s.bound(t, vip, "lo")
}

// Nothing of ARP or neighbour discovery about a VIP ever leaves the real
// server: no reply, no gratuitous ARP, no duplicate address detection, and no
// request with the VIP as sender when it resolves a neighbour for an answer.
// Seen at: initscripts issue 104.
func TestCase45_NothingAnnounced(t *testing.T) {
	s := newSite(t)
	s.announcesNothing(t, vip, func() {
		s.unheard(t, func(asker *testnet.Asker) {
			for range 3 {
				s.do(t, "start", "--vip", vip)
				s.ask(t, 0, "restart")
				s.rs.Run(t, "ip", "neigh", "flush", "dev", "eth0")
				s.serves(t, vip)
				asker.Await(t, 10)
				s.do(t, "stop")
			}
		}, vip)
	})
}

func TestCase45_NothingAnnouncedIPv6(t *testing.T) {
	s := newSite(t)
	s.peer.Run(t, "ip", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad")
	s.announcesNothing(t, vip6, func() {
		s.do(t, "start", "--vip", vip6)
		s.peer.Resolve(t, "eth0", vip6)
		s.ask(t, 0, "restart")
		s.do(t, "stop")
	})
}

// announcesNothing listens on the wire while f runs, and to the real server's
// own resolving as a proof that it could be heard.
func (s *site) announcesNothing(t *testing.T, addr string, f func()) {
	t.Helper()
	testnet.Need(t, "tcpdump")
	wire := s.peer.Start(t, "tcpdump", "-l", "-n", "-e", "-i", "eth0", "arp or icmp6")
	wire.Await(t, "listening on")
	f()
	s.rs.Resolve(t, "eth0", peerIP)
	wire.Await(t, "Request who-has "+peerIP+" tell "+rip)

	all := wire.Stop()
	sent := s.sentByRS(t, all)
	about := slices.DeleteFunc(slices.Clone(sent), func(line string) bool { return !strings.Contains(line, addr) })
	if len(about) > 0 {
		t.Errorf("the real server sent %d times, first: %s", len(about), about[0])
	}
	if len(sent) == 0 || !regexp.MustCompile("who.has "+addr).MatchString(all) {
		t.Errorf("the capture has not seen what was there to see:\n%s", all)
	}
}

// sentByRS picks from tcpdump's output (-e) what came from the real server.
func (s *site) sentByRS(t *testing.T, capture string) (lines []string) {
	t.Helper()
	mac := s.mac(t)
	for line := range strings.Lines(capture) {
		if strings.Contains(line, mac+" > ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Going from one kind of guard to another, the new one must stand before the
// old one goes. Seen at: a review of the order of stages.
func TestCase54_GuardSwitched(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.unheard(t, func(asker *testnet.Asker) {
			for range 5 {
				s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
				s.conf(t, "all", "arp_ignore", "0")
				s.conf(t, "eth0", "arp_ignore", "1")
				asker.Await(t, 20)
				s.do(t, "start", "--vip", vip, "--arp-guard", "all")
				s.conf(t, "all", "arp_ignore", "1")
				s.conf(t, "eth0", "arp_ignore", "0")
				asker.Await(t, 20)
			}
		}, vip)
		s.do(t, "stop")
	})
}
