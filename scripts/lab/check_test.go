package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// A found is one finding of check.
type found struct{ Level, Code, Subject, Message, Cure string }

// finding is the one with this code; nil is none.
func (r report) finding(code string) *found {
	for _, f := range r.Findings {
		if f.Code == code {
			return &found{f.Level, f.Code, f.Subject, f.Message, f.Cure}
		}
	}
	return nil
}

// finds is a check that must find something, and change nothing.
func (a agent) finds(t *testing.T, code, level string, words []string, flags ...string) found {
	t.Helper()
	exit := 0
	if level == "error" {
		exit = 1
	}
	before := a.host.Snapshot(t)
	r := a.do(t, exit, "check", flags...)
	equal(t, a.host, before)
	f := r.finding(code)
	if f == nil {
		t.Fatalf("check does not find %s: %s", code, r.text)
	}
	for _, w := range words {
		if f.Level != level || !strings.Contains(f.Subject+" "+f.Message+" "+f.Cure, w) {
			t.Errorf("want level %s and %q in %+v", level, w, *f)
		}
	}
	return *f
}

// lacks is a check that must not find something, nor any error.
func (a agent) lacks(t *testing.T, code string, flags ...string) {
	t.Helper()
	if f := a.do(t, 0, "check", flags...).finding(code); f != nil {
		t.Errorf("check finds what is not so: %+v", *f)
	}
}

// cure runs a cure as it is printed.
func (a agent) cure(t *testing.T, command string) {
	t.Helper()
	dir := t.TempDir() // an rsagent that knows this agent's state directory
	script := fmt.Sprintf("#!/bin/sh\nverb=$1\nshift\nexec %s \"$verb\" --state-dir %s \"$@\"\n", a.bin, a.state)
	if err := os.WriteFile(filepath.Join(dir, "rsagent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := a.host.Exec(testnet.Cmd{Args: []string{"sh", "-c", command}, Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
	if r.Code != 0 {
		t.Fatalf("cure %q: exit %d\n%s%s", command, r.Code, r.Stdout, r.Stderr)
	}
}

// TestCheckInherited: what silences this host is what its containers start with, until the cure is taken.
func TestCheckInherited(t *testing.T) {
	guest(t)
	newCluster(t) // of namespaces, as containers have
	here := testnet.Here()
	here.Run(t, "sh", "-ec", "ip link add lab0 type veth peer name lab1; for i in lab0 lab1; do ip link set $i addrgenmode none; ip link set $i up; done; ip addr add 10.8.0.1/24 dev lab0")
	t.Cleanup(func() {
		here.Run(t, "sh", "-ec", "ip link del lab0; echo 0 >/proc/sys/net/core/devconf_inherit_init_net")
	})
	starts := func(want string) {
		t.Helper()
		if got := strings.TrimSpace(here.Run(t, "unshare", "-n", "cat", "/proc/sys/net/ipv4/conf/all/arp_ignore")); got != want {
			t.Errorf("a namespace starts with arp_ignore %s, want %s", got, want)
		}
	}
	a := newAgent(t, here)
	a.do(t, 0, "start", "--vip", vip)
	starts("1")
	f := a.finds(t, "inherited", "info", []string{"arp_ignore 1"})
	a.cure(t, f.Cure)
	a.lacks(t, "inherited")
	starts("0")
	a.do(t, 0, "stop")
}

// waits has the client connect to a VIP, which will not come about before something is mended, and returns where its end is told.
func (c *cluster) waits(vip string) chan error {
	end := make(chan error, 1)
	go func() {
		s, err := dial(c.client, vip, "80")
		if err == nil {
			s.Close()
		}
		end <- err
	}()
	return end
}

// TestCheckHealthy: real servers that serve their share have no error and no warning, by whatever row.
func TestCheckHealthy(t *testing.T) {
	guest(t)
	loadTunnels(t)
	c := newCluster(t)
	c.addIPv6(t)
	agents := newAgents(t, c.real)
	for i, r := range rows {
		if !long() && i%6 != 2 && i > 1 {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c.directRow(t, r)
			for _, a := range agents {
				a.do(t, 0, "start", append([]string{"--vip", r.vip}, strings.Fields(r.start)...)...)
			}
			c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, r.vip)
			for _, a := range agents {
				got := a.do(t, 0, "check", "--port", "80")
				for _, f := range got.Findings {
					if f.Level != "info" {
						t.Errorf("%s: %+v", a.host.Name, f)
					}
				}
				a.do(t, 0, "stop")
			}
		})
	}
}

// TestCase27_RivalTunnel: an external device is asked before tunl0, and its strict filter drops what it takes.
// Seen at: katran 15.
func TestCase27_RivalTunnel(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.host.SetIPv4Conf(t, "all", "rp_filter", "1")
	a.start(t, "tun", vip)
	c.arrives(t)
	a.lacks(t, "rival-tunnel")
	a.host.Run(t, "ip", "link", "add", "ext0", "type", "ipip", "external")
	a.lacks(t, "rival-tunnel") // it is down
	a.host.Run(t, "ip", "link", "set", "ext0", "up")
	waiting := c.refused(t)
	f := a.finds(t, "rival-tunnel", "error", []string{"ext0", "tunl0", "drops"})
	a.cure(t, f.Cure)
	if err := <-waiting; err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
	c.arrives(t)
	a.lacks(t, "rival-tunnel")
	a.host.SetIPv4Conf(t, "all", "rp_filter", "0") // what takes and lets through is no error
	a.do(t, 0, "restart")                          // tunl0 need not be loose then
	a.host.Run(t, "ip", "link", "set", "ext0", "up")
	a.finds(t, "rival-tunnel", "warning", []string{"ext0"})
}

// TestCase28_CheckNamesTheOther: someone else's address on tunl0 is named, and so is who takes addresses off it.
// Seen at: felix 2887.
func TestCase28_CheckNamesTheOther(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.start(t, "tun", vip)
	c.arrives(t)
	a.lacks(t, "shared")
	a.lacks(t, "calico")
	a.host.Run(t, "ip", "addr", "add", "10.8.0.1/32", "dev", "tunl0")
	a.finds(t, "shared", "warning", []string{"10.8.0.1", "tunl0"})
	testnet.Wire(t, a.host, "cali0123", "", c.client, "pod", "")
	a.finds(t, "calico", "warning", []string{"Calico", "externalNodesList"})
	a.host.Run(t, "ip", "addr", "del", "10.8.0.1/32", "dev", "tunl0")
	a.host.Run(t, "ip", "link", "del", "cali0123")
	a.lacks(t, "shared")
	a.lacks(t, "calico")
}

// TestCase47_DirectorSendsOtherwise: the director wraps in GUE, and the real server unwraps ipip: nothing arrives, and check
// says what to look at. Seen at: keepalived 1355.
func TestCase47_DirectorSendsOtherwise(t *testing.T) {
	guest(t)
	loadTunnels(t)
	c := newClusterOf(t, testnet.NewHost(t, "rs"))
	a := newAgent(t, c.real[0])
	for _, r := range rows {
		if r.name == "gue, 4 in 4" {
			c.directRow(t, r)
		}
	}
	a.start(t, "tun", vip)
	waiting := c.waits(vip)
	testnet.Eventually(t, "the director to send", func() bool {
		return regexp.MustCompile(`(?m)^.*` + regexp.QuoteMeta(realAddr(0)) + `:80 +[1-9]`).MatchString(c.director.Run(t, "ipvsadm", "-Ln", "--stats"))
	})
	a.finds(t, "received-nothing", "warning", []string{"tunl0", "-i --tun-type ipip"})
	c.director.Run(t, "ipvsadm", "-e", "-t", vip+":80", "-r", realAddr(0)+":80", "-i", "--tun-type", "ipip")
	<-waiting // it may have been told that there is nothing
	c.arrives(t)
	a.lacks(t, "received-nothing")
}

// TestCase48_FirewallDropsTheTunnel: rules that drop what the director wraps are named; the cure lets it in.
// Seen at: calico 1357.
func TestCase48_FirewallDropsTheTunnel(t *testing.T) {
	guest(t)
	loadTunnels(t)
	c := newClusterOf(t, testnet.NewHost(t, "rs"))
	c.addIPv6(t)
	a := newAgent(t, c.real[0])
	for _, r := range rows {
		rule, known := map[string]string{
			"ipip, 4 in 4": "ip protocol 4", "ipip, 6 in 6": "meta nfproto ipv6 meta l4proto 41", "ipip, 6 in 4": "ip protocol { 41, 47 }",
			"gre, 4 in 4": "iifname eth0 meta l4proto 47", "gue, 4 in 4": "udp dport 6000-6100", "gue, 6 in 6": "ip6 nexthdr udp",
		}[r.name]
		if !known || !long() && !strings.HasSuffix(r.name, "4 in 4") {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c.directRow(t, r)
			a.do(t, 0, "start", append([]string{"--vip", r.vip}, strings.Fields(r.start)...)...)
			c.expectServed(t, 2, map[string]int{"rs1": 2}, r.vip)
			a.lacks(t, "firewall", "--port", "80")
			a.host.Run(t, "nft", "table inet lab { chain in { type filter hook input priority 0; "+rule+" counter drop; }; }")
			waiting := c.waits(r.vip)
			testnet.Eventually(t, "the rule to drop a packet", func() bool {
				return regexp.MustCompile(`counter packets [1-9]`).MatchString(a.host.Run(t, "nft", "list", "table", "inet", "lab"))
			})
			f := a.finds(t, "firewall", "error", []string{"chain inet lab in", "which the director wraps"}, "--port", "80")
			a.cure(t, f.Cure)
			if err := <-waiting; err != nil {
				t.Errorf("the connection that waited: %v", err)
			}
			c.expectServed(t, 2, map[string]int{"rs1": 2}, r.vip)
			a.lacks(t, "firewall", "--port", "80")
			a.host.Run(t, "nft", "delete", "table", "inet", "lab")
			a.do(t, 0, "stop")
		})
	}
}

// TestCheckReversePathRule: a rule as firewalld has it asks for a route back by the tunnel, and kills IPv6 in IPv6.
func TestCheckReversePathRule(t *testing.T) {
	guest(t)
	loadTunnels(t)
	c := newClusterOf(t, testnet.NewHost(t, "rs"))
	c.addIPv6(t)
	a := newAgent(t, c.real[0])
	c.directRow(t, rows[3])
	a.do(t, 0, "start", "--vip", vip6, "--mode", "tun")
	c.expectServed(t, 2, map[string]int{"rs1": 2}, vip6)
	a.lacks(t, "firewall-reverse-path")
	a.host.Run(t, "nft", "table inet lab { chain pre { type filter hook prerouting priority raw + 10; meta nfproto ipv6 fib saddr . iif oif missing counter drop; }; }")
	waiting := c.waits(vip6)
	testnet.Eventually(t, "the rule to drop a packet", func() bool {
		return regexp.MustCompile(`counter packets [1-9]`).MatchString(a.host.Run(t, "nft", "list", "table", "inet", "lab"))
	})
	f := a.finds(t, "firewall-reverse-path", "error", []string{"chain inet lab pre", "ip6tnl0"})
	a.cure(t, f.Cure)
	if err := <-waiting; err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
	c.expectServed(t, 2, map[string]int{"rs1": 2}, vip6)
	a.lacks(t, "firewall-reverse-path")
}

// TestCase50_CheckNamesTheSegments: clients are told of segments that do not fit; by the cure they are told of others.
// Seen at: kube-router 630, 1671.
func TestCase50_CheckNamesTheSegments(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.start(t, "tun", vip)
	c.arrives(t)
	f := a.finds(t, "large-segments", "info", []string{"1460", "1440", "1500"})
	a.cure(t, f.Cure)
	a.lacks(t, "large-segments")
	c.arrives(t)
}

// TestCheckOpenTunnel: whoever sends, it is unwrapped, until the director is named.
func TestCheckOpenTunnel(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.start(t, "tun", vip)
	f := a.finds(t, "open-tunnel", "info", []string{"tunl0", "DIRECTOR"})
	a.cure(t, strings.Replace(f.Cure, "DIRECTOR", "10.9.0.2", 1))
	a.lacks(t, "open-tunnel")
	c.arrives(t)
}

// TestCheckNoRoute: loose filtering needs a route to the client, and there is none.
func TestCheckNoRoute(t *testing.T) {
	guest(t)
	ipip(t, true)
	c, a := newTunnelSite(t)
	a.host.SetIPv4Conf(t, "tunl0", "rp_filter", "2")
	a.start(t, "tun", vip)
	c.arrives(t)
	a.lacks(t, "rp-filter-no-route")
	a.host.Run(t, "ip", "route", "del", "default")
	f := a.finds(t, "rp-filter-no-route", "warning", []string{"tunl0", "ip route add default via GATEWAY"})
	a.cure(t, strings.Replace(f.Cure, "GATEWAY", "10.9.0.1", 1))
	a.lacks(t, "rp-filter-no-route")
}

// TestCase52_DirectorToo: a real server with the VIP in its own IPVS table is a backup director; without backup_only it
// directs what the master sends it. Seen at: keepalived 1827, 2450.
func TestCase52_DirectorToo(t *testing.T) {
	guest(t)
	c := newCluster(t)
	c.direct(t, "dr", vip)
	agents := newAgents(t, c.real)
	for _, a := range agents {
		a.start(t, "dr", vip)
		a.lacks(t, "director-too")
	}
	a := agents[0]
	a.host.Run(t, "ipvsadm", "-A", "-t", vip+":80", "-s", "rr")
	for i := range c.real {
		a.host.Run(t, "ipvsadm", "-a", "-t", vip+":80", "-r", realAddr(i)+":80", "-g")
	}
	f := a.finds(t, "director-too", "error", []string{vip, "IPVS", "backup_only"})
	a.host.Run(t, "ipvsadm", "--start-daemon", "backup", "--mcast-interface", "eth0")
	a.cure(t, f.Cure)
	a.lacks(t, "director-too")
	c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
}
