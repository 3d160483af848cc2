package realserver

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"rsagent/arp"
	"rsagent/arp/nft"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A scenario is what happens to a host: verbs that run through, a verb that is killed at each of its
// writes in turn, something that others do meanwhile, and a verb that must put it right.
type scenario struct {
	name   string
	before []Edit
	drift1 func(*fake) // after before
	verb   Edit
	drift2 func(*fake) // after the kill
	after  Edit
	hole   bool            // the verb is a stop that leaves a blackhole route
	set    Set             // managed and bound in the end
	only   func(base) bool // the hosts it can be on; nil is all
}

// ignoring sets all.arp_ignore to what leaks, where rsagent had set it. (Where it was good of itself,
// this value would be the first that rsagent finds, and the one to put back.)
func ignoring(v int) func(*fake) {
	return func(f *fake) {
		if f.ignoreWas == 0 || f.ignoreWas == 5 {
			f.set("all", "arp_ignore", v)
			f.judge(Change{Item: sysctl.Key{}})
			f.leaks = nil
		}
	}
}

// flushed has the nft guard gone, or in a form of somebody else's.
func flushed(to string) func(*fake) {
	return func(f *fake) {
		f.host.Tables[arp.GuardTable{}] = to
		f.judge(Change{Item: arp.GuardTable{}})
		f.leaks = nil
	}
}

func unbound(f *fake) {
	f.host.Addrs = slices.DeleteFunc(f.host.Addrs, func(a loopback.Held) bool { return a.Prefix.Addr() == vipA.Addr })
}

func tunnelDown(f *fake) {
	if l := f.host.link("tunl0"); l != nil && !f.tunWasUp { // one that was up is not rsagent's to put back
		l.Up = false
	}
}

func forwarding(f *fake) { f.host.Forwards = true }

var scenarios = []scenario{
	{name: "start, start", verb: Add(vipA, vipB), after: Add(vipA, vipB), set: Set{vipA, vipB}},
	{name: "start, start a global one", verb: Add(vipA), after: Add(vipC), set: Set{vipA, vipC}},
	{name: "start IPv6 and IPv4, stop IPv4", verb: Add(vipA, vip6), after: Replace(Flag, vip6), set: Set{vip6}},
	{name: "stop into a blackhole, start", before: []Edit{Add(vipA, vipB)}, verb: Drop(vipA.Addr), hole: true, after: Add(vipA), set: Set{vipA, vipB}},
	{name: "stop all into a blackhole, restart", before: []Edit{Add(vipA, vipB)}, verb: DropAll, hole: true, after: Keep},
	{name: "start A, start B", before: []Edit{Add(vipA)}, verb: Add(vipB), after: Keep, set: Set{vipA, vipB}},
	{name: "start, stop", verb: Add(vipA, vipB), after: DropAll},
	{name: "stop, stop", before: []Edit{Add(vipA, vipB)}, verb: DropAll, after: DropAll},
	{name: "stop A, start B", before: []Edit{Add(vipA)}, verb: Drop(vipA.Addr), after: Add(vipB), set: Set{vipB}},
	{name: "stop A, restart", before: []Edit{Add(vipA, vipB)}, verb: Drop(vipA.Addr), after: Keep, set: Set{vipB}},
	{name: "stop, start", before: []Edit{Add(vipA, vipB)}, verb: DropAll, after: Add(vipA), set: Set{vipA}},
	{name: "guard all to interface", before: []Edit{Add(vipA)}, verb: Add(vipAeth), after: Add(vipAeth), set: Set{vipAeth}},
	{name: "guard interface to all", before: []Edit{Add(vipAeth)}, verb: Add(vipA), after: Add(vipA), set: Set{vipA}},
	{name: "guard there and back", before: []Edit{Add(vipA), Add(vipAeth)}, verb: Add(vipA), after: Add(vipAeth), set: Set{vipAeth}},
	{name: "guard nft, start, stop", verb: Add(vipAnft, vipBnft), after: DropAll},
	{name: "guard nft, stop one", before: []Edit{Add(vipAnft, vipBnft)}, verb: Drop(vipA.Addr), after: Keep, set: Set{vipBnft}},
	{name: "guard nft, another comes", before: []Edit{Add(vipAnft)}, verb: Add(vipBnft), after: Keep, set: Set{vipAnft, vipBnft}},
	{name: "guard all to nft", before: []Edit{Add(vipA)}, verb: Add(vipAnft), after: Add(vipAnft), set: Set{vipAnft}},
	{name: "guard nft to all, another stays", before: []Edit{Add(vipAnft, vipBnft)}, verb: Add(vipA), after: Add(vipA), set: Set{vipA, vipBnft}},
	{name: "guard nft to all, another comes", before: []Edit{Add(vipAnft)}, verb: Add(vipA, vipBnft), after: Keep, set: Set{vipA, vipBnft}},
	{name: "guard interface to nft, and to all", before: []Edit{Add(vipAeth)}, verb: Add(vipAnft), after: Add(vipA), set: Set{vipA}},
	{name: "guard nft to interface, stop", before: []Edit{Add(vipA), Add(vipAnft)}, verb: Add(vipAeth), after: DropAll},
	{name: "guard nft flushed, start", before: []Edit{Add(vipAnft)}, drift1: flushed(""), verb: Add(vipAnft, vipB), after: Add(vipB), set: Set{vipAnft, vipB}},
	{name: "guard nft altered, stop", before: []Edit{Add(vipAnft, vipBnft)}, drift1: flushed(nft.Foreign), verb: DropAll, after: DropAll},
	{name: "rules, stop", verb: Add(vipAnft, vipBrul), after: DropAll},
	{name: "rules come, and go", before: []Edit{Add(vipA, vipB)}, verb: Add(vipBrul), after: Add(vipB), set: Set{vipA, vipB}},
	{name: "rules altered, start", before: []Edit{Add(vipBrul)}, drift1: func(f *fake) { f.host.Tables[tunnel.RulesTable{}] = nft.Foreign }, verb: Add(vipA), after: Keep, set: Set{vipA, vipBrul}},
	{name: "DR to TUN", before: []Edit{Add(vipA)}, verb: Add(vipAtun), after: Add(vipAtun), set: Set{vipAtun}},
	{name: "TUN to DR", before: []Edit{Add(vipAtun)}, verb: Add(vipA), after: Add(vipA), set: Set{vipA}},
	{name: "TUN, VIP to lo, stop", before: []Edit{Add(vipB)}, verb: Add(vipBlo), after: DropAll, only: func(b base) bool { return b.allRP == 0 }},
	{name: "IPv6 in IPv6, IPv4 in IPv6", verb: Add(vip6tun, vip4in6), after: Add(vip6tun, vip4in6), set: Set{vip4in6, vip6tun}},
	{name: "IPv4 in IPv6 goes, IPv6 stays", before: []Edit{Add(vip6tun, vip4in6)}, verb: Drop(vipA.Addr), after: Keep, set: Set{vip6tun}},
	{name: "IPv6 in IPv4, stop", verb: Add(vip6in4), after: DropAll},
	{name: "IPv6 in IPv4, DR", before: []Edit{Add(vip6in4)}, verb: Add(vip6), after: Add(vip6in4), set: Set{vip6in4}},
	{name: "GUE, start", verb: Add(vipGUE, vip6GUE), after: Add(vipGUE, vip6GUE), set: Set{vipGUE, vip6GUE}},
	{name: "ipip to GUE, stop", before: []Edit{Add(vipB)}, verb: Add(vipGUE), after: DropAll},
	{name: "GRE with checksums, ipip", before: []Edit{Add(vipA)}, verb: Add(vipCSum), after: Add(vipB), set: Set{vipA, vipB}},
	{name: "rp_filter off, loose", before: []Edit{Add(vipBoff)}, verb: Add(vipB), after: Keep, set: Set{vipB}},
	{name: "rp_filter off, stop", verb: Add(vipA, vipBoff), after: DropAll},
	{name: "reload, reload", before: []Edit{Add(vipA, vipB)}, verb: Replace(Config), after: Replace(Config), set: Set{vipA}},
	{name: "guard undone, start", before: []Edit{Add(vipA)}, drift1: ignoring(0), verb: Add(vipB), after: Add(vipB), set: Set{vipA, vipB}},
	{name: "guard set to what leaks, start", before: []Edit{Add(vipA)}, drift1: ignoring(5), verb: Add(vipB), after: Add(vipB), set: Set{vipA, vipB}},
	{name: "start, guard undone, start", before: []Edit{Add(vipB)}, verb: Add(vipA), drift2: ignoring(0), after: Add(vipA), set: Set{vipA, vipB}},
	{name: "guard undone, guard to interface", before: []Edit{Add(vipA)}, drift1: ignoring(5), verb: Add(vipAeth), after: Add(vipAeth), set: Set{vipAeth}},
	{name: "withheld, and stays so", before: []Edit{Add(vipA, vipB)}, verb: Withhold(vipA.Addr), after: Keep, set: Set{with(vipA, func(v *VIP) { v.Withheld = true }), vipB}},
	{name: "withheld, comes back", before: []Edit{Add(vipA, vipB)}, verb: Withhold(vipA.Addr), after: Release, set: Set{vipA, vipB}},
	{name: "withheld into a blackhole, comes back", before: []Edit{Add(vipA, vipB)}, drift1: forwarding, verb: Withhold(vipA.Addr, vipB.Addr), after: Release, set: Set{vipA, vipB}},
	{name: "guard undone, withheld, another comes", before: []Edit{Add(vipA)}, drift1: ignoring(0), verb: Withhold(vipA.Addr), after: Add(vipA, vipB), set: Set{vipA, vipB}},
	{name: "withheld into a blackhole, stop", before: []Edit{Add(vipA)}, drift1: forwarding, verb: Withhold(vipA.Addr), after: DropAll},
	{name: "comes back, stop", before: []Edit{Add(vipA), Withhold(vipA.Addr)}, verb: Release, after: DropAll},
	{name: "VIP deleted, tunnel down, restart", before: []Edit{Add(vipA, vipB)}, drift1: func(f *fake) { unbound(f); tunnelDown(f) }, verb: Keep, after: Keep, set: Set{vipA, vipB}},
}

// TestKilled kills each scenario's verb at every write, on every host, and holds rsagent to its
// promises: no leak at any moment; the next verb finishes; a further one changes nothing; stop brings
// the host back to what it was, and leaves no journal.
func TestKilled(t *testing.T) {
	var runs, kills atomic.Int64
	hosts := sample(t, bases())
	spread(t, hosts, func(t *testing.T, b *bench, host base) {
		for _, sc := range scenarios {
			if sc.only != nil && !sc.only(host) {
				continue
			}
			n, err := b.kill(host, sc)
			runs.Add(int64(n))
			kills.Add(int64(n - 1))
			if err != nil {
				journal, _ := os.ReadFile(b.journal())
				t.Fatalf("%q on %+v, killed at write %d: %v\njournal %s", sc.name, host, n, err, journal)
			}
		}
	})
	t.Logf("%d hosts, %d scenarios, %d runs, killed in %d", len(hosts), len(scenarios), runs.Load(), kills.Load())
}

// spread has each processor test its share of the hosts, until one fails.
func spread(t *testing.T, hosts []base, f func(t *testing.T, b *bench, host base)) {
	shards := runtime.GOMAXPROCS(0)
	var failed atomic.Bool
	t.Run("hosts", func(t *testing.T) {
		for shard := range shards {
			t.Run(strconv.Itoa(shard), func(t *testing.T) {
				t.Parallel()
				defer func() { failed.CompareAndSwap(false, t.Failed()) }()
				b := newBench(t)
				for i := shard; i < len(hosts) && !failed.Load(); i += shards {
					f(t, b, hosts[i])
				}
			})
		}
	})
}

// manages says whether a VIP is in the set at some time: one that someone else bound and that was
// never given to rsagent is not its to guard.
func (sc scenario) manages(vip netip.Addr) bool {
	var s Set
	for _, e := range append(slices.Clone(sc.before), sc.verb, sc.after) {
		if s = e(s); s.has(vip) {
			return true
		}
	}
	return false
}

// kill runs a scenario once for each write of its verb, and once to its end. It returns the runs made.
func (b *bench) kill(host base, sc scenario) (at int, err error) {
	b.unkilled = nil
	for at = 0; ; at++ { // the first run is not killed
		b.on(host.kernel())
		b.exempt[vipA.Addr] = host.hand > 0 && !sc.manages(vipA.Addr)
		for _, e := range sc.before {
			if _, err, _ := b.converge(e); err != nil {
				return at, err
			}
		}
		if sc.drift1 != nil {
			sc.drift1(b.fake)
		}
		b.writes, b.killAt = 0, at
		b.blackhole = sc.hole
		_, err, dead := b.converge(sc.verb)
		b.blackhole = false
		b.killAt = 0
		if err != nil {
			return at, err
		}
		if sc.drift2 != nil {
			sc.drift2(b.fake)
		}
		if err := b.finish(host, sc, at == 1 && dead); err != nil {
			return at, err
		}
		if at > 0 && !dead {
			return at, nil
		}
	}
}

// finish runs the verb that puts things right, and judges. untouched: the killed verb had not yet
// written anything, so it is as if it had never been called.
func (b *bench) finish(host base, sc scenario, untouched bool) error {
	if _, err, _ := b.converge(sc.after); err != nil {
		return fmt.Errorf("the verb after: %w", err)
	}
	if b.unkilled == nil {
		b.unkilled = maps.Clone(b.host.Conf)
	}
	for k, v := range b.host.Conf {
		if k.Iface == "lo" && k.Knob != sysctl.PromoteSecondaries {
			continue // written along with what counts: whether anything did is another thing after a kill
		}
		if want, ok := b.unkilled[k]; ok && v != want && !untouched && host.hand == 0 { // a VIP by hand may be found, or gone
			return fmt.Errorf("%s is %d, and %d where nothing was killed", k, v, want)
		}
	}
	b.writes = 0
	r, err, _ := b.converge(Keep)
	if err != nil || len(r.Changes) > 0 || b.writes > 0 {
		return fmt.Errorf("not settled: %v, %v, %d writes", err, r.Changes, b.writes)
	}
	want := sc.set
	if untouched {
		want = nil
		for _, e := range append(slices.Clone(sc.before), sc.after) {
			want = e(want)
		}
	}
	if got := addrs(r.VIPs); !slices.Equal(got, addrs(want)) {
		return fmt.Errorf("managed %v, want %v", got, addrs(want))
	}
	if err := b.bound(host, want); err != nil {
		return err
	}
	for _, v := range (Set{vipA, vipB}).without(want) {
		if sc.hole && !untouched && !b.host.Dropped[v.Addr] {
			return fmt.Errorf("no blackhole route for %s", v.Addr)
		}
	}
	if _, err, _ := b.converge(DropAll, vipA.Addr, vipB.Addr); err != nil {
		return fmt.Errorf("the last stop: %w", err)
	}
	if err := b.restored(host); err != nil {
		return fmt.Errorf("after the last stop: %w", err)
	}
	if _, err := os.Stat(b.journal()); err == nil {
		return fmt.Errorf("the last stop left a journal")
	}
	if len(b.leaks) > 0 {
		return fmt.Errorf("leak: %v", b.leaks)
	}
	return nil
}

// bound says whether each VIP of the set is where it should be and nowhere else.
func (b *bench) bound(host base, want Set) error {
	set := want.index()
	have := map[netip.Addr]int{}
	for _, a := range b.host.Addrs {
		if b.host.compat(a) {
			return fmt.Errorf("%s is there, and would be the source of packets to anywhere", a.Addr)
		}
		if !isVIP(a.Prefix.Addr()) {
			continue
		}
		v, ok := set[a.Prefix.Addr()]
		if !ok && host.hand > 0 && a.Prefix.Addr() == vipA.Addr {
			continue // not rsagent's, and never given to it
		}
		if !ok || a.Addr != v.addr() || v.Withheld {
			return fmt.Errorf("%s should not be there", a.Addr)
		}
		have[v.Addr]++
	}
	if withheld := slices.DeleteFunc(slices.Clone(want), func(v VIP) bool { return !v.Withheld }); len(have)+len(withheld) < len(want) {
		return fmt.Errorf("bound are %v, of %v", have, addrs(want))
	}
	return nil
}

func addrs(s Set) (out []netip.Addr) {
	for _, v := range s {
		out = append(out, v.Addr)
	}
	return out
}

// TestFault lets one write fail for good, each in turn: a start that fails must leave the host, and
// the set, as they were.
func TestFault(t *testing.T) {
	var runs atomic.Int64
	spread(t, sample(t, bases()), func(t *testing.T, b *bench, host base) {
		for _, before := range [][]Edit{nil, {Add(vipA)}, {Add(vipAeth)}, {Add(vipAnft)}} {
			for _, verb := range []Edit{Add(vipB), Add(vipA, vipB), Add(vipAtun, vipB), Add(vipAnft, vipB), Add(vip4in6, vip6in4), Add(vipGUE, vip6tun), Add(vipCSum), Add(vipBoff)} {
				for at := 1; ; at++ {
					failed, err := b.fault(host, before, verb, at)
					if err != nil {
						t.Fatalf("host %+v, %d verbs before, fault at change %d: %v", host, len(before), at, err)
					}
					if !failed {
						break
					}
					runs.Add(1)
				}
			}
		}
	})
	t.Logf("%d faults", runs.Load())
}

func (b *bench) fault(host base, before []Edit, verb Edit, at int) (failed bool, err error) {
	b.on(host.kernel())
	b.exempt[vipA.Addr] = host.hand > 0 && len(before) == 0
	for _, e := range before {
		if _, err, _ := b.converge(e); err != nil {
			return false, err
		}
	}
	was, _ := b.look(Also{})
	journal, _ := os.ReadFile(b.journal())
	var n int
	var victim Item
	b.fail = func(c Change) error {
		if n++; n == at || victim != nil && c.Item == victim {
			victim = c.Item
			return errFault
		}
		return nil
	}
	r, err, _ := b.converge(verb)
	b.fail = nil
	if victim == nil {
		return false, err
	}
	if key, ok := victim.(sysctl.Key); ok && key.Iface == "lo" && key.Knob != sysctl.PromoteSecondaries && err == nil {
		_, err, _ = b.converge(DropAll, vipA.Addr) // it has no effect, and so fails nothing
		return true, errors.Join(err, b.restored(host))
	}
	if err == nil {
		return true, fmt.Errorf("%s failed, and nothing was said", victim)
	}
	if len(b.leaks) > 0 {
		return true, fmt.Errorf("leak: %v", b.leaks)
	}
	if host.hand > 0 && len(before) == 0 && !onHost(Set{vipA}, &b.host)[0] {
		return true, fmt.Errorf("%s failed: the VIP that was found is gone", victim)
	}
	if len(r.VIPs) == len(verb(r.Before)) && len(r.VIPs) > len(r.Before) {
		return true, nil // all is added; what failed was putting back
	}
	if len(r.Leaving) > 0 { // what cannot be withdrawn keeps its guard, until stop can
		_, err, _ = b.converge(DropAll)
		return true, errors.Join(err, b.restored(host))
	}
	for k, v := range was.Conf {
		if key, ok := victim.(sysctl.Key); b.host.Conf[k] != v && !(ok && key == k) {
			return true, fmt.Errorf("%s failed: %s is %d, was %d", victim, k, b.host.Conf[k], v)
		}
	}
	if now, _ := os.ReadFile(b.journal()); len(before) == 0 && string(now) != string(journal) {
		if _, isAddr := victim.(loopback.Addr); !isAddr {
			return true, fmt.Errorf("%s failed: the journal is %s", victim, now)
		}
	}
	_, err, _ = b.converge(DropAll, vipA.Addr)
	if err == nil {
		err = b.restored(host)
	}
	return true, err
}

// sample takes every seventeenth of the hosts, which meets each value of each setting (they have 2, 3 and
// 4 of them), or as RSAGENT_TEST_STRIDE says: 1 is all of them.
func sample(t *testing.T, all []base) (out []base) {
	stride := 17
	if s := os.Getenv("RSAGENT_TEST_STRIDE"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("RSAGENT_TEST_STRIDE=%q is no number from 1", s)
		}
		stride = n
	}
	for i := 0; i < len(all); i += stride {
		out = append(out, all[i])
	}
	return out
}
