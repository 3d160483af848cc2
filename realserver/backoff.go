package realserver

import (
	"slices"
	"time"
)

// How a watcher treats what does not stay mended.
const (
	contention = 5                      // times in a minute that an item may be undone before it is contended
	firstWait  = 100 * time.Millisecond // before what is contended, or cannot be mended, is tried again; doubled each time
	contended  = time.Minute            // over which that is counted
)

// A backoff is how long one item is left alone, which something else keeps undoing or which cannot be mended.
type backoff struct {
	mended    []time.Time // within the last minute
	wait      time.Duration
	until     time.Time // it is left alone
	drifted   time.Time // last found so
	contended bool
}

// backoffs are those of all items that drifted of late.
type backoffs struct {
	most  time.Duration // of a wait
	items map[Item]*backoff
}

func (b *backoffs) of(it Item) *backoff {
	if b.items == nil {
		b.items = map[Item]*backoff{}
	}
	if b.items[it] == nil {
		b.items[it] = &backoff{}
	}
	return b.items[it]
}

// due says whether one of the changes is to be made now, and if none is, when the first will be; a zero time is never.
func (b *backoffs) due(changes []Change, now time.Time) (is bool, then time.Time) {
	for _, c := range changes {
		if c.later {
			continue
		}
		x := b.of(c.Item)
		if x.drifted = now; !now.Before(x.until) {
			is = true
		} else if then.IsZero() || x.until.Before(then) {
			then = x.until
		}
	}
	return is, then
}

// mended notes that an item was set right, again: fresh says that by this it has become contended.
func (b *backoffs) mended(it Item, now time.Time) (fresh bool) {
	x := b.of(it)
	x.drifted = now
	x.mended = slices.DeleteFunc(append(x.mended, now), func(t time.Time) bool { return now.Sub(t) > contended })
	if fresh = !x.contended && len(x.mended) > contention; fresh {
		x.contended, x.wait = true, 0
	}
	x.leave(x.contended, now, b.most)
	return fresh
}

// failed notes that an item could not be set right.
func (b *backoffs) failed(it Item, now time.Time) {
	x := b.of(it)
	x.drifted = now
	x.leave(true, now, b.most)
}

// leave has the item left alone, twice as long as the last time, or else not at all.
func (x *backoff) leave(alone bool, now time.Time, most time.Duration) {
	if alone {
		x.wait = min(max(2*x.wait, firstWait), most)
	} else {
		x.wait = 0
	}
	x.until = now.Add(x.wait)
}

// peace forgets what has held for a minute, and returns what of it was contended.
func (b *backoffs) peace(now time.Time) (ended []Item) {
	for it, x := range b.items {
		if now.Sub(x.drifted) <= max(contended, 2*x.wait) {
			continue
		}
		if x.contended {
			ended = append(ended, it)
		}
		delete(b.items, it)
	}
	return ended
}

// onlyContended says that all that is to be changed is left alone because something else keeps undoing it.
func (b *backoffs) onlyContended(changes []Change) bool {
	return !slices.ContainsFunc(changes, func(c Change) bool { return !b.of(c.Item).contended })
}

// contested are the items that something else keeps undoing, by name.
func (b *backoffs) contested() (names []string) {
	for it, x := range b.items {
		if x.contended {
			names = append(names, it.String())
		}
	}
	slices.Sort(names)
	return names
}
