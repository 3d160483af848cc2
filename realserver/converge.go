package realserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"rsagent/tunnel"
)

const additions = 1<<Create | 1<<Guard | 1<<Bind

// A run is one verb on its way.
type run struct {
	*Result
	agent   *Agent
	store   *store
	journal *Journal
	before  Journal          // as it was before the edit
	allowed int              // stages that may run, as bits
	first   *Host            // as it was found
	ran     [PutBack + 1]int // how often each stage ran
	unsaved bool             // the journal could not be written: nothing more may be changed
	err     error
}

// Converge makes the host hold exactly the set that edit makes of the managed one: look, plan, do the
// first stage that has anything to do, and look again, until nothing is left. given are VIPs that go
// if the set does not hold them.
//
// Where an addition fails, what the verb added leaves the set again by the same path, and only
// withdrawing and putting back go on: rollback is an edit too. When ctx is done, the verb ends between
// two stages: additions go back, removals roll forward.
//
// Errors: *JournalError, ErrRefused, ErrInterrupted, tunnel.ErrUnsupported, and what the kernel says,
// fs.ErrPermission among it.
func (a *Agent) Converge(ctx context.Context, edit Edit, given ...netip.Addr) (*Result, error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	st, j, stale, err := a.openStore()
	if err != nil {
		return nil, err
	}
	r := &run{Result: &Result{Before: j.VIPs}, agent: a, store: st, journal: j, before: *j,
		allowed: 1<<Withdraw | additions | 1<<PutBack}
	j.edit(edit, a.Blackhole, given...)
	if err := r.look(); err != nil {
		return r.Result, err
	}
	r.first = r.Host
	own := ownAddresses(j.VIPs.without(r.Before), r.Host)
	said := append(opening(j, r.Host, r.Pending, stale), own...)
	if len(own) > 0 {
		r.refuse(refused(own))
	}
	for r.step(ctx) {
		if err := r.look(); err != nil {
			r.Blind = true
			return r.Result, errors.Join(r.err, err)
		}
	}
	r.Findings = append(said, r.Findings...)
	if !r.unsaved {
		j.settle(r.Host, r.Pending)
		r.VIPs, r.Leaving, r.entries = j.VIPs, j.Leaving, j.Changed
		r.err = errors.Join(r.err, st.save(j))
	}
	return r.Result, r.err
}

func (r *run) look() error {
	h, err := r.agent.Kernel.look(r.journal.also())
	if err != nil {
		return err
	}
	r.Host = h
	r.journal.follow(h)
	r.journal.pin(h)
	r.journal.claim(h)
	r.journal.adopt(h)
	r.view(r.journal)
	return nil
}

// step does the first stage that has work. It returns false when nothing is left that may be done.
func (r *run) step(ctx context.Context) bool {
	if r.err == nil {
		if err := r.refusal(r.news); err != nil {
			r.refuse(err)
			return true
		}
		if ctx.Err() != nil && r.todo() != nil {
			r.fail(fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx)))
			return true
		}
	}
	todo := r.todo()
	if len(todo) == 0 {
		return false
	}
	if c := r.tooOften(todo); c != nil {
		r.failStage(c.Stage, fmt.Errorf("%s does not hold: it was set to %s and is %s again", c.Item, orAbsent(c.To), orAbsent(c.From)))
		return true
	}
	r.journal.record(r.Host, todo)
	if err := r.store.save(r.journal); err != nil && !r.store.suffices(r.journal, r.Host, err) { // what cannot be noted is not done
		r.unsaved, r.err = true, errors.Join(r.err, err)
		return false
	}
	var failed error
	for i, err := range r.agent.Kernel.Do(ctx, r.Host, todo) {
		switch {
		case err == nil:
			todo[i].Outcome = "done"
		case errors.Is(err, errSkipped):
			todo[i].Outcome = "skipped"
		default:
			todo[i].Outcome = "failed"
			if errors.Is(err, tunnel.ErrFallback) {
				r.journal.forget(todo[i].Item)
			} else if !todo[i].unjudged {
				failed = errors.Join(failed, err)
			}
		}
	}
	r.Changes = append(r.Changes, todo...)
	if failed != nil {
		r.failStage(todo[0].Stage, failed)
	}
	return true
}

// todo is the first stage of the plan that may run and has work. Once an addition has failed,
// nothing is bound any more; but a second copy of a VIP that is bound may go.
func (r *run) todo() []Change {
	may := func(c Change) bool {
		return !c.later && (r.allowed&(1<<c.Stage) != 0 || c.Stage == Bind && c.copy && r.allowed != 0)
	}
	first := slices.IndexFunc(r.Pending, may)
	if first < 0 {
		return nil
	}
	stage := r.Pending[first].Stage
	var todo []Change
	for i, c := range r.Pending {
		if c.Stage != stage || !may(c) {
			continue
		}
		if todo == nil {
			todo = make([]Change, 0, len(r.Pending)-i)
		}
		todo = append(todo, c)
	}
	return todo
}

// failStage is a failure in a stage. What cannot be taken away, or put back, stays in the journal
// for the next verb; a VIP that is still there keeps its guard.
func (r *run) failStage(s Stage, err error) {
	switch {
	case 1<<s&additions != 0 && r.allowed&additions != 0:
		r.fail(err)
		return
	case s == PutBack:
		r.allowed &^= 1 << PutBack
		r.err = errors.Join(r.err, err)
	default:
		r.fail(err)
		r.allowed = 0
	}
}

// refuse ends a verb that cannot be. Where nothing has been changed yet it is as if it had not been
// called: what it was to take out stays too. But a verb that was killed before is finished.
func (r *run) refuse(err error) {
	if len(r.Changes) > 0 {
		r.fail(err)
		return
	}
	r.err = errors.Join(r.err, err)
	r.allowed &^= additions
	changed := r.journal.Changed
	*r.journal = r.before
	r.journal.Changed = changed // follow has brought it up to date
	r.view(r.journal)
}

// fail ends adding: the set becomes what it was, without what the verb took out. A VIP that the verb
// had put on the host leaves; one that someone else had bound before stays, without the copy that the
// verb put beside.
func (r *run) fail(err error) {
	r.err = errors.Join(r.err, err)
	r.allowed &^= additions
	j := r.journal
	var gone []netip.Addr
	added := j.VIPs.without(r.Before)
	found, placed := onHost(added, r.first), inPlace(added, r.first)
	for i, v := range added {
		if !found[i] {
			gone = append(gone, v.Addr)
		} else if !placed[i] {
			j.Undo = append(j.Undo, Copy{v.Addr, v.On()})
		}
	}
	kept := j.VIPs
	j.VIPs = slices.DeleteFunc(slices.Clone(r.Before), func(v VIP) bool { return !kept.has(v.Addr) })
	for i := range j.VIPs { // withheld is as good as taken out
		v := &j.VIPs[i]
		v.Withheld = v.Withheld || kept.get(v.Addr).Withheld
	}
	j.leave(gone...)
	r.view(j)
}

// tooOften finds what is about to be set a fourth time in this run: something else sets it back.
func (r *run) tooOften(todo []Change) *Change {
	if r.ran[todo[0].Stage]++; r.ran[todo[0].Stage] <= 3 {
		return nil
	}
	count := map[Item]int{}
	for _, c := range r.Changes {
		count[c.Item]++
	}
	for i, c := range todo {
		if count[c.Item] >= 3 {
			return &todo[i]
		}
	}
	return nil
}
