package realserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"
)

// A Watcher keeps the managed set true: it makes the run of restart whenever something has moved. It takes nothing off the
// host by itself, but with Withdraw, and leaves all as it is when it ends. Other verbs it neither waits for nor disturbs:
// they hold the lock, and what they make of the journal is what it keeps.
type Watcher struct {
	Agent    *Agent
	Interval time.Duration    // of the poll, which is the truth; what tells of changes may lose some
	Timeout  time.Duration    // for the lock and a run
	Withdraw bool             // a VIP goes whose guard cannot be kept, until it holds again
	Again    <-chan os.Signal // look now, and leave nothing alone any longer
	Log      *slog.Logger
	Beat     time.Duration  // Alive is called once in this time at the least
	Alive    func(Watching) // after each look, with what was found

	now func() time.Time // tests have a clock of their own

	told      Watching // what is known of it
	written   Watching // what its file says
	backoffs  backoffs
	edits     backoff // of edits of its own that could not be made
	care      care
	complaint complaint
	mind      func(Minded) error
	unminded  string // what was last said of what cannot be minded
	kept      Set    // what was managed when it last looked, and what is left of it by a journal that has gone
	bereft    int    // looks in a row that found such
}

// A complaint is what was last said to be wrong.
type complaint struct {
	text string
	at   time.Time
}

const complainAgain = time.Minute // where the same is still wrong

// Run watches until ctx is done. Errors: that another watcher runs in this network namespace, and those of its lock.
func (w *Watcher) Run(ctx context.Context) error {
	if w.now == nil {
		w.now = time.Now
	}
	claim, err := w.Agent.claimWatch()
	if err != nil {
		return err
	}
	defer func() { claim.Close() }()
	w.Log.Info("watching", "interval", w.Interval, "on-guard-loss", map[bool]string{false: "keep", true: "withdraw"}[w.Withdraw])
	journal, err := w.Agent.JournalPath()
	if err != nil {
		return err
	}
	wake := make(chan time.Time, 1)
	mind, closer, err := w.Agent.Kernel.Alarm(func() {
		select {
		case wake <- w.now():
		default: // it has yet to look all the same
		}
	})
	if err != nil {
		w.Log.Error("some changes are seen by polling only", "error", err)
	}
	defer closer()
	w.mind = func(m Minded) error { m.Journal = journal; return mind(m) }
	w.told = Watching{Running: true, PID: os.Getpid(), Since: w.now().UTC().Truncate(time.Second), State: Unknown}
	w.backoffs.most = w.Interval
	for news := w.now(); ; {
		began := w.now()
		rest := w.round(ctx, news)
		w.tell()
		pause(ctx, 4*w.now().Sub(began)) // others are to have most of a processor, however much moves
		select {
		case <-ctx.Done():
			w.Agent.tellWatching(nil) // where that fails, its lock says so
			return nil
		case news = <-wake:
			continue
		case <-w.Again:
			w.backoffs.items = nil
		case <-time.After(min(rest, cmp.Or(w.Beat, rest))):
		}
		news = w.now()
		if claim, err = w.reclaim(claim); err != nil {
			return err
		}
	}
}

// reclaim sees to it that the claim is found where others look for it: its folder may have been removed. Whoever has made
// another since is the watcher now, which is an error.
func (w *Watcher) reclaim(old *os.File) (*os.File, error) {
	if w.Agent.claimed(old) {
		return old, nil
	}
	claim, err := w.Agent.claimWatch()
	if errors.Is(err, errWatched) {
		return old, err
	}
	if err != nil {
		w.Log.Debug("cannot claim the watch again", "error", err)
		return old, nil
	}
	old.Close()
	w.written = Watching{}
	return claim, nil
}

// pause is for a tenth of a second at the most.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(min(d, 100*time.Millisecond)):
	}
}

// tell has its file, and whoever wants to know, say what was found.
func (w *Watcher) tell() {
	if w.Alive != nil {
		w.Alive(w.told.copied())
	}
	if sameTold(w.written, w.told) {
		return
	}
	if err := w.Agent.tellWatching(&w.told); err != nil {
		w.Log.Debug("cannot tell status", "error", err)
		return
	}
	w.written = w.told.copied()
}

func sameTold(a, b Watching) bool {
	return a.State == b.State && a.Error == b.Error && a.Total() == b.Total() && a.Since.Equal(b.Since) && slices.Equal(a.Contended, b.Contended)
}

// round looks, and mends what is to be mended now. news is when something was said to have moved. It returns how long
// nothing is to be done unless something moves.
func (w *Watcher) round(ctx context.Context, news time.Time) time.Duration {
	r, err := w.Agent.Look(Keep)
	if err != nil {
		w.told.State = Unknown
		w.complain("cannot look at the host", err)
		return w.Interval
	}
	now := w.now()
	lost := guardLost(r.Pending)
	w.care.found(lost, now)
	due, then := w.backoffs.due(r.Pending, now)
	if due || len(r.Leaving) > 0 && len(r.Pending) == 0 {
		if r = w.mend(ctx, Keep, false, news); r == nil {
			return w.Interval
		}
		if lost {
			w.care.tried(guardLost(r.Pending), w.now())
		}
		_, then = w.backoffs.due(r.Pending, w.now())
	}
	switch edit, now := w.guardEdit(r), w.now(); {
	case edit == nil:
		w.edits = backoff{}
	case !now.Before(w.edits.until):
		w.edits.leave(true, now, w.Interval)
		if after := w.mend(ctx, edit, true, news); after != nil {
			r = after
		}
	}
	w.found(r)
	if err := w.mind(minded(r)); err == nil {
		w.unminded = ""
	} else if err.Error() != w.unminded {
		w.unminded = err.Error()
		w.Log.Warn("some changes are seen by polling only", "error", err)
	}
	rest := w.Interval
	if w.bereft == 1 { // a stop may just have ended
		rest = min(rest, firstWait)
	}
	for _, t := range []time.Time{then, w.edits.until, w.care.next(r.VIPs, w.Withdraw, w.now())} {
		if !t.IsZero() {
			rest = min(rest, max(t.Sub(w.now()), time.Millisecond))
		}
	}
	return rest
}

// mostSaid bounds the lines about one repair.
const mostSaid = 20

// mend makes a run, and tells of it; nil is that there was none. What comes of an edit of its own is no repair.
func (w *Watcher) mend(ctx context.Context, edit Edit, own bool, news time.Time) *Result {
	within, cancel := context.WithTimeoutCause(ctx, w.Timeout, fmt.Errorf("not done within %s", w.Timeout))
	beating := w.beats(within)
	r, err := w.Agent.Converge(within, edit)
	cancel()
	<-beating
	now := w.now()
	if ctx.Err() != nil {
		err = nil // it was told to end
	}
	if err != nil {
		w.complain("cannot mend", err)
	}
	if r == nil || r.Host == nil {
		return nil
	}
	took, said, undone := now.Sub(news), 0, 0
	for _, c := range r.Changes {
		if c.Outcome != "done" || c.unjudged {
			continue
		}
		word, item := "repaired", c.Item.String()
		if own {
			word = "done"
		} else {
			w.told.count(item)
			w.told.Last = &Repair{now.UTC(), item, c.From, c.To, float64(took.Microseconds()) / 1000}
		}
		if said++; said <= mostSaid {
			w.Log.Warn(word, "item", item, "from", orAbsent(c.From), "to", orAbsent(c.To), "stage", c.Stage.String(), "took", took.Round(10*time.Microsecond))
		}
		if own || !w.backoffs.mended(c.Item, now) {
			continue
		}
		if undone++; undone <= mostSaid {
			w.Log.Warn("something keeps undoing this: it is mended less often now", "item", item, "undone", len(w.backoffs.of(c.Item).mended), "within", contended)
		}
	}
	if said > mostSaid {
		w.Log.Warn("and more", "items", said-mostSaid)
	}
	if undone > mostSaid {
		w.Log.Warn("and more that something keeps undoing", "items", undone-mostSaid)
	}
	for _, c := range r.Pending { // what was to be done, and is not
		w.backoffs.failed(c.Item, now)
	}
	return r
}

// beats calls Alive as often as is asked for, until ctx is done: to wait for the lock takes as long as another verb holds it.
func (w *Watcher) beats(ctx context.Context) (ended <-chan struct{}) {
	done, now := make(chan struct{}), w.told.copied()
	if w.Beat == 0 || w.Alive == nil {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(w.Beat):
				w.Alive(now)
			}
		}
	}()
	return done
}

// found notes how the set fares, and what has come to rest.
func (w *Watcher) found(r *Result) {
	_, w.told.State = r.States()
	err := r.Unserved()
	switch lost := w.lost(r); {
	case err != nil:
		w.complain("cannot be served", err)
	case w.bereft > 1:
		w.complain("bound, and managed no longer", lost)
	case len(r.Pending) == 0 || w.complaint.text != "" && w.backoffs.onlyContended(r.Pending):
		w.complain("", nil)
	}
	ended := w.backoffs.peace(w.now())
	for _, it := range ended[:min(len(ended), mostSaid)] {
		w.Log.Info("nothing undoes this any more", "item", it.String())
	}
	if len(ended) > mostSaid {
		w.Log.Info("and nothing undoes more", "items", len(ended)-mostSaid)
	}
	w.told.Contended = w.backoffs.contested()
}

// lost is about VIPs that it kept, and that no journal names any more though no stop has taken them off: somebody removed that.
func (w *Watcher) lost(r *Result) error {
	if r.Host == nil {
		return nil
	}
	var left Set
	for i, bound := range onHost(w.kept, r.Host) {
		if v := w.kept[i]; bound && !r.VIPs.has(v.Addr) && !slices.Contains(r.Leaving, v.Addr) {
			left = append(left, v)
		}
	}
	if w.kept = slices.Concat(r.VIPs, left).sorted(); len(left) == 0 {
		w.bereft = 0
		return nil
	}
	w.bereft++
	if n := len(left) - 1; n > 0 {
		return fmt.Errorf("%s and %d more: the journal has gone; nobody keeps this host silent about them: run rsagent start for them", left[0].Addr, n)
	}
	return fmt.Errorf("%s: the journal has gone; nobody keeps this host silent about it: rsagent start %s", left[0].Addr, left[0].flags())
}

// complain says what is wrong once, and again each minute while it is; with no error, that it is over.
func (w *Watcher) complain(message string, err error) {
	text := ""
	if err != nil {
		text = message + ": " + err.Error()
	}
	w.told.Error = text
	switch {
	case text == "" && w.complaint.text != "":
		w.Log.Info("all is well again", "was", w.complaint.text)
	case text != "" && (text != w.complaint.text || w.now().Sub(w.complaint.at) >= complainAgain):
		w.Log.Error(message, "error", err)
	default:
		return
	}
	w.complaint = complaint{text, w.now()}
}
