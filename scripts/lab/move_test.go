package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"rsagent/scripts/testnet"
)

// traffic is a client that connects again and again, and keeps some connections open besides.
type traffic struct {
	done atomic.Int64
	lost chan error
	stop chan struct{}
	open []*session
}

func (c *cluster) traffic(t *testing.T) *traffic {
	t.Helper()
	f := &traffic{lost: make(chan error, 1), stop: make(chan struct{})}
	for range 4 {
		s, err := dial(c.client, vip)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		f.open = append(f.open, s)
	}
	go f.connect(c.client)
	return f
}

func (f *traffic) connect(from *testnet.Host) {
	for {
		select {
		case <-f.stop:
			f.lost <- nil
			return
		default:
		}
		s, err := dial(from, vip)
		if err == nil {
			err = s.echo("new")
			s.Close()
		}
		if err != nil {
			f.lost <- err
			return
		}
		f.done.Add(1)
	}
}

// flows waits until some more connections have come and gone, and uses the old ones.
func (f *traffic) flows(t *testing.T) {
	t.Helper()
	for _, s := range f.open {
		if err := s.echo("old"); err != nil {
			t.Fatalf("an open connection to %s: %v", s.name, err)
		}
	}
	goal := f.done.Load() + 10
	testnet.Eventually(t, "new connections", func() bool { return f.done.Load() >= goal || len(f.lost) > 0 })
}

func (f *traffic) end(t *testing.T) {
	t.Helper()
	close(f.stop)
	if err := <-f.lost; err != nil {
		t.Errorf("after %d connections one was lost: %v", f.done.Load(), err)
	}
	t.Logf("%d connections while things changed", f.done.Load())
}

// TestMoves: neither a verb that changes nothing nor a move from one device to the other costs a connection, or even a
// packet that the sender would have to repeat. The director changes over after the real servers have moved to TUN, and
// before they move back: between the two, a VIP on tunl0 serves both ways.
func TestMoves(t *testing.T) {
	guest(t)
	ipip(t, true)
	c := newCluster(t)
	c.direct(t, "dr", vip)
	agents := newAgents(t, c.real)
	config := filepath.Join(t.TempDir(), "rsagent.yaml")
	if err := os.WriteFile(config, []byte("vips: [{address: "+vip+"}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var before []string
	for _, a := range agents {
		a.start(t, "dr", vip)
		before = append(before, fmt.Sprint(dropped(t, a.host)))
	}
	f := c.traffic(t)
	each := func(verb string, flags ...string) {
		for _, a := range agents {
			a.do(t, 0, verb, flags...)
			f.flows(t)
		}
	}
	each("start", "--mode", "dr", "--vip", vip)
	each("restart")
	each("reload", "--config", config)
	for range 3 {
		each("start", "--mode", "tun", "--vip", vip)
		holds(t, agents[0].host, vip, "tunl0")
		c.redirect(t, "tun")
		f.flows(t)
		each("restart")
		c.redirect(t, "dr")
		f.flows(t)
		each("start", "--mode", "dr", "--vip", vip)
		holds(t, agents[0].host, vip, "lo")
	}
	f.end(t)
	for i, a := range agents {
		if got := fmt.Sprint(dropped(t, a.host)); got != before[i] {
			t.Errorf("%s dropped packets: before %s, after %s", a.host.Name, before[i], got)
		}
	}
}

// TestMovesCanFail: the same traffic and the same counters show what a restart of the classic script costs.
func TestMovesCanFail(t *testing.T) {
	guest(t)
	c := newCluster(t)
	c.direct(t, "dr", vip)
	for _, h := range c.real {
		classic{h}.start(t, "dr", vip)
	}
	f := c.traffic(t)
	f.flows(t)
	before := dropped(t, c.real[0])["IpInAddrErrors"]
	classic{c.real[0]}.stop(t, "dr", vip)
	testnet.Eventually(t, "packets to find no VIP", func() bool { return dropped(t, c.real[0])["IpInAddrErrors"] > before })
	classic{c.real[0]}.start(t, "dr", vip)
	close(f.stop)
}
