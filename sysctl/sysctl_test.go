package sysctl

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func TestKey(t *testing.T) {
	for _, c := range []struct {
		key           Key
		name, command string
	}{
		{Key{All, ARPIgnore}, "net.ipv4.conf.all.arp_ignore", "sysctl -w net.ipv4.conf.all.arp_ignore=1"},
		{Key{"eth0.100", RPFilter}, "net.ipv4.conf.eth0.100.rp_filter", "sysctl -w net/ipv4/conf/eth0.100/rp_filter=1"},
	} {
		if got := c.key.String(); got != c.name {
			t.Errorf("%+v is named %q", c.key, got)
		}
		if got := c.key.Command("1"); got != c.command {
			t.Errorf("%+v is set by %q", c.key, got)
		}
	}
}

// table makes settings of one knob: all, default, eth0, eth1.
func table(all, def, eth0, eth1 int) Table {
	return Table{{All, "k"}: all, {Default, "k"}: def, {"eth0", "k"}: eth0, {"eth1", "k"}: eth1}
}

var rule = Rule{Knob: "k", Good: OneOf(1, 2, 8), Want: 1, Why: "w"}

// settings are written as "interface=value".
func written(settings []Setting) (out []string) {
	for _, s := range settings {
		out = append(out, fmt.Sprintf("%s=%d", s.Key.Iface, s.Value))
	}
	return out
}

func TestEverywhere(t *testing.T) {
	for _, c := range []struct {
		name string
		t    Table
		want []string
	}{
		{"nothing set", table(0, 0, 0, 0), []string{"all=1"}},
		{"good already", table(1, 0, 0, 0), nil},
		{"stricter is kept", table(2, 0, 1, 0), nil},
		{"an interface is good alone: all is set for those to come", table(0, 0, 1, 1), []string{"all=1"}},
		{"an interface outweighs a good all", table(1, 0, 3, 0), []string{"eth0=1"}},
		{"it outweighs what all will be", table(0, 0, 3, 5), []string{"all=1", "eth0=1", "eth1=1"}},
		{"all outweighs every good value", table(5, 0, 0, 0), []string{"all=1"}},
		{"all leaks, and so does an interface", table(5, 0, 4, 0), []string{"all=1", "eth0=1"}},
		{"a stricter interface is kept", table(0, 0, 8, 2), []string{"all=1"}},
	} {
		if d := cmp.Diff(c.want, written(rule.Everywhere(c.t, []string{"eth0", "eth1"}))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestOn(t *testing.T) {
	for _, c := range []struct {
		name string
		t    Table
		want []string
	}{
		{"nothing set", table(0, 0, 0, 0), []string{"eth0=1"}},
		{"good by all", table(1, 0, 0, 0), nil},
		{"all does not spoil it", table(1, 0, 3, 0), []string{"eth0=1"}},
		{"all outweighs every good value", table(5, 0, 0, 0), []string{"all=1", "eth0=1"}},
		{"the other interface is nobody's business", table(0, 0, 1, 5), nil},
	} {
		if d := cmp.Diff(c.want, written(rule.On(c.t, "eth0"))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestEffectiveOfWhatIsToCome(t *testing.T) {
	tab := table(1, 2, 0, 0)
	if v := tab.Effective("tunl0", "k"); v != 2 {
		t.Errorf("an interface to come has %d in effect, default says 2", v)
	}
	if v := tab.Effective("eth0", "k"); v != 1 {
		t.Errorf("eth0 has %d in effect, all says 1", v)
	}
}

// TestSet writes into a stand-in tree: an interface's dots are its own, and one that is not there is
// not made.
func TestSet(t *testing.T) {
	tree := Tree{t.TempDir()}
	dir := filepath.Join(tree.Root, "net/ipv4/conf/eth0.100")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tree.Set(Key{"eth0.100", ARPIgnore}, 1); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, ARPIgnore)); string(b) != "1" {
		t.Errorf("the file holds %q", b)
	}
	if err := tree.Set(Key{"eth1", ARPIgnore}, 1); err != nil {
		t.Errorf("an interface that has gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "../eth1")); err == nil {
		t.Error("an interface was made")
	}
	if err := tree.Set(Key{All, ARPIgnore}, 1); err == nil || !strings.Contains(err.Error(), "all.arp_ignore") {
		t.Errorf("no all: %v", err)
	}
}

// TestLook holds the one dump against the files of the same settings, on this very host.
func TestLook(t *testing.T) {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tree := Tree{"/proc/sys"}
	ifs, tab, err := tree.Look(&nl.SocketHandle{Socket: s})
	if err != nil {
		t.Fatal(err)
	}
	keys := inFiles
	for _, i := range ifs {
		for _, d := range devconf {
			keys = append(keys, Key{i.Name, d.knob})
		}
		if i.Name == "lo" && (i.ARP || i.Index != 1) {
			t.Errorf("lo is %+v", i)
		}
	}
	if len(ifs) == 0 || len(tab) != len(keys) {
		t.Fatalf("%d settings, want %v", len(tab), keys)
	}
	for _, k := range keys {
		if v, err := tree.get(k); err != nil || v != tab[k] {
			t.Errorf("%s: the dump says %d, the file %d (%v)", k, tab[k], v, err)
		}
	}
}

func TestSpeaks(t *testing.T) {
	for _, c := range []struct {
		i    Interface
		want bool
	}{
		{Interface{Name: "eth0", ARP: true}, true},
		{Interface{Name: "lo"}, false},
		{Interface{Name: "eth0", ARP: true, Port: "bridge", Master: 3}, false},
		{Interface{Name: "eth0", ARP: true, Port: "bond", Master: 3}, false},
		{Interface{Name: "eth0", ARP: true, Port: "vrf", Master: 3}, true},
	} {
		if c.i.Speaks() != c.want {
			t.Errorf("%+v speaks: %t", c.i, !c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, unix.SizeofIfInfomsg))
	f.Add(append(make([]byte, unix.SizeofIfInfomsg), 8, 0, 3, 0, 'l', 'o', 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= unix.SizeofIfInfomsg {
			parse(b) // must not panic, whatever the kernel sends
		}
	})
}

// TestTunnelArgs takes the attributes of tunnels apart as `ip link add` would have been told them.
func TestTunnelArgs(t *testing.T) {
	attr := func(typ byte, v ...byte) []byte {
		b := append([]byte{byte(4 + len(v)), 0, typ, 0}, v...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	any4, any6, here := attr(2, 0, 0, 0, 0), attr(2, make([]byte, 16)...), []byte{192, 0, 2, 11}
	for _, c := range []struct {
		name, kind, args, mode string
		data                   [][]byte
	}{
		{"tunl0", "ipip", "", "", [][]byte{any4, attr(3, 0, 0, 0, 0), attr(9, 4)}},
		{"one end", "ipip", "remote 192.0.2.11", "", [][]byte{any4, attr(3, here...)}},
		{"both ends", "sit", "local 192.0.2.11 remote 192.0.2.11", "", [][]byte{attr(2, here...), attr(3, here...)}},
		{"external", "ipip", "external", "", [][]byte{any4, attr(19)}},
		{"ip6tnl0", "ip6tnl", "", "ip6ip6", [][]byte{any6, attr(9, 41)}},
		{"any", "ip6tnl", "", "any", [][]byte{any6, attr(9, 0)}},
		{"IPv4 in it", "ip6tnl", "", "ipip6", [][]byte{any6, attr(9, 4)}},
		{"gre0", "gre", "", "", [][]byte{attr(2, 0, 0), attr(6, 0, 0, 0, 0), attr(7, 0, 0, 0, 0)}},
		{"grecsum0", "gre", "local 192.0.2.11 icsum", "", [][]byte{attr(2, 0x80, 0), attr(6, here...), attr(7, 0, 0, 0, 0)}},
		{"with a key", "gre", "local 192.0.2.11", "", [][]byte{attr(2, 0x20, 0), attr(6, here...)}},
		{"no tunnel", "vlan", "", "", [][]byte{attr(2, here...)}},
	} {
		i := Interface{Kind: c.kind}
		i.tunnel(slices.Concat(c.data...))
		if i.Args != c.args || i.Mode != c.mode {
			t.Errorf("%s: args %q, mode %q", c.name, i.Args, i.Mode)
		}
	}
}
