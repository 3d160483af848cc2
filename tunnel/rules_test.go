package tunnel

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"rsagent/arp/nft"
	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

func prefix(s string) netip.Prefix {
	p, err := ParsePrefix(s)
	if err != nil {
		panic(err)
	}
	return p
}

func everyRule() Rules {
	var r Rules
	r.Lower(netip.MustParseAddr("192.0.2.101"), 1440)
	r.Lower(netip.MustParseAddr("192.0.2.100"), 1440)
	r.Lower(netip.MustParseAddr("2001:db8::100"), 1440)
	r.Lower(netip.MustParseAddr("192.0.2.102"), 536)
	r.Admit(In{4, 4, 0}, prefix("198.51.100.0/24"), prefix("192.0.2.2"), prefix("10.0.0.0/9"))
	r.Admit(In{4, 4, 0}, prefix("192.0.2.2"))
	r.Admit(In{6, 41, 0}, prefix("2001:db8::2"), prefix("2001:db8:1::/61"), prefix("2001:db8:2::/48"))
	r.Admit(In{4, 17, 6080}, prefix("192.0.2.2"))
	r.Sort()
	return r
}

func TestRulesText(t *testing.T) {
	r := everyRule()
	const want = "mss 536 192.0.2.102 mss 1440 192.0.2.100 192.0.2.101 2001:db8::100 " +
		"take ip6:41 from 2001:db8:1::/61 2001:db8:2::/48 2001:db8::2 take ip:4 from 10.0.0.0/9 192.0.2.2 198.51.100.0/24 take ip:udp:6080 from 192.0.2.2"
	if r.String() != want {
		t.Errorf("got  %s\nwant %s", r, want)
	}
	if back, ok := ParseRules(r.String()); !ok || back.String() != want {
		t.Errorf("%q is read as %+v, %t", want, back, ok)
	}
	for _, s := range []string{"", nft.Foreign, "mss", "mss x", "mss 1440 x", "take ip:4", "take ip4:4 from 192.0.2.2", "take ip:256 from 192.0.2.2", "take ip:udp:65536 from 192.0.2.2", "take ip:4 from 192.0.2.2/24", "drop"} {
		if r, ok := ParseRules(s); ok {
			t.Errorf("%q is read as %+v", s, r)
		}
	}
}

// withRules runs f with a connection to a host's nftables.
func withRules(t *testing.T, h *testnet.Host, f func(*nft.Conn) error) {
	t.Helper()
	h.Do(func() {
		c, err := nft.Open()
		if err == nil {
			defer c.Close()
			err = f(c)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

func read(t *testing.T, h *testnet.Host) (value string) {
	t.Helper()
	withRules(t, h, func(c *nft.Conn) (err error) { value, err = ReadRules(c); return err })
	return value
}

func set(t *testing.T, h *testnet.Host, value string) {
	t.Helper()
	withRules(t, h, func(c *nft.Conn) error { return SetRules(c, value) })
}

// listed is what nft(8) lists, without handles.
func listed(t *testing.T, h *testnet.Host) string {
	t.Helper()
	var list struct{ Nftables []map[string]map[string]any }
	if err := json.Unmarshal([]byte(h.Run(t, "nft", "-j", "list", "ruleset")), &list); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, entry := range list.Nftables {
		for kind, body := range entry {
			if kind != "metainfo" {
				delete(body, "handle")
				b, _ := json.Marshal(body)
				out.WriteString(kind + " " + string(b) + "\n")
			}
		}
	}
	return out.String()
}

// TestRulesTable writes the rules, and lets nft(8) say what they do; and what nft(8) makes of the command
// that is shown must read the same.
func TestRulesTable(t *testing.T) {
	testnet.Need(t, "nft")
	a, b := testnet.NewHost(t, "a"), testnet.NewHost(t, "b")
	if got := read(t, a); got != "" {
		t.Errorf("there is %q before anything was written", got)
	}
	r := everyRule()
	set(t, a, r.String())
	if got := read(t, a); got != r.String() {
		t.Errorf("read %q, want %q", got, r)
	}
	text := a.Run(t, "nft", "-s", "list", "ruleset")
	for _, want := range []string{"table inet rsagent {", "type filter hook postrouting priority 150; policy accept;",
		"ip saddr @mss4_1440 tcp flags & syn == syn tcp option maxseg size > 1440 tcp option maxseg size set 1440",
		"ip6 saddr @mss6_1440 tcp flags & syn == syn tcp option maxseg size > 1440 tcp option maxseg size set 1440",
		"elements = { 192.0.2.100, 192.0.2.101 }", "type filter hook input priority filter; policy accept;",
		"ip saddr 198.51.100.0/24 accept", "ip saddr 192.0.2.2 accept", "ip6 saddr 2001:db8:1::/61 accept", "udp dport 6080"} {
		if !strings.Contains(text, want) {
			t.Errorf("nft does not list %q in\n%s", want, text)
		}
	}
	b.Run(t, "sh", "-c", RulesTable{}.Command(r.String()))
	if x, y := listed(t, a), listed(t, b); x != y {
		t.Errorf("the command makes another table:\n%s\nthan rsagent:\n%s", y, x)
	}
	if got := read(t, b); got != r.String() {
		t.Errorf("what the command makes is read as %q, want %q", got, r)
	}
	b.Run(t, "sh", "-c", RulesTable{}.Command(""))
	set(t, a, "")
	set(t, a, "")
	if x, y := listed(t, a), listed(t, b); x != "" || y != "" {
		t.Errorf("left are %s and %s", x, y)
	}
}

// TestRulesNoValue: what is no value changes nothing, neither by rsagent nor typed.
func TestRulesNoValue(t *testing.T) {
	testnet.Need(t, "nft")
	h := testnet.NewHost(t, "a")
	set(t, h, everyRule().String())
	for _, value := range []string{nft.Foreign, "mss", "take ip:4 from x", " "} {
		var err error
		withRules(t, h, func(c *nft.Conn) error { err = SetRules(c, value); return nil })
		if err == nil {
			t.Errorf("%q is taken", value)
		}
		if h.Try("sh", "-c", RulesTable{}.Command(value)).Code == 0 {
			t.Errorf("for %q it says %s", value, RulesTable{}.Command(value))
		}
	}
	if got := read(t, h); got != everyRule().String() {
		t.Errorf("the table is %q", got)
	}
}

// TestRulesTampered: whatever others change in the table, it is not taken for rsagent's.
func TestRulesTampered(t *testing.T) {
	testnet.Need(t, "nft")
	h := testnet.NewHost(t, "a")
	for _, c := range []string{
		"flush table inet rsagent",
		"flush chain inet rsagent mss",
		"add rule inet rsagent directors accept",
		"insert rule inet rsagent directors accept",
		"insert rule inet rsagent mss tcp option maxseg size set 9000",
		"flush chain inet rsagent directors; add rule inet rsagent directors meta nfproto ipv4 meta l4proto 4 accept",
		"add table inet rsagent { flags dormant; }",
		"delete chain inet rsagent mss",
	} {
		set(t, h, everyRule().String())
		h.Run(t, "nft", c)
		if got := read(t, h); got != nft.Foreign {
			t.Errorf("after %q it is read as %q", c, got)
		}
	}
}
