package realserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A bad kernel fails calls with an error of its own: the numbers of the looks and of the writes that fail, from 1.
type bad struct {
	err        error
	look, do   int // the first that fails; 0 is none
	times      int // how many in a row
	looks, dos int
}

func (k *bad) due(n, first int) bool { return first > 0 && n >= first && n < first+k.times }

// run is converge with a kernel that fails.
func (b *bench) run(k *bad, e Edit) (*Result, error) {
	b.fail = func(Change) error {
		if k.dos++; k.due(k.dos, k.do) {
			return k.err
		}
		return nil
	}
	defer func() { b.fail = nil }()
	look := func(also Also) (*Host, error) {
		if k.looks++; k.due(k.looks, k.look) {
			return nil, fmt.Errorf("list addresses: %w", k.err)
		}
		return b.look(also)
	}
	a := &Agent{Kernel: Kernel{Look: look, Do: b.do}, StateDir: b.dir, moved: b.write}
	return a.Converge(context.Background(), e)
}

// TestKernelErrors lets each look and each change of start and stop fail in turn, as a netlink socket does: once, or from
// then on. Nothing leaks; the error is told; the next verb of either kind ends as if nothing had been.
func TestKernelErrors(t *testing.T) {
	host := base{allAnnounce: 0, tun: tunDown, allRP: 1}
	b := newBench(t)
	faults := 0
	for _, errno := range []error{unix.EINTR, unix.ENOBUFS, unix.EBUSY, unix.ENOMEM} {
		for _, times := range []int{1, 1000} {
			for _, before := range []Edit{nil, Add(vipA, vipB)} {
				for _, next := range []Edit{Add(vipA, vipB), DropAll} {
					for n := 1; ; n++ {
						looks, err := b.kernelError(host, bad{err: errno, look: n, times: times}, before, next)
						dos, err2 := b.kernelError(host, bad{err: errno, do: n, times: times}, before, next)
						if err = errors.Join(err, err2); err != nil {
							t.Fatalf("%v, %d times from number %d, VIPs before: %t: %v", errno, times, n, before != nil, err)
						}
						if !looks && !dos {
							break
						}
						faults++
					}
				}
			}
		}
	}
	t.Logf("%d faults", faults)
}

// kernelError starts VIPs where none are managed, or else stops them; reached says that the fault was met.
func (b *bench) kernelError(host base, k bad, before, next Edit) (reached bool, err error) {
	b.on(host.kernel())
	verb := Add(vipA, vipB)
	if before != nil {
		if _, err, _ := b.converge(before); err != nil {
			return false, err
		}
		verb = DropAll
	}
	_, err = b.run(&k, verb)
	reached = k.looks >= k.look && k.look > 0 || k.dos >= k.do && k.do > 0
	if reached && err == nil && k.times > 1 {
		return reached, errors.New("it failed, and nothing was said")
	}
	if err != nil && (!errors.Is(err, k.err) || !reached) {
		return reached, fmt.Errorf("the error is %w", err)
	}
	if _, err, _ := b.converge(next); err != nil {
		return reached, fmt.Errorf("the next verb: %w", err)
	}
	var want Set
	if want = next(want); len(want) > 0 {
		if err := b.bound(host, want); err != nil {
			return reached, fmt.Errorf("after the next verb: %w", err)
		}
		if _, err, _ := b.converge(DropAll); err != nil {
			return reached, fmt.Errorf("the last stop: %w", err)
		}
	}
	if len(b.leaks) > 0 {
		return reached, fmt.Errorf("leak: %v", b.leaks)
	}
	return reached, b.restored(host)
}

// TestLookAgain: a look that fails once is taken again, so that a start whose VIPs are bound does not end as a failure.
func TestLookAgain(t *testing.T) {
	host := base{tun: tunDown, allRP: 1}
	b := newBench(t)
	for n := 1; n < 20; n++ {
		b.on(host.kernel())
		k := bad{err: unix.ENOBUFS, look: n, times: 1}
		r, err := b.run(&k, Add(vipA, vipB))
		if err != nil || len(r.VIPs) != 2 {
			t.Fatalf("look %d failed once: %v", n, err)
		}
		if k.looks < n {
			return
		}
	}
	t.Error("never without a fault")
}

// TestFirstJournalCut: a start killed while it wrote its first journal leaves a part of one, which nobody reads. The next
// verb removes it, also where it has nothing else to do.
func TestFirstJournalCut(t *testing.T) {
	b := newBench(t)
	b.on(base{}.kernel())
	must(t, os.WriteFile(b.journal()+".new", []byte(`{"version":`), 0o600))
	if _, err, _ := b.converge(DropAll); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(b.dir, "*"))
	for _, f := range left {
		if !strings.HasSuffix(f, ".lock") {
			t.Errorf("left behind: %s", f)
		}
	}
}
