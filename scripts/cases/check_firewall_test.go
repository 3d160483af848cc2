package cases

import (
	"net"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

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
		"a rule":           {"table inet filter { chain in { type filter hook input priority 0; ct state established accept; tcp dport " + port + " counter drop; }; }", "rule with handle 3 of chain inet filter in"},
		"a policy":         {"table ip f { chain c { type filter hook input priority 0; policy drop; ct state established,related accept; tcp dport 22 accept; }; }", "the policy of chain ip f c"},
		"before the input": {"table inet raw { chain pre { type filter hook prerouting priority raw; ip daddr " + vip + " drop; }; }", "rule with handle 2 of chain inet raw pre"},
		"not on the NIC":   {"table inet f { chain pre { type filter hook prerouting priority raw; fib daddr . iif type != { local, broadcast, multicast } drop; }; }", "rule with handle 3 of chain inet f pre"},
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
			if !strings.Contains(f.Cure, "daddr "+vip+" tcp dport "+port+" ") {
				t.Errorf("the cure opens the port of other addresses too: %s", f.Cure)
			}
			s.cured(t, f, "--port", port)
			if err := s.servedOn(vip, at); err != nil {
				t.Errorf("after the cure: %v", err)
			}
		})
	}
}

// Rules that let in what clients send, in whatever roundabout way, are no finding: clients are served.
func TestCheckFirewallLetsIn(t *testing.T) {
	testnet.Need(t, "nft")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	port, at := s.serve(t, vip, vip)
	for name, rules := range map[string]string{
		"untracked":      "table inet f { chain pre { type filter hook prerouting priority raw; tcp dport PORT notrack; }; chain out { type filter hook output priority raw; tcp sport PORT notrack; }; chain in { type filter hook input priority 0; policy drop; ct state untracked accept; }; }",
		"a limit's name": "table inet f { limit l { rate over 1000/second; }; chain in { type filter hook input priority 0; tcp dport PORT limit name l drop; }; }",
		"a quota's name": "table inet f { quota q { over 100 mbytes; }; chain in { type filter hook input priority 0; tcp dport PORT quota name q drop; }; }",
		"a set's limits": "table ip f { set s { type inet_service; limit rate over 1000/second; elements = { PORT limit rate over 1000/second }; }; chain in { type filter hook input priority 0; tcp dport @s drop; }; }",
		"by a mark":      "table inet f { chain pre { type filter hook prerouting priority mangle; tcp dport PORT meta mark set 7; }; chain in { type filter hook input priority 0; policy drop; meta mark 7 accept; }; }",
	} {
		t.Run(name, func(t *testing.T) {
			s.nft(t, "flush ruleset; "+strings.ReplaceAll(rules, "PORT", port))
			if err := s.servedOn(vip, at); err != nil {
				t.Fatal(err)
			}
			s.lacks(t, "firewall", "--port", port)
		})
	}
	// Either of two chains hands the port on, as kube-proxy's do.
	s.nft(t, strings.ReplaceAll("flush ruleset; table ip n { chain a { tcp dport 9 dnat to "+vip+":PORT; }; chain b { tcp dport 9 dnat to "+vip+":PORT; }; "+
		"chain pre { type nat hook prerouting priority -100; ip daddr "+vip+" numgen random mod 2 vmap { 0 : goto a, 1 : goto b }; }; }", "PORT", port))
	if err := s.servedOn(vip, net.JoinHostPort(vip, "9")); err != nil {
		t.Fatal(err)
	}
	s.finds(t, "redirected", "info", []string{vip, "9/tcp"}, "--port", "9")
	s.lacks(t, "no-listener", "--port", "9")
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
