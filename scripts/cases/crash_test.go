package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// steps are the system calls by which rsagent touches anything: a process
// killed before each of them has been killed at every step that can matter.
var steps = []string{"sendto", "write", "openat", "renameat"}

// A verb is killed at every step; the next verb of any kind ends where it
// would have ended without the kill, and at no time is an ARP request
// answered. Seen at: stolon issue 247.
func TestCase05_KilledAtEachStep(t *testing.T) {
	testnet.Need(t, "strace")
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	down := s.rs.Snapshot(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.rs.Snapshot(t)

	start := []string{"start", "--vip", vip}
	s.unheard(t, func(*testnet.Asker) {
		s.ask(t, 0, "stop")
		s.killEach(t, []string{"stop"}, start, func() {
			s.ask(t, 0, "start", "--vip", vip)
			s.mustBe(t, up)
			s.ask(t, 0, "stop", "--vip", vip)
			s.mustBe(t, down)
		})
		s.killEach(t, start, []string{"stop"}, func() {
			s.ask(t, 0, "start", "--vip", vip)
			s.mustBe(t, up)
		})
		s.killEach(t, []string{"stop"}, start, func() {
			s.ask(t, 0, "stop", "--vip", vip)
			s.mustBe(t, down)
		})
	}, vip)
}

// stop is killed after its first write and called again, by itself. What it
// had begun must not be forgotten because the VIP is no longer in the set.
// Seen at: a review of the journal.
func TestCase60_StopKilledAndCalledAgain(t *testing.T) {
	testnet.Need(t, "strace")
	s := newSite(t)
	down := s.rs.Snapshot(t)
	s.killEach(t, []string{"start", "--vip", vip, "--vip", vip2}, []string{"stop"}, func() {
		s.ask(t, 0, "stop")
		s.bound(t, vip)
		s.mustBe(t, down)
	})
}

// killEach runs prepare, then the verb, killed before its n-th step of a
// kind, then check; for every n that an undisturbed run reaches.
func (s *site) killEach(t *testing.T, prepare, verb []string, check func()) {
	t.Helper()
	for _, step := range steps {
		s.ask(t, 0, prepare[0], prepare[1:]...)
		kills := 0
		last := s.count(t, step, verb)
		for n := 1; n <= last; n++ {
			s.ask(t, 0, prepare[0], prepare[1:]...)
			if s.killed(step, n, verb) {
				kills++
			}
			check()
			if t.Failed() {
				t.Fatalf("%v was killed before its %s number %d", verb, step, n)
			}
		}
		if kills == 0 && last > 0 {
			t.Errorf("%v could not be killed at any %s", verb, step)
		}
		t.Logf("%v killed at %d of %d × %s", verb, kills, last, step)
	}
}

// count is how often the verb takes the step in one thread when undisturbed.
func (s *site) count(t *testing.T, step string, verb []string) int {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	s.strace(verb, "-o", trace, "-e", "trace="+step)
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	byThread, most := map[string]int{}, 0
	for _, m := range regexp.MustCompile(`(?m)^(\d+) +`+step+`\w*\(`).FindAllSubmatch(text, -1) {
		byThread[string(m[1])]++
		most = max(most, byThread[string(m[1])])
	}
	return most
}

func (s *site) killed(step string, n int, verb []string) bool {
	r := s.strace(verb, "-o", "/dev/null", "-e", "trace="+step, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", step, n))
	return r.Code == -1
}

// strace runs a verb under strace, on one processor so that it stays in one
// thread as far as the Go runtime lets it.
func (s *site) strace(verb []string, options ...string) testnet.Result {
	args := append([]string{"strace", "-f", "-qq"}, options...)
	args = append(args, s.args(verb[0], verb[1:]...)...)
	return s.rs.Exec(testnet.Cmd{Args: args, Env: []string{"GOMAXPROCS=1"}})
}

// A journal that cannot be read is no reason to guess: every verb that
// changes fails, names the file and the way out, and leaves VIP and guards as
// they are. Seen at: CNI plugins, tuning ("nothing to do" on a corrupt backup).
func TestCase06_CorruptJournal(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	path := s.journal(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	up := s.rs.Snapshot(t)
	for name, text := range map[string]string{
		"empty":         "",
		"half":          string(good[:len(good)/2]),
		"no object":     "null",
		"empty object":  "{}",
		"newer version": strings.Replace(string(good), `"version":1`, `"version":99`, 1),
	} {
		write(t, path, text)
		for _, verb := range [][]string{{"start", "--vip", vip}, {"stop"}, {"stop", "--vip", vip}, {"restart"}, {"reload"}} {
			if r := s.ask(t, 1, verb[0], verb[1:]...); !r.says(path, "remove", "stop --vip") {
				t.Errorf("%s: %v does not show the way out: %+v", name, verb, r.Error)
			}
		}
		if r := s.rs.Try(s.args("status")...); r.Code == 0 || r.Code == 3 {
			t.Errorf("%s: status exits %d", name, r.Code)
		}
		s.mustBe(t, up)
	}
	s.wayOut(t, path)
}

// A journal that others could have written would let them write settings as
// root.
func TestCase06_JournalOfSomeoneElse(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	path := s.journal(t)
	up := s.rs.Snapshot(t)
	for _, spoil := range []func() error{
		func() error { return os.Chmod(path, 0o666) },
		func() error { return os.Chown(path, 65534, 65534) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if r := s.ask(t, 1, "stop"); !r.says(path) {
			t.Errorf("the file is not named: %+v", r.Error)
		}
		s.mustBe(t, up)
	}
	s.wayOut(t, path)
}

// wayOut is the one the messages name.
func (s *site) wayOut(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.do(t, "stop", "--vip", vip)
	s.bound(t, vip)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// After a power cut with /run on a disk, the journal tells of another boot:
// what it wrote is gone, and what this boot has is the new baseline.
// Seen at: cri-o issue 4727.
func TestCase31_JournalOfAnotherBoot(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	path := s.journal(t)
	boot := strings.TrimSpace(s.rs.Run(t, "cat", "/proc/sys/kernel/random/boot_id"))
	text := s.rs.Run(t, "cat", path)
	if !strings.Contains(text, boot) {
		t.Fatalf("no boot id in %s", text)
	}
	write(t, path, strings.ReplaceAll(text, boot, "00000000-0000-0000-0000-000000000000"))

	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo") // as a boot does
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "2")
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	s.restored(t, func() {
		if r := s.ask(t, 3, "status"); !r.says("boot") {
			t.Errorf("status does not say that the journal is stale: %+v", r.Findings)
		}
		if r := s.ask(t, 0, "start", "--vip", vip); !r.says("boot") {
			t.Errorf("start does not say that the journal is stale: %+v", r.Findings)
		}
		s.do(t, "start", "--vip", vip)
		s.silent(t, vip)
		s.do(t, "stop")
	})
}

// What someone else has set since is his: it stays, and stop says so.
// Seen at: tuned issue 518.
func TestCase32_ChangedBySomeoneElse(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "2")
	if r := s.do(t, "stop"); !r.says("net.ipv4.conf.all.arp_ignore") {
		t.Errorf("stop does not say that it left arp_ignore: %+v", r.Findings)
	}
	s.conf(t, "all", "arp_ignore", "2")
	s.conf(t, "all", "arp_announce", "0")
}
