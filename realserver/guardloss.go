package realserver

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// When a guard is given up (watch --on-guard-loss withdraw), and when it is trusted again.
const (
	guardTries = 3                // repairs that failed, or did not hold for guardTrust
	guardHolds = time.Second      // for which it is lost, or being lost again and again
	guardTrust = 10 * time.Second // for which it holds before VIPs come back
)

// A care is how the guard of the managed set fares.
type care struct {
	lost   time.Time // when it was lost, in this run of losses
	good   time.Time // since when it holds; zero: it does not
	failed int       // repairs in this run of losses that failed, or did not hold
}

// found notes what a look says, before anything is done.
func (c *care) found(lost bool, now time.Time) {
	switch {
	case !lost && c.good.IsZero():
		c.good = now
	case lost && !c.good.IsZero():
		if now.Sub(c.good) < guardTrust && !c.lost.IsZero() {
			c.failed++
		} else {
			c.lost, c.failed = now, 0
		}
		c.good = time.Time{}
	case lost && c.lost.IsZero():
		c.lost = now
	}
}

// tried notes what a repair of it came to.
func (c *care) tried(lost bool, now time.Time) {
	if lost {
		c.failed++
	} else {
		c.good = now
	}
}

func (c *care) hopeless(now time.Time) bool {
	return c.failed >= guardTries && now.Sub(c.lost) >= guardHolds
}

func (c *care) trusted(now time.Time) bool {
	return !c.good.IsZero() && now.Sub(c.good) >= guardTrust
}

// next is when the guard is to be judged again: given up, or trusted; zero is that it has been, or that something has to move first.
func (c *care) next(s Set, withdraw bool, now time.Time) time.Time {
	switch {
	case slices.ContainsFunc(s, func(v VIP) bool { return v.Withheld }) && !c.good.IsZero() && !c.trusted(now):
		return c.good.Add(guardTrust)
	case withdraw && c.good.IsZero() && c.failed >= guardTries && !c.hopeless(now):
		return c.lost.Add(guardHolds)
	}
	return time.Time{}
}

func guardLost(p []Change) bool { return slices.ContainsFunc(p, Change.arpGuard) }

// guardEdit is what the state of the guard asks for; nil is nothing.
func (w *Watcher) guardEdit(r *Result) Edit {
	now, again := w.now(), w.edits.wait > 0 // it has been said
	switch {
	case w.care.trusted(now) && slices.ContainsFunc(r.VIPs, func(v VIP) bool { return v.Withheld }):
		if !again {
			w.Log.Warn("the guard holds again: VIPs withheld come back", "for", guardTrust)
		}
		return Release
	case w.Withdraw && w.care.good.IsZero() && w.care.hopeless(now):
		gone := unguardedVIPs(r)
		if len(gone) == 0 {
			return nil
		}
		if !again {
			w.Log.Error("the guard cannot be kept: VIPs are withheld", "vips", names(gone), "lost", now.Sub(w.care.lost).Round(time.Millisecond), "repairs", w.care.failed)
		}
		return Withhold(gone...)
	}
	return nil
}

// unguardedVIPs are those on the host that a guard lost leaves open: not where the VIP is on a NIC as well, which answers
// for it in any case.
func unguardedVIPs(r *Result) (out []netip.Addr) {
	bound, nics := onHost(r.VIPs, r.Host), r.Host.onNICs()
	d := driftOf(slices.DeleteFunc(slices.Clone(r.Pending), func(c Change) bool { return !c.arpGuard() }), nil)
	for i, v := range r.VIPs {
		if bound[i] && !v.Withheld && d.touches(v) && len(nics[v.Addr]) == 0 {
			out = append(out, v.Addr)
		}
	}
	return out
}

func names(addrs []netip.Addr) string {
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, ",")
}
