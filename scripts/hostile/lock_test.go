package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// TestStuckLock: one process hangs with the lock in its hand. The others say so, in time, and touch nothing; readers
// do not mind.
func TestStuckLock(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	s.must(0, s.start(vips(1)))
	up := s.rs.Snapshot(t)
	locks, _ := filepath.Glob(filepath.Join(s.state, "*.lock"))
	if len(locks) != 1 {
		t.Fatalf("locks: %v", locks)
	}
	f, err := os.Open(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	files := s.files()
	want := "rsagent: another rsagent holds the lock " + locks[0] + ": not done within 100ms (--timeout)\n"
	for _, args := range [][]string{s.start(vips(3)), s.args("stop"), s.args("stop", "--vip", vips(1)[0]), s.args("restart"), s.args("reload")} {
		if r := s.must(1, append(args, "--timeout", "100ms")); r.Stderr != want {
			t.Errorf("%v says %q, want %q", args[1:], r.Stderr, want)
		}
	}
	s.must(0, s.args("status"))
	s.must(0, s.args("stop", "--dry-run"))
	if now := s.files(); now != files {
		t.Errorf("the state directory was\n%sand is\n%s", files, now)
	}
	if err := s.as(up); err != nil {
		t.Error(err)
	}
	s.interruptedAtLock()
	f.Close()
	s.must(0, s.args("stop"))
}

// interruptedAtLock: a verb that waits for the lock can be told to end.
func (s *site) interruptedAtLock() {
	s.t.Helper()
	p := s.rs.Start(s.t, s.args("stop")...)
	testnet.Eventually(s.t, "the verb to have the lock open", func() bool {
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Pid()))
		return slices.ContainsFunc(open, func(fd string) bool { to, _ := os.Readlink(fd); return strings.HasSuffix(to, ".lock") })
	})
	p.Signal(unix.SIGTERM)
	if r := p.Wait(); r.Code != 1 || !strings.Contains(r.Stdout, "holds the lock") || !strings.Contains(r.Stdout, "terminated") {
		s.t.Errorf("a verb that waits for the lock, and is told to end: exit %d\n%s", r.Code, r.Stdout)
	}
}
