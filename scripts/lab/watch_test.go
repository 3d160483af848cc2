package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// watch has a watcher look after the host, which never polls, and waits until it has looked.
func (a agent) watch(t *testing.T) *testnet.Process {
	t.Helper()
	p := a.host.Start(t, a.bin, "watch", "--state-dir", a.state, "--interval", "24h")
	testnet.Eventually(t, "the watcher on "+a.host.Name+" to look", func() bool {
		for _, path := range match(t, filepath.Join(a.state, "*.watch.json")) {
			text, _ := os.ReadFile(path)
			if strings.Contains(string(text), fmt.Sprintf(`"pid":%d,`, p.Pid())) {
				return true
			}
		}
		return false
	})
	return p
}

func match(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestWatchRestarts: a watcher that ends, by a signal that it can heed or one that it cannot, and one that comes after it,
// cost no connection and no packet, and no address comes or goes.
func TestWatchRestarts(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newCluster(t)
		c.direct(t, mode, vip)
		agents := newAgents(t, c.real)
		watchers := make([]*testnet.Process, len(agents))
		for i, a := range agents {
			a.start(t, mode, vip)
			watchers[i] = a.watch(t)
		}
		monitor := agents[0].host.Start(t, "ip", "-o", "monitor", "address")
		seen := func(mark string) {
			testnet.Eventually(t, "ip monitor to see the mark", func() bool {
				agents[0].host.Run(t, "ip", "addr", "add", mark, "dev", "lo")
				agents[0].host.Run(t, "ip", "addr", "del", mark, "dev", "lo")
				return strings.Contains(monitor.Output(), mark)
			})
		}
		seen("127.0.0.8/32")
		f := c.traffic(t, "80")
		f.flows(t)
		var before []string
		for _, a := range agents {
			before = append(before, fmt.Sprint(dropped(t, a.host)))
		}
		for i, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			watchers[i].Signal(sig)
			if r := watchers[i].Wait(); r.Code != 0 && sig == unix.SIGTERM {
				t.Errorf("told to end: exit %d: %s", r.Code, r.Stdout)
			}
			f.flows(t)
			agents[i].watch(t)
			f.flows(t)
		}
		f.end(t)
		for i, a := range agents {
			if got := fmt.Sprint(dropped(t, a.host)); got != before[i] {
				t.Errorf("%s dropped packets: before %s, after %s", a.host.Name, before[i], got)
			}
			holds(t, a.host, vip, device[mode])
		}
		seen("127.0.0.9/32")
		if events := monitor.Stop(); strings.Contains(events, vip) {
			t.Errorf("the VIP came or went:\n%s", events)
		}
	})
}

// TestWatchTunnelDown: each time that someone lowers the tunnel's device, it is up again and the VIP served; and so where the VIP
// is deleted, which takes a watcher a millisecond or two on a machine that is not emulated. How long they were away is told by
// the kernel's messages.
func TestWatchTunnelDown(t *testing.T) {
	guest(t)
	ipip(t, true)
	repetitions := 20
	if os.Getenv("RSAGENT_TEST_STRIDE") == "1" {
		repetitions = 200
	}
	c, a := newTunnelSite(t)
	before := a.host.Snapshot(t)
	a.start(t, "tun", vip)
	w := a.watch(t)
	monitor := a.host.Start(t, "ip", "-o", "-ts", "monitor", "link", "address")
	testnet.Eventually(t, "ip monitor to see the mark", func() bool {
		a.host.Run(t, "ip", "link", "set", "eth0", "alias", "mark")
		a.host.Run(t, "ip", "link", "set", "eth0", "alias", "")
		return strings.Contains(monitor.Output(), "eth0")
	})
	for n := range repetitions {
		for _, woe := range []struct {
			do   string
			away func(*testing.T, string) []time.Duration
		}{{"link set tunl0 down", wasDown}, {"addr del " + vip + "/32 dev tunl0", wasGone}} {
			w.Signal(unix.SIGHUP) // it is to take each for the first
			c.arrives(t)
			a.host.Run(t, append([]string{"ip"}, strings.Fields(woe.do)...)...)
			testnet.Eventually(t, "an end of "+woe.do, func() bool { return len(woe.away(t, monitor.Output())) > n })
		}
	}
	c.arrives(t)
	holds(t, a.host, vip, "tunl0")
	said := monitor.Stop()
	for name, took := range map[string][]time.Duration{"tunl0 was down": wasDown(t, said), "the VIP was gone": wasGone(t, said)} {
		if len(took) != repetitions {
			t.Errorf("%s %d times, and that was done %d times", name, len(took), repetitions)
		}
		slices.Sort(took)
		n, round := len(took), 100*time.Microsecond
		t.Logf("%s %d times, for %s in the median, %s in nine of ten, %s at worst", name, n, took[n/2].Round(round), took[n*9/10].Round(round), took[n-1].Round(round))
	}
	w.Signal(unix.SIGTERM)
	w.Wait()
	a.stop(t, "tun", vip)
	equal(t, a.host, before)
}

var (
	tunnelLink = regexp.MustCompile(`(?m)^\[(\S+)\] \d+: tunl0@NONE: <([^>]*)>`)
	tunnelVIP  = regexp.MustCompile(`(?m)^\[(\S+)\] (Deleted )?\d+: tunl0 +inet ` + regexp.QuoteMeta(vip) + `/32 `)
)

// wasDown is how long tunl0 was down each time, by what ip monitor says.
func wasDown(t *testing.T, monitor string) []time.Duration {
	t.Helper()
	return away(t, tunnelLink.FindAllStringSubmatch(monitor, -1), func(flags string) bool { return slices.Contains(strings.Split(flags, ","), "UP") })
}

// wasGone is how long the VIP was not on tunl0.
func wasGone(t *testing.T, monitor string) []time.Duration {
	t.Helper()
	return away(t, tunnelVIP.FindAllStringSubmatch(monitor, -1), func(deleted string) bool { return deleted == "" })
}

// away is how long something was not there each time, by messages of a time and a word.
func away(t *testing.T, messages [][]string, there func(word string) bool) (took []time.Duration) {
	t.Helper()
	var since time.Time
	for _, m := range messages {
		at, err := time.Parse("2006-01-02T15:04:05.999999", m[1])
		if err != nil {
			t.Fatal(err)
		}
		switch is := there(m[2]); {
		case !is && since.IsZero():
			since = at
		case is && !since.IsZero():
			took, since = append(took, at.Sub(since)), time.Time{}
		}
	}
	return took
}
