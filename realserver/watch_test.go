package realserver

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/loopback"
	"rsagent/sysctl"
)

// A watchtower is a watcher on a fake host, with a clock that moves only when told.
type watchtower struct {
	*Watcher
	*bench
	t     *testing.T
	clock time.Time
	log   bytes.Buffer
}

func newWatchtower(t *testing.T, vips ...VIP) *watchtower {
	t.Helper()
	w := &watchtower{bench: newBench(t), t: t, clock: time.Unix(1e9, 0)}
	w.on(bases()[0].kernel())
	if _, err, _ := w.converge(Add(vips...)); err != nil {
		t.Fatal(err)
	}
	w.Watcher = &Watcher{Agent: &Agent{Kernel: w.kernel(), StateDir: w.dir, here: testPlace}, Interval: 5 * time.Second, Timeout: time.Second,
		Log:  slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
		now:  func() time.Time { return w.clock },
		mind: func(Minded) error { return nil }}
	w.backoffs.most = w.Interval
	return w
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}

// looks has the watcher look, some time after the last look, and returns what it logged.
func (w *watchtower) looks(after time.Duration) string {
	w.clock = w.clock.Add(after)
	w.log.Reset()
	w.round(context.Background(), w.clock)
	text, _ := io.ReadAll(&w.log)
	return string(text)
}

func (w *watchtower) isBound(v VIP) bool {
	return slices.ContainsFunc(w.host.Addrs, func(a loopback.Held) bool { return a.Addr == v.addr() })
}

func (w *watchtower) says(said string, words ...string) {
	w.t.Helper()
	for _, word := range words {
		if !strings.Contains(said, word) {
			w.t.Errorf("%q is not in the log:\n%s", word, said)
		}
	}
}

var allIgnore = sysctl.Key{Iface: "all", Knob: "arp_ignore"}

func TestWatchMends(t *testing.T) {
	w := newWatchtower(t, vipA, vipC)
	if said := w.looks(0); said != "" || w.told.State != Up {
		t.Errorf("all is well, and it says %s%s", w.told.State, said)
	}
	unbound(w.fake)
	w.says(w.looks(time.Second), `level=WARN msg=repaired item="192.0.2.1/32 dev lo" from=nothing to=host stage=bind`)
	w.host.Conf[allIgnore] = 0
	w.says(w.looks(time.Second), "msg=repaired item=net.ipv4.conf.all.arp_ignore from=0 to=1 stage=guard")
	if !w.isBound(vipA) || w.host.Conf[allIgnore] != 1 || w.told.State != Up || w.told.Total() != 2 || w.told.Last.Item != allIgnore.String() {
		t.Errorf("bound %t, arp_ignore %d, %+v", w.isBound(vipA), w.host.Conf[allIgnore], w.told)
	}

	// What another verb left undone is finished; what it wants is never fought.
	if _, err, _ := w.converge(Drop(vipA.Addr)); err != nil {
		t.Fatal(err)
	}
	if said := w.looks(time.Second); said != "" || w.isBound(vipA) || !w.isBound(vipC) {
		t.Errorf("after a stop: %s", said)
	}
}

// TestWatchHeedsTheLock: while another verb is at it, nothing is mended, and it is said; afterwards it is.
func TestWatchHeedsTheLock(t *testing.T) {
	w := newWatchtower(t, vipA)
	unlock, err := w.Agent.lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	w.Timeout = 5 * time.Millisecond
	unbound(w.fake)
	w.says(w.looks(0), "level=ERROR", "another rsagent holds the lock")
	if w.isBound(vipA) {
		t.Error("mended all the same")
	}
	unlock()
	w.Timeout = time.Minute
	w.says(w.looks(0), "repaired", "all is well again")
}

func TestWatchBacksOff(t *testing.T) {
	w := newWatchtower(t, vipA)
	var waits []time.Duration
	var said string
	last := w.clock
	for range 1000 { // it is undone each 50 ms
		if w.isBound(vipA) {
			waits = append(waits, w.clock.Sub(last))
			last = w.clock
			unbound(w.fake)
		}
		said += w.looks(50 * time.Millisecond)
	}
	ms := time.Millisecond
	want := []time.Duration{0, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}
	if !slices.Equal(waits[:len(want)], want) {
		t.Errorf("mended after %v, want %v", waits, want)
	}
	w.says(said, `level=WARN msg="something keeps undoing this: it is mended less often now" item="192.0.2.1/32 dev lo" undone=6`)
	if strings.Count(said, "keeps undoing") != 1 || strings.Contains(said, "ERROR") || !slices.Equal(w.told.Contended, []string{"192.0.2.1/32 dev lo"}) {
		t.Errorf("contended %q:\n%s", w.told.Contended, said)
	}
	w.host.Conf[allIgnore] = 0 // what nobody contends is mended at once, and the VIP along with it
	w.says(w.looks(time.Millisecond), "item=net.ipv4.conf.all.arp_ignore")
	w.looks(5 * time.Second)
	w.says(w.looks(61*time.Second), `msg="nothing undoes this any more" item="192.0.2.1/32 dev lo"`)
	if len(w.told.Contended) > 0 || len(w.backoffs.items) > 0 {
		t.Errorf("contended still: %q, %d items", w.told.Contended, len(w.backoffs.items))
	}
}

// TestWatchSaysSome: of many items, which something undoes again and again, some are named.
func TestWatchSaysSome(t *testing.T) {
	var many Set
	for i := range 200 {
		many = append(many, with(vipA, func(v *VIP) { v.Addr = netip.AddrFrom4([4]byte{198, 18, 0, byte(i + 1)}) }))
	}
	w := newWatchtower(t, many...)
	said := ""
	for range 6 {
		w.host.Addrs = slices.DeleteFunc(w.host.Addrs, func(a loopback.Held) bool { return many.has(a.Prefix.Addr()) })
		said += w.looks(time.Second)
	}
	said += w.looks(2 * time.Minute)
	if strings.Count(said, "keeps undoing this") != mostSaid || strings.Count(said, "nothing undoes this") != mostSaid {
		t.Errorf("it says\n%s", said)
	}
	w.says(said, `msg="and more that something keeps undoing" items=180`, `msg="and nothing undoes more" items=180`)
}

var vip2nd = with(vipA, func(v *VIP) { v.Addr = netip.MustParseAddr("192.0.2.4") })

// TestWatchLeavesAlone: what can be neither kept nor given up is tried again now and then, and said once; it is no reason to
// look without a pause.
func TestWatchLeavesAlone(t *testing.T) {
	for _, test := range []struct {
		name string
		vip  VIP
		full bool // the journal cannot be written
	}{{"given up", vipA, false}, {"not guarded", with(vipA, func(v *VIP) { v.Guard = GuardNone }), false}, {"the journal is full", vipA, true}} {
		t.Run(test.name, func(t *testing.T) {
			w := newWatchtower(t, test.vip, with(vipC, func(v *VIP) { v.AllowDirector = true }))
			w.Withdraw = true
			w.looks(time.Minute)
			w.guardless()
			if test.full {
				w.Agent.replace = func(string, []byte) error { return unix.ENOSPC }
			}
			w.looks(0)
			looks, said := 0, ""
			for end := w.clock.Add(time.Minute); w.clock.Before(end); looks++ {
				w.log.Reset()
				rest := w.round(context.Background(), w.clock)
				said += w.log.String()
				w.clock = w.clock.Add(rest)
			}
			if looks > 60 || strings.Count(said, "cannot be kept") > 1 {
				t.Errorf("%d looks in a minute:\n%s", looks, said)
			}
		})
	}
}

// TestWatcher_Lost: somebody removes the journal. What it had in it is still bound, and nobody's; that it may be a stop which has
// just ended, the first look cannot tell. It is over when they are managed again, or gone.
func TestWatcher_Lost(t *testing.T) {
	for name, mend := range map[string]func(*watchtower){
		"managed again": func(w *watchtower) {
			if _, err, _ := w.converge(Add(vipA, vipC)); err != nil {
				t.Fatal(err)
			}
		},
		"gone": func(w *watchtower) {
			w.host.Addrs = slices.DeleteFunc(w.host.Addrs, func(a loopback.Held) bool {
				return slices.Contains([]netip.Addr{vipA.Addr, vipC.Addr}, a.Prefix.Addr())
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatchtower(t, vipA, vipC)
			w.looks(0)
			if err := os.Remove(w.journal()); err != nil {
				t.Fatal(err)
			}
			if said := w.looks(time.Second); said != "" {
				t.Errorf("at once it says %s", said)
			}
			w.says(w.looks(time.Second), `level=ERROR msg="bound, and managed no longer"`, vipA.Addr.String()+" and 1 more")
			if w.told.Error == "" {
				t.Error("its status has nothing of it")
			}
			if _, err, _ := w.converge(Add(vipB)); err != nil { // another is no reason to forget them
				t.Fatal(err)
			}
			if said := w.looks(time.Second); strings.Contains(said, "all is well") || w.told.Error == "" {
				t.Errorf("with another VIP it says %q, and tells of %q", said, w.told.Error)
			}
			mend(w)
			w.says(w.looks(time.Second), "all is well again")
		})
	}
	w := newWatchtower(t, vipA, vipC)
	w.looks(0)
	if _, err, _ := w.converge(DropAll); err != nil {
		t.Fatal(err)
	}
	if said := w.looks(time.Second) + w.looks(time.Second); said != "" {
		t.Errorf("after a stop it says %s", said)
	}
}
