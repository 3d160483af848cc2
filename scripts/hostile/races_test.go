package hostile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// origins is a set of who asked for a VIP, as the journal writes it.
type origins struct{ config, flag bool }

func (o origins) String() string {
	return strings.Trim(strings.Join([]string{map[bool]string{true: "config"}[o.config], map[bool]string{true: "flag"}[o.flag]}, ","), ",")
}

// A race is one round of calls that are made at once. They are picked such that their end does not depend on their
// order: a VIP is only started or only stopped in a round, and so is the config file.
type race struct {
	calls [][]string
	want  map[string]origins
}

// newRace draws n calls for a site where the VIPs of now are managed, and tells what is managed after them.
func newRace(s *site, rnd *rand.Rand, n int, now map[string]origins) race {
	r := race{want: map[string]origins{}}
	all := vips(20)
	starts := map[string]bool{}
	var file []string // a stop of it takes out what it names, whoever asked for that: so nothing that is started beside
	configStarts := rnd.IntN(2) == 0
	for _, a := range all {
		if o, ok := now[a]; ok {
			r.want[a] = o
		}
		starts[a] = rnd.IntN(2) == 0
		if starts[a] == configStarts && rnd.IntN(2) == 0 {
			file = append(file, a)
		}
	}
	s.configure(file)
	for range n {
		if a := all[rnd.IntN(len(all))]; rnd.IntN(5) > 0 {
			r.one(s, a, starts[a])
		} else {
			r.file(s, file, configStarts)
		}
	}
	return r
}

func (r *race) one(s *site, addr string, start bool) {
	if start {
		r.calls = append(r.calls, s.args("start", "--vip", addr))
		r.want[addr] = origins{r.want[addr].config, true}
		return
	}
	r.calls = append(r.calls, s.args("stop", "--vip", addr))
	delete(r.want, addr)
}

func (r *race) file(s *site, file []string, start bool) {
	if start && len(file) > 0 {
		r.calls = append(r.calls, s.args("start", "--config", s.config))
		for _, a := range file {
			r.want[a] = origins{true, r.want[a].flag}
		}
		return
	}
	r.calls = append(r.calls, s.args("stop", "--config", s.config))
	for _, a := range file {
		delete(r.want, a)
	}
	for a, o := range r.want {
		if r.want[a] = (origins{false, o.flag}); !o.flag {
			delete(r.want, a)
		}
	}
}

// TestRaces has fifty processes at once start and stop twenty VIPs, from the command line and from a config file, round
// after round, while others make and delete links and addresses, and write settings. Each of them succeeds, the neighbour
// is never answered, and the end of each round is that of the calls in any order.
func TestRaces(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	down := s.rs.Snapshot(t)
	rounds := max(100/stride(t, 25), 1)
	stop := s.others()
	asker := s.peer.AskARP(t, "eth0", vips(1)[0], 1e6)
	rnd := rand.New(rand.NewPCG(7, 7))
	now := map[string]origins{}
	for round := range rounds {
		r := newRace(s, rnd, 50, now)
		s.atOnce(r.calls)
		if err := s.holds(r.want); err != nil || t.Failed() {
			t.Fatalf("round %d: %v\n%v", round, err, r.calls)
		}
		now = r.want
	}
	stop()
	if asked, replies := asker.Stop(); asked == 0 || len(replies) > 0 {
		t.Errorf("asked %d times, and answered by %v", asked, replies)
	}
	s.must(0, s.args("stop"))
	if err := s.as(down); err != nil {
		t.Error(err)
	}
	t.Logf("%d rounds of 50 processes", rounds)
}

// atOnce runs the calls side by side. None of them may fail.
func (s *site) atOnce(calls [][]string) {
	s.t.Helper()
	var all sync.WaitGroup
	for _, args := range calls {
		all.Go(func() {
			if r := s.rs.Try(append(args, "--timeout", "5m")...); r.Code != 0 {
				s.t.Errorf("%v: exit %d\n%s%s", args[1:], r.Code, r.Stdout, r.Stderr)
			}
		})
	}
	all.Wait()
}

// holds: the journal has exactly these VIPs with these origins, the host has exactly these VIPs, and it is silent.
func (s *site) holds(want map[string]origins) error {
	got, err := s.managed()
	if err != nil {
		return err
	}
	for _, a := range vips(20) {
		if got[a] != want[a].String() {
			return fmt.Errorf("%s came from %q, want %q", a, got[a], want[a])
		}
	}
	bound := s.bound(vips(20))
	for _, a := range vips(20) {
		if _, there := want[a]; slices.Equal(bound[a], []string{"lo/32"}) != there || !there && bound[a] != nil {
			return fmt.Errorf("%s is on %v, to be there: %t", a, bound[a], there)
		}
	}
	code := 0
	if len(want) == 0 {
		code = 3
	}
	s.must(code, s.args("status"))
	return s.silent(vips(20))
}

// managed reads the journal's file.
func (s *site) managed() (map[string]string, error) {
	out := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(s.state, "*.json"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var j struct {
			VIPs []struct{ Address, Origin string }
		}
		if err := json.Unmarshal(text, &j); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		for _, v := range j.VIPs {
			out[v.Address] = v.Origin
		}
	}
	return out, nil
}

// others is what else happens on a host: links come and go with addresses, foreign addresses on lo too, and settings that
// are not rsagent's are written. The function it returns ends it, and leaves the host as it was.
func (s *site) others() (stop func()) {
	s.t.Helper()
	p := s.rs.Start(s.t, "sh", "-c", `echo going; trap 'end=1' TERM
		while [ -z "$end" ]; do
			ip link add o0 up type veth peer name o1; ip addr add 192.0.2.1/24 dev o0; ip addr add 198.51.100.9/32 dev lo
			echo 1 >/proc/sys/net/ipv4/conf/o0/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/eth0/log_martians
			ip addr del 198.51.100.9/32 dev lo; ip link del o0; echo 0 >/proc/sys/net/ipv4/conf/eth0/log_martians
		done`)
	p.Await(s.t, "going")
	return func() {
		s.t.Helper()
		p.Signal(unix.SIGTERM)
		if r := p.Wait(); r.Stdout != "going\n" {
			s.t.Errorf("the others could not do what they do: %s", r.Stdout)
		}
	}
}

// TestRacesOverGuards has others undo guards and unbind VIPs while processes start and stop. A call may fail then, and
// says why in one line; the origins are kept, and one restart later all is up.
func TestRacesOverGuards(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	down := s.rs.Snapshot(t)
	all := vips(20)
	s.must(0, s.start(all))
	p := s.rs.Start(t, "sh", "-c", `echo going; trap 'end=1' TERM; cd /proc/sys/net/ipv4/conf
		while [ -z "$end" ]; do
			echo 0 >all/arp_ignore; echo 5 >eth0/arp_ignore; ip addr del 10.0.0.101/32 dev lo 2>/dev/null; echo 0 >eth0/arp_ignore
		done`)
	p.Await(t, "going")
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			args := s.args([]string{"start", "restart", "stop"}[i%3], "--vip", all[i%10], "--timeout", "5m")
			if i%3 == 1 {
				args = s.args("restart", "--timeout", "5m")
			}
			if r := s.rs.Try(args...); r.Code > 1 || r.Code < 0 || (r.Code == 1) != (strings.Count(r.Stderr, "\n") == 1) {
				t.Errorf("%v: exit %d\n%s", args[1:], r.Code, r.Stderr)
			}
		})
	}
	calls.Wait()
	p.Signal(unix.SIGTERM)
	p.Wait()
	s.must(0, s.args("restart"))
	if err := s.up(all[10:]); err != nil { // these nobody stopped
		t.Error(err)
	}
	managed, err := s.managed()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all[10:] {
		if managed[a] != "flag" {
			t.Errorf("%s comes from %q", a, managed[a])
		}
	}
	s.must(0, s.args("stop"))
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "0") // what others wrote last may have been kept as theirs
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	if err := s.as(down); err != nil {
		t.Error(err)
	}
}
