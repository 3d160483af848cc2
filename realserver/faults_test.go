package realserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/loopback"
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
	a := &Agent{Kernel: Kernel{Look: look, Do: b.do}, StateDir: b.dir, moved: b.write, here: testPlace}
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

// TestFullDisk: a stop of everything needs no room for a note of what it does, also where it is killed: a stop ends it then,
// and any other verb finds its VIPs managed, or nothing. Every other verb that has something to do fails, and does nothing.
func TestFullDisk(t *testing.T) {
	kills := 0
	b := newBench(t)
	for i, host := range sample(t, bases()) {
		before := []Edit{Add(vipA, vipB), Add(vipAeth)}[i%2]
		for _, next := range []Edit{DropAll, Keep} {
			for at := 1; ; at++ {
				dead, err := b.stopFull(host, before, next, at)
				if err != nil {
					t.Fatalf("%+v, killed at write %d: %v", host, at, err)
				}
				if !dead {
					break
				}
				kills++
			}
		}
		for name, verb := range map[string]Edit{"start": Add(vipC), "stop of one": Drop(vipA.Addr), "move": Add(vipAtun), "stop beside a neighbour": DropAll} {
			if err := b.refusedFull(host, verb); err != nil && (host.hand < 2 || name != "stop beside a neighbour") { // it was the first
				t.Fatalf("%s on %+v: %v", name, host, err)
			}
		}
	}
	t.Logf("%d kills", kills)
}

// stopFull stops everything where there is no room, killed at a write or not; then there is room, and the next verb.
func (b *bench) stopFull(host base, before, next Edit, at int) (dead bool, err error) {
	b.on(host.kernel())
	if _, err, _ := b.converge(before); err != nil {
		return false, err
	}
	b.full, b.writes, b.killAt = true, 0, at
	_, err, dead = b.converge(DropAll)
	b.full, b.killAt = false, 0
	if err != nil {
		return dead, fmt.Errorf("stop: %w", err)
	}
	if !dead {
		if _, err := os.Stat(b.journal()); err == nil {
			return dead, errors.New("stop left a journal")
		}
		if err := b.restored(host); err != nil {
			return dead, fmt.Errorf("after stop: %w", err)
		}
	}
	r, err, _ := b.converge(next)
	if err != nil {
		return dead, fmt.Errorf("the next verb: %w", err)
	}
	if err := b.bound(base{}, r.VIPs); err != nil {
		return dead, fmt.Errorf("after the next verb: %w", err)
	}
	if _, err, _ := b.converge(DropAll); err != nil {
		return dead, fmt.Errorf("the last stop: %w", err)
	}
	if len(b.leaks) > 0 {
		return dead, fmt.Errorf("leak: %v", b.leaks)
	}
	return dead, b.restored(host)
}

// refusedFull is a verb that would have something new to note: were it only that a wide copy of a VIP, which someone put
// beside it, cannot go alone without a setting.
func (b *bench) refusedFull(host base, verb Edit) error {
	b.on(host.kernel())
	if _, err, _ := b.converge(Add(vipA, vipB)); err != nil {
		return err
	}
	b.addAddr(loopback.Addr{Device: "lo", Prefix: netip.PrefixFrom(vipA.Addr, 24)}, "host")
	b.addAddr(loopback.Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.78/24")}, "host")
	was, _ := b.look(Also{})
	journal, _ := os.ReadFile(b.journal())
	b.full = true
	r, err, _ := b.converge(verb)
	b.full = false
	now, _ := b.look(Also{})
	left, _ := os.ReadFile(b.journal())
	if !errors.Is(err, unix.ENOSPC) || len(r.Changes) > 0 || !reflect.DeepEqual(was, now) || string(journal) != string(left) {
		return fmt.Errorf("%w, changes %v\nwas %+v\nis  %+v", err, r.Changes, was, now)
	}
	return nil
}
