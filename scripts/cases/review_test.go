package cases

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// These were found by a review that set out to break rsagent's promises.

// A guard follows its interface, not the interface's name.
func TestGuardFollowsItsInterface(t *testing.T) {
	for name, happens := range map[string]func(s *site){
		"renamed": func(s *site) { s.rs.Run(t, "ip", "link", "set", "eth0", "name", "nic0") },
		"names exchanged": func(s *site) {
			s.rs.Run(t, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "w1")
			for _, r := range [][2]string{{"eth0", "x"}, {"eth1", "eth0"}, {"x", "eth1"}} {
				s.rs.Run(t, "ip", "link", "set", r[0], "name", r[1])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
			happens(s)
			for _, verb := range []string{"restart", "stop --vip 10.0.0.77", "restart"} {
				words := strings.Fields(verb)
				s.ask(t, 0, words[0], words[1:]...)
				if s.answers(t, "eth0", vip) {
					t.Errorf("after %s the VIP is answered for", verb)
				}
			}
			s.do(t, "stop")
		})
	}
}

// What a guard rests on is not put back because it cannot be judged for a while.
func TestGuardStaysWhereItCannotBeJudged(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
	s.rs.Run(t, "ip", "link", "set", "eth0", "arp", "off")
	s.ask(t, 6, "restart")
	s.rs.Run(t, "ip", "link", "set", "eth0", "arp", "on")
	s.silentOn(t, "eth0", vip)
	s.ask(t, 0, "restart")
}

// An interface that takes no ARP now may take it later: a port leaves its
// bridge, a NIC comes with what default gives it.
func TestGuardOfWhatIsToCome(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "5")
	s.rs.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	s.rs.Run(t, "ip", "link", "set", "eth0", "master", "br0")
	s.rs.SetIPv4Conf(t, "default", "arp_ignore", "5")
	before := s.rs.Snapshot(t)
	s.do(t, "start", "--vip", vip)
	s.rs.Run(t, "ip", "link", "set", "eth0", "nomaster")
	s.silentOn(t, "eth0", vip)
	testnet.Wire(t, s.rs, "eth1", "10.0.1.11/24", s.peer, "eth1", "10.0.1.1/24")
	s.silentOn(t, "eth1", vip)
	s.rs.Run(t, "ip", "link", "del", "eth1")
	s.rs.Run(t, "ip", "link", "set", "eth0", "master", "br0")
	s.do(t, "stop")
	s.mustBe(t, before)
}

// A VIP that cannot be served keeps no other from being guarded, bound or taken out.
func TestOneBrokenVIP(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "link", "add", "w0", "type", "veth", "peer", "name", "w1")
	s.do(t, "start", "--vip", "10.0.0.101", "--arp-guard", "interface", "--interface", "w0")
	s.do(t, "start", "--vip", vip+",10.0.0.102")
	s.rs.Run(t, "ip", "link", "del", "w0")
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	r := s.ask(t, 6, "restart")
	s.silent(t, vip, "10.0.0.102")
	s.bound(t, vip, "lo")
	if !r.says("w0") {
		t.Errorf("nothing is said of w0: %+v", r)
	}
	s.ask(t, 0, "start", "--vip", vip)
	s.ask(t, 0, "stop", "--vip", "10.0.0.102")
	s.bound(t, "10.0.0.102")
	s.ask(t, 0, "stop")
}

// Of an IPv6 address a device holds one copy, whatever its prefix: the wide
// one makes room, and no VIP is lost.
func TestWideIPv6VIP(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip6+"/64", "dev", "lo")
	s.do(t, "start", "--vip", vip6+","+vip)
	s.bound(t, vip6, "lo")
	s.bound(t, vip, "lo")
	s.do(t, "stop")
	s.bound(t, vip6)
}

// A start that fails leaves a VIP that it found, and takes away what it put beside it.
func TestFailureLeavesWhatWasFound(t *testing.T) {
	for _, found := range []string{vip + "/24", vip + "/32"} {
		s := newSite(t)
		s.rs.Run(t, "ip", "addr", "add", found, "dev", "lo")
		s.rs.Run(t, "ip", "addr", "add", "10.9.9.9", "peer", "10.0.0.101/32", "dev", "lo") // the kernel refuses 10.0.0.101/32 beside it
		s.restored(t, func() { s.ask(t, 1, "start", "--vip", vip+",10.0.0.101") })
		s.ask(t, 0, "stop")
		if held := s.rs.Holds(t, vip); len(held) != 1 {
			t.Errorf("found %s, and now the VIP is on %v", found, held)
		}
	}
}

// A VIP that cannot be taken out takes back what was to be added.
func TestFailedWithdrawTakesAdditionsBack(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/24", "dev", "lo")
	s.rs.Run(t, "ip", "addr", "add", "10.0.0.50/24", "dev", "lo") // a secondary: the wide one cannot go without a setting
	readonly := `mount -o bind,ro /proc/sys /proc/sys && exec "$@"`
	if got := s.inMounts(readonly, s.args("stop", "--vip", vip)...); got.Code == 0 {
		t.Fatalf("stop could do it: %s", got.Stdout)
	}
	if got := s.inMounts(readonly, s.args("start", "--vip", "10.0.0.101")...); got.Code == 0 {
		t.Fatalf("start could do it: %s", got.Stdout)
	}
	s.ask(t, 0, "stop")
	s.ask(t, 6, "restart") // nothing is managed
	s.bound(t, "10.0.0.101")
	s.bound(t, vip)
}

// An address with a peer is another address to the kernel, with a subnet of its own.
func TestAddressWithPeer(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip, "peer", "10.50.0.200/24", "dev", "lo")
	s.do(t, "start", "--vip", vip)
	if out := s.rs.Run(t, "ip", "route", "show", "table", "local"); strings.Contains(out, "10.50.0.0/24") {
		t.Errorf("the peer's subnet is local: %s", out)
	}
	s.bound(t, vip, "lo")
	s.do(t, "stop")
	s.rs.Run(t, "ip", "addr", "add", vip, "peer", "10.50.0.200/32", "dev", "lo")
	s.do(t, "stop", "--vip", vip)
	s.bound(t, vip)
}

// What would cut the host off is refused.
func TestAddressesOfTheHost(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", "10.255.0.1/32", "dev", "lo")
	s.rs.Run(t, "ip", "route", "add", "default", "via", peerIP, "src", "10.255.0.1")
	s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
	before := s.rs.Snapshot(t)
	for _, addr := range []string{"10.255.0.1", peerIP, "10.0.0.255", "10.0.0.0", "2001:db8::11"} {
		if r := s.ask(t, 6, "start", "--vip", addr); !r.says(addr) {
			t.Errorf("%s: %+v", addr, r.Error)
		}
		if r := s.ask(t, 6, "start", "--vip", addr, "--dry-run"); r.says("ip addr del") {
			t.Errorf("%s: a cure would cut the host off: %+v", addr, r.Findings)
		}
	}
	s.mustBe(t, before)
}

// A config that is no file does not block, and what cannot be written changes no exit code.
func TestOddFiles(t *testing.T) {
	s := newSite(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", "/dev/ptmx", t.TempDir()} {
		if got := s.rs.Try(s.args("start", "--config", path)...); got.Code != 2 || lines(got.Stderr) != 1 {
			t.Errorf("--config %s: exit %d, %s", path, got.Code, got.Stderr)
		}
	}
	s.do(t, "stop", "--config", "/dev/null") // what came from a config, whatever it says by now
	for _, c := range []struct {
		verb string
		code int
	}{{"start --vip " + vip, 0}, {"status", 0}, {"stop", 0}, {"status", 3}, {"start", 6}} {
		args := append([]string{"sh", "-c", `exec "$@" >/dev/full`, "sh"}, s.args(strings.Fields(c.verb)[0], strings.Fields(c.verb)[1:]...)...)
		if got := s.rs.Try(args...); got.Code != c.code || lines(got.Stderr) != 1 {
			t.Errorf("%s >/dev/full: exit %d, want %d: %s", c.verb, got.Code, c.code, got.Stderr)
		}
	}
}

// A guard that changes its form was one all the while, and a scope is not changed under connections.
func TestWhatIsSaidOfAChange(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	for _, guard := range []string{"--arp-guard interface --interface eth0", "--arp-guard all"} {
		if r := s.do(t, "start", append([]string{"--vip", vip}, strings.Fields(guard)...)...); r.says("answered ARP") {
			t.Errorf("%s: a false alarm: %+v", guard, r.Findings)
		}
	}
	r := s.do(t, "start", "--vip", vip, "--scope", "global")
	if r.Changed || !r.says(vip, "keeps the scope") {
		t.Errorf("a scope that stays is not spoken of: %+v", r)
	}
	s.do(t, "stop", "--blackhole")
	if r := s.ask(t, 3, "status"); !r.says(vip, "dropped by a route") {
		t.Errorf("a blackhole route is not spoken of: %+v", r)
	}
}

// A refusal that is known before anything is changed leaves all as it is, also
// what the verb was to take out.
func TestRefusedReload(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--config", s.config(t, "vips: ["+vip+"]"))
	s.restored(t, func() {
		for range 2 {
			s.ask(t, 6, "reload", "--config", s.config(t, "vips: [10.0.0.105, "+rip+"]"))
		}
	})
	s.bound(t, vip, "lo")
	s.ask(t, 0, "status")
}

// restart and reload keep what is managed; VIPs given to them then are not taken for served.
func TestGivenAndIgnored(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	for _, verb := range []string{"restart", "reload"} {
		if r := s.do(t, verb, "--vip", "10.0.0.101"); !r.says(verb, "only where nothing is managed") {
			t.Errorf("%s --vip: %+v", verb, r.Findings)
		}
	}
	s.bound(t, "10.0.0.101")
}
