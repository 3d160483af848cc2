package cases

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// A watcher is rsagent watch beside a test.
type watcher struct {
	*testnet.Process
	s *site
}

// never is a poll that no test lives to see: what is mended beside it was told of by the kernel.
const never = "--interval=24h"

// watch starts one, and waits until it has looked at the host and minds it.
func (s *site) watch(t *testing.T, more ...string) *watcher {
	t.Helper()
	return s.watchBy(t, s.args("watch", more...))
}

// watchIn starts one in a mount namespace of its own, prepared by script.
func (s *site) watchIn(t *testing.T, script string, more ...string) *watcher {
	t.Helper()
	return s.watchBy(t, append([]string{"unshare", "-m", "sh", "-ec", script + `; exec "$@"`, "sh"}, s.args("watch", more...)...))
}

func (s *site) watchBy(t *testing.T, command []string) *watcher {
	t.Helper()
	w := &watcher{s.rs.Start(t, command...), s}
	testnet.Eventually(t, "the watcher to look at the host", func() bool {
		if w.ended() {
			t.Fatalf("it ended:\n%s", w.Output())
		}
		return w.told(t).PID == w.Pid()
	})
	return w
}

// watching is what status tells of a watcher, and what its file holds.
type watching struct {
	Running      bool
	PID          int
	State, Error string
	Contended    []string
	Repairs      []struct {
		Item  string
		Count int
	}
	Last *struct{ Item, From, To string }
}

// told is what the watcher's file says; nothing where there is none.
func (w *watcher) told(t *testing.T) (told watching) {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(w.s.state, "*.watch.json"))
	if len(found) != 1 {
		return told
	}
	text, err := os.ReadFile(found[0])
	if errors.Is(err, os.ErrNotExist) {
		return told
	}
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil {
		t.Fatalf("%s: %v in %s", found[0], err, text)
	}
	return told
}

// ended says that the process is no more, or a zombie.
func (w *watcher) ended() bool {
	state := stateIn(fmt.Sprintf("/proc/%d/stat", w.Pid()))
	return state == "" || state == "Z"
}

// threads are the states of its threads.
func (w *watcher) threads(t *testing.T) (states []string) {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", w.Pid()))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, path := range paths {
		states = append(states, stateIn(path))
	}
	return states
}

// stateIn is the state that a file of proc_pid_stat(5) tells; "" is none.
func stateIn(path string) string {
	text, _ := os.ReadFile(path)
	_, rest, _ := strings.Cut(string(text), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// end has it end by SIGTERM, which is no failure and changes nothing.
func (w *watcher) end(t *testing.T) {
	t.Helper()
	before := w.s.rs.Snapshot(t)
	w.Signal(unix.SIGTERM)
	if r := w.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "ends; all stays as it is") {
		t.Errorf("told to end: exit %d\n%s", r.Code, r.Stdout)
	}
	w.s.mustBe(t, before)
}

// still is a snapshot that does not tell in which order addresses came.
func (s *site) still(t *testing.T) testnet.Snapshot {
	t.Helper()
	shot := s.rs.Snapshot(t)
	for _, addrs := range shot.Addrs {
		slices.SortFunc(addrs, func(a, b testnet.Addr) int { return strings.Compare(a.Local, b.Local) })
	}
	return shot
}

// mends waits until the host is as it was, and the watcher has told of n repairs of an item.
func (w *watcher) mends(t *testing.T, what string, want testnet.Snapshot, item string, n int) {
	t.Helper()
	diff, end := "nothing is told", time.Now().Add(time.Minute)
	for ; diff != "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if w.repairs(t, item) >= n {
			diff = testnet.Diff(want, w.s.still(t))
		}
	}
	if diff != "" {
		t.Fatalf("%s: not mended:\n%s\n%+v\n%s", what, diff, w.told(t), w.Output())
	}
}

// repairs counts those of an item, or of all.
func (w *watcher) repairs(t *testing.T, item string) (n int) {
	t.Helper()
	for _, r := range w.told(t).Repairs {
		if item == "" || r.Item == item {
			n += r.Count
		}
	}
	return n
}

// drifts are ways of going wrong that the kernel tells of: a script run on the real server, and what is mended then. VIPs are
// guarded by settings, or vipNFT by rules.
var drifts = []struct{ name, script, item string }{
	{"the VIP is deleted", "ip addr del 10.0.0.100/32 dev lo", "10.0.0.100/32 dev lo"},
	{"all VIPs are deleted", "ip addr flush dev lo scope host to 10.0.0.0/24", "10.0.0.101/32 dev lo"},
	{"lo is down", "ip link set lo down", "link lo"},
	{"all answers", "echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore", "net.ipv4.conf.all.arp_ignore"},
	{"all announces", "echo 0 >/proc/sys/net/ipv4/conf/all/arp_announce", "net.ipv4.conf.all.arp_announce"},
	{"all of it at once", "cd /proc/sys/net/ipv4/conf/all; echo 0 >arp_ignore; echo 1 >arp_announce; ip addr del 10.0.0.100/32 dev lo", "net.ipv4.conf.all.arp_ignore"},
	{"the VIP has a subnet beside", "ip addr add 10.0.0.100/24 dev lo", "10.0.0.100/24 dev lo"},
	{"the VIP has a subnet instead", "ip addr del 10.0.0.100/32 dev lo; ip addr add 10.0.0.100/24 dev lo", "10.0.0.100/24 dev lo"},
	{"the rules are flushed", "nft flush ruleset", "table arp rsagent"},
	{"a rule is gone", "nft flush chain arp rsagent input", "table arp rsagent"},
	{"the rules are about nothing", "nft flush set arp rsagent vips", "table arp rsagent"},
	{"the rules are dormant", "nft 'add table arp rsagent { flags dormant; }'", "table arp rsagent"},
}

const vipNFT = "10.0.0.102"

// Each kind of drift is mended although no poll ever looks for it; SIGTERM then leaves all as it is, and stop still knows
// what was there before anything.
func TestWatch_Drift(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "nft")
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	s.restored(t, func() {
		s.ask(t, 0, "start", "--vip", vip+","+vip2)
		s.ask(t, 0, "start", "--vip", vipNFT, rulesOn)
		w := s.watch(t, never)
		up := s.still(t)
		for _, d := range drifts {
			before := w.repairs(t, d.item)
			s.rs.Run(t, "sh", "-ec", d.script)
			w.mends(t, d.name, up, d.item, before+1)
			w.Signal(unix.SIGHUP) // leave nothing alone: each is the first of its kind
		}
		if r := s.ask(t, 0, "status"); r.Watch.State != "up" || !r.Watch.Running {
			t.Errorf("status tells of %+v", r.Watch)
		}
		s.silent(t, vip, vip2, vipNFT)
		s.serves(t, vip)
		w.end(t)
		s.ask(t, 0, "stop")
	})
}

// What an interface says that outweighs a good all is drift as well, whether it is there already, is written to as soon as it
// has come, or comes with it.
func TestWatch_Interfaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	w := s.watch(t, never)
	mended := func(iface string) {
		t.Helper()
		testnet.Eventually(t, iface+" to be silent", func() bool {
			return s.rs.IPv4Conf(t, iface, "arp_ignore") == "1" && s.rs.IPv4Conf(t, iface, "arp_announce") != "3"
		})
	}
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "5")
	s.rs.SetIPv4Conf(t, "eth0", "arp_announce", "3")
	mended("eth0")
	for i := range 10 { // as udev does, at once or somewhat later
		name := fmt.Sprint("v", i)
		s.rs.Run(t, "sh", "-ec", fmt.Sprintf("ip link add %s type veth peer name w%d; sleep 0.00%d; echo 5 >/proc/sys/net/ipv4/conf/%s/arp_ignore", name, i, i, name))
		mended(name)
	}
	w.Signal(unix.SIGSTOP)
	testnet.Eventually(t, "each thread to stop", func() bool {
		return !slices.ContainsFunc(w.threads(t), func(state string) bool { return state != "T" })
	})
	s.rs.SetIPv4Conf(t, "default", "arp_ignore", "4")
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "10.0.0.2/24")
	s.rs.SetIPv4Conf(t, "default", "arp_ignore", "0")
	s.conf(t, "eth1", "arp_ignore", "4")
	if !s.answers(t, "eth1", vip) {
		t.Fatal("eth1 does not answer: nothing to be mended")
	}
	w.Signal(unix.SIGCONT)
	mended("eth1")
	s.silentOn(t, "eth1", vip)
	s.rs.SetIPv4Conf(t, "default", "arp_ignore", "4") // for one that comes tomorrow
	mended("default")
	w.end(t)
}

// A write through another mount of proc is told of by nobody: the poll finds it, and without that a SIGHUP.
func TestWatch_NotTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.still(t)
	write := func() {
		if r := s.inMounts("mount -t proc proc /proc", "sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore"); r.Code != 0 {
			t.Fatal(r.Stderr)
		}
	}
	w := s.watch(t, "--interval", "100ms")
	write()
	w.mends(t, "by the poll", up, "net.ipv4.conf.all.arp_ignore", 1)
	w.end(t)
	w = s.watch(t, never)
	write()
	w.Signal(unix.SIGHUP)
	w.mends(t, "by SIGHUP", up, "net.ipv4.conf.all.arp_ignore", 1)
	w.end(t)
}

// Where the kernel has no inotify left for it, what netlink tells is mended at once all the same, and it is said what is not.
func TestWatch_NoInotify(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "strace")
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	up := s.still(t)
	w := s.watchBy(t, append([]string{"strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=inotify_init1", "-e", "inject=inotify_init1:error=EMFILE"}, s.args("watch", never)...))
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	w.mends(t, "the VIP", up, vip+"/32 dev lo", 1)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	w.Signal(unix.SIGHUP)
	w.mends(t, "by SIGHUP", up, "net.ipv4.conf.all.arp_ignore", 1)
	if out := w.Output(); strings.Count(out, "some changes are seen by polling only") != 1 || !strings.Contains(out, "too many open files") {
		t.Errorf("it is not said, or too often:\n%s", out)
	}
	w.end(t)
}

// One watches. A second says so and ends; it has touched nothing, and the first goes on.
func TestWatch_Once(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip)
	w := s.watch(t, never)
	r := s.rs.Try(s.args("watch")...)
	if r.Code != 1 || r.Stdout != "" || lines(r.Stderr) != 1 || !strings.Contains(r.Stderr, fmt.Sprintf("another rsagent watch runs here, as process %d\n", w.Pid())) {
		t.Errorf("a second one: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := s.ask(t, 0, "status").Watch; got.PID != w.Pid() {
		t.Errorf("status tells of %+v", got)
	}
	w.end(t)
	s.watch(t, never).end(t)
}

// Who may not, or does not know how to ask, is told so in one line, and nothing has been touched.
func TestWatch_Refused(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "setpriv")
	s := newSite(t)
	s.restored(t, func() {
		for _, args := range [][]string{{"--interval", "0"}, {"--interval", "99ms"}, {"--interval", "5"}, {"--interval=-1s"}, {"--interval", ""},
			{"--on-guard-loss", "drop"}, {"--on-guard-loss", ""}, {"--vip", vip}, {"--dry-run"}, {"-o", "json"}, {"--config", "/dev/null"}, {"now"}} {
			s.refused(t, testnet.Cmd{Args: s.args("watch", args...)[1:]})
		}
		for _, name := range []string{"RSAGENT_INTERVAL", "RSAGENT_ON_GUARD_LOSS"} {
			s.refused(t, testnet.Cmd{Args: s.args("watch")[1:], Env: []string{name + "=soon"}})
		}
		args := append([]string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"}, s.args("watch")...)
		if r := s.rs.Try(args...); r.Code != 4 || r.Stdout != "" || lines(r.Stderr) != 1 || !strings.Contains(r.Stderr, "CAP_NET_ADMIN") {
			t.Errorf("unprivileged: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
	if s.files(t) != "none" {
		t.Errorf("it left %s", s.files(t))
	}
}

// status tells of a watcher that runs, that was killed, and of none after one that ended; in each form, and without privilege.
func TestWatch_Status(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "setpriv")
	s := newSite(t)
	s.state = filepath.Join(s.ofNobody(t), "state") // others can reach it
	s.ask(t, 0, "start", "--vip", vip)
	told := func(what, text string, running bool, pid int, series ...string) {
		t.Helper()
		nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
		if got := s.rs.Run(t, append(nobody, s.args("status")...)...); strings.Contains(got, "watch ") != (text != "") || !strings.Contains(got, text) {
			t.Errorf("%s: not told of %q:\n%s", what, text, got)
		}
		if got := s.ask(t, 0, "status").Watch; got.Running != running || got.PID != pid {
			t.Errorf("%s: the object has %+v", what, got)
		}
		got := s.rs.Run(t, append(nobody, s.args("status", "-o", "prometheus")...)...)
		for _, line := range series {
			if !strings.Contains(got, "\nrsagent_watch_"+line+"\n") {
				t.Errorf("%s: no %q in\n%s", what, line, got)
			}
		}
	}
	told("none", "", false, 0, "running 0")
	w := s.watch(t, never)
	told("one", "watch  running", true, w.Pid(), "running 1", "failing 0")
	up := s.still(t)
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	w.mends(t, "the VIP", up, vip+"/32 dev lo", 1)
	told("a repair", "1 repair, the last at", true, w.Pid(), `repairs_total{item="10.0.0.100/32 dev lo"} 1`)
	w.Signal(unix.SIGKILL)
	w.Wait()
	told("killed", "it said last: up; 1 repair", false, w.Pid(), "running 0", `repairs_total{item="10.0.0.100/32 dev lo"} 1`)
	w = s.watch(t, never)
	told("again", "watch  running", true, w.Pid(), "running 1")
	w.end(t)
	told("ended", "", false, 0, "running 0")
}
