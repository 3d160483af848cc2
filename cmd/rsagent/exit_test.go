package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/realserver"
	"rsagent/tunnel"
)

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{syscall.EROFS, 1},
		{realserver.ErrInterrupted, 1},
		{context.DeadlineExceeded, 1},
		{&realserver.JournalError{Path: "J", Err: errors.New("it is empty")}, 1},
		{&realserver.JournalError{Path: "J", Err: syscall.EACCES}, 4},
		{syscall.EPERM, 4},
		{&fs.PathError{Op: "open", Path: "/proc/sys/x", Err: syscall.EACCES}, 4},
		{errNotPermitted, 4},
		{tunnel.ErrMayNotLoad, 4},
		{realserver.ErrMayNotAsk, 4},
		{tunnel.ErrUnsupported, 5},
		{realserver.ErrRefused, 6},
		{errNotConfigured, 6},
	} {
		for _, err := range []error{test.err, fmt.Errorf("wrapped: %w", test.err), errors.Join(errors.New("another"), test.err)} {
			if test.err == nil {
				err = nil
			}
			if got := exitCode(err); got != test.want {
				t.Errorf("%v: %d, want %d", err, got, test.want)
			}
		}
	}
}

// A hint comes only with causes that a user can mend, and says the right cure.
func TestHint(t *testing.T) {
	c := &call{stateDir: "/run/rsagent"}
	for _, test := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "x"},
		{errors.New("a\nb\na\n"), "a; b"},
		{fmt.Errorf("bind: %w", unix.EPERM), "bind: operation not permitted (needs CAP_NET_ADMIN in this network namespace)"},
		{&fs.PathError{Op: "mkdir", Path: "/run/rsagent", Err: unix.EACCES}, "mkdir /run/rsagent: permission denied (run as root, or name a folder of your own: --state-dir)"},
		{&fs.PathError{Op: "open", Path: "/run/rsagent/1.lock", Err: unix.EROFS}, "open /run/rsagent/1.lock: read-only file system"},
		{&fs.PathError{Op: "open", Path: "/proc/sys/net", Err: unix.EROFS}, "open /proc/sys/net: read-only file system (/proc/sys is mounted read-only: set the values from outside the container, or under systemd leave out ProtectKernelTunables=)"},
		{errNotPermitted, errNotPermitted.Error()},
		{fmt.Errorf("load module fou: %w", realserver.ErrMayNotLoad), "load module fou: the kernel does not load it by itself, and modprobe needs CAP_SYS_MODULE: permission denied"},
		{realserver.ErrMayNotAsk, "to ask neighbours needs CAP_NET_RAW: permission denied"},
	} {
		if got := oneLine(c.hint(test.err)); got != test.want {
			t.Errorf("%s\nwant: %s", got, test.want)
		}
	}
	if c.hint(nil) != nil {
		t.Error("a hint without an error")
	}
}

// Without the capability nothing that changes is begun; looking needs none.
func TestNotPermitted(t *testing.T) {
	w := newWorld(t)
	w.powerless = true
	for _, verb := range []string{"start --vip 10.0.0.100", "stop", "restart", "reload"} {
		w.must(4, strings.Fields(verb)...)
		if s := w.errs.String(); !strings.Contains(s, "CAP_NET_ADMIN") || strings.Count(s, "\n") != 1 {
			t.Error(s)
		}
		w.untouched()
	}
	w.must(2, "start", "--vip", "10.0.0.0/8") // misuse comes first
	w.must(3, "status")
	w.must(0, "start", "--vip", "10.0.0.100", "--dry-run")
	w.must(0, "stop", "--dry-run")
}

// Waiting for the lock ends with --timeout, and with a signal, and says so.
func TestLockIsHeld(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100")
	locks, _ := filepath.Glob(filepath.Join(w.folder, "state", "*.lock"))
	fd, err := unix.Open(locks[0], unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	w.must(1, "stop", "--timeout", "30ms")
	if s := w.errs.String(); s != "rsagent: another rsagent holds the lock "+locks[0]+": not done within 30ms (--timeout)\n" {
		t.Error(s)
	}
	w.must(0, "status")

	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("terminated signal received")) })
	var out, errs bytes.Buffer
	e := env{stdout: &out, stderr: &errs, lookup: func(string) (string, bool) { return "", false }, environ: func() []string { return nil }, privileged: func() bool { return true },
		kernel: func() (realserver.Kernel, func(), error) {
			return realserver.Kernel{Look: w.look, Do: w.do}, func() {}, nil
		}}
	if code := run(ctx, e, []string{"stop", "--state-dir", filepath.Join(w.folder, "state")}); code != 1 || !strings.HasSuffix(errs.String(), ": terminated signal received\n") {
		t.Errorf("%d: %s", code, &errs)
	}
}
