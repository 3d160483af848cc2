package hostile

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// errnos are what a kernel may answer that is short of something, or has been told to refuse.
var errnos = []unix.Errno{unix.EINTR, unix.ENOBUFS, unix.EBUSY, unix.ENOSPC, unix.EPERM, unix.EIO, unix.ENOMEM}

// A fault is a call that fails, by its number.
type fault struct {
	number int
	errno  unix.Errno
	stop   bool // what follows is a stop
}

// TestFaults lets each call that writes fail once. The verb then gets by without it, or fails with one line; a start that
// failed has bound nothing. Nothing is answered for, a start that follows ends up, a stop that follows ends where the host
// was.
func TestFaults(t *testing.T) {
	t.Parallel()
	if !canFail {
		testnet.Skip(t, "no means to let a call fail on this architecture")
	}
	total, failed := 0, 0
	for i, n := range []int{1, 3} {
		for j, v := range victims(n) {
			t.Run(fmt.Sprintf("%s/%d", v.name, n), func(t *testing.T) {
				s := newSite(t, "dr")
				down := s.baseline()
				calls := s.watched(v, down)
				var all []fault
				for number := range len(calls) {
					for k, errno := range errnos {
						all = append(all, fault{number + 1, errno, k%2 == 0})
					}
				}
				for _, f := range sampled(all, stride(t, 41), uint64(10*i+j+200)) {
					code, err := s.faulted(v, f, down)
					if err != nil {
						t.Fatalf("%s of %d VIPs, call %d, which is %q, fails with %v: %v", v.name, n, f.number, calls[f.number-1], f.errno, err)
					}
					if total++; code != 0 {
						failed++
					}
				}
			})
		}
	}
	t.Logf("%d faults, of which %d were failures of the verb", total, failed)
}

func (s *site) faulted(v victim, f fault, down testnet.Snapshot) (code int, err error) {
	v.prepare(s)
	end, err := Trace(s.rs, s.state, v.verb(s), f.at)
	if err != nil {
		return 0, err
	}
	if err := s.answer(v, end, down); err != nil {
		return 0, fmt.Errorf("exit %d: %w\n%s%s", end.Code, err, end.Stdout, end.Stderr)
	}
	return end.Code, s.afterwards(v, f.stop, down)
}

// answer judges what a verb says, and whether that is so.
func (s *site) answer(v victim, end End, down testnet.Snapshot) error {
	switch lines := strings.Count(end.Stderr, "\n"); {
	case end.Code != 0 && end.Code != 1 && end.Code != 4, (end.Code == 0) != (lines == 0), lines > 1:
		return fmt.Errorf("not one line and a code of a failure")
	case end.Code == 0 && v.name == "stop":
		return s.as(down)
	case end.Code == 0:
		return s.up(v.vips)
	case v.name == "start" && len(s.bound(v.all)) > 0:
		return fmt.Errorf("a start that failed has bound %v", s.bound(v.all))
	}
	return nil
}

// TestSecondBatchFails: of seventy VIPs, which travel to the kernel in two batches, the second is refused. All or nothing:
// those of the first go again.
func TestSecondBatchFails(t *testing.T) {
	t.Parallel()
	if !canFail {
		testnet.Skip(t, "no means to let a call fail on this architecture")
	}
	s := newSite(t, "dr")
	down := s.baseline()
	many := vips(70)
	v := victim{"start", many, many, func(*site) {}, func(s *site) []string { return s.start(many) }}
	calls := s.watched(v, down)
	if !strings.HasPrefix(calls[len(calls)-2], "netlink ") {
		t.Fatalf("not two batches: %v", calls)
	}
	for _, errno := range errnos {
		code, err := s.faulted(v, fault{len(calls), errno, errno%2 == 0}, down)
		if errno == unix.EINTR && code == 0 {
			continue // it is sent again
		}
		if err != nil || code == 0 {
			t.Errorf("%v: exit %d, %v", errno, code, err)
		}
	}
}

// TestAnswersLost: the socket fails where an answer is to be received, and the answer may still come, to the next question.
// A verb asks again, or fails with one line; never does it take an answer for another one.
func TestAnswersLost(t *testing.T) {
	t.Parallel()
	if !canFail {
		testnet.Skip(t, "no means to let a call fail on this architecture")
	}
	total, failed := 0, 0
	for i, v := range victims(3) {
		s := newSite(t, "dr")
		down := s.baseline()
		for k, f := range s.lost(v, down, uint64(i)) {
			code := 0
			v.prepare(s)
			end, err := TraceAnswers(s.rs, v.verb(s), f.at)
			if err == nil {
				code, err = end.Code, s.answer(v, end, down)
			}
			if err == nil {
				err = s.afterwards(v, k%2 == 0, down)
			}
			if err != nil {
				t.Fatalf("%s: answer %d is lost with %v: exit %d: %v\n%s%s", v.name, f.number, f.errno, end.Code, err, end.Stdout, end.Stderr)
			}
			if total++; code != 0 {
				failed++
			}
		}
	}
	t.Logf("%d answers lost, %d failures of the verb", total, failed)
}

// at lets the call fail of that number.
func (f fault) at(c Call) Action {
	if c.Number == f.number && !c.After {
		return Action{Errno: f.errno}
	}
	return GoOn
}

// lost are the faults of a verb's answers.
func (s *site) lost(v victim, down testnet.Snapshot, seed uint64) (all []fault) {
	s.t.Helper()
	v.prepare(s)
	end, err := TraceAnswers(s.rs, v.verb(s), func(Call) Action { return GoOn })
	if err == nil {
		err = s.finish(v, down, true)
	}
	if err != nil || len(end.Calls) < 4 {
		s.t.Fatalf("%s: %v, %d answers", v.name, err, len(end.Calls))
	}
	for n := range end.Calls {
		all = append(all, fault{n + 1, unix.ENOBUFS, false}, fault{n + 1, unix.EINTR, false})
	}
	return sampled(all, stride(s.t, 7), seed)
}
