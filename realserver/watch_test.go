package realserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
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

// guardless has each write of a guard fail, which is lost.
func (w *watchtower) guardless() {
	ignoring(0)(w.fake)
	w.fail = func(c Change) error {
		if c.arpGuard() {
			return errFault
		}
		return nil
	}
}

// TestWatchKeeps: by default a VIP stays whose guard cannot be mended, and it is said again each minute.
func TestWatchKeeps(t *testing.T) {
	w := newWatchtower(t, vipA)
	w.looks(0)
	w.guardless()
	said := w.looks(time.Millisecond)
	w.says(said, "level=ERROR", errFault.Error())
	times := 1
	for range 200 {
		times += strings.Count(w.looks(time.Second), "level=ERROR")
	}
	if times != 4 || !w.isBound(vipA) || w.told.State != Drifted || !strings.Contains(w.told.Error, errFault.Error()) {
		t.Errorf("in 200 s said %d times; bound %t, %+v", times, w.isBound(vipA), w.told)
	}
	w.fail = nil
	w.says(w.looks(5*time.Second), "repaired", "all is well again")
}

func TestWatchWithholds(t *testing.T) {
	for _, test := range []struct {
		name  string
		vip   VIP
		nic   bool // keepalived has it on a NIC as well
		stays bool
	}{{"guarded", vipA, false, false}, {"on a NIC too", vipA, true, true}, {"not guarded", with(vip2nd, func(v *VIP) { v.Guard = GuardNone }), false, true}} {
		t.Run(test.name, func(t *testing.T) {
			w := newWatchtower(t, vipC, test.vip)
			w.Withdraw, w.host.Forwards = true, true
			if test.nic {
				w.host.Addrs = append(w.host.Addrs, loopback.Held{Addr: loopback.Addr{Device: "eth0", Prefix: netip.PrefixFrom(test.vip.Addr, 32)}, Scope: "global"})
			}
			w.looks(time.Minute)
			w.guardless()
			lost := w.clock
			for w.clock.Sub(lost) < 900*time.Millisecond {
				w.looks(100 * time.Millisecond)
				if !w.isBound(test.vip) {
					t.Fatalf("withheld %s after the loss", w.clock.Sub(lost))
				}
			}
			said := ""
			for range 20 {
				said += w.looks(100 * time.Millisecond)
			}
			if test.stays {
				if !w.isBound(test.vip) || w.isBound(vipC) && test.vip.Addr != vipC.Addr {
					t.Errorf("withheld:\n%s", said)
				}
				return
			}
			w.says(said, "level=ERROR", "vips=192.0.2.1,192.0.2.3")
			r, err := w.Agent.Status()
			if err != nil {
				t.Fatal(err)
			}
			if w.isBound(test.vip) || !w.host.Dropped[test.vip.Addr] || r.State != Drifted || !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == "withheld" }) {
				t.Errorf("bound %t, dropped by a route %t, status %s %v", w.isBound(test.vip), w.host.Dropped[test.vip.Addr], r.State, r.Findings)
			}
			w.fail = nil
			w.says(w.looks(5*time.Second), "repaired")
			held := w.clock
			for w.clock.Sub(held) < 9900*time.Millisecond {
				w.looks(300 * time.Millisecond)
				if w.isBound(test.vip) {
					t.Fatalf("back after %s", w.clock.Sub(held))
				}
			}
			w.says(w.looks(100*time.Millisecond), "come back")
			if !w.isBound(test.vip) || w.host.Dropped[test.vip.Addr] || len(w.leaks) > 0 {
				t.Errorf("bound %t, dropped %t, leaks %v", w.isBound(test.vip), w.host.Dropped[test.vip.Addr], w.leaks)
			}
		})
	}
}

// TestWatchWithholdsFromAContender: repairs that do not last are failed ones. A VIP goes as soon as its guard, undone again, is
// left alone: a slow contender, too, would have it lost for most of the time. Against a slower one it is mended at once each time.
func TestWatchWithholdsFromAContender(t *testing.T) {
	w := newWatchtower(t, vipA)
	for _, each := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 8 * time.Second} {
		w.Withdraw, w.backoffs, w.care = true, backoffs{most: w.Interval}, care{}
		w.looks(time.Minute)
		var lost time.Duration // while bound
		undone := w.clock
		for end := w.clock.Add(2 * time.Minute); w.clock.Before(end) && w.isBound(vipA); {
			if w.clock.Sub(undone) >= each {
				w.host.Conf[allIgnore], undone = 0, w.clock
			}
			w.looks(50 * time.Millisecond)
			if w.host.Conf[allIgnore] == 0 && w.isBound(vipA) {
				lost += 50 * time.Millisecond
			}
		}
		if w.isBound(vipA) != (each > w.Interval) || lost > 1100*time.Millisecond {
			t.Errorf("undone each %s: bound %t, and open for %s", each, w.isBound(vipA), lost)
		}
		w.converge(Release)
	}
	w.host.Conf[allIgnore] = 0
	w.converge(Withhold(vipA.Addr))
	if _, err, _ := w.converge(Release); err != nil || !w.isBound(vipA) { // a restart by hand
		t.Errorf("after a restart: bound %t, %v", w.isBound(vipA), err)
	}
}

// TestMinded: what rsagent wrote comes first, and the number is bounded.
func TestMinded(t *testing.T) {
	w := newWatchtower(t, vipA)
	r, err := w.Agent.Look(Keep)
	if err != nil {
		t.Fatal(err)
	}
	m := minded(r)
	names := map[string]int{}
	for i, s := range m.Settings {
		names[s.Key.String()] = i
	}
	for _, k := range []string{"all.arp_ignore", "all.arp_announce", "default.arp_ignore", "eth0.arp_ignore", "eth0.arp_announce"} {
		if _, ok := names["net.ipv4.conf."+k]; !ok {
			t.Errorf("%s is not minded: %v", k, slices.Sorted(maps.Keys(names)))
		}
	}
	if names[allIgnore.String()] > names["net.ipv4.conf.eth0.arp_ignore"] {
		t.Errorf("others' settings come first: %v", names)
	}
	for range mostMinded {
		w.addDevice("x"+string(rune('0'+len(w.host.Links)%10))+time.Now().Format("150405.000000000")[7:], "")
		w.host.Links[len(w.host.Links)-1].ARP = true
	}
	if r, err = w.Agent.Look(Keep); err != nil {
		t.Fatal(err)
	}
	if m = minded(r); len(m.Settings) != mostMinded {
		t.Errorf("%d settings are minded, of %d interfaces", len(m.Settings), len(r.Host.Links))
	}
}

// TestWatching: what a watcher told is there for all, whether it runs or was killed.
func TestWatching(t *testing.T) {
	a := &Agent{StateDir: t.TempDir() + "/state"}
	if w := a.watching(); w.Running || w.PID != 0 {
		t.Errorf("there is none, and it says %+v", w)
	}
	claim, err := a.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.tellWatching(&Watching{PID: 7, State: Up, Repairs: []Repairs{{"x", 3}}}); err != nil {
		t.Fatal(err)
	}
	if w := a.watching(); !w.Running || w.PID != 7 || w.Total() != 3 {
		t.Errorf("one runs, and it says %+v", w)
	}
	if _, err := a.claimWatch(); err == nil || !strings.Contains(err.Error(), "another rsagent watch runs here") {
		t.Errorf("a second one: %v", err)
	}
	claim.Close()
	if w := a.watching(); w.Running || w.PID != 7 {
		t.Errorf("it was killed, and it says %+v", w)
	}
	path, _ := a.watchPath()
	if err := os.WriteFile(path+".json", []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := a.watching(); w.Running || w.PID != 0 {
		t.Errorf("the file is half a file, and it says %+v", w)
	}
	var w Watching
	for i := range 2 * mostCounted {
		w.count(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
	}
	if len(w.Repairs) != mostCounted+1 || w.Total() != 2*mostCounted {
		t.Errorf("%d items, %d repairs", len(w.Repairs), w.Total())
	}
}

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

// TestWatchClaimsAgain: where its lock has gone with its folder it makes another, but where someone else has.
func TestWatchClaimsAgain(t *testing.T) {
	w := newWatchtower(t, vipA)
	claim, err := w.Agent.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if same, err := w.reclaim(claim); same != claim || err != nil {
		t.Errorf("nothing has happened: %v", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	if claim, err = w.reclaim(claim); err != nil || !w.Agent.watching().Running {
		t.Errorf("its folder was removed: %v", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	other, err := w.Agent.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.reclaim(claim); !errors.Is(err, errWatched) {
		t.Errorf("another one watches: %v", err)
	}
	claim.Close()
	other.Close()
}

// TestAlarmWakesForWhatIsNew: what was not minded yet may have changed since it was looked at.
func TestAlarmWakesForWhatIsNew(t *testing.T) {
	dir := t.TempDir()
	l := linux{conf: sysctl.Tree{Root: dir}}
	s := Setting{Key: allIgnore}
	path := l.conf.Path(s.Key)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("1\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	wakes := make(chan bool, 100)
	mind, closer, err := l.alarm(func() { wakes <- true })
	if err != nil {
		t.Fatal(err)
	}
	defer closer()
	for i, want := range []int{1, 0} {
		if err := mind(Minded{Settings: []Setting{s}, Journal: dir + "/x.json"}); err != nil {
			t.Fatal(err)
		}
		if len(wakes) != want {
			t.Errorf("minded %d times, it woke %d times", i+1, len(wakes))
		}
		for len(wakes) > 0 {
			<-wakes
		}
	}
	if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	<-wakes
}

// TestParsedOnce: what is done to a journal that was read is not in the next one that is read of the same file.
func TestParsedOnce(t *testing.T) {
	w := newWatchtower(t, vipA, vipC)
	disk, err := os.ReadFile(w.journal())
	if err != nil {
		t.Fatal(err)
	}
	var p parsed
	want, err := parseJournal(disk)
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []Edit{Keep, Withhold(vipA.Addr), DropAll, Keep} {
		j, err := p.parse(slices.Clone(disk))
		if err != nil || !reflect.DeepEqual(j, want) {
			t.Fatalf("read %+v, %v; want %+v", j, err, want)
		}
		j.edit(edit, true, vip2nd.Addr)
		j.record(&w.host, []Change{{Stage: Guard, Item: allIgnore, To: "8"}})
		j.forget(sysctl.Key{Iface: "lo", Knob: sysctl.ARPIgnore})
	}
	if _, err := p.parse(disk[:len(disk)/2]); err == nil {
		t.Error("half of it is one too")
	}
}
