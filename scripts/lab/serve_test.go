package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// TestServe is a real server's life: it serves its share, does nothing twice, and leaves no trace.
func TestServe(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newCluster(t)
		c.direct(t, mode, vip)
		agents := newAgents(t, c.real)
		var before []testnet.Snapshot
		for _, a := range agents {
			a.host.SetIPv4Conf(t, "all", "rp_filter", "1")
			before = append(before, a.host.Snapshot(t))
			if r := a.do(t, 0, "start", "--mode", mode, "--vip", vip); !r.Changed || r.State != "up" {
				t.Errorf("the first start says: %s", r.text)
			}
			holds(t, a.host, vip, device[mode])
		}
		c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
		for _, a := range agents {
			a.unchanged(t, "start", "--mode", mode, "--vip", vip)
			a.do(t, 0, "status")
		}
		c.director.Run(t, "ipvsadm", "-d", "-t", vip+":80", "-r", realAddr(0)+":80")
		for i, a := range agents {
			a.stop(t, mode, vip)
			holds(t, a.host, vip)
			equal(t, a.host, before[i])
			a.unchanged(t, "stop")
			a.do(t, 3, "status", "--vip", vip)
			if i == 0 {
				c.expectServed(t, 20, map[string]int{"rs2": 20}, vip)
			}
		}
	})
}

// TestManyVIPs: a hundred at once, served and silent like one.
func TestManyVIPs(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		var vips []string
		for i := range 100 {
			vips = append(vips, fmt.Sprintf("10.9.0.%d", 100+i))
		}
		c := newCluster(t)
		c.direct(t, mode, vips...)
		agents := newAgents(t, c.real)
		before := agents[0].host.Snapshot(t)
		var askers []*testnet.Asker
		for _, i := range []int{0, 50, 99} {
			askers = append(askers, c.client.AskARP(t, "eth0", vips[i], time.Millisecond))
		}
		for _, a := range agents {
			a.start(t, mode, strings.Join(vips, ","))
			a.unchanged(t, "start", "--mode", mode, "--vip", strings.Join(vips, ","))
		}
		holds(t, agents[0].host, vips[99], device[mode])
		c.expectServed(t, 2, map[string]int{"rs1": 100, "rs2": 100}, vips...)
		agents[0].do(t, 0, "stop")
		askers[0].Await(t, 5)
		for i, asker := range askers {
			if asked, replies := asker.Stop(); len(replies) != 1 || replies[mac(t, c.director)] == 0 {
				t.Errorf("asked %d times for VIP %d, and heard more than the director: %v", asked, i, replies)
			}
		}
		holds(t, agents[0].host, vips[0])
		equal(t, agents[0].host, before)
	})
}
