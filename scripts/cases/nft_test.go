package cases

import (
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// The same with nftables among them. Each start waits for ARP requests, so that a window would be met.
// Seen at: a review of the order of stages.
func TestCase54_GuardSwitchedToNFT(t *testing.T) {
	testnet.Need(t, "nft")
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.unheard(t, func(asker *testnet.Asker) {
			for range 5 {
				for _, guard := range [][]string{{"interface", "--interface", "eth0"}, {"nft"}, {"all"}, {"nft"}, {"interface", "--interface", "eth0"}, {"all"}} {
					s.do(t, "start", append([]string{"--vip", vip, "--arp-guard"}, guard...)...)
					s.guardedBy(t, guard[0])
					asker.Await(t, 20)
				}
			}
		}, vip)
		s.do(t, "stop")
	})
}

// guardedBy: this guard is there, and no other.
func (s *site) guardedBy(t *testing.T, guard string) {
	t.Helper()
	all, eth0 := "0", "0"
	switch guard {
	case "all":
		all = "1"
	case "interface":
		eth0 = "1"
	}
	s.conf(t, "all", "arp_ignore", all)
	s.conf(t, "eth0", "arp_ignore", eth0)
	if got := s.rs.Run(t, "nft", "list", "ruleset"); strings.Contains(got, "arp daddr ip @vips drop") != (guard == "nft") {
		t.Errorf("with guard %s the rules are:\n%s", guard, got)
	}
}

// Twenty cycles of start and stop, with each guard, under requests without a pause.
// Seen at: seesaw issue 111; the classic script answered 161 of 6,845.
func TestCase02_EachGuard(t *testing.T) {
	for _, guard := range []string{"all", "interface", "nft"} {
		t.Run(guard, func(t *testing.T) {
			s := newSite(t)
			args := []string{"--vip", vip, "--arp-guard", guard}
			if guard == "interface" {
				args = append(args, "--interface", "eth0")
			}
			s.restored(t, func() {
				s.unheard(t, func(asker *testnet.Asker) {
					for range 20 {
						s.ask(t, 0, "start", args...)
						asker.Await(t, 20)
						s.ask(t, 0, "stop")
						asker.Await(t, 20)
					}
				}, vip)
			})
		})
	}
}

const rulesOn = "--arp-guard=nft"

// Every arp_* stays 0, and yet nothing is heard of the VIP, neither in answer nor on the host's own account.
// Seen at: the arptables recipe of the LVS HOWTO.
func TestNFT_NoSettingTouched(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		before := s.rs.Snapshot(t)
		s.do(t, "start", "--vip", vip, rulesOn)
		after := s.rs.Snapshot(t)
		before.NFT, after.NFT, before.Addrs, after.Addrs, before.Routes, after.Routes = "", "", nil, nil, nil, nil
		s.ask(t, 0, "status")
		if d := testnet.Diff(before, after); d != "" {
			t.Errorf("beside the rules and the VIP, this was changed:\n%s", d)
		}
		s.silent(t, vip)
		s.unanswered(t)
		s.announcesNothing(t, vip, func() {
			s.unheard(t, func(asker *testnet.Asker) {
				s.rs.Run(t, "ip", "neigh", "flush", "dev", "eth0")
				s.serves(t, vip) // for its answers the real server has to ask for the neighbour
				asker.Await(t, 20)
			}, vip)
		})
		s.do(t, "stop")
	})
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	s.rs.Run(t, "ip", "neigh", "flush", "dev", "eth0")
	wire := s.peer.Start(t, "tcpdump", "-l", "-n", "-i", "eth0", "arp")
	wire.Await(t, "listening on")
	s.serves(t, vip)
	wire.Await(t, "who-has "+peerIP+" tell "+vip) // without the guard one has: there was something to keep silent about
}

// unanswered: to requests for the VIP there is no reply of whatever content. A reply that names another sender would
// repoint nobody, and be as little as a missing one for who counts answers.
func (s *site) unanswered(t *testing.T) {
	t.Helper()
	wire := s.peer.Start(t, "tcpdump", "-l", "-n", "-i", "eth0", "arp[6:2] = 2")
	wire.Await(t, "listening on")
	s.peer.Try("arping", "-i", "eth0", "-c", "5", "-W", "0.02", vip)
	s.peer.Try("arping", "-i", "eth0", "-c", "1", rip)
	wire.Await(t, "Reply "+rip)
	if out := wire.Stop(); strings.Count(out, "Reply ") != 1 {
		t.Errorf("asked five times for the VIP and once for %s, it replied:\n%s", rip, out)
	}
}

// A VIP comes to one that is there, and leaves, and the other stays: in the end the rules are about that one only.
func TestNFT_OneOfTwoLeaves(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, rulesOn)
		s.unheard(t, func(asker *testnet.Asker) {
			s.do(t, "start", "--vip", vip2, rulesOn)
			asker.Await(t, 20)
			s.do(t, "start", "--vip", vip, "--arp-guard", "all")
			asker.Await(t, 20)
			s.do(t, "stop", "--vip", vip)
			asker.Await(t, 20)
		}, vip, vip2)
		if got := s.rs.Run(t, "nft", "list", "table", "arp", "rsagent"); strings.Contains(got, vip+" ") || !strings.Contains(got, vip2) {
			t.Errorf("the rules are about %s:\n%s", vip, got)
		}
		s.conf(t, "all", "arp_ignore", "0")
		s.do(t, "stop")
	})
}

// A reload of nftables flushes the ruleset, rsagent's table along with it.
// Seen at: Debian's /etc/nftables.conf, which begins with flush ruleset.
func TestNFT_Flushed(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, rulesOn)
		for _, harm := range []string{"flush ruleset", "flush table arp rsagent", "add table arp rsagent { flags dormant; }"} {
			s.rs.Run(t, "nft", harm)
			if !s.answers(t, "eth0", vip) {
				t.Fatalf("after %q the host is silent: nothing to be said", harm)
			}
			if r := s.ask(t, 1, "status"); r.State != "drifted" {
				t.Errorf("after %q status says %s", harm, r.State)
			}
			if r := s.ask(t, 0, "start", "--vip", vip, rulesOn); !r.Changed || !r.says("warning", "cache") {
				t.Errorf("after %q start says %+v", harm, r)
			}
			s.silent(t, vip)
			s.do(t, "start", "--vip", vip, rulesOn)
		}
		// One chain alone still keeps silent: an answer goes out with another sender. It is mended all the same.
		for _, harm := range []string{"flush chain arp rsagent input", "flush chain arp rsagent output", "insert rule arp rsagent input accept"} {
			s.rs.Run(t, "nft", harm)
			s.ask(t, 1, "status")
			s.silent(t, vip)
			s.ask(t, 0, "start", "--vip", vip, rulesOn)
			s.ask(t, 0, "status")
		}
		s.do(t, "stop")
	})
}

// Flushed, and stopped before anything mended it; altered, and stopped.
func TestNFT_StoppedAsFound(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for _, harm := range []string{"flush ruleset", "flush table arp rsagent", "insert rule arp rsagent input counter"} {
			s.do(t, "start", "--vip", vip, rulesOn)
			s.rs.Run(t, "nft", harm)
			s.do(t, "stop")
		}
	})
}

// Other tables are other people's; one of rsagent's name that is made otherwise is refused, and left.
func TestNFT_OthersTables(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "nft", "table inet rsagent { chain c { type filter hook input priority 0; }; }; table arp filter { chain c { type filter hook input priority 0; counter; }; }")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, rulesOn)
		s.do(t, "stop")
	})
	s.rs.Run(t, "nft", "table arp rsagent { chain c { type filter hook input priority 0; counter; }; }")
	s.restored(t, func() {
		if r := s.ask(t, 6, "start", "--vip", vip, rulesOn); !r.says("table arp rsagent") {
			t.Errorf("it says %+v", r)
		}
		s.do(t, "start", "--vip", vip)
		s.do(t, "stop")
	})
}

// Where the host is to answer after all, or has nothing to ask with, the guard is refused.
// Seen at: keepalived, whose master was asked 384 times and dark.
func TestNFT_Refused(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0")
	s.restored(t, func() {
		if r := s.ask(t, 6, "start", "--vip", vip, rulesOn); !r.says("eth0", "silence") {
			t.Errorf("it says %+v", r)
		}
	})
	if !s.answers(t, "eth0", vip) {
		t.Error("the master is dark")
	}
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "eth0")
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "10.1.0.1/24")
	s.restored(t, func() {
		if r := s.ask(t, 6, "start", "--vip", vip, rulesOn); !r.says("eth1", "no ipv4 address") {
			t.Errorf("it says %+v", r)
		}
	})

	s.rs.Run(t, "ip", "addr", "add", "10.1.0.11/24", "dev", "eth1")
	s.do(t, "start", "--vip", vip, rulesOn)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0") // keepalived becomes master later
	if r := s.ask(t, 1, "status"); !r.says("error", "eth0", "silence") {
		t.Errorf("it says %+v", r)
	}
}

// A NIC that comes later is silent at once, and status says that it is not in the rules.
func TestNFT_NICThatComesLater(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() { s.do(t, "start", "--vip", vip, rulesOn); s.do(t, "stop") })
	s.do(t, "start", "--vip", vip, rulesOn)
	testnet.Wire(t, s.rs, "eth1", "10.1.0.11/24", s.peer, "eth1", "10.1.0.1/24")
	s.silentOn(t, "eth1", vip)
	if r := s.ask(t, 1, "status"); len(r.Changes) != 1 || !strings.Contains(r.Changes[0].To, "eth1=10.1.0.11") {
		t.Errorf("it says %+v", r)
	}
	s.do(t, "start", "--vip", vip, rulesOn)
	s.ask(t, 0, "status")
	s.silent(t, vip)
}

// Only CAP_NET_ADMIN is shown the rules: without it status cannot tell, and says so; with the other guards it needs none.
func TestNFT_StatusWithoutPrivilege(t *testing.T) {
	testnet.Need(t, "setpriv")
	s := newSite(t)
	s.do(t, "start", "--vip", vip, rulesOn)
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "-all", "--bounding-set", "-all"}
	for path := s.state; len(path) > 1; path = filepath.Dir(path) { // the test's folder is root's only
		s.rs.Run(t, "chmod", "o+rx", path)
	}
	command := append(nobody, s.args("status", "-o", "json")...)
	r := parse(t, 4, "status", command, s.rs.Try(command...))
	if r.State != "unknown" || !r.says("nftables", "cap_net_admin") && !r.says("table arp rsagent", "cap_net_admin") {
		t.Errorf("it says %+v", r)
	}
	s.do(t, "start", "--vip", vip, "--arp-guard", "all")
	parse(t, 0, "status", command, s.rs.Try(command...))
}

// What is shown by --dry-run makes, typed, what start makes.
func TestNFT_DryRun(t *testing.T) {
	s := newSite(t)
	out := s.rs.Run(t, s.args("start", "--vip", vip, rulesOn, "--dry-run")...)
	if _, found, _ := strings.Cut(out, "nft '"); found == "" {
		t.Fatalf("no nft in\n%s", out)
	}
	s.rs.Run(t, "sh", "-ec", out)
	s.ask(t, 0, "start", "--vip", vip, rulesOn)
	typed := s.rs.Snapshot(t)
	s.ask(t, 0, "stop")
	s.ask(t, 0, "start", "--vip", vip, rulesOn)
	s.mustBe(t, typed)
}

// Killed at each step, the transaction among them, the next verb ends where it would have ended, and nothing was answered.
// Seen at: stolon issue 247.
func TestNFT_KilledAtEachStep(t *testing.T) {
	testnet.Need(t, "strace")
	s := newSite(t)
	down := s.rs.Snapshot(t)
	start := []string{"start", "--vip", vip, rulesOn}
	s.ask(t, 0, start[0], start[1:]...)
	up := s.rs.Snapshot(t)
	s.unheard(t, func(*testnet.Asker) {
		s.killEach(t, []string{"stop"}, start, func() {
			s.ask(t, 0, start[0], start[1:]...)
			s.mustBe(t, up)
		})
		s.killEach(t, start, []string{"stop"}, func() {
			s.ask(t, 0, "stop")
			s.mustBe(t, down)
		})
	}, vip)
}

// The kernel refuses single-byte blanks in an interface's name, and takes those of Unicode.
func TestNFT_NamesWithBlanks(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for i, name := range []string{"en\u3000", "\u2003", "e\u0085"} {
			testnet.Wire(t, s.rs, "eth1", "10.1.0.11/24", s.peer, "eth1", "10.1.0.1/24")
			s.rs.Run(t, "ip", "link", "set", "eth1", "name", name)
			s.do(t, "start", "--vip", vip, rulesOn)
			s.unheard(t, func(asker *testnet.Asker) {
				s.do(t, "restart")
				s.do(t, "start", "--vip", vip2, rulesOn)
				asker.Await(t, 20)
			}, vip)
			s.ask(t, 0, "status")
			s.rs.Run(t, "ip", "link", "del", name)
			if s.ask(t, 1, "status"); i == 0 { // the NIC is still among the senders
				s.do(t, "restart")
			}
			s.do(t, "stop")
		}
	})
}

// On a NIC with two subnets the sender is of the one that is asked in: a neighbour with a reverse path filter pays no
// heed to another. And it is no address that may move away. Seen at: keepalived's notes on arp_announce.
func TestNFT_SenderOfTheSubnet(t *testing.T) {
	s := newSiteWith(t, "10.50.0.9/24")
	s.rs.Run(t, "ip", "addr", "add", rip+"/24", "dev", "eth0")
	s.peer.Run(t, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, rulesOn)
		s.rs.Run(t, "ip", "neigh", "flush", "dev", "eth0")
		wire := s.peer.Start(t, "tcpdump", "-l", "-n", "-i", "eth0", "arp[6:2] = 1")
		wire.Await(t, "listening on")
		s.serves(t, vip)
		wire.Await(t, "who-has "+peerIP+" tell "+rip)
		s.do(t, "stop")
	})
	s.restored(t, func() {
		out := s.rs.Run(t, s.args("start", "--vip", vip, rulesOn, "--dry-run")...)
		s.rs.Run(t, "sh", "-ec", out)
		s.ask(t, 0, "start", "--vip", vip, rulesOn)
		typed := s.rs.Snapshot(t)
		s.ask(t, 0, "stop")
		s.ask(t, 0, "start", "--vip", vip, rulesOn)
		s.mustBe(t, typed)
		s.ask(t, 0, "stop")
	})
	s.rs.Run(t, "ip", "addr", "flush", "dev", "eth0")
	s.rs.Run(t, "ip", "addr", "add", "10.0.0.50/32", "dev", "eth0")
	s.rs.Run(t, "ip", "addr", "add", rip+"/24", "dev", "eth0")
	if r := s.ask(t, 0, "start", "--vip", vip, rulesOn); strings.Contains(r.Changes[0].To, "10.0.0.50") {
		t.Errorf("it asks with an address that may move away: %s", r.Changes[0].To)
	}
	s.rs.Run(t, "ip", "addr", "add", "10.0.0.12/24", "dev", "eth0") // renumbered
	s.rs.Run(t, "sysctl", "-qw", "net.ipv4.conf.eth0.promote_secondaries=1")
	s.rs.Run(t, "ip", "addr", "del", rip+"/24", "dev", "eth0")
	s.ask(t, 1, "status")
	s.ask(t, 0, "restart")
	s.ask(t, 0, "status")
	if got := s.rs.Run(t, "nft", "list", "ruleset"); strings.Contains(got, rip+" ") || !strings.Contains(got, "10.0.0.12") {
		t.Errorf("renumbered, it asks with\n%s", got)
	}
}

// The journal is lost, or removed, as is the way out of a corrupt one: the table that silences is still seen, is not
// narrowed under what rests on it, and goes with the last of it.
func TestNFT_JournalLost(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip+","+vip2, rulesOn)
		s.unheard(t, func(asker *testnet.Asker) {
			s.rs.Run(t, "rm", s.journal(t))
			s.ask(t, 0, "status", "--vip", vip)
			if r := s.ask(t, 3, "status"); !r.says("warning", "unmanaged-guard", vip, vip2) {
				t.Errorf("status says %+v", r)
			}
			if r := s.do(t, "start", "--vip", vip, rulesOn); !r.says("warning", "unmanaged-guard", vip2) {
				t.Errorf("start says %+v", r)
			}
			asker.Await(t, 20)
			s.do(t, "stop", "--vip", vip)
			asker.Await(t, 20)
			s.ask(t, 0, "status", "--vip", vip2)
		}, vip, vip2)
		if r := s.do(t, "stop", "--vip", vip2); strings.Contains(r.Changes[len(r.Changes)-1].Why, "before start") {
			t.Errorf("stop says %+v", r)
		}
	})
}
