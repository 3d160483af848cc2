package hostile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// A victim is a verb that is to be killed, on a host prepared for it.
type victim struct {
	name    string
	vips    []string // that a start afterwards brings up
	all     []string // and those that may be on the host too
	prepare func(*site)
	verb    func(*site) []string
}

// victims: start from nothing; stop of all; restart of what others took away, guard and VIPs; reload from one config to
// another, where the first VIP goes, a new one comes, and those between stay.
func victims(n int) []victim {
	old, all := vips(n), vips(n+1)
	next := all[1:]
	started := func(s *site) { s.must(0, s.start(old)) }
	return []victim{
		{"start", old, old, func(*site) {}, func(s *site) []string { return s.start(old) }},
		{"stop", old, old, started, func(s *site) []string { return s.args("stop") }},
		{"restart", old, old, func(s *site) {
			started(s)
			for _, a := range old {
				s.rs.Run(s.t, "ip", "addr", "del", a+"/32", "dev", s.device())
			}
			s.rs.SetIPv4Conf(s.t, "all", "arp_ignore", "0")
		}, func(s *site) []string { return s.args("restart") }},
		{"reload", next, all, func(s *site) {
			s.configure(old)
			s.must(0, s.args("start", "--config", s.config))
			s.configure(next)
		}, func(s *site) []string { return s.args("reload", "--config", s.config) }},
	}
}

// A point is one way for a verb to be killed, and to be followed up.
type point struct {
	number      int
	after, stop bool // after the call, not before it; a stop follows at once, not a start and then a stop
}

func (p point) String() string {
	return fmt.Sprintf("call %d (after: %t), then stop at once: %t", p.number, p.after, p.stop)
}

func points(calls int) (out []point) {
	for n := 1; n <= calls; n++ {
		for _, after := range []bool{false, true} {
			out = append(out, point{n, after, false}, point{n, after, true})
		}
	}
	return out
}

// sampled takes every stride-th point, from a random one on; the seed is fixed.
func sampled[T any](all []T, stride int, seed uint64) (out []T) {
	for i := rand.New(rand.NewPCG(seed, 1)).IntN(stride); i < len(all); i += stride {
		out = append(out, all[i])
	}
	return out
}

// chosen are every stride-th of all points, and of those where what is written changes from journal to settings to
// addresses every turns-th.
func (s *site) chosen(calls []string, stride, turns int, seed uint64) []point {
	if stride == 1 {
		return points(len(calls))
	}
	var out []point
	for n := 1; n < len(calls); n++ {
		if s.kind(calls[n-1]) != s.kind(calls[n]) {
			out = append(out, point{n, true, false}, point{n, true, true})
		}
	}
	return append(sampled(out, turns, seed), sampled(points(len(calls)), stride, seed)...)
}

func (s *site) kind(call string) string {
	switch {
	case strings.Contains(call, s.state):
		return "journal"
	case strings.Contains(call, "/proc/sys/"):
		return "setting"
	}
	return call
}

// Kills kills start, stop, restart and reload, with 1 and with 3 VIPs in the mode given, before and after every system
// call that writes, and with 70, where it is quick (turns is 1), if stride is 1; or else at some of these points, see chosen. After each kill no VIP is
// on a device while the host answers ARP for it; a start that follows ends up; a stop that follows ends where the host was
// before any of it.
func Kills(t *testing.T, mode string, stride, turns int) {
	total := 0
	sizes := []int{1, 3}
	switch {
	case stride == 1 && turns == 1:
		sizes = append(sizes, 70) // two batches
	case stride > 1 && turns > 1: // where it is slow
		sizes = []int{3}
	}
	for i, n := range sizes {
		for j, v := range victims(n) {
			t.Run(fmt.Sprintf("%s/%d", v.name, n), func(t *testing.T) {
				s := newSite(t, mode)
				down := s.baseline()
				calls := s.watched(v, down)
				chosen := s.chosen(calls, stride, turns, uint64(10*i+j))
				for _, p := range chosen {
					if err := s.killed(v, p, down); err != nil {
						t.Fatalf("%s of %d VIPs killed at %v, which is %q: %v", v.name, n, p, calls[p.number-1], err)
					}
				}
				total += len(chosen)
				t.Logf("%s of %d VIPs: %d system calls write; killed at %d of %d points; the calls:\n%s",
					v.name, n, len(calls), len(chosen), len(points(len(calls))), strings.ReplaceAll(strings.Join(calls, "\n"), s.state, "…"))
			})
		}
	}
	t.Logf("killed %d times", total)
}

// baseline is the host before any of it. Where the module has a device of its own, the first start may bring it.
func (s *site) baseline() testnet.Snapshot {
	s.t.Helper()
	s.must(0, s.start(vips(1)))
	s.must(0, s.args("stop"))
	return s.rs.Snapshot(s.t)
}

// watched runs the verb to its end, and asks by ARP at each stop. It returns the calls that write.
func (s *site) watched(v victim, down testnet.Snapshot) []string {
	s.t.Helper()
	v.prepare(s)
	end, err := Trace(s.rs, s.state, v.verb(s), func(c Call) Action {
		if said, err := s.probe.answered(v.all...); err != nil || len(said) > 0 {
			s.t.Errorf("at call %d, %q (after: %t), ARP is answered for %v (%v)", c.Number, c.Text, c.After, said, err)
		}
		return GoOn
	})
	if err != nil || end.Code != 0 || len(end.Calls) == 0 {
		s.t.Fatalf("%s: %v, exit %d, %d calls\n%s", v.name, err, end.Code, len(end.Calls), end.Stderr)
	}
	if err := s.finish(v, down, v.name == "stop"); err != nil {
		s.t.Fatalf("%s, not killed: %v", v.name, err)
	}
	return end.Calls
}

// killed does it once.
func (s *site) killed(v victim, p point, down testnet.Snapshot) error {
	v.prepare(s)
	before, files := s.rs.Snapshot(s.t), s.files()
	end, err := Trace(s.rs, s.state, v.verb(s), func(c Call) Action {
		if c.Number == p.number && c.After == p.after {
			return Action{Signal: unix.SIGKILL}
		}
		return GoOn
	})
	if err != nil || end.Code != -1 || len(end.Calls) != p.number {
		return fmt.Errorf("it was not killed there: %v, exit %d after %d calls", err, end.Code, len(end.Calls))
	}
	if p.number == 1 && !p.after { // as if it had never been called
		if now := s.files(); now != files {
			return fmt.Errorf("the state directory was\n%sand is\n%s", files, now)
		}
		if err := s.as(before); err != nil {
			return err
		}
	}
	return s.afterwards(v, p.stop, down)
}

// afterwards judges what a verb left behind that did not end well, and what comes of it.
func (s *site) afterwards(v victim, stop bool, down testnet.Snapshot) error {
	if err := s.silent(v.all); err != nil {
		return err
	}
	if r := s.rs.Try(s.args("status")...); r.Code != 0 && r.Code != 1 && r.Code != 3 {
		return fmt.Errorf("status: exit %d: %s", r.Code, r.Stderr)
	}
	return s.finish(v, down, stop)
}

// finish: a start brings the VIPs up, unless it is left out; a stop brings the host back to what it was.
func (s *site) finish(v victim, down testnet.Snapshot, stop bool) error {
	if !stop {
		if r := s.rs.Try(s.start(v.vips)...); r.Code != 0 {
			return fmt.Errorf("the start that follows: exit %d\n%s", r.Code, r.Stderr)
		}
		if err := s.up(v.vips); err != nil {
			return fmt.Errorf("after the start that follows: %w", err)
		}
	}
	if r := s.rs.Try(s.args("stop")...); r.Code != 0 {
		return fmt.Errorf("the stop that follows: exit %d\n%s", r.Code, r.Stderr)
	}
	err := s.as(down)
	if left := s.journal(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %v", left))
	}
	if err != nil {
		return fmt.Errorf("after the stop that follows: %w", err)
	}
	return nil
}
