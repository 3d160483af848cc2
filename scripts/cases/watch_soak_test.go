package cases

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A woe is one kind of drift of the soak: it is done where it is right, and then watched until that is so again.
type woe struct {
	name  string
	do    func()
	right func() bool

	since        time.Time // it is wrong; zero is right
	times        int
	worst, total time.Duration
}

// In a soak everything goes wrong at random, again and again, some of it often enough to be left alone for a while. Nothing is
// wrong for longer than that may be: the poll's interval, which is the longest back-off, and some seconds for a busy machine.
// What the watcher holds stays what it was.
func TestWatch_Soak(t *testing.T) {
	t.Parallel()
	interval, lasts, gap := time.Second, 15*time.Second, 100*time.Millisecond
	if long {
		interval, lasts, gap = 5*time.Second, time.Hour, time.Second
	}
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	down := s.rs.Snapshot(t)
	s.ask(t, 0, "start", "--vip", vip+","+vip2)
	s.ask(t, 0, "start", "--vip", vipNFT, rulesOn)
	e := s.eyes(t)
	w := s.watch(t, "--interval", interval.String())
	woes := s.woes(t, e)
	early := time.Now().Add(lasts / 5)
	var before size
	rnd := rand.New(rand.NewPCG(5, uint64(time.Now().UnixNano())))
	began, busy, next := time.Now(), w.cpu(t), time.Now()
	for end := began.Add(lasts); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now := time.Now()
		for _, x := range woes {
			x.look(t, now, interval+10*time.Second, w)
		}
		if before.rss == 0 && now.After(early) {
			before = w.size(t)
		}
		if x := woes[rnd.IntN(len(woes))]; x.since.IsZero() && now.After(next) {
			x.do()
			x.since, x.times = now, x.times+1
			next = now.Add(time.Duration(rnd.ExpFloat64() * float64(gap)))
		}
	}
	used, took := w.cpu(t)-busy, time.Since(began)
	w.Signal(unix.SIGHUP)
	for _, x := range woes {
		for ; !x.since.IsZero(); time.Sleep(time.Millisecond) {
			x.look(t, time.Now(), interval+10*time.Second, w)
		}
	}
	after := w.size(t)
	t.Logf("%s, %.2f %% of a processor; %s, and in the end %s", took.Round(time.Second), 100*used.Seconds()/took.Seconds(), before, after)
	for _, x := range woes {
		if x.times > 0 {
			t.Logf("%s: %d times, %s in the mean, %s at worst", x.name, x.times, (x.total / time.Duration(x.times)).Round(10*time.Microsecond), x.worst.Round(10*time.Microsecond))
		}
	}
	if after.rss > most || after.rss > before.rss+3<<20 || after.threads > before.threads+3 || after.fds > before.fds+2 { // which are of an interface that came
		t.Errorf("it held %s, and now %s", before, after)
	}
	s.ask(t, 0, "status")
	s.mustHold(t, vip, vip2)
	s.bound(t, vipNFT, "lo")
	s.silent(t, vip, vip2, vipNFT)
	s.ask(t, 0, "stop")
	s.conf(t, "eth0", "arp_ignore", "5") // as start had found it, for all that it knows
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "0")
	s.mustBe(t, down)
	w.Signal(unix.SIGQUIT) // of a Go program: to say what each goroutine does, and die
	out := w.Wait().Stdout
	own := len(regexp.MustCompile(`(?m)^created by (rsagent|os/signal|context|time)\b`).FindAllString(out, -1))
	if t.Logf("%d goroutines beside the first", own); own < 2 || own > 6 {
		t.Errorf("they are\n%s", out)
	}
}

// look notes when it is right again. Each must be, before the time is over.
func (x *woe) look(t *testing.T, now time.Time, most time.Duration, w *watcher) {
	t.Helper()
	if x.since.IsZero() {
		return
	}
	wrong := now.Sub(x.since)
	if !x.right() {
		if wrong > most {
			t.Fatalf("%s: wrong for %s\n%+v\n%s", x.name, wrong, w.told(t), w.Output())
		}
		return
	}
	x.since, x.total, x.worst = time.Time{}, x.total+wrong, max(x.worst, wrong)
}

func (s *site) woes(t *testing.T, e *eyes) []*woe {
	t.Helper()
	setting := func(name, iface, knob string, v int) *woe {
		return &woe{name: name, do: func() { e.set(iface, knob, v) }, right: func() bool { return e.silent("eth0") && e.get(iface, knob) != v }}
	}
	script := func(name, script string, right func() bool) *woe {
		return &woe{name: name, do: func() { s.rs.Run(t, "sh", "-ec", script) }, right: right}
	}
	added, n := "", 0
	return []*woe{
		{name: "VIP deleted", do: func() { e.unbind(vip + "/32") }, right: func() bool { return e.bound(vip) }},
		{name: "other VIP deleted", do: func() { e.unbind(vip2 + "/32") }, right: func() bool { return e.bound(vip2) }},
		{name: "subnet beside", do: func() { e.bind(vip2 + "/24") }, right: func() bool { return !strings.Contains(strings.Join(e.onLo(), " "), vip2+"/24") }},
		setting("all answers", "all", "arp_ignore", 0),
		setting("all announces", "all", "arp_announce", 0),
		setting("eth0 outweighs", "eth0", "arp_ignore", 5),
		{name: "rules flushed", do: e.flush, right: e.ruled},
		script("rule gone", "nft flush chain arp rsagent input 2>/dev/null || :", func() bool {
			return strings.Contains(s.rs.Try("nft", "list", "table", "arp", "rsagent").Stdout, "arp daddr ip @vips drop")
		}),
		script("lo down", "ip link set lo down", func() bool { return strings.Contains(s.rs.Run(t, "ip", "-br", "link", "show", "lo"), ",UP") }),
		script("unseen write", `unshare -m sh -c "mount -t proc proc /proc; echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore"`, func() bool { return e.silent("eth0") }),
		{name: "interface comes", do: func() {
			n++
			added = "v" + string(rune('0'+n%10))
			s.rs.Run(t, "sh", "-ec", "ip link add "+added+" type veth peer name p0; echo 4 >/proc/sys/net/ipv4/conf/"+added+"/arp_ignore")
		}, right: func() bool {
			if e.get(added, "arp_ignore") == 4 {
				return false
			}
			e.forget(added)
			s.rs.Run(t, "ip", "link", "del", added)
			return true
		}},
	}
}
