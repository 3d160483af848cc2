package cases

import (
	"testing"

	"rsagent/scripts/testnet"
)

// The old recipe with lo's settings only, and the VIP put there by hand. Seen at: dpvs issue 312.
func TestCheckGuardOnLo(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	s.lacks(t, "guard-on-lo", "--vip", vip)
	s.rs.SetIPv4Conf(t, "lo", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "lo", "arp_announce", "2")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("it is silent: nothing to be found")
	}
	f := s.finds(t, "guard-on-lo", "error", []string{"lo", "eth0"}, "--vip", vip)
	s.cured(t, f, "--vip", vip)
	s.silent(t, vip)
}

// The settings of a bridge's port count for nothing; those of the bridge do.
func TestCheckGuardOnPort(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	s.rs.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	s.rs.SetSysctl(t, "ipv6", "conf", "br0", "accept_dad", "0")
	s.rs.Run(t, "ip", "link", "set", "br0", "up")
	s.rs.Run(t, "ip", "addr", "del", rip+"/24", "dev", "eth0")
	s.rs.Run(t, "ip", "link", "set", "eth0", "master", "br0")
	s.rs.Run(t, "ip", "addr", "add", rip+"/24", "dev", "br0")
	s.rs.Settle(t, "br0")
	s.lacks(t, "guard-on-port", "--vip", vip)
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "eth0", "arp_announce", "2")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("it is silent: nothing to be found")
	}
	f := s.finds(t, "guard-on-port", "error", []string{"eth0", "br0", "bridge"}, "--vip", vip)
	s.cured(t, f, "--vip", vip)
	s.silent(t, vip)
}

// A link without an address of its own, as some CNIs have them: its neighbour asks for the address of another interface,
// and with all.arp_ignore 1 gets no answer. check foretells it, and names the guard that does no harm.
// Seen at: kubernetes issues 71555 and 72779.
func TestCase24_UnnumberedLink(t *testing.T) {
	s := newSite(t)
	pod := testnet.NewHost(t, "pod")
	testnet.Wire(t, s.rs, "eth1", "", pod, "eth0", "10.1.0.2/32")
	s.lacks(t, "borrowed")
	s.rs.Run(t, "ip", "route", "add", "10.1.0.2", "dev", "eth1")
	pod.Run(t, "ip", "route", "add", rip, "dev", "eth0")
	asks := func() bool { return pod.Resolve(t, "eth0", rip) != "" }
	if !asks() {
		t.Fatal("the pod is not answered before")
	}
	s.finds(t, "borrowed", "warning", []string{"eth1", "rsagent start --vip VIP --arp-guard interface --interface eth0"})
	s.do(t, "start", "--vip", vip)
	if asks() {
		t.Fatal("the pod is answered: what was foretold is wrong")
	}
	f := s.finds(t, "borrowed", "warning", []string{"eth1"})
	s.cured(t, f)
	s.silent(t, vip)
	if !asks() {
		t.Error("after the cure the pod is not answered")
	}
	s.rs.SetIPv4Conf(t, "eth1", "proxy_arp", "1") // then it is for the proxy to answer
	s.do(t, "start", "--vip", vip)
	s.lacks(t, "borrowed")
}
