package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/scripts/testnet"
)

// inMounts runs a verb in a mount namespace of its own, prepared by script.
func (s *site) inMounts(script string, args ...string) testnet.Result {
	return s.rs.Try(append([]string{"unshare", "-m", "sh", "-ec", script + `; exec "$@"`, "sh"}, args...)...)
}

const procSysReadOnly = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"

// In a container without privilege over /proc/sys the guards cannot be set,
// while an address still could: it must not be. Seen at: netavark issue 825.
func TestCase07_ReadOnlyProcSys(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		args := s.args("start", "--vip", vip, "-o", "json")
		r := parse(t, 1, "start", args, s.inMounts(procSysReadOnly, args...))
		if !r.says("read-only", "net.ipv4.conf.all.arp_") {
			t.Errorf("cause and key are not named: %+v", r.Error)
		}
		s.ask(t, 3, "status", "--vip", vip)
	})
}

// Somebody else has set the values there: nothing to write, so no failure.
// Seen at: netavark pull 333.
func TestCase08_ReadOnlyProcSysWithGoodValues(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "2")
	s.restored(t, func() {
		args := s.args("start", "--vip", vip, "-o", "json")
		r := parse(t, 0, "start", args, s.inMounts(procSysReadOnly, args...))
		if !r.Changed || len(r.Changes) != 1 || r.Changes[0].Stage != "bind" {
			t.Errorf("the VIP is all there was to do: %+v", r.Changes)
		}
		s.silent(t, vip)
		s.bound(t, vip, "lo")
		if r := parse(t, 0, "start", args, s.inMounts(procSysReadOnly, args...)); r.Changed {
			t.Errorf("the second run changed %+v", r.Changes)
		}
		args = s.args("stop", "-o", "json")
		parse(t, 0, "stop", args, s.inMounts(procSysReadOnly, args...))
	})
}

// One guard can be set and the other cannot: the first is taken back.
// Seen at: kube-router issue 1836.
func TestCase33_OneSettingFails(t *testing.T) {
	const file = "/proc/sys/net/ipv4/conf/all/arp_announce"
	s := newSite(t)
	s.restored(t, func() {
		args := s.args("start", "--vip", vip, "-o", "json")
		script := strings.ReplaceAll("mount --bind F F; mount -o remount,bind,ro F", "F", file)
		if r := parse(t, 1, "start", args, s.inMounts(script, args...)); !r.says("arp_announce") {
			t.Errorf("the setting is not named: %+v", r.Error)
		}
		s.ask(t, 3, "status")
	})
}

// Not permitted is an answer of its own, with the capability's name; and what
// is needed is that capability, not root. Seen at: netavark issue 471.
func TestCase40_Capabilities(t *testing.T) {
	testnet.Need(t, "setpriv")
	s := newSite(t)
	s.restored(t, func() {
		args := s.args("start", "--vip", vip, "-o", "json")
		without := append([]string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"}, args...)
		if r := parse(t, 4, "start", args, s.rs.Try(without...)); !r.says("CAP_NET_ADMIN") {
			t.Errorf("the capability is not named: %+v", r.Error)
		}
	})
	s.state = s.ofNobody(t)
	s.restored(t, func() {
		for _, verb := range []string{"start", "status", "stop"} {
			args := s.args(verb, "--vip", vip, "-o", "json")
			with := append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
				"--inh-caps", "-all,+net_admin", "--ambient-caps", "-all,+net_admin"}, args...)
			parse(t, 0, verb, args, s.rs.Try(with...))
			if verb == "start" {
				s.silent(t, vip)
				s.bound(t, vip, "lo")
			}
		}
	})
}

// ofNobody makes a directory that uid 65534 owns and can reach.
func (s *site) ofNobody(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), s.rs.Name) // the sweep of testnet knows this name
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Rollback takes out what this call added, and never undoes a repair: A keeps
// its guard although B cannot be bound. The fault is put into the batch that
// adds B. Seen at: a review of rollback.
func TestCase53_RepairOutlivesRollback(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.startWithFailingBind(t, vip2, func() { s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0") })
		s.bound(t, vip, "lo")
		s.bound(t, vip2)
		s.silent(t, vip, vip2)
		s.ask(t, 0, "status")
		s.do(t, "stop")
	})
}

// startWithFailingBind starts a VIP beside the standing one, and fails the
// n-th request to the kernel, for one n after another, until it is the one
// that adds it.
func (s *site) startWithFailingBind(t *testing.T, addr string, prepare func()) {
	t.Helper()
	testnet.Need(t, "strace")
	args := s.args("start", "--vip", vip+","+addr, "-o", "json")
	for n := range 60 { // strace counts for each thread, so which one it hits varies
		prepare()
		trace := filepath.Join(t.TempDir(), "trace")
		got := s.rs.Exec(testnet.Cmd{Env: []string{"GOMAXPROCS=1"}, Args: append([]string{"strace", "-f", "-qq", "-o", trace,
			"-e", "trace=sendto", "-e", fmt.Sprintf("inject=sendto:error=ENOBUFS:when=%d", n%12+1)}, args...)})
		text, _ := os.ReadFile(trace)
		if failedToAdd.Match(text) {
			r := parse(t, 1, "start", args, got)
			if !slices.ContainsFunc(r.Changes, func(c change) bool { return c.Outcome == "failed" && strings.Contains(c.Item, addr) }) {
				t.Errorf("the failed change is not shown: %+v", r.Changes)
			}
			return
		}
		s.ask(t, 0, "stop", "--vip", addr)
	}
	t.Fatal("no request that adds an address could be failed")
}

// strace does not know the protocol of a socket that has not been bound.
var failedToAdd = regexp.MustCompile(`nlmsg_type=(RTM_NEWADDR|0x14 ).*INJECTED`)

// A site's whole set of units may start at once. Nobody may fail because the
// other was faster, and the last to leave restores.
// Seen at: felix issue 928.
func TestCase34_TwentyAtOnce(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.twenty(t, "start")
		for i := range 20 {
			s.bound(t, fmt.Sprint("10.0.0.", 101+i), "lo")
		}
		s.silent(t, "10.0.0.101", "10.0.0.120")
		s.ask(t, 0, "status")
		s.twenty(t, "stop")
		s.ask(t, 3, "status")
	})
}

func (s *site) twenty(t *testing.T, verb string) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			addr := fmt.Sprint("10.0.0.", 101+i)
			if r := s.rs.Try(s.args(verb, "--vip", addr, "--timeout", "5m")...); r.Code != 0 {
				t.Errorf("%s %s: exit %d\n%s", verb, addr, r.Code, r.Stderr)
			}
		})
	}
	all.Wait()
}

// On a container host links come and go all the time, and a dump that is
// interrupted is a part of the truth. Seen at: CNI plugins issue 1121.
func TestCase42_LinksComeAndGo(t *testing.T) {
	s := newSite(t)
	for i := range 20 { // more than one packet of dump
		s.rs.Run(t, "ip", "link", "add", fmt.Sprint("a", i), "up", "type", "veth", "peer", "name", fmt.Sprint("b", i))
	}
	s.do(t, "start", "--vip", vip)
	want := s.ask(t, 0, "status")
	churn := s.rs.Start(t, "sh", "-c", `echo going; while :; do
		ip link add c0 up type veth peer name c1; ip addr add 192.0.2.1/32 dev c0; ip link del c0; done`)
	churn.Await(t, "going")
	for range 500 {
		if diff := cmp.Diff(want, s.ask(t, 0, "status")); diff != "" {
			t.Fatal(diff)
		}
	}
	churn.Signal(9)
	if said := churn.Wait().Stdout; said != "going\n" {
		t.Errorf("the links did not come and go: %s", said)
	}
}
