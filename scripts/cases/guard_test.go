package cases

import (
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// The kernel takes the numeric maximum of conf/all and the interface, and 3
// answers for an address of scope global: an eth0 at 3 outweighs all at 1.
// Seen at: IBM Edge Components, "interface alias on Linux".
func TestCase01_InterfaceValueThatOutweighsAll(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "3")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.silent(t, vip)
		s.serves(t, vip)
		s.do(t, "stop")
	})
	s.conf(t, "eth0", "arp_ignore", "3")
}

// The same with scope global, where 3 does not do.
func TestCase01_ScopeGlobal(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "eth0", "arp_ignore", "3")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, "--scope", "global")
		s.silent(t, vip)
		s.do(t, "stop")
	})
}

// A host whose administrator has set these for other reasons must have them
// back, and rp_filter must never be made looser by DR.
// Seen at: kubernetes issue 123992, CNI plugins pull 493.
func TestCase03_ValuesSetBefore(t *testing.T) {
	s := newSite(t)
	for _, knob := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
		s.rs.SetIPv4Conf(t, "all", knob, "1")
	}
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.silent(t, vip)
		s.conf(t, "all", "arp_announce", "2")
		s.conf(t, "all", "rp_filter", "1")
		s.do(t, "stop")
	})
}

// Guards belong to the set, not to the VIP that brought them: they go with
// the last one. Seen at: keepalived issue 2450.
func TestCase04_GuardsStayForTheOtherVIP(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.do(t, "start", "--vip", vip2)
		s.do(t, "stop", "--vip", vip)
		s.bound(t, vip)
		s.bound(t, vip2, "lo")
		s.silent(t, vip2)
		s.ask(t, 0, "status")
		s.do(t, "stop", "--vip", vip2)
	})
}

// Interface names may hold dots, which in a sysctl's name are separators.
// Seen at: talos issue 7878, tailscale issue 4300.
func TestCase17_InterfaceNameWithDot(t *testing.T) {
	s := newSite(t)
	testnet.Wire(t, s.rs, "eth0.100", "10.1.0.11/24", s.peer, "eth1", "10.1.0.1/24")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0.100")
		s.conf(t, "eth0.100", "arp_ignore", "1")
		s.conf(t, "eth0.100", "arp_announce", "2")
		s.conf(t, "all", "arp_ignore", "0")
		s.conf(t, "all", "arp_announce", "0")
		s.silentOn(t, "eth1", vip)
		s.do(t, "stop")
	})
}

// The classic recipe's settings of lo alone guard nothing: requests arrive on
// the NIC. status must not call such a host up. Seen at: dpvs issue 312.
func TestCase18_OnlyLoIsSet(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "lo", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "lo", "arp_announce", "2")
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("this kernel does honour the settings of lo")
	}
	s.ask(t, 1, "status", "--vip", vip)

	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "2")
	s.ask(t, 0, "status", "--vip", vip)
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	s.ask(t, 3, "status", "--vip", vip)
}

// A NIC plugged in later inherits conf/default, and is silent because of
// conf/all. Seen at: felix pull 806.
func TestCase23_NICThatComesLater(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "10.0.0.2/24")
	s.silentOn(t, "eth1", vip)
	s.ask(t, 0, "status")
	s.restored(t, func() { s.do(t, "start", "--vip", vip) })
}

// With the guard on named interfaces only, the later NIC does answer, and
// status says so.
func TestCase23_NICThatComesLaterBesideInterfaceGuard(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "10.0.0.2/24")
	if !s.answers(t, "eth1", vip) {
		t.Fatal("eth1 does not answer: nothing to be said")
	}
	got := s.rs.Try(s.args("status", "-o", "json")...)
	if r := parse(t, got.Code, "status", s.args("status"), got); !r.says("eth1") {
		t.Errorf("status does not speak of eth1: %+v", r)
	}
}

// Nothing on an interface outweighs all at 5, a value that answers.
// Seen at: a review of the maximum rule.
func TestCase59_AllItselfLeaks(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "5")
	for _, guard := range [][]string{{}, {"--arp-guard", "interface", "--interface", "eth0"}} {
		s.restored(t, func() {
			s.do(t, "start", append(guard, "--vip", vip)...)
			s.silent(t, vip)
			s.do(t, "stop")
		})
		s.conf(t, "all", "arp_ignore", "5")
	}
}

// A good value that is stricter, or as good, is kept: 8 is silent, if about
// everything. Seen at: a review of the table of modes.
func TestCase59_StricterValueIsKept(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "2")
	s.restored(t, func() {
		s.do(t, "start", "--vip", vip)
		s.conf(t, "all", "arp_ignore", "2")
		s.silent(t, vip)
		s.do(t, "stop")
	})
}

// An interface is renamed while its guard is up: the guard goes by index.
// The names of interfaces are settled late in many boots.
// Seen at: a review of what the journal is keyed by.
func TestCase56_InterfaceRenamed(t *testing.T) {
	s := newSite(t)
	s.rs.SetIPv4Conf(t, "eth0", "arp_announce", "1")
	s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
	s.rs.Run(t, "ip", "link", "set", "eth0", "down")
	s.rs.Run(t, "ip", "link", "set", "eth0", "name", "lan0")
	s.rs.Run(t, "ip", "link", "set", "lan0", "up")
	s.rs.Settle(t, "lan0")
	s.silent(t, vip)
	s.do(t, "stop")
	s.bound(t, vip)
	s.conf(t, "lan0", "arp_ignore", "0")
	s.conf(t, "lan0", "arp_announce", "1")
}

// An interface may be named by an alternative name, longer than a name can be; what it stands for is guarded, and said.
// Seen at: systemd's predictable names, of which most are alternative ones.
func TestGuard_AlternativeName(t *testing.T) {
	const alt = "a-name-longer-than-fifteen-bytes"
	s := newSite(t)
	s.rs.Run(t, "ip", "link", "property", "add", "dev", "eth0", "altname", alt)
	s.rs.Run(t, "ip", "link", "property", "add", "dev", "eth0", "altname", "alt1")
	s.restored(t, func() {
		for _, name := range []string{alt, "alt1"} {
			r := s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", name)
			if !r.says("info", name, "eth0") {
				t.Errorf("it is not said that %s is eth0: %+v", name, r.Findings)
			}
			s.conf(t, "eth0", "arp_ignore", "1")
			s.conf(t, "all", "arp_ignore", "0")
			s.silent(t, vip)
			s.ask(t, 0, "status")
		}
		s.do(t, "stop")
		s.ask(t, 6, "start", "--vip", vip, "--arp-guard", "interface", "--interface", alt+"s")
		s.ask(t, 6, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "alt")
	})
}

// An interface that takes no ARP cannot be guarded: a mistake like one in writing, and nothing is touched.
func TestGuard_InterfaceWithoutARP(t *testing.T) {
	s := newSite(t)
	testnet.Wire(t, s.rs, "quiet0", "", s.peer, "eth1", "")
	s.rs.Run(t, "ip", "link", "set", "quiet0", "arp", "off")
	s.restored(t, func() {
		for _, more := range [][]string{{}, {"--dry-run"}, {"-o", "json"}} {
			r := s.rs.Try(s.args("start", append(more, "--vip", vip, "--arp-guard", "interface", "--interface", "quiet0")...)...)
			if r.Code != 2 || r.Stdout != "" || lines(r.Stderr) != 1 || !strings.Contains(r.Stderr, "quiet0 takes no ARP") {
				t.Errorf("%v: exit %d\n%s%s", more, r.Code, r.Stdout, r.Stderr)
			}
		}
	})
	s.ask(t, 3, "status")
	s.do(t, "start", "--vip", vip, "--arp-guard", "interface", "--interface", "eth0")
	s.rs.Run(t, "ip", "link", "set", "eth0", "arp", "off") // later it is drift, as any
	if r := s.ask(t, 1, "status"); !r.says("error", "eth0", "no arp") {
		t.Errorf("it says %+v", r)
	}
}

// Without a guard the host answers, and that is said.
func TestGuard_None(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		if r := s.do(t, "start", "--vip", vip, "--arp-guard", "none"); !r.says("info", vip, "answers arp") {
			t.Errorf("it is not said what none means: %+v", r.Findings)
		}
		if !s.answers(t, "eth0", vip) {
			t.Error("the host is silent")
		}
		s.ask(t, 0, "status")
		s.do(t, "stop")
	})
}

// A host that forwards answers neighbour solicitations as a proxy, whosever address it is; rsagent says that it does.
// Seen at: net/ipv6/ndisc.c, pndisc_is_router.
func TestGuard_NDPProxy(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
	s.peer.Run(t, "ip", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad")
	s.do(t, "start", "--vip", vip6)
	if s.peer.Resolve(t, "eth0", vip6) != "" {
		t.Fatal("the real server answers without a proxy entry")
	}
	if r := s.ask(t, 0, "status"); r.says("proxy") {
		t.Errorf("there is no proxy entry, and it says %+v", r)
	}
	s.rs.SetSysctl(t, "ipv6", "conf", "all", "forwarding", "1")
	s.rs.SetSysctl(t, "ipv6", "conf", "eth0", "proxy_ndp", "1")
	s.rs.SetSysctl(t, "ipv6", "neigh", "eth0", "proxy_delay", "0") // by default it takes its time
	s.rs.Run(t, "ip", "-6", "neigh", "add", "proxy", vip6, "dev", "eth0")
	if s.peer.Resolve(t, "eth0", vip6) == "" {
		t.Error("the kernel does not answer for the proxy entry: nothing to be said")
	}
	r := s.ask(t, 0, "status")
	if !r.says("warning", "proxy", vip6, "eth0") {
		t.Errorf("it says %+v", r)
	}
	for _, f := range r.Findings {
		if f.Code == "proxy-ndp" {
			s.rs.Run(t, "sh", "-c", f.Cure)
		}
	}
	if s.peer.Resolve(t, "eth0", vip6) != "" {
		t.Error("the cure is none")
	}
	if r := s.do(t, "start", "--vip", vip6); r.says("proxy") {
		t.Errorf("after the cure it says %+v", r)
	}
}
