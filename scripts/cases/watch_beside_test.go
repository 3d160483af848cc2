package cases

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// Other verbs go on beside a watcher: none of them is hindered, and none is undone. What it finds in the journal afterwards is
// what it keeps.
func TestWatch_BesideVerbs(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "nft")
	s := newSite(t)
	down := s.rs.Snapshot(t)
	config := s.config(t, "vips: ["+vip+", "+vip2+"]\n")
	one := config + ".one"
	write(t, one, "vips: ["+vip2+"]\n")
	w := s.watch(t, "--interval", "100ms") // which has it look in the middle of verbs, too
	for i := range 4 {
		s.ask(t, 0, "start", "--config", config)
		s.ask(t, 0, "reload", "--config", one)
		s.mustHold(t, vip2)
		s.ask(t, 0, "start", "--vip", vip6+","+vip, "--arp-guard", []string{"all", "nft"}[i%2])
		s.ask(t, 0, "restart")
		s.mustHold(t, vip, vip2, vip6)
		s.ask(t, 0, "stop", "--vip", vip6)
		s.ask(t, 0, "reload", "--config", config)
		s.ask(t, 0, "stop", "--config", config)
		s.mustHold(t)
	}
	if n := w.repairs(t, ""); n > 0 {
		t.Errorf("it mended %d times what a verb had done:\n%s", n, w.Output())
	}
	s.ask(t, 3, "status")
	s.ask(t, 0, "start", "--vip", vip2)
	up := s.still(t)
	s.rs.Run(t, "ip", "addr", "del", vip2+"/32", "dev", "lo")
	w.mends(t, "what is managed now", up, vip2+"/32 dev lo", 1)
	s.ask(t, 0, "stop")
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1") // of nobody's concern
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	w.looks(t)
	s.mustBe(t, down)
	w.end(t)
}

// Somebody removes the journal, with all of its folder: that the VIP is nobody's now is said until it is managed again.
func TestWatch_JournalRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	down := s.rs.Snapshot(t)
	s.ask(t, 0, "start", "--vip", vip)
	w := s.watch(t, "--interval", "100ms")
	w.looks(t)
	os.RemoveAll(s.state)
	w.Await(t, "bound, and managed no longer")
	s.mustHold(t, vip)
	testnet.Eventually(t, "status to tell of it", func() bool { return strings.Contains(s.rs.Try(s.args("status")...).Stdout, "the journal has gone") })
	s.ask(t, 0, "start", "--vip", vip)
	w.Await(t, "all is well again")
	s.ask(t, 0, "stop", "--vip", vip)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0") // start found 1, and 2, and took them for the host's own
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "0")
	s.rs.SetIPv4Conf(t, "lo", "arp_ignore", "0")
	s.rs.SetIPv4Conf(t, "lo", "arp_announce", "0")
	s.mustBe(t, down)
	w.end(t)
}

// mustHold: of the VIPs these are on lo, and the others nowhere.
func (s *site) mustHold(t *testing.T, addrs ...string) {
	t.Helper()
	for _, addr := range []string{vip, vip2, vip6} {
		var on []string
		if slices.Contains(addrs, addr) {
			on = []string{"lo"}
		}
		s.bound(t, addr, on...)
	}
}

// looks waits for a look that began after it was called: the watcher is told to look, and does something that shows.
func (w *watcher) looks(t *testing.T) {
	t.Helper()
	w.Signal(unix.SIGHUP)
	before := w.switches(t)
	testnet.Eventually(t, "the watcher to look", func() bool { return w.switches(t) > before+2 })
}

// switches counts how often its threads came to rest.
func (w *watcher) switches(t *testing.T) (n int) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", w.Pid()))
	for _, path := range tasks {
		text, _ := os.ReadFile(path) // a thread may have ended
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		more := 0
		fmt.Sscan(rest, &more)
		n += more
	}
	return n
}

// While another verb hangs with the lock in its hand nothing is mended, and the service manager hears that the watcher lives;
// as soon as it is gone all is. SIGTERM does not wait for it.
func TestWatch_LockHeld(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.still(t)
	said := s.systemd(t)
	w := s.watchIn(t, "export NOTIFY_SOCKET="+said.path+" WATCHDOG_USEC=300000", never, "--timeout", "1h")
	locks, _ := filepath.Glob(filepath.Join(s.state, "*.lock"))
	f, err := os.Open(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	harm := func() {
		s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
		s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
		testnet.Eventually(t, "the watcher to wait for the lock", func() bool { return w.holds(locks[0]) })
	}
	harm()
	said.await(t, "READY=1")
	before := said.count(t, 500*time.Millisecond)
	if n := said.count(t, 500*time.Millisecond); n == 0 {
		t.Errorf("it was not heard of for half a second, after %d times", before)
	}
	s.bound(t, vip)
	s.conf(t, "all", "arp_ignore", "0")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	w.mends(t, "after the lock", up, vip+"/32 dev lo", 1)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	harm()
	w.end(t) // which waits for the process only
	s.bound(t, vip)
}

// It is ready when it has mended what it found, and not while it waits for the lock to do so.
func TestWatch_Ready(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.still(t)
	locks, _ := filepath.Glob(filepath.Join(s.state, "*.lock"))
	f, err := os.Open(locks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	said := s.systemd(t)
	env := []string{"env", "NOTIFY_SOCKET=" + said.path, "WATCHDOG_USEC=300000"}
	w := &watcher{s.rs.Start(t, append(env, s.args("watch", never, "--timeout", "1h")...)...), s}
	for range 3 {
		if got := said.next(t, time.Now().Add(time.Minute)); got != "WATCHDOG=1" {
			t.Fatalf("with the VIP not bound, it says %q", got)
		}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	said.await(t, "READY=1\nSTATUS=up; 1 repair, ")
	w.mends(t, "when the lock is free", up, vip+"/32 dev lo", 1)
	w.end(t)
}

// holds says that it has a file open.
func (w *watcher) holds(path string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.Pid()))
	return slices.ContainsFunc(fds, func(fd string) bool { to, _ := os.Readlink(fd); return to == path })
}

// A journal that cannot be read is no reason to guess, nor to end: it says so, touches nothing, and goes on when it can.
func TestWatch_JournalCorrupt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	w := s.watch(t, never)
	path := s.journal(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	up := s.still(t)
	replace := func(text string) { // as rsagent does
		t.Helper()
		write(t, path+".other", text)
		if err := os.Rename(path+".other", path); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"{", "", strings.Replace(string(good), `"version":1`, `"version":99`, 1)} {
		replace(bad)
		s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
		testnet.Eventually(t, "the watcher to say so", func() bool { return strings.Contains(w.told(t).Error, path) })
		r := s.ask(t, 4, "status")
		if r.Watch.PID != w.Pid() || !strings.Contains(r.Watch.Error, "cannot look at the host") {
			t.Errorf("status tells of %+v", r.Watch)
		}
		if got := s.rs.Try(s.args("status", "-o", "prometheus")...).Stdout; !strings.Contains(got, "\nrsagent_watch_failing 1\n") {
			t.Errorf("no metric says so:\n%s", got)
		}
		s.bound(t, vip)
		before := w.repairs(t, "")
		replace(string(good))
		w.mends(t, "with the journal", up, vip+"/32 dev lo", before+1)
		if w.told(t).Error != "" {
			t.Errorf("it says still: %+v", w.told(t))
		}
		w.Signal(unix.SIGHUP)
	}
	w.end(t)
}

// The state directory goes, and so all that was managed: nothing is touched any more, nor are the rules that a VIP rests on. It
// is made anew, and so is the claim to be the only watcher.
func TestWatch_StateRemoved(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "nft")
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	s.ask(t, 0, "start", "--vip", vipNFT, rulesOn)
	w := s.watch(t, "--interval", "100ms")
	up := s.still(t)
	testnet.Eventually(t, "it to be removed", func() bool { return os.RemoveAll(s.state) == nil }) // which it may get in the way of
	testnet.Eventually(t, "the watcher to make its claim again", func() bool { return w.told(t).State == "down" })
	if diff := testnet.Diff(up, s.still(t)); diff != "" {
		t.Errorf("something was touched:\n%s", diff)
	}
	if r := s.rs.Try(s.args("watch")...); r.Code != 1 || !strings.Contains(r.Stderr, "another rsagent watch runs here") {
		t.Errorf("a second one: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	s.ask(t, 0, "start", "--vip", vip)
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	w.mends(t, "what is managed again", up, vip+"/32 dev lo", 1)
	w.end(t)
}

// It is killed at any moment, under drift, and started again: nothing is lost, and stop in the end knows what was there
// before anything.
func TestWatch_Killed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "3")
	rounds := 20
	if long {
		rounds = 1000
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	s.restored(t, func() {
		s.ask(t, 0, "start", "--vip", vip+","+vip2+","+vip6, "--scope", "global")
		up := s.still(t)
		harm := s.rs.Start(t, "sh", "-c", `cd /proc/sys/net/ipv4/conf; trap 'end=1' TERM; echo going
			while [ -z "$end" ]; do echo 0 >all/arp_ignore; ip addr del 10.0.0.100/32 dev lo; echo 0 >all/arp_announce
			ip addr add 10.0.0.101/24 dev lo; ip addr del 2001:db8::100/128 dev lo; done 2>/dev/null`)
		harm.Await(t, "going")
		for range rounds {
			p := s.rs.Start(t, s.args("watch")...)
			time.Sleep(time.Duration(rnd.IntN(30_000)) * time.Microsecond)
			p.Signal(unix.SIGKILL)
			p.Wait()
		}
		harm.Signal(unix.SIGTERM)
		harm.Wait()
		w := s.watch(t, never)
		w.mends(t, "after the last kill", up, "", 0)
		w.end(t)
		s.ask(t, 0, "status")
		s.ask(t, 0, "stop")
	})
}
