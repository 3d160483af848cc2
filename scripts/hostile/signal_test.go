package hostile

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// TestSignals sends SIGTERM or SIGINT at each call that writes. The verb is then either through, or it ends between two
// stages with one line that says so: what start added is gone, what stop began is done, and what was bound before stays
// silent. Which of the two is the process's to choose, so both are judged; but some must have been interrupted.
func TestSignals(t *testing.T) {
	t.Parallel()
	interrupted, total := map[string]int{}, map[string]int{}
	for i, n := range []int{1, 3} {
		for j, v := range victims(n) {
			t.Run(fmt.Sprintf("%s/%d", v.name, n), func(t *testing.T) {
				s := newSite(t, "dr")
				down := s.baseline()
				all := points(len(s.watched(v, down)))
				for k, p := range sampled(all, stride(t, 29), uint64(10*i+j+100)) {
					sig := []unix.Signal{unix.SIGTERM, unix.SIGINT}[k%2]
					heard, err := s.signalled(v, p, sig, down)
					if err != nil {
						t.Fatalf("%s of %d VIPs, %v at %v: %v", v.name, n, sig, p, err)
					}
					total[v.name]++
					if heard {
						interrupted[v.name]++
					}
				}
			})
		}
	}
	for _, v := range victims(1) {
		t.Logf("%s: interrupted in %d of %d", v.name, interrupted[v.name], total[v.name])
		if interrupted[v.name] == 0 && v.name != "stop" && stride(t, 29) == 1 {
			t.Errorf("%s was never interrupted", v.name)
		}
	}
}

func (s *site) signalled(v victim, p point, sig unix.Signal, down testnet.Snapshot) (heard bool, err error) {
	v.prepare(s)
	before := s.rs.Snapshot(s.t)
	end, err := Trace(s.rs, s.state, v.verb(s), func(c Call) Action {
		if c.Number == p.number && c.After == p.after {
			return Action{Signal: sig}
		}
		return GoOn
	})
	if err != nil {
		return false, err
	}
	heard = end.Code != 0
	if err := s.ended(v, end, before, down); err != nil {
		return heard, fmt.Errorf("exit %d: %w\n%s%s", end.Code, err, end.Stdout, end.Stderr)
	}
	return heard, s.afterwards(v, p.stop, down)
}

// ended judges what a signal left.
func (s *site) ended(v victim, end End, before, down testnet.Snapshot) error {
	switch {
	case end.Code == 0 && end.Stderr != "":
		return fmt.Errorf("it is through, and says %q", end.Stderr)
	case end.Code == 0 && v.name == "stop":
		return s.as(down)
	case end.Code == 0:
		return s.up(v.vips)
	case end.Code != 1 || !strings.Contains(end.Stderr, "interrupted") || strings.Count(end.Stderr, "\n") != 1:
		return fmt.Errorf("not the code or the line of an interrupted verb")
	case v.name == "start", v.name == "stop": // rolled back, rolled forward
		return s.as(down)
	case v.name == "restart":
		return s.within(before, v)
	}
	return nil
}

// within: a repair that was interrupted is not undone, nor was anything else done.
func (s *site) within(before testnet.Snapshot, v victim) error {
	s.rs.SetIPv4Conf(s.t, "all", "arp_ignore", "0")
	for a, on := range s.bound(v.all) {
		return fmt.Errorf("%s is on %v, of a repair that was interrupted before it bound anything", a, on)
	}
	return s.as(before)
}
