package arp

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"rsagent/arp/nft"
	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

var guard = Guard{
	VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")},
	Senders: []Sender{{Interface: "eth0", Addr: netip.MustParseAddr("192.0.2.11")},
		{"eth0.1=;x", netip.MustParseAddr("203.0.113.11"), netip.MustParsePrefix("203.0.113.8/29")}, {"eth0.1=;x", netip.MustParseAddr("10.0.0.9"), netip.MustParsePrefix("10.0.0.0/8")},
		{Interface: "eth0.1=;x", Addr: netip.MustParseAddr("198.51.100.11")}},
}

// oddNames are some that the kernel takes, which refuses single-byte blanks only.
var oddNames = []string{"e*", "*", `e\`, "a*b", "a'b", "x$y", "{", "#", "a=b", "a,b", "en\u3000", "\u2003", "e\u0085", "send", "drop"}

// TestGuardNames: whatever an interface is called, the guard is read as it was written.
func TestGuardNames(t *testing.T) {
	for _, name := range append(oddNames, `a"b`, `e\*`) {
		g := Guard{guard.VIPs, []Sender{{Interface: name, Addr: guard.Senders[0].Addr}}}
		if back, ok := ParseGuard(g.String()); !ok || !slices.Equal(back.Senders, g.Senders) {
			t.Errorf("%q is read as %+v, %t", g, back, ok)
		}
	}
}

// TestGuardNoValue: what is no value changes nothing, neither by rsagent nor typed.
func TestGuardNoValue(t *testing.T) {
	testnet.Need(t, "nft")
	h := testnet.NewHost(t, "a")
	set(t, h, guard.String())
	for _, value := range []string{nft.Foreign, "drop 192.0.2.100 send eth0", " ", guard.String() + " "} {
		in(t, h, func(c *nft.Conn) {
			if err := SetGuard(c, value); err == nil {
				t.Errorf("%q is taken", value)
			}
		})
		if h.Try("sh", "-c", GuardTable{}.Command(value)).Code == 0 {
			t.Errorf("for %q it says %s", value, GuardTable{}.Command(value))
		}
	}
	for _, name := range []string{`a"b`, `e\*`} {
		command := GuardTable{}.Command(Guard{guard.VIPs, []Sender{{Interface: name, Addr: guard.Senders[0].Addr}}}.String())
		if h.Try("sh", "-c", command).Code == 0 {
			t.Errorf("a name that nft has no words for is written as %s", command)
		}
	}
	if got := read(t, h); got != guard.String() {
		t.Errorf("the table is %q", got)
	}
}

func TestGuardText(t *testing.T) {
	for _, g := range []Guard{guard, {VIPs: guard.VIPs[:1]}, {Senders: guard.Senders}, {}} {
		back, ok := ParseGuard(g.String())
		if !ok || back.String() != g.String() || len(back.VIPs) != len(g.VIPs) || !slices.Equal(back.Senders, g.Senders) {
			t.Errorf("%q is read as %+v, %t", g, back, ok)
		}
	}
	for _, s := range []string{"", nft.Foreign, "drop", "send", "drop x send", "drop 192.0.2.1 send eth0", "drop 192.0.2.1 send =192.0.2.1", "drop 192.0.2.1 send eth0=192.0.2.1@", "drop 192.0.2.1 send eth0=192.0.2.1@x", "send drop 192.0.2.1"} {
		if g, ok := ParseGuard(s); ok {
			t.Errorf("%q is read as %+v", s, g)
		}
	}
}

// in runs f with a connection to a host's nftables.
func in(t *testing.T, h *testnet.Host, f func(*nft.Conn)) {
	t.Helper()
	h.Do(func() {
		c, err := nft.Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		f(c)
	})
}

func read(t *testing.T, h *testnet.Host) (value string) {
	t.Helper()
	in(t, h, func(c *nft.Conn) {
		var err error
		if value, err = ReadGuard(c); err != nil {
			t.Error(err)
		}
	})
	return value
}

func set(t *testing.T, h *testnet.Host, value string) {
	t.Helper()
	in(t, h, func(c *nft.Conn) {
		if err := SetGuard(c, value); err != nil {
			t.Error(err)
		}
	})
}

// rules is what nft(8) lists, without handles.
func rules(t *testing.T, h *testnet.Host) string {
	t.Helper()
	var list struct{ Nftables []map[string]map[string]any }
	if err := json.Unmarshal([]byte(h.Run(t, "nft", "-j", "list", "ruleset")), &list); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, entry := range list.Nftables {
		for kind, body := range entry {
			if kind == "metainfo" {
				continue
			}
			delete(body, "handle")
			b, _ := json.Marshal(body)
			out.WriteString(kind + " " + string(b) + "\n")
		}
	}
	return out.String()
}

// TestGuardTable writes the guard, and lets nft(8) say what it does; and what nft(8) makes of the command
// that is shown must be the same.
func TestGuardTable(t *testing.T) {
	testnet.Need(t, "nft")
	a, b := testnet.NewHost(t, "a"), testnet.NewHost(t, "b")
	if got := read(t, a); got != "" {
		t.Errorf("there is %q before anything was written", got)
	}
	plain := guard
	for _, name := range oddNames {
		plain.Senders = append(slices.Clip(plain.Senders), Sender{Interface: name, Addr: guard.Senders[0].Addr})
	}
	slices.SortStableFunc(plain.Senders, func(a, b Sender) int { return strings.Compare(a.Interface, b.Interface) })
	set(t, a, plain.String())
	text := a.Run(t, "nft", "-s", "list", "ruleset")
	for _, want := range []string{"table arp rsagent {", "elements = { 192.0.2.100, 192.0.2.101 }", `"eth0" : 192.0.2.11`,
		"type filter hook input priority filter; policy accept;", "arp daddr ip @vips drop",
		"type filter hook output priority filter; policy accept;", "arp saddr ip @vips arp saddr ip set oifname map @senders", "arp saddr ip @vips drop"} {
		if !strings.Contains(text, want) {
			t.Errorf("nft does not list %q in\n%s", want, text)
		}
	}
	b.Run(t, "sh", "-c", GuardTable{}.Command(plain.String()))
	if x, y := rules(t, a), rules(t, b); x != y {
		t.Errorf("the command makes another table:\n%s\nthan rsagent:\n%s", y, x)
	}
	for _, h := range []*testnet.Host{a, b} {
		if got := read(t, h); got != plain.String() {
			t.Errorf("read %q, want %q", got, plain)
		}
	}
	set(t, a, guard.String())
	if got := read(t, a); got != guard.String() {
		t.Errorf("read %q, want %q", got, guard)
	}
	b.Run(t, "sh", "-c", GuardTable{}.Command(""))
	set(t, a, "")
	set(t, a, "")
	if x, y := rules(t, a), rules(t, b); x != "" || y != "" {
		t.Errorf("left are %s and %s", x, y)
	}
}

// TestGuardTampered: whatever others change in the table, it is not taken for rsagent's.
func TestGuardTampered(t *testing.T) {
	testnet.Need(t, "nft")
	h := testnet.NewHost(t, "a")
	for _, c := range []string{
		"flush table arp rsagent",
		"flush chain arp rsagent output",
		"add rule arp rsagent input accept",
		"insert rule arp rsagent input accept",
		"insert rule arp rsagent input counter",
		"insert rule arp rsagent input arp operation request accept",
		"flush chain arp rsagent input; add rule arp rsagent input arp saddr ip @vips drop",
		"flush chain arp rsagent input; add rule arp rsagent input arp daddr ip != @vips drop",
		"flush chain arp rsagent input; add rule arp rsagent input arp daddr ip @vips accept",
		"flush chain arp rsagent input; add rule arp rsagent input arp daddr ip @vips goto more",
		"add chain arp rsagent input { policy drop; }",
		"add table arp rsagent { flags dormant; }",
		"add set arp rsagent more { type ipv4_addr; }",
		"delete chain arp rsagent output; add chain arp rsagent output { type filter hook output priority 7; }; add rule arp rsagent output arp saddr ip @vips arp saddr ip set oifname map @senders; add rule arp rsagent output arp saddr ip @vips drop",
	} {
		set(t, h, guard.String())
		if strings.Contains(c, "goto") {
			h.Run(t, "nft", "add chain arp rsagent more")
		}
		h.Run(t, "nft", c)
		if got := read(t, h); got != nft.Foreign {
			t.Errorf("after %q it is read as %q", c, got)
		}
		set(t, h, guard.String()) // and it is mended
		if got := read(t, h); got != guard.String() {
			t.Errorf("after %q and a mend it is read as %q", c, got)
		}
	}
	h.Run(t, "nft", "delete element arp rsagent vips { 192.0.2.101 }")
	if got, want := read(t, h), (Guard{guard.VIPs[:1], guard.Senders}).String(); got != want {
		t.Errorf("read %q, want %q", got, want)
	}
	h.Run(t, "nft", "flush ruleset")
	if got := read(t, h); got != "" {
		t.Errorf("after a flush of all it is read as %q", got)
	}
}

// TestGuardMany: more VIPs than fit one message are written in one transaction, and read back.
func TestGuardMany(t *testing.T) {
	h := testnet.NewHost(t, "a")
	var g Guard
	for i := range 10000 {
		g.VIPs = append(g.VIPs, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	set(t, h, g.String())
	if got := read(t, h); got != g.String() {
		t.Errorf("read %d bytes, want %d", len(got), len(g.String()))
	}
}
