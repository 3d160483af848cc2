package cases

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// A harm is one way of going wrong that is timed: it is done, and then looked at until it is right again.
type harm struct {
	name    string
	options []string // of start
	vip     string   // that is asked for meanwhile
	do      func(*site, *eyes)
	right   func(*eyes) bool
	poll    bool // nothing tells of it
}

var harms = []harm{
	{"VIP deleted", nil, vip, func(_ *site, e *eyes) { e.unbind(vip + "/32") }, func(e *eyes) bool { return e.bound(vip) }, false},
	{"arp_ignore written", nil, vip, func(_ *site, e *eyes) { e.set("all", "arp_ignore", 0) }, func(e *eyes) bool { return e.get("all", "arp_ignore") == 1 }, false},
	{"rules flushed", []string{rulesOn}, vip, func(_ *site, e *eyes) { e.flush() }, (*eyes).ruled, false},
	{"arp_ignore written, unseen", nil, vip, func(s *site, _ *eyes) {
		s.inMounts("mount -t proc proc /proc", "sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore")
	}, func(e *eyes) bool { return e.get("all", "arp_ignore") == 1 }, true},
}

// How long each harm lasts beside a watcher, and how many requests for the VIP are answered meanwhile; in the long form, the
// same beside a loop of start each ten seconds. These are figures: what is held is that each is mended, that what is told of
// is not left to the poll, and that nothing is answered where no guard was lost.
func TestWatch_Figures(t *testing.T) {
	testnet.Need(t, "nft")
	repetitions, compared := 20, 0
	if long {
		repetitions, compared = 200, 20
	}
	for _, h := range harms {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t)
			s.ask(t, 0, "start", append(h.options, "--vip", h.vip)...)
			e := s.eyes(t)
			interval := "--interval=1h"
			if h.poll {
				interval = "--interval=100ms"
			}
			w := s.watch(t, interval)
			asker := s.peer.AskARP(t, "eth0", h.vip, 200*time.Microsecond)
			took := s.repeat(t, h, e, repetitions, func() time.Duration {
				w.Signal(unix.SIGHUP) // it is to take each for the first
				return time.Duration(50+rand.IntN(50)) * time.Millisecond
			})
			asked, replies := asker.Stop()
			t.Logf("watch%s: %s; %d requests in all, %d answered", interval[1:], inShort(took), asked, sum(replies))
			if h.name == "VIP deleted" && len(replies) > 0 {
				t.Errorf("answered: %v", replies)
			}
			w.end(t)
			if compared > 0 {
				s.compare(t, h, e, compared)
			}
		})
	}
}

// compare does the same beside a loop of start, which finds the harm at any moment of its pause.
func (s *site) compare(t *testing.T, h harm, e *eyes, repetitions int) {
	t.Helper()
	loop := []string{"sh", "-c", `while :; do "$@" >/dev/null; sleep 10; done`, "sh"}
	s.rs.Start(t, append(loop, s.args("start", append(h.options, "--vip", h.vip)...)...)...)
	asker := s.peer.AskARP(t, "eth0", h.vip, 200*time.Microsecond)
	took := s.repeat(t, h, e, repetitions, func() time.Duration { return time.Duration(rand.IntN(10_000)) * time.Millisecond })
	asked, replies := asker.Stop()
	t.Logf("start each 10 s: %s; %d requests in all, %d answered", inShort(took), asked, sum(replies))
}

// repeat harms, and returns how long each harm lasted.
func (s *site) repeat(t *testing.T, h harm, e *eyes, repetitions int, pause func() time.Duration) (took []time.Duration) {
	t.Helper()
	for range repetitions {
		time.Sleep(pause())
		h.do(s, e)
		began := time.Now()
		for !h.right(e) {
			if time.Since(began) > time.Minute {
				t.Fatal("it is not mended")
			}
			time.Sleep(50 * time.Microsecond)
		}
		took = append(took, time.Since(began))
	}
	return took
}

func inShort(took []time.Duration) string {
	slices.Sort(took)
	n, round := len(took), 10*time.Microsecond
	return fmt.Sprintf("%d repairs, median %s, nine of ten within %s, worst %s", n, took[n/2].Round(round), took[n*9/10].Round(round), took[n-1].Round(round))
}

func sum(replies map[string]int) (n int) {
	for _, k := range replies {
		n += k
	}
	return n
}

// A size is what a process holds.
type size struct{ rss, threads, fds int } // rss in bytes

func (w *watcher) size(t *testing.T) (now size) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]*int{"VmRSS": &now.rss, "Threads": &now.threads} {
		if m := regexp.MustCompile(name + `:\s+(\d+)`).FindSubmatch(text); m != nil {
			*at, _ = strconv.Atoi(string(m[1]))
		}
	}
	now.rss *= 1024
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.Pid()))
	now.fds = len(fds)
	return now
}

func (s size) String() string {
	return fmt.Sprintf("%.1f MB, %d threads, %d descriptors", float64(s.rss)/1e6, s.threads, s.fds)
}

// most is what a watcher may hold, in bytes.
const most = 15 << 20

// What a watcher costs where nothing happens, with one VIP and with a thousand.
func TestWatch_Idle(t *testing.T) {
	rest := time.Second
	if long {
		rest = time.Minute
	}
	for _, n := range []int{1, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newSite(t)
			s.ask(t, 0, "start", "--vip", vips(n))
			w := s.watch(t)
			w.looks(t)
			began, busy := time.Now(), w.cpu(t)
			time.Sleep(rest)
			used, took := w.cpu(t)-busy, time.Since(began)
			now := w.size(t)
			t.Logf("%d VIPs: %s; in %s %s of a processor, %.3f %%", n, now, took.Round(time.Millisecond), used, 100*used.Seconds()/took.Seconds())
			if now.rss > most {
				t.Errorf("it holds %s", now)
			}
			w.end(t)
		})
	}
}
