package realserver

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"rsagent/loopback"
)

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
