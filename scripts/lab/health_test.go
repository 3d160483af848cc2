package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// answerHealth listens for health checks on the real server's own address, as rsagent-health.socket does.
func (a agent) answerHealth(t *testing.T, rip string) *testnet.Process {
	t.Helper()
	p := a.host.Start(t, "systemd-socket-activate", "--accept", "--inetd", "--listen="+rip+":5380",
		a.bin, "status", "--state-dir", a.state, "-o", "http", "--timeout", "1m")
	p.Await(t, "Listening on")
	return p
}

// checks counts the health checks that have been answered.
func checks(p *testnet.Process) int { return strings.Count(p.Output(), "Spawned ") }

// interval is between two checks of a real server, in seconds.
const interval = 5

// keepalived directs the VIP, with the real servers as the README has them.
func (c *cluster) keepalived(t *testing.T, mode string) *testnet.Process {
	t.Helper()
	readme, err := os.ReadFile("/job/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := docs.Blocks(strings.ReplaceAll(string(readme), "192.0.2.", "10.9.0."), "keepalived")
	if len(blocks) != 1 || !strings.Contains(blocks[0], realAddr(0)+" 80") || !strings.Contains(blocks[0], "/"+vip+"\n") {
		t.Fatalf("the README has another recipe: %q", blocks)
	}
	config := fmt.Sprintf("global_defs {\nrouter_id lab\n}\nvirtual_server %s 80 {\ndelay_loop %d\nwarmup 0\nlvs_sched rr\nlvs_method %s\nprotocol TCP\n",
		vip, interval, strings.ToUpper(mode))
	for i := range c.real {
		config += strings.ReplaceAll(blocks[0], realAddr(0), realAddr(i))
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "keepalived.conf")
	if err := os.WriteFile(path, []byte(config+"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.director.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0")
	p := c.director.Start(t, "keepalived", "--dont-fork", "--log-console", "--log-detail", "--check", "--use-file", path,
		"--pid", filepath.Join(dir, "pid"), "--checkers_pid", filepath.Join(dir, "checkers"))
	t.Cleanup(func() { p.Stop() }) // it takes its services out of the kernel's table
	return p
}

// directed: the director's table has the real server, which it is given time for.
func (c *cluster) directed(t *testing.T, director *testnet.Process, i int, want bool) {
	t.Helper()
	testnet.Eventually(t, fmt.Sprintf("rs%d to be directed to: %t", i+1, want), func() bool {
		if r := director.Output(); strings.Contains(r, "Stopped Keepalived") {
			t.Fatalf("keepalived has ended:\n%s", r)
		}
		return strings.Contains(c.director.Run(t, "ipvsadm", "-Ln"), realAddr(i)+":80 ") == want
	})
}

// TestHealthCheck: keepalived takes a real server out at the first check after it would no more serve the VIP, while its web
// server answers on the RIP all along, and takes it in again when it would.
func TestHealthCheck(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newCluster(t)
		agents, doors := newAgents(t, c.real), []*testnet.Process{}
		for i, a := range agents {
			a.start(t, mode, vip)
			doors = append(doors, a.answerHealth(t, realAddr(i)))
		}
		director := c.keepalived(t, mode)
		c.directed(t, director, 0, true)
		c.directed(t, director, 1, true)
		c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
		a := agents[0]
		for _, lost := range []struct {
			what       string
			lose, mend func()
		}{
			{"the VIP", func() { a.host.Run(t, "ip", "addr", "del", vip+"/32", "dev", device[mode]) }, func() { a.do(t, 0, "restart") }},
			{"a guard", func() { a.host.SetIPv4Conf(t, "all", "arp_announce", "0") }, func() { a.do(t, 0, "restart") }},
			{"all, by stop", func() { a.do(t, 0, "stop") }, func() { a.start(t, mode, vip) }},
		} {
			before, began := checks(doors[0]), time.Now()
			lost.lose()
			c.directed(t, director, 0, false)
			// One may have been on its way, one is the reason, and one may have come before the table was looked at.
			if n := checks(doors[0]) - before; n > 3 {
				t.Errorf("%s lost: taken out after %d checks\n%s", lost.what, n, director.Output())
			}
			t.Logf("%s lost: taken out after %s, checked each %d s", lost.what, time.Since(began).Round(time.Second/10), interval)
			if err := realServes(c, 0); err != nil {
				t.Errorf("on the RIP nothing answers either: %v", err)
			}
			c.expectServed(t, 10, map[string]int{"rs2": 10}, vip)
			began = time.Now()
			lost.mend()
			c.directed(t, director, 0, true)
			t.Logf("%s back: taken in after %s", lost.what, time.Since(began).Round(time.Second/10))
			c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
		}
	})
}

// realServes asks the web server itself, as a check of the service does.
func realServes(c *cluster, i int) error {
	s, err := dial(c.director, realAddr(i), "80")
	if err == nil {
		s.Close()
	}
	return err
}
