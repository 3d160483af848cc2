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
	// Alarm calls wake when something moves on the host, for a watcher, from any goroutine. mind tells it what to mind
	// beside interfaces and addresses; what it cannot mind is an error, of Alarm and of mind. closer ends it.
	Alarm func(wake func()) (mind func(Minded) error, closer func(), err error)
	// Connections lists those of TCP to VIPs that would be cut if these went. It writes nothing.
	Connections func(vips []netip.Addr) ([]Connection, error)
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
func (k Kernel) look(also Also) (*Host, error) {
	return again(func() (*Host, error) { return k.Look(also) })
}

// again asks up to three times, where the kernel could not answer for a reason that passes.
func again[T any](ask func() (T, error)) (x T, err error) {
	for range 3 {
		x, err = ask()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return x, err
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
	here    where // where this is; the zero value is asked of the kernel
	last    parsed
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

	entries []Entry // of the journal
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
	r.VIPs, r.Leaving, r.entries = j.VIPs, j.Leaving, j.Changed
	r.Pending, r.Findings = plan(j, r.Host)
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
