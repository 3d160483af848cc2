package cases

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

// contender runs a command each 50 ms, as something does that wants the host otherwise, until the function returned is called.
// It counts how often that went well.
func (s *site) contender(t *testing.T, command string) (end func() (times int)) {
	t.Helper()
	p := s.rs.Start(t, "sh", "-c", `trap 'end=1' TERM; echo going; while [ -z "$end" ]; do { `+command+`; } 2>/dev/null && echo undone; sleep 0.05; done`)
	p.Await(t, "undone")
	return func() int {
		p.Signal(unix.SIGTERM)
		return strings.Count(p.Wait().Stdout, "undone")
	}
}

// Something takes the VIP away each 50 ms. It is said once, with how often, and from then on the VIP is mended less and less
// often, up to the poll's interval. What is nobody's concern is mended at once as ever; and when it ends, there is peace.
func TestWatch_Contender(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	up := s.still(t)
	const item = vip + "/32 dev lo"
	w := s.watch(t, "--interval", "1s")
	began, busy := time.Now(), w.cpu(t)
	end := s.contender(t, "ip addr del 10.0.0.100/32 dev lo")
	w.Await(t, "something keeps undoing this")
	testnet.Eventually(t, "it to back off", func() bool { return w.repairs(t, item) >= 12 })
	args := s.args("status", "-o", "json")
	got := s.rs.Try(args...)
	if r := parse(t, got.Code, "status", args, got); !slices.Equal(r.Watch.Contended, []string{item}) {
		t.Errorf("status tells of %+v", r.Watch)
	}
	args = s.args("check", "-o", "json")
	got = s.rs.Try(args...) // the VIP may be there at the moment
	if r := parse(t, got.Code, "check", args, got); !r.says("warning", "contended", item) {
		t.Errorf("check does not tell of it: %+v", r.Findings)
	}
	for form, word := range map[string]string{"text": "something keeps undoing " + item, "prometheus": `rsagent_watch_contended{item="` + item + `"} 1`} {
		if got := s.rs.Try(s.args("status", "-o", form)...).Stdout; !strings.Contains(got, word) {
			t.Errorf("%s does not say %q:\n%s", form, word, got)
		}
	}
	s.rs.Run(t, "ip", "addr", "del", vip2+"/32", "dev", "lo")
	testnet.Eventually(t, "the other VIP to be mended", func() bool { return w.repairs(t, vip2+"/32 dev lo") == 1 })
	s.bound(t, vip2, "lo")

	used, took := w.cpu(t)-busy, time.Since(began)
	undone := end()
	w.mends(t, "when it has ended", up, "", 0)
	t.Logf("undone %d times in %s; mended %d times, with %s of a processor", undone, took.Round(time.Millisecond), w.repairs(t, item), used)

	out := w.Output()
	if n := strings.Count(out, "something keeps undoing this"); n != 1 || !regexp.MustCompile(`WARN something keeps undoing this: .* item="`+item+`" undone=6 within=1m0s\n`).MatchString(out) {
		t.Errorf("want one warning, that says what and how often, got %d:\n%s", n, out)
	}
	wait, gaps := 100*time.Millisecond, w.gaps(t, item)
	if len(gaps) < 9 {
		t.Fatalf("there are %d pauses between repairs", len(gaps))
	}
	for i, gap := range gaps[6:min(11, len(gaps))] {
		if gap < wait/2 { // of the log's clock, after the fact
			t.Errorf("mended number %d after %s, and was to be left alone for %s", i+7, gap, wait)
		}
		wait = min(2*wait, time.Second)
	}
	if long {
		w.Await(t, "nothing undoes this any more")
		if told := w.told(t); len(told.Contended) > 0 || told.State != "up" {
			t.Errorf("it tells of %+v", told)
		}
	} else { // the cure that check has for it, as systemd sends it
		w.Signal(unix.SIGHUP)
		testnet.Eventually(t, "it to be contended no longer", func() bool { return len(w.told(t).Contended) == 0 })
	}
	s.lacks(t, "contended")
	w.end(t)
}

// gaps are the times between repairs of an item, as logged; the first is since it began. A run that finds undone what it has
// just mended does so again, and tells of both when it has ended.
func (w *watcher) gaps(t *testing.T, item string) (gaps []time.Duration) {
	t.Helper()
	var last time.Time
	var run string // what it took, which is one figure for all that a run mended
	for _, m := range regexp.MustCompile(`(?m)^(\S+) \w+ (watching|repaired item="?`+regexp.QuoteMeta(item)+`"? .*(took=\S+))`).FindAllStringSubmatch(w.Output(), -1) {
		at, err := time.Parse("2006-01-02T15:04:05.000Z07:00", m[1])
		if err != nil {
			t.Fatal(err)
		}
		if m[3] != "" && m[3] == run && at.Sub(last) < 5*time.Millisecond {
			continue
		}
		run = m[3]
		if !last.IsZero() {
			gaps = append(gaps, at.Sub(last))
		}
		last = at
	}
	return gaps
}

// cpu is what its threads have used so far. Those of the Go runtime do not end.
func (w *watcher) cpu(t *testing.T) (used time.Duration) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", w.Pid()))
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		var ns time.Duration
		if _, err2 := fmt.Sscan(string(text), &ns); err != nil || err2 != nil {
			t.Fatalf("%s: %v, %v", path, err, err2)
		}
		used += ns
	}
	return used
}

// A guard that something undoes each 50 ms is none. Where that is to be its end, the VIP goes, and comes back when there has
// been peace for ten seconds, or by a restart.
func TestWatch_ContendedGuard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	up := s.still(t)
	w := s.watch(t, "--on-guard-loss", "withdraw")
	end := s.contender(t, "echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore")
	s.withheld(t, w, true)
	s.ask(t, 1, "status")
	time.Sleep(time.Second)
	s.bound(t, vip)
	end()
	if !long {
		s.ask(t, 0, "restart") // by hand there is no need to wait
		w.mends(t, "in peace", up, "", 0)
		w.end(t)
		return
	}
	back := time.Now()
	w.Signal(unix.SIGHUP)
	s.withheld(t, w, false)
	if after := time.Since(back); after < 9*time.Second { // what was written last may have been good
		t.Errorf("it is back %s after the contender's end", after)
	}
	w.mends(t, "in peace", up, "", 0)
	w.end(t)
}
