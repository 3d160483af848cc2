package realserver

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/arp/nft"
	"rsagent/sysctl"
)

// A sick host is one that holds VIPs, with what a test does to it.
type sick struct {
	*fake
	around Surroundings
	watch  Watching
}

// checkOn has the groups look at values, and lists level, code and subject of what they find.
func checkOn(set Set, services []Service, change func(*sick)) (out []string, finds []Finding) {
	s := &sick{fake: base{}.kernel()}
	s.host.Links[0].Up = true
	s.set("all", "arp_ignore", 1)
	s.set("all", "arp_announce", 2)
	s.host.Uplink = 2
	s.host.Links[1].MTU = 1500
	for _, v := range set {
		if v.Mode == TUN {
			s.addDevice(v.kind().Device, v.kind().Link)
			s.host.link(v.kind().Device).Up = true
			s.host.Received = map[string]uint64{v.kind().Device: 7}
		}
		s.addAddr(v.addr(), v.scope())
	}
	if change != nil {
		change(s)
	}
	st := &Status{host: &s.host, Guards: s.host.silence(set), Watching: s.watch}
	for _, v := range set {
		st.VIPs = append(st.VIPs, VIPState{v, Up})
	}
	c := &checkup{Status: st, set: set, host: &s.host, around: &s.around, services: services}
	c.ask()
	c.all()
	for _, f := range c.Findings {
		out = append(out, strings.TrimSpace(string(f.Level)+" "+f.Code+" "+f.Subject))
	}
	return out, c.Findings
}

var (
	web     = Service{Port: 80}
	byHand  = with(vipA, func(v *VIP) { v.Origin = 0 })
	guarded = with(vipB, func(v *VIP) { v.Directors, v.MSS = []string{"198.51.100.2"}, AutoMSS })
)

// fate is what the rules make of each packet that the set needs, if is tells that they do.
func (s *sick) fates(set Set, services []Service, fate nft.Fate, is func(nft.Packet) bool) {
	c := &checkup{Status: &Status{}, set: set, host: &s.host, services: services}
	ask := c.ask()
	s.around.Fates = map[nft.Packet]nft.Fate{}
	for _, p := range ask.Packets {
		for _, nic := range append([]NIC{{p.Iface, p.Index}}, c.nics...) {
			q := p
			if !p.Unwrapped {
				q.Iface, q.Index = nic.Name, nic.Index
			}
			if is(q) {
				s.around.Fates[q] = fate
			}
		}
	}
}

// claimed: these answer for the VIP.
func claimed(v VIP, macs ...string) func(*sick) {
	return func(s *sick) { s.around.Claims = []Claim{{v.Addr, "eth0", macs}} }
}

func TestCheckup(t *testing.T) {
	dropped := nft.Fate{Dropped: true, Family: nft.Inet, Table: "filter", Chain: "in", Handle: 7}
	for _, c := range []struct {
		name     string
		set      Set
		services []Service
		change   func(*sick)
		want     []string
	}{
		{"nothing", nil, nil, nil, []string{"info nothing-managed"}},
		{"all well, DR", Set{vipA}, nil, nil, nil},
		{"all well, TUN", Set{guarded}, nil, nil, nil},
		{"undone again and again", Set{vipA}, nil, func(s *sick) { s.watch = Watching{Running: true, Contended: []string{"x"}} }, []string{"warning contended x"}},
		{"undone until the watcher ended", Set{vipA}, nil, func(s *sick) { s.watch.Contended = []string{"x"} }, nil},
		{"no NIC up", Set{vipA}, nil, func(s *sick) { s.host.Links[0].Up, s.host.Links[1].Up = false, false }, []string{"error no-nic"}},
		{"withheld", Set{with(vipA, func(v *VIP) { v.Withheld = true })}, nil, nil, []string{"error not-bound 192.0.2.1"}},
		{"not all seen", Set{vipA}, nil, func(s *sick) { s.around.Unseen = []Unseen{{"nftables", "operation not permitted", ""}} }, []string{"warning unseen nftables"}},

		{"settings of lo only", Set{byHand}, nil, func(s *sick) { s.set("all", "arp_ignore", 0); s.set("lo", "arp_ignore", 1) },
			[]string{"error answers-arp eth0", "error guard-on-lo lo"}},
		{"settings of lo and all", Set{byHand}, nil, func(s *sick) { s.set("lo", "arp_ignore", 1) }, nil},
		{"settings of a bridge's port", Set{byHand}, nil, func(s *sick) {
			s.set("all", "arp_ignore", 0)
			s.link(sysctl.Interface{Name: "port0", Index: 8, ARP: true, Port: "bridge", Master: 2})
			s.set("port0", "arp_ignore", 1)
		}, []string{"error answers-arp eth0", "error guard-on-port port0"}},
		{"drift of what is managed is not misplaced", Set{vipA}, nil, func(s *sick) { s.set("all", "arp_ignore", 0); s.set("lo", "arp_ignore", 1) },
			[]string{"error answers-arp eth0"}},
		{"an unnumbered link", Set{vipA}, nil, func(s *sick) {
			s.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, Up: true})
			s.around.Borrowers = map[string]bool{"eth1": true}
		}, []string{"warning borrowed eth1"}},
		{"an unnumbered link, before start", nil, nil, func(s *sick) {
			s.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, Up: true})
			s.around.Borrowers = map[string]bool{"eth1": true}
		}, []string{"info nothing-managed", "warning borrowed eth1"}},
		{"an unnumbered link beside another guard", Set{vipAeth}, nil, func(s *sick) {
			s.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, Up: true})
			s.around.Borrowers = map[string]bool{"eth1": true}
		}, nil},
		{"a reload that flushes", Set{vipAnft}, nil, func(s *sick) {
			s.watch.Running = true
			s.around.Systemd, s.around.Files = true, []File{{nftablesFile, "/etc/nftables.conf", "#!/usr/sbin/nft -f\nflush ruleset\n"}}
		}, []string{"warning nft-flush /etc/nftables.conf", "info not-enabled rsagent.service"}},
		{"a reload that flushes, and the unit", Set{vipAnft}, nil, func(s *sick) {
			s.watch.Running = true
			s.around.Systemd, s.around.Enabled, s.around.Files = true, true, []File{{nftablesFile, "/etc/nftables.conf", "flush ruleset\n"}}
		}, nil},

		{"nobody claims it", Set{vipA}, nil, claimed(vipA), []string{"warning claimed-by-nobody 192.0.2.1"}},
		{"nobody claims it, and the director may be anywhere", Set{guarded}, nil, claimed(guarded), []string{"info claimed-by-nobody 192.0.2.2"}},
		{"one claims it", Set{vipA}, nil, claimed(vipA, "02:00:00:00:00:0a"), []string{"info claimed 192.0.2.1"}},
		{"one with no NIC's address claims it", Set{vipA}, nil, claimed(vipA, "ff:ff:ff:ff:ff:ff"), []string{"warning claimed 192.0.2.1"}},
		{"one without any claims it", Set{vipA}, nil, claimed(vipA, "00:00:00:00:00:00"), []string{"warning claimed 192.0.2.1"}},
		{"several claim it", Set{vipA}, nil, claimed(vipA, "02:00:00:00:00:0a", "02:00:00:00:00:0b"), []string{"error claimed-by-several 192.0.2.1"}},

		{"nothing listens", Set{vipA}, []Service{web}, nil, []string{"error no-listener 192.0.2.1"}},
		{"any address", Set{vipA}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", web, 0, false) }, nil},
		{"any address, by UDP", Set{vipA}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", Service{80, true}, 0, false) }, []string{"error no-listener 192.0.2.1"}},
		{"any address of both versions", Set{vipA}, []Service{web}, func(s *sick) { s.listen("::", web, 0, false) }, nil},
		{"any address of IPv6 only", Set{vipA}, []Service{web}, func(s *sick) { s.listen("::", web, 0, true) }, []string{"error no-listener 192.0.2.1"}},
		{"IPv6", Set{vip6}, []Service{web}, func(s *sick) { s.listen("::", web, 0, true) }, nil},
		{"IPv4 for IPv6", Set{vip6}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", web, 0, false) }, []string{"error no-listener 2001:db8::1"}},
		{"the VIP", Set{vipA}, []Service{web}, func(s *sick) { s.listen("192.0.2.1", web, 0, false) }, nil},
		{"the VIP in IPv6 form", Set{vipA}, []Service{web}, func(s *sick) { s.listen("::ffff:192.0.2.1", web, 0, false) }, nil},
		{"another address", Set{vipA}, []Service{web}, func(s *sick) { s.listen("198.51.100.11", web, 0, false) }, []string{"error no-listener 192.0.2.1"}},
		{"bound to the NIC", Set{vipA}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", web, 2, false) }, nil},
		{"bound to lo", Set{vipA}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", web, 1, false) }, []string{"error no-listener 192.0.2.1"}},
		{"bound to the NIC, and it comes out of the tunnel", Set{guarded}, []Service{web}, func(s *sick) { s.listen("0.0.0.0", web, 2, false) }, []string{"error no-listener 192.0.2.2"}},
		{"handed on", Set{vipA}, []Service{web}, func(s *sick) {
			s.fates(Set{vipA}, []Service{web}, nft.Fate{Redirected: true}, func(nft.Packet) bool { return true })
		}, []string{"info redirected 192.0.2.1"}},
		{"all listeners", Set{vipA}, nil, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.listen("198.51.100.11", Service{22, false}, 0, false)
		}, []string{"info listeners"}},

		{"a port is dropped", Set{vipA}, []Service{web}, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.fates(Set{vipA}, []Service{web}, dropped, func(p nft.Packet) bool { return p.Port == 80 })
		}, []string{"error firewall the rule with handle 7 of chain inet filter in"}},
		{"a port of two VIPs is dropped", Set{vipA, vipC}, []Service{web}, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.fates(Set{vipA, vipC}, []Service{web}, dropped, func(p nft.Packet) bool { return p.Port == 80 })
		}, []string{"error firewall the rule with handle 7 of chain inet filter in"}},
		{"a port is dropped by the uplink only", Set{vipA}, []Service{web}, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, Up: true, MTU: 1500})
			s.addAddr(addr("203.0.113.11/24", "eth1"), "global")
			s.fates(Set{vipA}, []Service{web}, dropped, func(p nft.Packet) bool { return p.Iface == "eth0" })
		}, []string{"warning firewall the rule with handle 7 of chain inet filter in"}},
		{"by the uplink, and the VIP is of another NIC's subnet", Set{vipA}, []Service{web}, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.second(0)
			s.fates(Set{vipA}, []Service{web}, dropped, func(p nft.Packet) bool { return p.Iface == "eth0" })
		}, nil},
		{"by the NIC in whose subnet the VIP is", Set{vipA}, []Service{web}, func(s *sick) {
			s.listen("0.0.0.0", web, 0, false)
			s.second(0)
			s.fates(Set{vipA}, []Service{web}, dropped, func(p nft.Packet) bool { return p.Iface == "eth1" })
		}, []string{"warning firewall the rule with handle 7 of chain inet filter in"}},
		{"TCP is dropped, UDP is not", Set{vipA}, nil, func(s *sick) { s.fates(Set{vipA}, nil, dropped, func(p nft.Packet) bool { return p.Protocol == 6 }) }, nil},
		{"all is dropped", Set{vipA}, nil, func(s *sick) { s.fates(Set{vipA}, nil, dropped, func(nft.Packet) bool { return true }) },
			[]string{"error firewall the rule with handle 7 of chain inet filter in"}},
		{"protocol 4 is dropped", Set{guarded}, nil, func(s *sick) { s.fates(Set{guarded}, nil, dropped, func(p nft.Packet) bool { return p.Protocol == 4 }) },
			[]string{"error firewall the rule with handle 7 of chain inet filter in"}},
		{"what comes out of the tunnel is dropped", Set{guarded}, nil, func(s *sick) {
			s.fates(Set{guarded}, nil, backed(dropped), func(p nft.Packet) bool { return p.Unwrapped })
		}, []string{"error firewall-reverse-path the rule with handle 7 of chain inet filter in"}},

		{"an external device", Set{guarded}, nil, func(s *sick) {
			s.rival("ext0", "ipip external", true)
			s.set("all", "rp_filter", 1)
			s.set("tunl0", "rp_filter", 2)
		},
			[]string{"error rival-tunnel ext0"}},
		{"an external device that lets through", Set{guarded}, nil, func(s *sick) { s.rival("flannel.ipip", "ipip local 198.51.100.11", true) }, []string{"warning rival-tunnel flannel.ipip"}},
		{"an external device that is down", Set{guarded}, nil, func(s *sick) { s.rival("ext0", "ipip external", false) }, nil},
		{"a tunnel to elsewhere", Set{guarded}, nil, func(s *sick) { s.rival("ext0", "ipip local 198.51.100.11 remote 203.0.113.9", true) }, nil},
		{"a tunnel from the director", Set{guarded}, nil, func(s *sick) { s.rival("ext0", "ipip remote 198.51.100.2", true) }, []string{"warning rival-tunnel ext0"}},
		{"another kind", Set{guarded}, nil, func(s *sick) { s.rival("ext0", "gre external", true) }, nil},
		{"Calico", Set{guarded}, nil, func(s *sick) { s.link(sysctl.Interface{Name: "cali123", Index: 9, ARP: true, Up: true}) }, []string{"warning calico tunl0"}},
		{"nothing received", Set{guarded}, nil, func(s *sick) { s.host.Received = nil }, []string{"warning received-nothing tunl0"}},
		{"from anyone", Set{with(guarded, func(v *VIP) { v.Directors = nil })}, nil, nil, []string{"info open-tunnel tunl0"}},
		{"large segments", Set{with(guarded, func(v *VIP) { v.MSS = "" })}, nil, nil, []string{"info large-segments 192.0.2.2"}},

		{"the filter drops", Set{vipA}, nil, func(s *sick) { s.around.Dropped = 3 }, []string{"warning rp-filter-drops"}},
		{"loose, and no default route", Set{guarded}, nil, func(s *sick) { s.host.Uplink = 0; s.set("tunl0", "rp_filter", 2) }, []string{"warning rp-filter-no-route tunl0"}},
		{"off, and no default route", Set{guarded}, nil, func(s *sick) { s.host.Uplink = 0 }, nil},
		{"DR by another NIC", Set{vipA}, nil, func(s *sick) { s.second(1) }, []string{"warning rp-filter-nic eth1"}},
		{"DR by another NIC, loose", Set{vipA}, nil, func(s *sick) { s.second(2) }, nil},

		{"the VIP as source", Set{vipC}, nil, func(s *sick) { s.host.Source = vipC.Addr }, []string{"warning vip-as-source 192.0.2.3"}},
		{"the IPv6 VIP as source", Set{vip6}, nil, func(s *sick) { s.around.Source6 = vip6.Addr }, []string{"warning vip-as-source 2001:db8::1"}},

		{"a director too", Set{vipA}, nil, func(s *sick) { s.around.Directs = map[netip.Addr]bool{vipA.Addr: true} }, []string{"error director-too 192.0.2.1"}},
		{"a director too, backup only", Set{vipA}, nil, func(s *sick) { s.around.Directs, s.around.BackupOnly = map[netip.Addr]bool{vipA.Addr: true}, true }, nil},
		{"a director of others", Set{vipA}, nil, func(s *sick) { s.around.Directs = map[netip.Addr]bool{vipC.Addr: true} }, nil},
		{"it forwards", Set{vipA}, nil, func(s *sick) { s.host.Forwards = true }, []string{"info forwarding"}},
		{"martians", Set{vipA}, nil, func(s *sick) { s.around.Martians, s.around.Initial = 3, true }, []string{"warning own-source"}},
		{"martians of whoever", Set{vipA}, nil, func(s *sick) { s.around.Martians = 3 }, []string{"info own-source"}},

		{"not enabled", Set{vipA}, nil, func(s *sick) { s.around.Systemd = true }, []string{"info not-enabled rsagent.service"}},
		{"a file undoes all", Set{vipA}, nil, func(s *sick) { s.file("# x\nnet.ipv4.conf.all.arp_ignore = 0\n") }, []string{"warning sysctl-file /etc/sysctl.d/x.conf:2"}},
		{"a file undoes one", Set{vipA}, nil, func(s *sick) { s.file("-net/ipv4/conf/eth0/arp_announce=1\nnet.ipv4.conf.eth0.arp_ignore=3") }, nil},
		{"a file undoes one, for scope global", Set{vipC}, nil, func(s *sick) { s.file("net.ipv4.conf.eth0.arp_ignore=3") }, []string{"warning sysctl-file /etc/sysctl.d/x.conf:1"}},
		{"a file undoes all, in hexadecimal", Set{vipA}, nil, func(s *sick) { s.file("net.ipv4.conf.all.arp_ignore = 0x0\n") }, []string{"warning sysctl-file /etc/sysctl.d/x.conf:1"}},
		{"a file has what the kernel does not take", Set{vipA}, nil, func(s *sick) {
			s.file("net.ipv4.conf.all.arp_ignore = +0\nnet.ipv4.conf.all.arp_ignore = 0b0\nnet.ipv4.conf.all.arp_ignore = 0_0\n")
		}, nil},
		{"a file says the same", Set{vipA}, nil, func(s *sick) { s.file("net.ipv4.conf.all.arp_ignore = 1\nnet.ipv4.conf.all.arp_announce = 2") }, nil},
		{"a later line of it mends", Set{vipA}, nil, func(s *sick) { s.file("net.ipv4.conf.all.arp_ignore = 0\nnet.ipv4.conf.all.arp_ignore = 2") }, nil},
		{"a file about others", Set{vipA}, nil, func(s *sick) {
			s.file("net.ipv4.conf.eth7.arp_ignore = 0\nnet.ipv4.ip_forward = 0\n\n; x\nall.arp_ignore=0")
		}, nil},
		{"a pattern closes the tunnel", Set{guarded}, nil, func(s *sick) { s.set("tunl0", "rp_filter", 2); s.file("net.ipv4.conf.*.rp_filter = 1") }, []string{"warning sysctl-file /etc/sysctl.d/x.conf:1"}},
		{"a name beats a pattern", Set{guarded}, nil, func(s *sick) {
			s.set("tunl0", "rp_filter", 2)
			s.file("net.ipv4.conf.tunl0.rp_filter = 2\nnet.ipv4.conf.*.rp_filter = 1")
		}, nil},
		{"a name is taken out of a pattern", Set{guarded}, nil, func(s *sick) {
			s.set("tunl0", "rp_filter", 2)
			s.file("net.ipv4.conf.*.rp_filter = 1\n-net.ipv4.conf.tunl0.rp_filter\n")
		}, nil},
		{"networkd has lo", Set{vipA}, nil, func(s *sick) { s.network("[Match]\nName=l* eth0\n[Network]\nDHCP=no\n") }, []string{"warning networkd /etc/systemd/network/x.network"}},
		{"networkd has lo, and keeps", Set{vipA}, nil, func(s *sick) { s.network("[Match]\nName=lo\n[Network]\nKeepConfiguration=static\n") }, nil},
		{"NetworkManager has lo", Set{vipA}, nil, func(s *sick) { s.nm("[connection]\nid=lo\ntype=loopback\n") }, []string{"warning networkmanager /etc/NetworkManager/system-connections/x.nmconnection"}},
		{"NetworkManager has it by name", Set{vipA}, nil, func(s *sick) { s.nm("[connection]\ninterface-name = lo\n[ipv4]\nmethod=auto\n") }, []string{"warning networkmanager /etc/NetworkManager/system-connections/x.nmconnection"}},
		{"NetworkManager has lo, and leaves it alone", Set{vipA}, nil, func(s *sick) {
			s.nm("[connection]\ntype=loopback\n")
			s.nm("[keyfile]\nunmanaged-devices=mac:02:00:00:00:00:01; interface-name:lo\n")
		}, nil},
		{"NetworkManager has the NIC", Set{vipA}, nil, func(s *sick) { s.nm("[connection]\ninterface-name=eth0\ntype=ethernet\n[x]\ninterface-name=lo\n") }, nil},
		{"containers inherit", Set{vipA}, nil, func(s *sick) { s.around.Inherited = true }, []string{"info inherited net.ipv4.conf.all.arp_ignore"}},
		{"containers inherit no more than they had", Set{vip6}, nil, func(s *sick) { s.around.Inherited = true }, nil},
		{"the nft guard", Set{vipAnft}, nil, nil, []string{"info nft-unwatched arp rsagent"}},
		{"the nft guard, watched", Set{vipAnft}, nil, func(s *sick) { s.watch.Running = true }, nil},
		{"networkd has the NIC", Set{vipA}, nil, func(s *sick) { s.network("[Match]\nName=eth0\n[Network]\nDHCP=no\n") }, nil},
	} {
		got, finds := checkOn(c.set, c.services, c.change)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		for _, f := range finds {
			if f.Message == "" || strings.Contains(f.Message+f.Cure, "%!") {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
	}
}

// Who floods the segment with claims is told of, in a message of a bounded size.
func TestCheckManyClaims(t *testing.T) {
	var macs []string
	for i := range 5000 {
		macs = append(macs, fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8, i&0xff))
	}
	_, finds := checkOn(Set{vipA}, nil, claimed(vipA, macs...))
	if len(finds) != 1 || len(finds[0].Message) > 400 || !strings.Contains(finds[0].Message, "5000 hosts") || !strings.Contains(finds[0].Message, "and 4990 more") {
		t.Errorf("it says %+v", finds)
	}
}

func (s *sick) listen(at string, x Service, index int, v6only bool) {
	s.around.Sockets = append(s.around.Sockets, Socket{x, netip.MustParseAddr(at), index, v6only})
}

func (s *sick) rival(name, value string, up bool) {
	s.addDevice(name, value)
	s.host.link(name).Up = up
}

func (s *sick) second(rpFilter int) {
	s.link(sysctl.Interface{Name: "eth1", Index: 8, ARP: true, Up: true, MTU: 1500})
	s.addAddr(addr("192.0.2.14/24", "eth1"), "global")
	s.set("eth1", "rp_filter", rpFilter)
}

func (s *sick) file(text string) {
	s.around.Files = append(s.around.Files, File{sysctlFile, "/etc/sysctl.d/x.conf", text})
}

func (s *sick) nm(text string) {
	s.around.Files = append(s.around.Files, File{nmFile, "/etc/NetworkManager/system-connections/x.nmconnection", text})
}

func (s *sick) network(text string) {
	s.around.Files = append(s.around.Files, File{networkFile, "/etc/systemd/network/x.network", text})
}

// A cure is a command that start takes: the VIP as it is, with all its options.
func TestFlags(t *testing.T) {
	for want, v := range map[string]VIP{
		"--vip 192.0.2.1":            vipA,
		"--vip 192.0.2.2 --mode tun": vipB,
		"--vip 192.0.2.2 --mode tun --device lo --tunnel gre --outer 6 --csum --scope global --arp-guard interface --interface eth0,'a b' --rp-filter off --mss auto --director 198.51.100.2,198.51.100.3 --allow-director": with(vipBlo, func(v *VIP) {
			v.Tunnel, v.Outer, v.CSum, v.Scope, v.Guard, v.Interfaces = "gre", "6", true, "global", GuardInterface, []string{"eth0", "a b"}
			v.RPFilter, v.MSS, v.Directors, v.AllowDirector = "off", AutoMSS, []string{"198.51.100.2", "198.51.100.3"}, true
		}),
		"--vip 192.0.2.2 --mode tun --tunnel gue --gue-port 6081": vipGUE,
	} {
		if want = strings.Replace(want, "eth0,'a b'", "'eth0,a b'", 1); v.flags() != want {
			t.Errorf("%s\nwant %s", v.flags(), want)
		}
	}
}

func TestConfKey(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.conf.all.arp_ignore": "all arp_ignore", "net/ipv4/conf/eth0.100/rp_filter": "eth0.100 rp_filter",
		"net.ipv4.conf.eth0/100.rp_filter": "eth0.100 rp_filter", "net.ipv4.conf.*.rp_filter": "* rp_filter",
		"net.ipv4.ip_forward": "", "net.ipv4.conf": "", "net.ipv4.conf.all": "", "net.ipv6.conf.all.forwarding": "",
	} {
		iface, knob, ok := confKey(name)
		if got := strings.TrimSpace(iface + " " + knob); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func backed(f nft.Fate) nft.Fate {
	f.ReversePath = true
	return f
}
