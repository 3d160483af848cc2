package cases

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// finding is the one with this code; nil is none.
func (r report) finding(code string) *finding {
	for i := range r.Findings {
		if r.Findings[i].Code == code {
			return &r.Findings[i]
		}
	}
	return nil
}

// check asks for a diagnosis, which must change neither the host nor the state directory.
func (s *site) check(t *testing.T, code int, more ...string) report {
	t.Helper()
	host, state := s.rs.Snapshot(t), s.files(t)
	r := s.ask(t, code, "check", more...)
	s.mustBe(t, host)
	if now := s.files(t); now != state {
		t.Errorf("check wrote to the state directory:\n%s\nwas:\n%s", now, state)
	}
	return r
}

// finds is check that must find something, with its level and words in it.
func (s *site) finds(t *testing.T, code, level string, words []string, more ...string) finding {
	t.Helper()
	exit := 0
	if level == "error" {
		exit = 1
	}
	r := s.check(t, exit, more...)
	f := r.finding(code)
	if f == nil {
		t.Fatalf("check does not find %s: %+v", code, r.Findings)
	}
	if f.Level != level || !containsAll(f.Subject+" "+f.Message+" "+f.Cure, words) {
		t.Errorf("want level %s, and %q in %+v", level, words, *f)
	}
	return *f
}

// lacks is check that must not find something.
func (s *site) lacks(t *testing.T, code string, more ...string) {
	t.Helper()
	got := s.rs.Try(s.args("check", append(more, "-o", "json")...)...)
	if f := parse(t, got.Code, "check", s.args("check"), got).finding(code); f != nil {
		t.Errorf("check finds what is not so: %+v", *f)
	}
}

// cured runs the cure as it is printed, after which check finds it no more.
func (s *site) cured(t *testing.T, f finding, more ...string) {
	t.Helper()
	dir := t.TempDir() // an rsagent that knows this site's state directory
	script := fmt.Sprintf("#!/bin/sh\nverb=$1\nshift\nexec %s \"$verb\" --state-dir %s \"$@\"\n", s.bin, s.state)
	if err := os.WriteFile(filepath.Join(dir, "rsagent"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := s.rs.Exec(testnet.Cmd{Args: []string{"sh", "-c", f.Cure}, Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
	if r.Code != 0 {
		t.Fatalf("cure %q: exit %d\n%s%s", f.Cure, r.Code, r.Stdout, r.Stderr)
	}
	s.lacks(t, f.Code, more...)
}

// servedOn calls the VIP's service, as the director hands it on.
func (s *site) servedOn(addr, at string) error {
	_, port, _ := net.SplitHostPort(at)
	return s.peer.Call("tcp", net.JoinHostPort(addr, port))
}

// serve has an echo on the VIP, which the peer hands packets for as a director does, and returns its port.
func (s *site) serve(t *testing.T, addr, on string) (port, at string) {
	t.Helper()
	at = s.rs.Echo(t, "tcp", on)
	s.direct(t, addr)
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	return port, at
}

// A healthy real server has no error and no warning, in whatever way it is guarded.
func TestCheckHealthy(t *testing.T) {
	for _, flags := range [][]string{{"--vip", vip}, {"--vip", vip, "--arp-guard", "nft"}, {"--vip", vip, "--arp-guard", "interface", "--interface", "eth0"},
		{"--vip", vip, "--scope", "global"}, {"--vip", vip6}, {"--vip", vip + "," + vip2 + "," + vip6}} {
		s := newSite(t)
		s.rs.Run(t, "ip", "route", "add", "default", "via", peerIP)
		s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
		s.do(t, "start", flags...)
		_, port, _ := net.SplitHostPort(s.rs.Echo(t, "tcp", ""))
		for _, more := range [][]string{nil, {"--port", port}, {"--port", port + "/tcp", flags[0], flags[1]}} {
			r := s.check(t, 0, more...)
			if r.State != "up" {
				t.Errorf("%v: state %s", flags, r.State)
			}
			for _, f := range r.Findings {
				if f.Level != "info" {
					t.Errorf("%v: %+v", flags, f)
				}
			}
		}
		text := s.rs.Run(t, s.args("check")...)
		if !strings.HasPrefix(text, "good: 0 errors, 0 warnings, ") {
			t.Errorf("%v: it says\n%s", flags, text)
		}
	}
}

// With nothing managed there is nothing wrong; a VIP that is not here is an error, and the cure is to start it.
func TestCheckNotBound(t *testing.T) {
	s := newSite(t)
	if r := s.check(t, 0); r.finding("nothing-managed") == nil {
		t.Errorf("it says %+v", r.Findings)
	}
	f := s.finds(t, "not-bound", "error", []string{vip}, "--vip", vip)
	s.cured(t, f, "--vip", vip)
	s.bound(t, vip, "lo")
	s.lacks(t, "nothing-managed")
}

// What has drifted is told with what it does, and the cure mends it.
func TestCheckDrift(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.lacks(t, "drift")
	s.lacks(t, "answers-arp")
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	if !s.answers(t, "eth0", vip) {
		t.Fatal("it is silent: nothing to be found")
	}
	f := s.finds(t, "answers-arp", "error", []string{"eth0", "arp_ignore"})
	s.cured(t, f)
	s.silent(t, vip)
	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	f = s.finds(t, "drift", "error", []string{vip + "/32 dev lo", "the VIP"})
	s.cured(t, f)
	s.bound(t, vip, "lo")
}

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

// The service listens on the real server's own address, where the director's health check finds it and no client does.
// Seen at: seesaw issue 25.
func TestCase49_ListensOnRIPOnly(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	port, at := s.serve(t, vip, rip)
	if s.servedOn(vip, at) == nil || s.servedOn(rip, at) != nil {
		t.Fatal("the VIP is served: nothing to be found")
	}
	s.finds(t, "no-listener", "error", []string{vip, port + "/tcp", rip}, "--port", port)
	s.finds(t, "listeners", "info", []string{"not for them: " + port + "/tcp on " + rip})
	for _, on := range []string{vip, "0.0.0.0", ""} {
		port, at := s.serve(t, vip, on)
		if err := s.servedOn(vip, at); err != nil {
			t.Fatal(err)
		}
		s.lacks(t, "no-listener", "--port", port)
		s.finds(t, "no-listener", "error", []string{vip, port + "/udp"}, "--port", port+"/udp", "--port", port)
		if f := s.check(t, 0).finding("listeners"); !strings.Contains(strings.Split(f.Message, ";")[0], port+"/tcp") {
			t.Errorf("it says %+v", *f)
		}
	}
	_, udp, _ := net.SplitHostPort(s.rs.Echo(t, "udp", vip))
	s.lacks(t, "no-listener", "--port", udp+"/udp")
}

// IPv6 only, as servers with ipv6only=on, and a redirection, which needs no listener.
func TestCheckService(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip+","+vip6)
	port, _ := s.serve(t, vip, "::1")
	s.finds(t, "no-listener", "error", []string{vip6, "::1"}, "--port", port, "--vip", vip6)
	s.finds(t, "no-listener", "error", []string{vip}, "--port", port, "--vip", vip)
	testnet.Need(t, "nft")
	s.nft(t, "table ip nat { chain pre { type nat hook prerouting priority -100; tcp dport "+port+" redirect to :9; }; }")
	s.finds(t, "redirected", "info", []string{vip, port}, "--port", port, "--vip", vip)
	s.lacks(t, "no-listener", "--port", port, "--vip", vip)
	s.finds(t, "no-listener", "error", []string{vip6}, "--port", port, "--vip", vip6)
}

func (s *site) nft(t *testing.T, rules string) {
	t.Helper()
	if r := s.rs.Exec(testnet.Cmd{Args: []string{"nft", "-f", "-"}, Stdin: rules}); r.Code != 0 {
		t.Fatalf("%s%s", r.Stderr, rules)
	}
}

// Rules that drop what clients send are named, by table, chain and handle; the cure lets it in, and clients are served.
func TestCheckFirewall(t *testing.T) {
	testnet.Need(t, "nft")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	port, at := s.serve(t, vip, vip)
	for name, c := range map[string]struct{ rules, place string }{
		"a rule":           {"table inet filter { chain in { type filter hook input priority 0; ct state established accept; tcp dport " + port + " counter drop; }; }", "rule 3 of chain inet filter in"},
		"a policy":         {"table ip f { chain c { type filter hook input priority 0; policy drop; ct state established,related accept; tcp dport 22 accept; }; }", "the policy of chain ip f c"},
		"before the input": {"table inet raw { chain pre { type filter hook prerouting priority raw; ip daddr " + vip + " drop; }; }", "rule 2 of chain inet raw pre"},
		"a chain":          {"table inet f { chain web { ip daddr 10.0.0.64/26 reject; }; chain c { type filter hook input priority 0; iifname eth0 jump web; }; }", "chain inet f web"},
	} {
		t.Run(name, func(t *testing.T) {
			s.nft(t, "flush ruleset; table inet f { chain c { type filter hook input priority 0; ip saddr 10.9.9.9 drop; }; }")
			s.lacks(t, "firewall", "--port", port)
			if err := s.servedOn(vip, at); err != nil {
				t.Fatal(err)
			}
			s.nft(t, "flush ruleset; "+c.rules)
			if s.servedOn(vip, at) == nil {
				t.Fatal("it is served: nothing to be found")
			}
			f := s.finds(t, "firewall", "error", []string{c.place, vip, port}, "--port", port)
			s.cured(t, f, "--port", port)
			if err := s.servedOn(vip, at); err != nil {
				t.Errorf("after the cure: %v", err)
			}
		})
	}
}

// Where nothing at all can come in, no port need be named.
func TestCheckFirewallForAll(t *testing.T) {
	testnet.Need(t, "nft")
	s := newSite(t)
	s.do(t, "start", "--vip", vip+","+vip6)
	s.nft(t, "table inet f { chain c { type filter hook input priority 0; policy drop; udp dport 53 accept; }; }")
	s.lacks(t, "firewall")
	s.nft(t, `flush ruleset; table ip6 f { chain c { type filter hook input priority 0; policy drop; iif "lo" accept; ct state established accept; meta l4proto icmpv6 accept; }; }`)
	f := s.finds(t, "firewall", "error", []string{"policy of chain ip6 f c", vip6})
	s.cured(t, f)
}

// The director is on another NIC than the default route leads by, and strict reverse path filtering drops its clients.
func TestCheckReversePath(t *testing.T) {
	s := newSiteWith(t, "192.168.7.11/24") // the uplink
	s.peer.Run(t, "ip", "addr", "add", "192.168.7.1/24", "dev", "eth0")
	testnet.Wire(t, s.rs, "eth1", rip+"/24", s.peer, "eth1", peerIP+"/24")
	s.rs.Run(t, "ip", "route", "add", "default", "via", "192.168.7.1")
	s.peer.Run(t, "ip", "addr", "del", peerIP+"/24", "dev", "eth0")
	s.peer.Run(t, "ip", "addr", "add", "203.0.113.7/32", "dev", "lo") // the client
	s.do(t, "start", "--vip", vip)
	s.peer.Run(t, "ip", "route", "add", vip, "dev", "eth1", "src", "203.0.113.7")
	mac := strings.TrimSpace(s.rs.Run(t, "cat", "/sys/class/net/lo/address"))
	s.rs.Do(func() {
		if i, err := net.InterfaceByName("eth1"); err == nil {
			mac = i.HardwareAddr.String()
		}
	})
	s.peer.Run(t, "ip", "neigh", "replace", vip, "lladdr", mac, "dev", "eth1", "nud", "permanent")
	at := s.rs.Echo(t, "tcp", vip)
	if err := s.servedOn(vip, at); err != nil {
		t.Fatal(err)
	}
	s.lacks(t, "rp-filter-nic")
	s.rs.SetIPv4Conf(t, "eth1", "rp_filter", "1")
	if s.servedOn(vip, at) == nil {
		t.Fatal("it is served: nothing to be found")
	}
	s.lacks(t, "rp-filter-drops")
	stop := s.knock(t, vip)
	s.finds(t, "rp-filter-drops", "warning", []string{"reverse path filter dropped"})
	stop()
	f := s.finds(t, "rp-filter-nic", "warning", []string{"eth1", "eth0", vip})
	s.cured(t, f)
	if err := s.servedOn(vip, at); err != nil {
		t.Errorf("after the cure: %v", err)
	}
	defer s.knock(t, vip)()
	s.lacks(t, "rp-filter-drops")
}

// knock sends datagrams from the peer to an address all the while, until it is told to stop.
func (s *site) knock(t *testing.T, addr string, from ...string) (stop func()) {
	t.Helper()
	var conn net.Conn
	var err error
	d := net.Dialer{}
	if len(from) > 0 {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from[0])}
	}
	s.peer.Do(func() { conn, err = d.Dial("udp", net.JoinHostPort(addr, "9")) })
	if err != nil {
		t.Fatal(err)
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				_, _ = conn.Write([]byte("x"))
			}
		}
	}()
	return func() { close(end); <-done; conn.Close() }
}

// An unnumbered uplink, and a VIP of scope global: the host would speak as the VIP. Seen at: seesaw issue 117.
func TestCheckSource(t *testing.T) {
	s := newSiteWith(t, "")
	s.rs.Run(t, "ip", "route", "add", "default", "dev", "eth0")
	source := func() bool { return strings.Contains(s.rs.Run(t, "ip", "route", "get", "192.0.2.9"), "src "+vip) }
	s.do(t, "start", "--vip", vip)
	if source() {
		t.Fatal("a VIP of scope host is the source")
	}
	s.lacks(t, "vip-as-source")
	s.do(t, "stop")
	s.do(t, "start", "--vip", vip, "--scope", "global")
	if !source() {
		t.Fatal("the VIP is not the source: nothing to be found")
	}
	f := s.finds(t, "vip-as-source", "warning", []string{vip})
	s.cured(t, f)
	if source() {
		t.Error("after the cure the VIP is the source")
	}
}

// The same for IPv6: an address of the host's own is the cure.
func TestCheckSourceIPv6(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "route", "add", "default", "via", "fe80::1", "dev", "eth0")
	s.do(t, "start", "--vip", vip6)
	if !strings.Contains(s.rs.Run(t, "ip", "route", "get", "2001:db8:7::9"), "src "+vip6) {
		t.Fatal("the VIP is not the source: nothing to be found")
	}
	s.finds(t, "vip-as-source", "warning", []string{vip6, "ip addr add"})
	s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
	s.lacks(t, "vip-as-source")
}

// The director speaks from the VIP, which the real server has too: what it sends is dropped as from a liar.
// Seen at: katran issue 45.
func TestCase51_DirectorSpeaksFromTheVIP(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.peer.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	at := s.rs.Echo(t, "tcp", rip)
	call := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(vip)}, Timeout: time.Second}
	var err error
	s.peer.Do(func() { _, err = call.Dial("tcp", at) })
	if err == nil {
		t.Fatal("the real server hears the director: nothing to be found")
	}
	s.direct(t, rip) // its ARP requests would have the VIP as sender too
	stop := s.knock(t, rip, vip)
	s.finds(t, "own-source", "info", []string{"dropped", "director that speaks from the VIP", "address of its own"})
	stop()
}

// A host that forwards is told how to stop.
func TestCheckForwarding(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.lacks(t, "forwarding")
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	s.rs.SetIPv4Conf(t, "all", "accept_redirects", "0")
	s.finds(t, "forwarding", "info", []string{"--blackhole"})
}

// Files of the host that undo the guard, or take the VIP away, when something applies them. They are put there for
// check's eyes only, in a mount namespace of its own.
func TestCheckPersistence(t *testing.T) {
	testnet.Need(t, "unshare", "mount", "sed")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	root := t.TempDir()
	put := func(path, text string) string {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inside := func(command string) testnet.Result { // with this /etc and this /run/systemd
		for _, dir := range []string{"etc/sysctl.d", "etc/systemd", "systemd"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		script := `set -e; mount --bind "$1/etc" /etc; mkdir -p "$2"; mount -t tmpfs none /run; mkdir -p /run/systemd; mount --bind "$1/systemd" /run/systemd; exec sh -c "$3"`
		return s.rs.Exec(testnet.Cmd{Args: []string{"unshare", "--mount", "sh", "-c", script, "sh", root, s.state, command}})
	}
	check := func(exit int) report {
		got := inside(strings.Join(s.args("check", "-o", "json"), " "))
		return parse(t, exit, "check", s.args("check"), got)
	}
	for _, c := range []struct {
		code, level string
		files       map[string]string
		words       []string
		then        string // what the cure would have started
	}{
		{"sysctl-file", "warning", map[string]string{"etc/sysctl.d/50-old.conf": "# the router's\nnet.ipv4.conf.all.arp_ignore = 0\n"}, []string{"/etc/sysctl.d/50-old.conf:2", "arp_ignore"}, ""},
		{"sysctl-file", "warning", map[string]string{"etc/sysctl.conf": "net.ipv4.conf.eth0.arp_announce = 7\n"}, []string{"/etc/sysctl.conf:1", "eth0"}, ""},
		{"networkd", "warning", map[string]string{"systemd/netif/state": "", "etc/systemd/network/10-lo.network": "[Match]\nName=lo\n"}, []string{"10-lo.network", "lo"}, "networkctl"},
		{"not-enabled", "info", map[string]string{"systemd/system/x": "", "etc/systemd/system/rsagent.service": ""}, []string{"systemctl enable rsagent"}, "systemctl"},
	} {
		os.RemoveAll(filepath.Join(root, "etc"))
		os.RemoveAll(filepath.Join(root, "systemd"))
		if f := check(0).finding(c.code); f != nil {
			t.Errorf("without the file: %+v", *f)
		}
		for path, text := range c.files {
			put(path, text)
		}
		f := check(0).finding(c.code)
		if f == nil || f.Level != c.level || !containsAll(f.Subject+f.Message+f.Cure, c.words) {
			t.Errorf("%s: %+v", c.code, f)
			continue
		}
		cure := f.Cure
		if c.then == "networkctl" {
			cure = "networkctl() { :; }; " + cure
		}
		if c.then == "systemctl" { // which does this
			cure = "systemctl() { mkdir -p /etc/systemd/system/multi-user.target.wants && ln -s ../$2.service /etc/systemd/system/multi-user.target.wants/; }; " + cure
		}
		if r := inside(cure); r.Code != 0 {
			t.Fatalf("%s: %s%s", cure, r.Stdout, r.Stderr)
		}
		if f := check(0).finding(c.code); f != nil {
			t.Errorf("after the cure: %+v", *f)
		}
	}
	s.do(t, "start", "--vip", vip, "--arp-guard", "nft")
	put("etc/nftables.conf", "flush ruleset\n")
	if f := check(0).finding("nft-flush"); f != nil {
		t.Errorf("the unit is enabled: %+v", *f)
	}
	os.RemoveAll(filepath.Join(root, "etc/systemd/system/multi-user.target.wants"))
	if f := check(0).finding("nft-flush"); f == nil || f.Cure != "systemctl enable rsagent" {
		t.Errorf("it says %+v", f)
	}
}

// Without the right to see nftables' rules check says so, exits with 4, and tells all else; what is an error still is one.
func TestCheckUnseen(t *testing.T) {
	testnet.Need(t, "setpriv", "nft")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.nft(t, "table inet f { chain c { type filter hook input priority 0; policy drop; }; }")
	if err := os.Chmod(filepath.Dir(s.state), 0o755); err != nil {
		t.Fatal(err)
	}
	powerless := func(code int, more ...string) report {
		command := append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, s.args("check", append(more, "-o", "json")...)...)
		return parse(t, code, "check", command, s.rs.Try(command...))
	}
	r := powerless(4)
	if f := r.finding("unseen"); f == nil || f.Subject != "nftables" || r.State != "up" {
		t.Errorf("it says %+v", r)
	}
	s.lacks(t, "unseen")
	r = powerless(1, "--port", "9")
	if r.finding("unseen") == nil || r.finding("no-listener") == nil {
		t.Errorf("it says %+v", r)
	}
	s.do(t, "start", "--vip", vip, "--arp-guard", "nft") // then status cannot tell, and check tells what it can
	got := s.rs.Try(append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, s.args("check", "-o", "json", "--port", "9")...)...)
	r = parse(t, 1, "check", s.args("check"), got)
	if r.State != "unknown" || r.Error == nil || r.finding("no-listener") == nil {
		t.Errorf("it says %+v", r)
	}
}

// check opens nothing for writing, and asks the kernel nothing but questions.
func TestCase43_CheckWritesNothing(t *testing.T) {
	s := newSite(t)
	s.writesNothing(t, "check")
	s.writesNothing(t, "check", "--vip", vip, "--port", "80,53/udp")
	s.do(t, "start", "--vip", vip+","+vip6)
	s.nft(t, "table inet f { chain c { type filter hook input priority 0; tcp dport { 80, 90-99 } drop; }; }")
	testnet.Wire(t, s.rs, "eth1", "", s.peer, "eth1", "")
	s.writesNothing(t, "check", "--port", "80")
}
