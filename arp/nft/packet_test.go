package nft_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/arp/nft"
	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

// TestJudge has the kernel hold rules as nft(8) makes them, and judges packets by what it shows of them.
func TestJudge(t *testing.T) {
	testnet.Need(t, "nft")
	tcp := nft.Packet{Family: nft.IP, Protocol: unix.IPPROTO_TCP, Dst: netip.MustParseAddr("10.0.0.100"), Port: 80, Iface: "eth0", Index: 7, On: "lo"}
	nicToo := tcp // a VIP that is on the NIC too
	nicToo.On = ""
	anyPort := tcp
	anyPort.Port = 0
	ipip := nft.Packet{Family: nft.IP, Protocol: unix.IPPROTO_IPIP, Dst: netip.MustParseAddr("10.0.0.11"), Iface: "eth0", Index: 7, On: "eth0"}
	gue := nft.Packet{Family: nft.IP6, Protocol: unix.IPPROTO_UDP, Dst: netip.MustParseAddr("fd00::11"), Port: 6080, Iface: "eth0", Index: 7}
	out6 := nft.Packet{Family: nft.IP6, Protocol: unix.IPPROTO_TCP, Dst: netip.MustParseAddr("fd00::100"), Port: 80, Iface: "ip6tnl0", Index: 9, Unwrapped: true}
	const drop, input = "policy drop;", "table inet filter { chain in { type filter hook input priority 0; "
	const pre = "table inet f { chain pre { type filter hook prerouting priority raw; "
	for _, c := range []struct {
		name, rules string
		packet      nft.Packet
		want        string
	}{
		{"nothing", "", tcp, ""},
		{"a port", input + "tcp dport 80 drop; }; }", tcp, "inet filter in 2"},
		{"another port", input + "tcp dport 443 drop; }; }", tcp, ""},
		{"another protocol", input + "udp dport 80 drop; }; }", tcp, ""},
		{"reject", input + "ip protocol 4 counter reject; }; }", ipip, "inet filter in 2"},
		{"log and count first", input + `tcp dport 80 log prefix "x" counter drop; }; }`, tcp, "inet filter in 2"},
		{"a set", input + "tcp dport { 22, 80 } drop; }; }", tcp, "inet filter in 3"},
		{"not in a set", input + "tcp dport != { 22, 443 } drop; }; }", tcp, "inet filter in 3"},
		{"a range", input + "tcp dport 70-90 drop; }; }", tcp, "inet filter in 2"},
		{"ranges", input + "tcp dport { 1-79, 81-90 } drop; }; }", tcp, ""},
		{"ranges with it", input + "tcp dport { 1-79, 80, 85-90 } drop; }; }", tcp, "inet filter in 3"},
		{"a named set of addresses", "table ip f { set s { type ipv4_addr; flags interval; elements = { 10.0.0.96/28 }; }; chain c { type filter hook input priority 0; ip daddr @s drop; }; }", tcp, "ip f c 3"},
		{"a prefix", input + "ip daddr 10.0.0.64/26 drop; }; }", tcp, "inet filter in 2"},
		{"two at once", input + "ip daddr . tcp dport { 10.0.0.100 . 80 } drop; }; }", tcp, "inet filter in 3"},
		{"a policy", input + drop + " }; }", tcp, "inet filter in 0"},
		{"a policy, and a way", input + drop + " tcp dport 80 accept; }; }", tcp, ""},
		{"a policy, and a way for some", input + drop + " ip saddr 10.9.0.0/16 accept; }; }", tcp, ""},
		{"a policy, and ways for others", input + drop + ` ct state established,related accept; iif "lo" accept; tcp dport 22 accept; ip6 saddr fd00::/8 accept; }; }`, tcp, "inet filter in 0"},
		{"a policy for the tunnel", input + drop + " tcp dport 80 accept; meta l4proto icmp accept; }; }", ipip, "inet filter in 0"},
		{"some senders", input + "ip saddr 10.9.0.0/16 drop; }; }", tcp, ""},
		{"in bulk", input + "limit rate over 10/second drop; }; }", tcp, ""},
		{"after what may accept", input + "ip saddr 10.9.0.0/16 accept; tcp dport 80 drop; }; }", tcp, ""},
		{"after what does", input + "tcp dport 80 accept; drop; }; }", tcp, ""},
		{"by another interface", input + `iifname "eth1" tcp dport 80 drop; }; }`, tcp, ""},
		{"by this interface", input + `iifname "eth*" tcp dport 80 drop; }; }`, tcp, "inet filter in 2"},
		{"by any but", input + `iifname != { "lo", "eth1" } drop; }; }`, tcp, "inet filter in 3"},
		{"invalid", input + "ct state invalid drop; }; }", tcp, ""},
		{"not new", input + "ct state != new drop; tcp flags & (fin|syn|rst|ack) != syn drop; }; }", tcp, ""},
		{"new", input + "ct state new tcp dport 80 drop; }; }", tcp, "inet filter in 2"},
		{"a verdict map", input + "tcp dport vmap { 22 : accept, 80 : drop }; }; }", tcp, "inet filter in 3"},
		{"the state's map", input + drop + "ct state vmap { established : accept, related : accept, invalid : drop }; }; }", tcp, "inet filter in 0"},
		{"a jump", "table inet f { chain web { tcp dport 80 drop; }; chain in { type filter hook input priority 0; ip protocol tcp jump web; }; }", tcp, "inet f web"},
		{"a jump back", "table inet f { chain web { tcp dport 80 return; drop; }; chain in { type filter hook input priority 0; jump web; tcp dport 80 drop; }; }", tcp, "inet f in"},
		{"a jump for some", "table inet f { chain web { tcp dport 80 drop; }; chain in { type filter hook input priority 0; ip saddr 10.9.0.1 jump web; }; }", tcp, ""},
		{"a jump for some, that accepts", "table inet f { chain web { accept; }; chain in { type filter hook input priority 0; policy drop; ip saddr 10.9.0.1 jump web; }; }", tcp, ""},
		{"goto", "table inet f { chain web { tcp dport 81 drop; }; chain in { type filter hook input priority 0; ip protocol tcp goto web; drop; }; }", tcp, ""},
		{"goto, and the policy", "table inet f { chain web { tcp dport 81 accept; }; chain in { type filter hook input priority 0; policy drop; ip protocol tcp goto web; accept; }; }", tcp, "inet f in 0"},
		{"before", "table ip raw { chain pre { type filter hook prerouting priority -300; ip protocol 4 drop; }; }", ipip, "ip raw pre 2"},
		{"a chain after one that accepts", input + "accept; }; }; table ip z { chain late { type filter hook input priority 10; tcp dport 80 drop; }; }", tcp, "ip z late"},
		{"another version", "table ip6 f { chain in { type filter hook input priority 0; policy drop; }; }", tcp, ""},
		{"forwarded", "table inet f { chain passing { type filter hook forward priority 0; policy drop; }; }", tcp, ""},
		{"asleep", "table inet f { flags dormant; chain in { type filter hook input priority 0; policy drop; }; }", tcp, ""},
		{"rsagent's own", "table inet rsagent { chain directors { type filter hook input priority 0; meta l4proto 4 drop; }; }", ipip, ""},
		{"redirected", "table ip nat { chain pre { type nat hook prerouting priority -100; tcp dport 80 redirect to :8080; }; }; " + input + "tcp dport 80 drop; }; }", tcp, "elsewhere"},
		{"GUE", input + "udp dport 6080 drop; }; }", gue, "inet filter in 2"},
		{"IPv6 header", "table ip6 f { chain in { type filter hook input priority 0; ip6 nexthdr 17 ip6 daddr fd00::/16 drop; }; }", gue, "ip6 f in 2"},
		{"no route back", "table inet f { chain pre { type filter hook prerouting priority raw; meta nfproto ipv6 fib saddr . iif oif missing drop; }; }", out6, "inet f pre 2 back"},
		{"no route back, with the mark", "table inet f { chain pre { type filter hook prerouting priority raw; fib saddr . mark . iif oif missing drop; }; }", out6, "inet f pre 2 back"},
		{"no route at all", "table inet f { chain pre { type filter hook prerouting priority raw; fib saddr oif missing drop; }; }", out6, ""},
		{"the route back of a NIC", "table inet f { chain pre { type filter hook prerouting priority raw; fib saddr . iif oif missing drop; }; }", tcp, ""},
		{"not local", "table inet f { chain pre { type filter hook prerouting priority raw; fib daddr type != local drop; }; }", tcp, ""},
		{"not local to the NIC", pre + "fib daddr . iif type != { local, broadcast } drop; }; }", tcp, "inet f pre 3"},
		{"not local to the NIC, that has it too", pre + "fib daddr . iif type != { local, broadcast } drop; }; }", nicToo, ""},
		{"local to the NIC", pre + "fib daddr . iif type != { local, broadcast } drop; }; }", ipip, ""},
		{"untracked", pre + "tcp dport 80 notrack; }; chain in { type filter hook input priority 0; policy drop; ct state untracked accept; }; }", tcp, ""},
		{"untracked, and not new", pre + "tcp dport 80 notrack; }; chain in { type filter hook input priority 0; policy drop; ct state new accept; }; }", tcp, "inet f in 0"},
		{"untracked too late", "table inet f { chain pre { type filter hook prerouting priority mangle; notrack; }; chain in { type filter hook input priority 0; ct state new drop; }; }", tcp, "inet f in"},
		{"some are untracked", pre + "ip saddr 10.9.0.1 notrack; }; chain in { type filter hook input priority 0; policy drop; ct state untracked accept; }; }", tcp, ""},
		{"before there is a connection", pre + "ct state new tcp dport 80 drop; }; }", tcp, ""},
		{"before there is a connection, invalid", pre + "ct state invalid drop; }; }", tcp, "inet f pre 2"},
		{"a named limit", "table inet f { limit l { rate over 100/second; }; chain in { type filter hook input priority 0; tcp dport 80 limit name l drop; }; }", tcp, ""},
		{"a named quota", "table inet f { quota q { over 9 mbytes; }; chain in { type filter hook input priority 0; tcp dport 80 quota name q drop; }; }", tcp, ""},
		{"a named counter", "table inet f { counter k { }; chain in { type filter hook input priority 0; tcp dport 80 counter name k drop; }; }", tcp, "inet f in"},
		{"a counter of a map", "table inet f { counter k { }; chain in { type filter hook input priority 0; counter name tcp dport map { 443 : k } drop; }; }", tcp, ""},
		{"a limit of a set's element", "table ip f { set s { type inet_service; limit rate over 100/second; elements = { 80 limit rate over 100/second }; }; chain c { type filter hook input priority 0; tcp dport @s drop; }; }", tcp, ""},
		{"a counter of a set's element", "table ip f { set s { type inet_service; counter; elements = { 80 }; }; chain c { type filter hook input priority 0; tcp dport @s drop; }; }", tcp, "ip f c"},
		{"either, redirected", "table ip n { chain a { tcp dport 80 redirect to :8080; }; chain b { tcp dport 80 redirect to :8081; }; chain p { type nat hook prerouting priority -100; numgen random mod 2 vmap { 0 : goto a, 1 : goto b }; }; }", tcp, "elsewhere"},
		{"some dropped, the rest by policy", input + drop + "ip saddr vmap { 10.9.0.1 : drop, 10.9.0.2 : jump web }; }; chain web { tcp dport 81 accept; }; }", tcp, "inet filter in 0"},
		{"some accepted", input + drop + "ip saddr vmap { 10.9.0.1 : drop, 10.9.0.2 : jump web }; }; chain web { tcp dport 80 accept; }; }", tcp, ""},
		{"some go back", "table inet f { chain web { ip saddr vmap { 10.9.0.1 : return }; drop; }; chain in { type filter hook input priority 0; jump web; }; }", tcp, ""},
		{"some go elsewhere", "table inet f { chain other { tcp dport 443 drop; }; chain in { type filter hook input priority 0; ip saddr vmap { 10.9.0.1 : goto other }; drop; }; }", tcp, ""},
		{"another source", "table ip n { chain p { type nat hook input priority 100; tcp dport 80 snat to 10.0.0.11; }; }; table inet f { chain late { type filter hook input priority 150; tcp dport 80 drop; }; }", tcp, "inet f late"},
		{"another port, written", "table inet f { chain pre { type filter hook prerouting priority -150; tcp dport 80 tcp dport set 8080; }; chain in { type filter hook input priority 0; tcp dport 80 drop; }; }", tcp, "elsewhere"},
		{"another class, written", "table inet f { chain pre { type filter hook prerouting priority -150; ip dscp set cs1; }; chain in { type filter hook input priority 0; tcp dport 80 drop; }; }", tcp, "inet f in"},
		{"a proxy", "table ip f { chain pre { type filter hook prerouting priority -150; tcp dport 80 tproxy to :8080 accept; }; }", tcp, "elsewhere"},
		{"some port", input + drop + " tcp dport 443 accept; }; }", anyPort, ""},
		{"marked by a rule", "table inet f { chain pre { type filter hook prerouting priority -150; tcp dport 80 meta mark set 7; }; chain in { type filter hook input priority 0; meta mark 7 drop; }; }", tcp, "inet f in"},
		{"some marked by a rule", "table inet f { chain pre { type filter hook prerouting priority -150; ip saddr 10.9.0.1 meta mark set 7; }; chain in { type filter hook input priority 0; meta mark 7 drop; }; }", tcp, ""},
		{"marked by a chain of the same priority", "table inet a { chain c { type filter hook input priority 0; meta mark set 1; }; }; table inet b { chain c { type filter hook input priority 0; meta mark 1 drop; }; }", tcp, ""},
		{"of two chains of one priority, the later", "table inet a { chain c { type filter hook input priority 0; tcp dport 80 drop; }; }; table inet b { chain c { type filter hook input priority 0; tcp dport 80 drop; }; }", tcp, "inet b c"},
		{"of two chains of one table, the later", "table inet a { chain c { type filter hook input priority 0; meta mark 1 drop; }; chain d { type filter hook input priority 0; meta mark set 1; }; }", tcp, "inet a c"},
		{"nat, and nothing is tracked", "table ip t { chain n { type nat hook prerouting priority -100; tcp dport 80 drop; }; }", tcp, ""},
		{"nat", "table ip t { chain n { type nat hook prerouting priority -100; tcp dport 80 drop; }; }; table ip u { chain c { type filter hook output priority 0; ct state new accept; }; }", tcp, "ip t n"},
		{"nat, of what is not tracked", pre + "tcp dport 80 notrack; }; }; table ip t { chain n { type nat hook prerouting priority -100; ct state established accept; tcp dport 80 drop; }; }", tcp, ""},
		{"nat, which comes late", "table ip t { chain n { type nat hook input priority -10; meta mark set 1; }; chain c { type filter hook input priority 0; ct state established accept; meta mark 1 drop; }; }", tcp, ""},
		{"SYN, as ECN has it", input + "tcp flags & (ecn|cwr) == (ecn|cwr) accept; tcp dport 80 drop; }; }", tcp, ""},
		{"SYN, alone", input + "tcp flags == syn tcp dport 80 drop; }; }", tcp, ""},
		{"SYN", input + "tcp flags & (fin|syn|rst|ack) == syn tcp dport 80 drop; }; }", tcp, "inet filter in"},
		{"without options", input + "ip hdrlength 5 tcp dport 80 drop; }; }", tcp, ""},
		{"IPv4", input + "ip version 4 tcp dport 80 drop; }; }", tcp, "inet filter in"},
		{"marked", input + "meta mark 7 drop; meta mark set 7; tcp dport 80 counter; }; }", tcp, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := testnet.NewHost(t, "nft")
			if r := h.Exec(testnet.Cmd{Args: []string{"nft", "-f", "-"}, Stdin: c.rules}); r.Code != 0 {
				t.Fatalf("%s%s", r.Stderr, c.rules)
			}
			var fate nft.Fate
			var err error
			h.Do(func() {
				var conn *nft.Conn
				if conn, err = nft.Open(); err != nil {
					return
				}
				defer conn.Close()
				var rules *nft.Ruleset
				if rules, err = conn.Ruleset(); err == nil {
					fate, err = rules.Judge(c.packet)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := said(fate); got != c.want && !(len(c.want) > 0 && len(got) > len(c.want) && got[:len(c.want)+1] == c.want+" ") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func said(f nft.Fate) string {
	switch {
	case f.Redirected:
		return "elsewhere"
	case !f.Dropped:
		return ""
	}
	s := fmt.Sprintf("%s %s %s %d", f.Family, f.Table, f.Chain, f.Handle)
	if f.ReversePath {
		s += " back"
	}
	return s
}
