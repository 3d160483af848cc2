package lab

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"rsagent/scripts/testnet"
)

// traffic is a client that connects again and again, and keeps some connections open besides.
type traffic struct {
	from *testnet.Host
	port string
	done atomic.Int64
	lost chan error
	stop chan struct{}
	open []*session
}

func (c *cluster) traffic(t *testing.T, port string) *traffic {
	t.Helper()
	f := &traffic{from: c.client, port: port, lost: make(chan error, 1), stop: make(chan struct{})}
	for range 4 {
		s, err := dial(c.client, vip, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		f.open = append(f.open, s)
	}
	go f.connect()
	return f
}

func (f *traffic) connect() {
	for {
		select {
		case <-f.stop:
			f.lost <- nil
			return
		default:
		}
		s, err := dial(f.from, vip, f.port)
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
			t.Fatalf("an open connection to %s, port %s: %v", s.name, f.port, err)
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
	t.Logf("port %s: %d connections while things changed", f.port, f.done.Load())
}

// TestCase55_Moves: neither a verb that changes nothing nor a move from one device to the other costs a connection, or even a
// packet that the sender would have to repeat. Port 80 is directed by DR all the time, which a VIP on tunl0 serves as
// well; port 81 is directed by tunnel while the VIP is there. It takes two ports because IPVS keeps one route for each
// real server of a service: were one service switched over, packets of its older connections could go astray there.
func TestCase55_Moves(t *testing.T) {
	guest(t)
	ipip(t, true)
	c := newCluster(t)
	c.directPort(t, "80", "dr", vip)
	c.directPort(t, "81", "tun", vip)
	agents := newAgents(t, c.real)
	config := filepath.Join(t.TempDir(), "rsagent.yaml")
	write(t, config, "vips: ["+vip+"]\n")
	var before []string
	for _, a := range agents {
		a.start(t, "dr", vip)
		before = append(before, fmt.Sprint(dropped(t, a.host)))
	}
	byDR := c.traffic(t, "80")
	running := []*traffic{byDR}
	each := func(verb string, flags ...string) {
		for _, a := range agents {
			a.do(t, 0, verb, flags...)
			for _, f := range running {
				f.flows(t)
			}
		}
	}
	each("start", "--mode", "dr", "--vip", vip)
	each("restart")
	each("reload", "--config", config)
	for range 3 {
		each("start", "--mode", "tun", "--vip", vip)
		holds(t, agents[0].host, vip, "tunl0")
		byTunnel := c.traffic(t, "81")
		running = append(running, byTunnel)
		each("start", "--mode", "tun", "--vip", vip)
		each("restart")
		byTunnel.end(t)
		running = running[:1]
		each("start", "--mode", "dr", "--vip", vip)
		holds(t, agents[0].host, vip, "lo")
	}
	byDR.end(t)
	for i, a := range agents {
		if got := fmt.Sprint(dropped(t, a.host)); got != before[i] {
			t.Errorf("%s dropped packets: before %s, after %s", a.host.Name, before[i], got)
		}
	}
}

// TestCase55_MovesCanFail: the same traffic and the same counters show what a restart of the classic script costs.
func TestCase55_MovesCanFail(t *testing.T) {
	guest(t)
	c := newCluster(t)
	c.direct(t, "dr", vip)
	for _, h := range c.real {
		classic{h}.start(t, "dr", vip)
	}
	c.client.Run(t, "ip", "neigh", "flush", "dev", "eth0") // the script has leaked, and the director would be passed by
	f := c.traffic(t, "80")
	f.flows(t)
	before := dropped(t, c.real[0])["IpInAddrErrors"]
	classic{c.real[0]}.stop(t, "dr", vip)
	testnet.Eventually(t, "packets to find no VIP", func() bool { return dropped(t, c.real[0])["IpInAddrErrors"] > before })
	classic{c.real[0]}.start(t, "dr", vip)
	close(f.stop)
}
