package realserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rsagent/tunnel"
)

// ErrRefused says that the host is set up such that a VIP must not be, or cannot be, served by it.
var ErrRefused = errors.New("refused")

// ErrMisuse says that an option makes no sense on this host, and wraps ErrRefused. Nothing was touched.
var ErrMisuse = fmt.Errorf("bad option: %w", ErrRefused)

// ErrUnsupported says that the kernel lacks what a VIP's mode needs.
var ErrUnsupported = tunnel.ErrUnsupported

// ErrMayNotLoad says that what a VIP's mode needs is there, and this process has not the right to load it.
var ErrMayNotLoad = tunnel.ErrMayNotLoad

// ErrInterrupted says that a verb was told to end before it was done. Additions were taken back.
var ErrInterrupted = errors.New("interrupted")

// A Kernel is all that is asked of the kernel, and of the host around it. It is a struct of functions, so
// that a fake one is a value.
type Kernel struct {
	// Look observes the host. What it returns is complete, or it is an error.
	Look func(Also) (*Host, error)
	// Do makes changes of one stage, in order, on the host as looked at. It returns an error for
	// each; after a failure the rest is errSkipped, except in PutBack, where each is tried.
	Do func(context.Context, *Host, []Change) []error
	// Around looks at what surrounds the set, for Check. It writes nothing, and tells itself what it could not see.
	Around func(*Host, Around) *Surroundings
}

// Also is what a look takes in only if asked: it costs, and few sets of VIPs have to do with it.
type Also struct {
	Found  bool // rsagent's nftables tables, where that can be told: the kernel has nf_tables, and this process may ask
	Tables bool // rsagent's nftables tables, and whether this host is a director itself
	Proxy  bool // IPv6 addresses for which this host is an NDP proxy
	Routes bool // blackhole routes: a router has many routes
	Ports  bool // UDP ports, open for GUE or in use
	Tunnel bool // which modules of tunnels are there
}

var errSkipped = errors.New("not tried")

// look is Look, taken again where it failed for a reason that passes: in the middle of a verb, all that is left to do
// without a look is to stop where it is.
func (k Kernel) look(also Also) (h *Host, err error) {
	for range 3 {
		h, err = k.Look(also)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return h, err
}

// An Agent brings one network namespace, that of the calling thread, to what is asked.
type Agent struct {
	Kernel   Kernel
	StateDir string // holds the journal and the lock

	// Blackhole has stop leave a blackhole route for each VIP that it takes out. The next start of
	// the VIP removes it, and so does a stop of the VIP without it.
	Blackhole bool

	// Probe has Check ask the neighbours whose the VIPs are, which takes a second and CAP_NET_RAW.
	Probe bool

	moved   func() // see store
	replace func(path string, b []byte) error
}

// A Result is what was found and done. It is complete on failure too.
type Result struct {
	Before   Set      // managed when the verb began
	VIPs     Set      // managed now, or for Look: as they would be
	Host     *Host    // as last looked at
	Pending  []Change // what the last look still wanted
	Changes  []Change // what was done, or tried
	Findings []Finding
	Leaving  []netip.Addr // VIPs on their way out, not yet seen gone
	Blind    bool         // the last look failed: what became of the last changes is unknown
}

// Look compares the host with the set that edit makes of the managed one, and changes nothing: it is
// status with Keep, and --dry-run with any other edit. given are VIPs that go if the set does not
// hold them. Errors: *JournalError; a refusal (ErrRefused), with a complete result.
func (a *Agent) Look(edit Edit, given ...netip.Addr) (*Result, error) {
	return a.observe(edit, false, given...)
}

// observe is Look. To judge, a table that nobody knows is found and no work left.
func (a *Agent) observe(edit Edit, judge bool, given ...netip.Addr) (*Result, error) {
	_, j, stale, err := a.openStore()
	if err != nil {
		return nil, err
	}
	r := &Result{Before: j.VIPs}
	j.edit(edit, a.Blackhole, given...)
	also := j.also()
	also.Found = also.Found || judge
	if r.Host, err = a.Kernel.look(also); err != nil {
		return nil, err
	}
	j.follow(r.Host)
	j.pin(r.Host)
	j.claim(r.Host)
	if !judge {
		j.adopt(r.Host)
	}
	r.view(j)
	r.Findings = append(r.Findings, orphaned(j, r.Host)...)
	own := ownAddresses(j.VIPs.without(r.Before), r.Host)
	if len(own) > 0 { // that it is on a NIC is then no other thing, and its cure would cut the host off
		r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Code == "vip-on-nic" })
	}
	r.Findings = slices.Concat(opening(j, r.Host, r.Pending, stale), own, r.Findings)
	return r, r.refusal(r.news)
}

// view is what the last look says.
func (r *Result) view(j *Journal) {
	r.VIPs, r.Leaving = j.VIPs, j.Leaving
	r.Pending, r.Findings = plan(j, r.Host)
}

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
		r.VIPs, r.Leaving = j.VIPs, j.Leaving
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

// news are the VIPs that the verb brought, or gave other options.
func (r *Result) news() (out Set) {
	for _, v := range r.VIPs {
		if old := r.Before.get(v.Addr); old == nil || !reflect.DeepEqual(old.asks(), v.asks()) {
			out = append(out, v)
		}
	}
	return out
}

// Unserved is an error, wrapping ErrRefused, where the host is set up such that some of these VIPs
// cannot be served; with none given, some of the set.
func (r *Result) Unserved(vips ...VIP) error {
	if len(vips) == 0 {
		vips = r.VIPs
	}
	return r.refusal(func() Set { return vips })
}

// refusal asks for the VIPs only where something is to be refused.
func (r *Result) refusal(vips func() Set) error {
	if !incomplete(r.Findings) {
		return nil
	}
	set := vips()
	return refused(slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return !slices.ContainsFunc(set, f.concerns) }))
}

// refused makes an error of findings: one line, however many.
func refused(finds []Finding) error {
	var words []string
	for _, f := range finds {
		if f.Cure != "" {
			f.Message += " (cure: " + f.Cure + ")"
		}
		words = append(words, f.Message)
	}
	if len(words) == 0 {
		return nil
	}
	kind := ErrRefused
	if !slices.ContainsFunc(finds, func(f Finding) bool { return f.Code != noARP }) {
		kind = ErrMisuse
	}
	return fmt.Errorf("%w: %s", kind, strings.Join(slices.Compact(words), "; "))
}
