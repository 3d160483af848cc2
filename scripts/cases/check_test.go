package cases

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// finding is the one with this code; nil is none.
func (r report) finding(code string) *finding {
	for i := range r.Findings {
		if r.Findings[i].Code == code {
			return &r.Findings[i]
		}
	}
	return nil
}

// check asks for a diagnosis, which must change neither the host nor the state directory.
func (s *site) check(t *testing.T, code int, more ...string) report {
	t.Helper()
	host, state := s.rs.Snapshot(t), s.files(t)
	r := s.ask(t, code, "check", more...)
	s.mustBe(t, host)
	if now := s.files(t); now != state {
		t.Errorf("check wrote to the state directory:\n%s\nwas:\n%s", now, state)
	}
	return r
}

// finds is check that must find something, with its level and words in it.
func (s *site) finds(t *testing.T, code, level string, words []string, more ...string) finding {
	t.Helper()
	exit := 0
	if level == "error" {
		exit = 1
	}
	r := s.check(t, exit, more...)
	f := r.finding(code)
	if f == nil {
		t.Fatalf("check does not find %s: %+v", code, r.Findings)
	}
	if f.Level != level || !containsAll(f.Subject+" "+f.Message+" "+f.Cure, words) {
		t.Errorf("want level %s, and %q in %+v", level, words, *f)
	}
	return *f
}

// lacks is check that must not find something.
func (s *site) lacks(t *testing.T, code string, more ...string) {
	t.Helper()
	got := s.rs.Try(s.args("check", append(more, "-o", "json")...)...)
	if f := parse(t, got.Code, "check", s.args("check"), got).finding(code); f != nil {
		t.Errorf("check finds what is not so: %+v", *f)
	}
}

// cured runs the cure as it is printed, after which check finds it no more.
func (s *site) cured(t *testing.T, f finding, more ...string) {
	t.Helper()
	dir := t.TempDir() // an rsagent that knows this site's state directory
	script := fmt.Sprintf("#!/bin/sh\nverb=$1\nshift\nexec %s \"$verb\" --state-dir %s \"$@\"\n", s.bin, s.state)
	if err := os.WriteFile(filepath.Join(dir, "rsagent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := s.rs.Exec(testnet.Cmd{Args: []string{"sh", "-c", f.Cure}, Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
	if r.Code != 0 {
		t.Fatalf("cure %q: exit %d\n%s%s", f.Cure, r.Code, r.Stdout, r.Stderr)
	}
	s.lacks(t, f.Code, more...)
}

// A healthy real server has no error and no warning, in whatever way it is guarded.
func TestCheckHealthy(t *testing.T) {
	for _, flags := range [][]string{{"--vip", vip}, {"--vip", vip, "--arp-guard", "nft"}, {"--vip", vip, "--arp-guard", "interface", "--interface", "eth0"},
		{"--vip", vip, "--scope", "global"}, {"--vip", vip6}, {"--vip", vip + "," + vip2 + "," + vip6}} {
		s := newSite(t)
		s.rs.Run(t, "ip", "route", "add", "default", "via", peerIP)
		s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
		s.do(t, "start", flags...)
		_, port, _ := net.SplitHostPort(s.rs.Echo(t, "tcp", ""))
		for _, more := range [][]string{nil, {"--port", port}, {"--port", port + "/tcp", flags[0], flags[1]}} {
			r := s.check(t, 0, more...)
			if r.State != "up" {
				t.Errorf("%v: state %s", flags, r.State)
			}
			for _, f := range r.Findings {
				if f.Level != "info" {
					t.Errorf("%v: %+v", flags, f)
				}
			}
		}
		text := s.rs.Run(t, s.args("check")...)
		if !strings.HasPrefix(text, "good: 0 errors, 0 warnings, ") {
			t.Errorf("%v: it says\n%s", flags, text)
		}
	}
}

// With nothing managed there is nothing wrong; a VIP that is not here is an error, and the cure is to start it.
func TestCheckNotBound(t *testing.T) {
	s := newSite(t)
	if r := s.check(t, 0); r.finding("nothing-managed") == nil {
		t.Errorf("it says %+v", r.Findings)
	}
	f := s.finds(t, "not-bound", "error", []string{vip}, "--vip", vip)
	s.cured(t, f, "--vip", vip)
	s.bound(t, vip, "lo")
	s.lacks(t, "nothing-managed")
	s.rs.Run(t, "ip", "link", "set", "eth0", "addrgenmode", "none", "down") // no IPv6 address that comes late
	f = s.finds(t, "no-nic", "error", nil)
	s.cured(t, f)
	s.lacks(t, "no-nic")
	if f := s.finds(t, "not-bound", "error", []string{rip, "cannot be", "own address"}, "--vip", rip); f.Cure != "" {
		t.Errorf("the cure for the host's own address is %q, which is refused", f.Cure)
	}
}

// What has drifted is told with what it does, and the cure mends it.
func TestCheckDrift(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.lacks(t, "drift")
	s.lacks(t, "answers-arp")
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("it is silent: nothing to be found")
	}
	f := s.finds(t, "answers-arp", "error", []string{"eth0", "arp_ignore"})
	s.cured(t, f)
	s.silent(t, vip)
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	f = s.finds(t, "drift", "error", []string{vip + "/32 dev lo", "the VIP"})
	s.cured(t, f)
	s.bound(t, vip, "lo")
}

// Without the right to see nftables' rules check says so, exits with 4, and tells all else; what is an error still is one.
func TestCheckUnseen(t *testing.T) {
	testnet.Need(t, "setpriv", "nft")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.nft(t, "table inet f { chain c { type filter hook input priority 0; policy drop; }; }")
	if err := os.Chmod(filepath.Dir(s.state), 0o755); err != nil {
		t.Fatal(err)
	}
	powerless := func(code int, more ...string) report {
		command := append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, s.args("check", append(more, "-o", "json")...)...)
		return parse(t, code, "check", command, s.rs.Try(command...))
	}
	r := powerless(4)
	if f := r.finding("unseen"); f == nil || f.Subject != "nftables" || r.State != "up" {
		t.Errorf("it says %+v", r)
	}
	s.lacks(t, "unseen")
	r = powerless(1, "--port", "9")
	if r.finding("unseen") == nil || r.finding("no-listener") == nil {
		t.Errorf("it says %+v", r)
	}
	s.do(t, "start", "--vip", vip, "--arp-guard", "nft") // then status cannot tell, and check tells what it can
	got := s.rs.Try(append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, s.args("check", "-o", "json", "--port", "9")...)...)
	r = parse(t, 1, "check", s.args("check"), got)
	if r.State != "unknown" || r.Error == nil || r.finding("no-listener") == nil {
		t.Errorf("it says %+v", r)
	}

	// What is managed is not known where the journal cannot be read.
	journals, err := filepath.Glob(s.state + "/*[0-9].json")
	if err != nil || len(journals) != 1 {
		t.Fatalf("journals: %q %v", journals, err)
	}
	if err := os.WriteFile(journals[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = s.rs.Try(s.args("check", "-o", "json")...)
	if r = parse(t, 4, "check", s.args("check"), got); r.State != "unknown" || r.finding("nothing-managed") != nil {
		t.Errorf("it says %+v", r)
	}
	os.Remove(journals[0])
}

// check opens nothing for writing, and asks the kernel nothing but questions.
func TestCase43_CheckWritesNothing(t *testing.T) {
	s := newSite(t)
	s.writesNothing(t, "check")
	s.writesNothing(t, "check", "--vip", vip, "--port", "80,53/udp")
	s.do(t, "start", "--vip", vip+","+vip6)
	s.nft(t, "table inet f { chain c { type filter hook input priority 0; tcp dport { 80, 90-99 } drop; }; }")
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "")
	s.writesNothing(t, "check", "--port", "80")
}
