package cases

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// lose takes the guard away such that the watcher, whose /proc/sys is read-only, cannot mend it; found says it is back.
func (s *site) lose(t *testing.T)  { s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0") }
func (s *site) found(t *testing.T) { s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1") }

// A guard is lost and cannot be mended. By default the VIP stays, and this is said by all means for as long as it is so.
func TestWatch_GuardLostKeep(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.still(t)
	said := s.systemd(t)
	w := s.watchIn(t, procSysReadOnly+"; export NOTIFY_SOCKET="+said.path+" WATCHDOG_USEC=300000", "--interval", "200ms")
	said.await(t, "READY=1\nSTATUS=up")
	s.lose(t)
	testnet.Eventually(t, "the watcher to say so", func() bool { return strings.Contains(w.told(t).Error, "read-only") })
	said.await(t, "STATUS=drifted; cannot mend: set net.ipv4.conf.all.arp_ignore to 1")
	before := w.switches(t)
	for range 20 { // as long as it is so
		r := s.ask(t, 1, "status")
		if !r.Watch.Running || r.Watch.State != "drifted" || !containsAll(r.Watch.Error, []string{"net.ipv4.conf.all.arp_ignore", "read-only"}) {
			t.Fatalf("status tells of %+v", r.Watch)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if n := w.switches(t) - before; n > 500 {
		t.Errorf("it came to rest %d times in about a second: it does not rest", n)
	}
	if got := s.rs.Try(s.args("status", "-o", "prometheus")...).Stdout; !strings.Contains(got, "\nrsagent_watch_failing 1\n") || !strings.Contains(got, "\nrsagent_state{state=\"drifted\"} 1\n") {
		t.Errorf("no metric says so:\n%s", got)
	}
	s.bound(t, vip, "lo")
	said.await(t, "WATCHDOG=1")
	s.found(t)
	w.mends(t, "when it is back", up, "", 0)
	said.await(t, "STATUS=up")
	testnet.Eventually(t, "the watcher to say so", func() bool { return w.told(t).Error == "" })
	if out := w.Output(); strings.Count(out, "ERROR") != 1 || strings.Count(out, "all is well again") != 1 {
		t.Errorf("want one error and one that it is over:\n%s", out)
	}
	w.end(t)
	said.await(t, "STOPPING=1")
}

// notes are what a service manager is told.
type notes struct {
	path string
	conn *net.UnixConn
}

func (s *site) systemd(t *testing.T) *notes {
	t.Helper()
	n := &notes{path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if n.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.conn.Close() })
	return n
}

// await reads on until it is told.
func (n *notes) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(n.next(t, end), text); {
	}
}

// next is what it is told next, until a time that is no part of any verdict.
func (n *notes) next(t *testing.T, end time.Time) string {
	t.Helper()
	buf := make([]byte, 4096)
	_ = n.conn.SetReadDeadline(end)
	k, err := n.conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:k])
}

// count reads all that comes in a while.
func (n *notes) count(t *testing.T, while time.Duration) (times int) {
	t.Helper()
	buf := make([]byte, 4096)
	_ = n.conn.SetReadDeadline(time.Now().Add(while))
	for {
		if _, err := n.conn.Read(buf); err != nil {
			return times
		}
		times++
	}
}

// With --on-guard-loss withdraw a VIP goes whose guard cannot be kept, but not one that rests on none. Its packets are
// dropped where this host would send them back. It comes back when the guard has held for ten seconds on end.
func TestWatch_GuardLostWithdraw(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	down := s.rs.Snapshot(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2+","+vip6)
	s.ask(t, 0, "start", "--vip", vipNFT, "--arp-guard", "none")
	up := s.still(t)
	w := s.watchIn(t, procSysReadOnly, "--on-guard-loss", "withdraw")
	lost := time.Now()
	s.lose(t)
	s.withheld(t, w, true)
	if after := time.Since(lost); after < time.Second {
		t.Errorf("it was withheld %s after the loss", after)
	}
	s.mustDrop(t, vip, vip2)
	s.bound(t, vip6, "lo")
	s.bound(t, vipNFT, "lo")
	if s.answers(t, "eth0", vip) {
		t.Error("it answers for a VIP that is withheld")
	}
	r := s.ask(t, 1, "status")
	if !r.says("warning", "withheld", vip) || !r.says("withheld", vip2) || r.says("withheld", vip6) || r.says("withheld", vipNFT) {
		t.Errorf("status does not say which are withheld: %+v", r.Findings)
	}
	if r := s.check(t, 1); !r.says("error", "not-bound", vip) || !r.says("error", "not-bound", vip2) || r.says("not-bound", vip6) {
		t.Errorf("check takes no offence at VIPs that are withheld: %+v", r.Findings)
	}
	before := w.switches(t)
	time.Sleep(time.Second)
	if n := w.switches(t) - before; n > 200 {
		t.Errorf("it came to rest %d times in about a second: it does not rest", n)
	}
	s.found(t) // not for long
	testnet.Eventually(t, "the watcher to see it", func() bool { return w.told(t).Error == "" })
	time.Sleep(time.Second)
	s.lose(t)
	testnet.Eventually(t, "the watcher to see it", func() bool { return w.told(t).Error != "" })
	back := time.Now()
	s.found(t)
	s.withheld(t, w, false)
	if after := time.Since(back); after < 10*time.Second {
		t.Errorf("it is back %s after its guard", after)
	}
	w.mends(t, "after ten seconds", up, "", 0)
	s.mustDrop(t)
	w.end(t)
	s.ask(t, 0, "stop")
	s.mustBe(t, down)
}

// withheld waits until the VIPs guarded by settings are withheld, by the journal and on the host; or are not any more.
func (s *site) withheld(t *testing.T, w *watcher, yes bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		text, err := os.ReadFile(s.journal(t))
		if err != nil {
			t.Fatal(err)
		}
		on := slices.Concat(s.rs.Holds(t, vip), s.rs.Holds(t, vip2))
		if strings.Contains(string(text), `"withheld":true`) == yes && (len(on) == 0) == yes {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("VIPs are on %v, to be withheld: %t\n%s\n%s", on, yes, text, w.Output())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// mustDrop: for these VIPs there is a blackhole route, and for no others.
func (s *site) mustDrop(t *testing.T, addrs ...string) {
	t.Helper()
	var want string
	for _, addr := range addrs {
		want += "blackhole " + addr + " proto static \n"
	}
	if got := s.rs.Run(t, "ip", "route", "show", "type", "blackhole"); got != want {
		t.Errorf("the routes are\n%swant\n%s", got, want)
	}
}

// What is withheld can be stopped like all else: the host is as it was before anything, and nothing comes back.
func TestWatch_WithheldStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	down := s.rs.Snapshot(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	w := s.watchIn(t, procSysReadOnly, "--on-guard-loss", "withdraw")
	s.lose(t)
	s.withheld(t, w, true)
	s.ask(t, 0, "stop", "--vip", vip)
	s.mustDrop(t, vip2)
	s.ask(t, 0, "stop")
	w.looks(t)
	s.mustBe(t, down)
	s.ask(t, 0, "start", "--vip", vip) // by hand, where the guard can be had
	s.bound(t, vip, "lo")
	w.looks(t)
	s.bound(t, vip, "lo")
	s.ask(t, 0, "status")
	w.end(t)
}

// A VIP that is on a NIC as well is answered for in any case, so it stays: this host is a director, too. What can be done
// nothing about is no reason to be busy. Where this host does not forward, one that goes needs no route.
func TestWatch_GuardLostOnNIC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0") // keepalived
	w := s.watchIn(t, procSysReadOnly, "--on-guard-loss", "withdraw")
	s.lose(t)
	testnet.Eventually(t, "the other one to go", func() bool { return len(s.rs.Holds(t, vip2)) == 0 })
	time.Sleep(time.Second)
	before := w.switches(t)
	time.Sleep(time.Second)
	if n := w.switches(t) - before; n > 200 {
		t.Errorf("it came to rest %d times in about a second: it does not rest", n)
	}
	s.bound(t, vip, "eth0", "lo")
	s.mustDrop(t)
	if r := s.ask(t, 1, "status"); r.says("withheld", vip) || !r.says("withheld", vip2) {
		t.Errorf("status: %+v", r.Findings)
	}
	w.Signal(9)
	w.Wait()
	s.ask(t, 0, "restart") // by hand: it can mend the guard
	s.bound(t, vip, "eth0", "lo")
	s.bound(t, vip2, "lo")
	s.ask(t, 0, "status")
	s.silent(t, vip2)
}

// What cannot be noted is not done: where the journal has no room a VIP stays, and goes when it has. A watcher that is
// started anew knows what is withheld.
func TestWatch_GuardLostJournalFull(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	full := s.fill(t)
	w := s.watchIn(t, procSysReadOnly, "--on-guard-loss", "withdraw", "--interval", "100ms")
	full(true)
	s.lose(t)
	w.Await(t, "the guard cannot be kept")
	w.Await(t, "no space left")
	before := w.switches(t)
	time.Sleep(time.Second)
	if n := w.switches(t) - before; n > 500 {
		t.Errorf("it came to rest %d times in about a second: it does not rest", n)
	}
	s.bound(t, vip, "lo")
	s.ask(t, 1, "status")
	if out := w.Output(); strings.Count(out, "the guard cannot be kept") != 1 {
		t.Errorf("said more than once:\n%s", out)
	}
	full(false)
	s.withheld(t, w, true)
	w.Signal(9)
	w.Wait()
	s.found(t)
	if !long {
		s.ask(t, 0, "restart")
		s.mustHold(t, vip, vip2)
		return
	}
	back := time.Now()
	w = s.watch(t, "--interval", "100ms") // whatever becomes of VIPs the next time
	s.withheld(t, w, false)
	if after := time.Since(back); after < 10*time.Second {
		t.Errorf("it is back %s after its guard", after)
	}
	w.end(t)
}

// fill moves the state directory to a file system of its own, and returns what fills or empties that.
func (s *site) fill(t *testing.T) func(yes bool) {
	t.Helper()
	here := testnet.Here()
	here.Run(t, "sh", "-ec", `cp -a "$1" "$1.copy"; mount -t tmpfs -o size=16k none "$1"; cp -a "$1.copy/." "$1"`, "sh", s.state)
	t.Cleanup(func() { here.Run(t, "umount", "-l", s.state) })
	return func(yes bool) {
		if here.Run(t, "rm", "-f", filepath.Join(s.state, "full")); yes {
			here.Run(t, "sh", "-c", `head -c 16384 /dev/zero >"$1/full" 2>/dev/null; :`, "sh", s.state)
		}
	}
}
