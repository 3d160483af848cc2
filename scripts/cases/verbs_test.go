package cases

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// A guard drifts, start mends it: what stop puts back is the value from
// before the first start, not the one start found the second time.
// Seen at: tuned issue 816.
func TestCase13_DriftMendedBaselineKept(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
		s.ask(t, 1, "status")
		if r := s.do(t, "start", "--vip", vip); !r.Changed {
			t.Error("a guard was gone, and start says it changed nothing")
		}
		s.silent(t, vip)
		s.do(t, "stop")
	})
	s.conf(t, "all", "arp_ignore", "0")
}

// Each verb can be called again, and says whether it did anything.
// Seen at: palantir/sls-packaging pull 109.
func TestCase21_Twice(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for _, stop := range [][]string{{}, {"--vip", vip}} {
			if r := s.do(t, "start", "--vip", vip); !r.Changed || r.State != "up" {
				t.Errorf("start: %+v", r)
			}
			s.ask(t, 0, "status")
			if r := s.do(t, "stop", stop...); !r.Changed || r.State != "down" {
				t.Errorf("stop: %+v", r)
			}
			s.ask(t, 3, "status")
		}
	})
}

// status looks at the host, not at its own notes.
// Seen at: xrootd issue 536.
func TestCase22_StatusLooksAtTheHost(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	if r := s.ask(t, 0, "status"); r.State != "up" || len(r.VIPs) != 1 || r.VIPs[0] != (vipState{vip, "dr", "lo", "up"}) {
		t.Errorf("status: %+v", r)
	}
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	if r := s.ask(t, 1, "status"); r.State != "drifted" || len(r.VIPs) != 1 || r.VIPs[0].State != "drifted" {
		t.Errorf("status: %+v", r)
	}
	s.do(t, "stop")
	if r := s.ask(t, 3, "status"); r.State != "down" {
		t.Errorf("status: %+v", r)
	}
}

// What a playbook does: `changed` of the first start and of the second, by jq.
// Seen at: ansible issue 5469.
func TestCase43_ChangedThenNot(t *testing.T) {
	testnet.Need(t, "jq")
	s := newSite(t)
	line := strings.Join(s.args("start", "--vip", vip, "-o", "json"), " ") + " | jq .changed"
	for _, want := range []string{"true\n", "false\n"} {
		if got := s.rs.Run(t, "sh", "-c", line); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// status and --dry-run open nothing for writing, send the kernel nothing but
// questions, and run no other program; and --dry-run foretells what the verb
// then does.
func TestCase43_ReadersWriteNothing(t *testing.T) {
	s := newSite(t)
	for _, verb := range [][]string{{"start", "--vip", vip, "--vip", vip2}, {"stop", "--vip", vip}, {"restart"}, {"stop"}} {
		s.writesNothing(t, "status")
		s.writesNothing(t, "status", "--vip", vip)
		s.writesNothing(t, append(verb, "--dry-run")...)
		foretold := s.ask(t, 0, verb[0], append(verb[1:], "--dry-run")...)
		real, did := s.traced(t, testnet.Cmd{Args: append(s.args(verb[0], verb[1:]...), "-o", "json")})
		r := parse(t, 0, verb[0], verb, real)
		if foretold.Changed != r.Changed || len(foretold.Changes) != len(r.Changes) {
			t.Errorf("%v: foretold %+v, done %+v", verb, foretold.Changes, r.Changes)
		}
		for i, c := range foretold.Changes {
			if c.Outcome != "would" {
				t.Errorf("%v --dry-run: %+v", verb, c)
			}
			c.Outcome = "done"
			if i < len(r.Changes) && c != r.Changes[i] {
				t.Errorf("%v: foretold %+v, done %+v", verb, c, r.Changes[i])
			}
		}
		if r.Changed && len(did) == 0 {
			t.Fatalf("%v: the trace shows none of its writes", verb)
		}
	}
}

func (s *site) writesNothing(t *testing.T, verb ...string) {
	t.Helper()
	if _, did := s.traced(t, testnet.Cmd{Args: s.args(verb[0], verb[1:]...)}); len(did) > 0 {
		t.Errorf("%v writes:\n%s", verb, strings.Join(did, "\n"))
	}
}

// restart and reload leave alone a VIP that stays: removing and adding it
// again would cut its connections. Seen at: puppet-keepalived issue 52.
func TestCase46_NoBlink(t *testing.T) {
	s := newSite(t)
	config := s.config(t, "vips: [10.0.0.100, 10.0.0.101]\n")
	s.do(t, "start", "--config", config)
	monitor := s.rs.Start(t, "ip", "monitor", "address")
	testnet.Eventually(t, "ip monitor to listen", func() bool {
		s.rs.Run(t, "ip", "addr", "add", "192.0.2.77/32", "dev", "lo")
		s.rs.Run(t, "ip", "addr", "del", "192.0.2.77/32", "dev", "lo")
		return strings.Contains(monitor.Output(), "192.0.2.77")
	})
	s.do(t, "restart", "--config", config)
	s.do(t, "reload", "--config", config)
	config = s.config(t, "vips: [10.0.0.100, 10.0.0.102]\n")
	s.do(t, "reload", "--config", config)
	s.bound(t, vip, "lo")
	s.bound(t, vip2)
	s.bound(t, "10.0.0.102", "lo")
	monitor.Await(t, "10.0.0.102/32")
	said := monitor.Stop()
	if strings.Contains(said, vip+"/32") {
		t.Errorf("something happened to the VIP that stays:\n%s", said)
	}
	if !regexp.MustCompile("Deleted .*" + vip2 + "/32").MatchString(said) {
		t.Errorf("the VIP that left does not show:\n%s", said)
	}
}

// config writes a config file and returns its path, the same for all of a
// site.
func (s *site) config(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(s.state), "rsagent.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// restart and reload with nothing managed are start; reload never takes out
// what was given by flag.
func TestRestartAndReloadOfAnEmptySet(t *testing.T) {
	s := newSite(t)
	config := s.config(t, "vips: [10.0.0.100]\n")
	s.restored(t, func() {
		for _, verb := range []string{"restart", "reload"} {
			s.do(t, verb, "--config", config)
			s.bound(t, vip, "lo")
			s.do(t, "start", "--vip", vip2)
			s.do(t, "reload", "--config", config)
			s.bound(t, vip2, "lo")
			s.do(t, "stop", "--config", config)
			s.bound(t, vip)
			s.bound(t, vip2, "lo")
			s.silent(t, vip2)
			s.do(t, "stop")
		}
	})
}

// Nothing given, nothing managed, no config: not configured. stop has then
// nothing to do, and status says down.
func TestNotConfigured(t *testing.T) {
	if _, err := os.Stat("/etc/rsagent/rsagent.yaml"); err == nil {
		testnet.Skip(t, "this host has a config of its own")
	}
	s := newSite(t)
	s.restored(t, func() {
		for _, verb := range []string{"start", "restart", "reload"} {
			s.ask(t, 6, verb)
		}
		s.do(t, "stop")
		s.ask(t, 3, "status")
	})
}

// TUN needs a tunnel. Where the kernel has none, the answer names the module
// and the cause, and nothing is left half done.
// Seen at: lisa issue 4106, libipvs issue 4.
func TestCase29_KernelWithoutIPIP(t *testing.T) {
	if testnet.NewHost(t, "probe").Try("ip", "link", "add", "probe0", "type", "ipip").Code == 0 {
		testnet.Skip(t, "this kernel has ipip")
	}
	s := newSite(t)
	s.restored(t, func() {
		if r := s.ask(t, 5, "start", "--vip", vip, "--mode", "tun"); !r.says("ipip") {
			t.Errorf("the module is not named: %+v", r)
		}
		s.ask(t, 3, "status")
	})
	s.do(t, "start", "--vip", vip2)
	s.ask(t, 5, "start", "--vip", vip, "--mode", "tun")
	s.bound(t, vip2, "lo")
	s.silent(t, vip2)
	s.ask(t, 0, "status")
}

// An error is one line on stderr in text form as well.
func TestErrorsInText(t *testing.T) {
	s := newSite(t)
	r := s.rs.Try(s.args("start", "--vip", rip)...)
	if r.Code != 6 || lines(r.Stderr) != 1 || !strings.Contains(r.Stderr, rip) {
		t.Errorf("own address: %+v", r)
	}
	args := s.args("start", "--vip", vip)
	if r := s.inMounts(procSysReadOnly, args...); r.Code != 1 || lines(r.Stderr) != 1 || !strings.Contains(r.Stderr, "read-only") {
		t.Errorf("read-only /proc/sys: %+v", r)
	}
}
