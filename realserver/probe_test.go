package realserver

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rsagent/loopback"
	"rsagent/scripts/testnet"
	"rsagent/sysctl"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

// Who asks for a VIP, and as whom: an uplink in its subnet, or the one with the default route; never as a VIP.
func TestAsker(t *testing.T) {
	eth := func(name string, index int) sysctl.Interface {
		return sysctl.Interface{Name: name, Index: index, Up: true, ARP: true, MAC: 6}
	}
	eth0, down, port, noARP, gre := eth("eth0", 2), eth("eth0", 2), eth("eth0", 2), eth("eth0", 2), eth("eth0", 2)
	down.Up, port.Port, noARP.ARP, gre.MAC = false, "bridge", false, 4
	for _, test := range []struct {
		name   string
		link   sysctl.Interface
		uplink int
		addrs  string // on eth0 unless it says lo
		vip    string
		want   string
	}{
		{"in its subnet", eth0, 0, "10.0.0.11/24", "10.0.0.100", "10.0.0.11"},
		{"in another", eth0, 0, "10.0.0.11/24", "10.0.1.100", ""},
		{"in another, with the default route", eth0, 2, "10.0.0.11/24", "10.0.1.100", "10.0.0.11"},
		{"in one of two", eth0, 2, "10.0.0.11/24 10.0.1.11/24", "10.0.1.100", "10.0.1.11"},
		{"the VIP on the NIC, too", eth0, 2, "10.0.0.100/24 10.0.0.11/24", "10.0.0.100", "10.0.0.11"},
		{"another VIP on the NIC", eth0, 2, "10.0.0.101/24 10.0.0.11/24", "10.0.0.100", "10.0.0.11"},
		{"none but VIPs", eth0, 2, "10.0.0.101/24", "10.0.0.100", ""},
		{"none of its family", eth0, 2, "2001:db8::11/64", "10.0.0.100", ""},
		{"only on lo", eth0, 2, "lo:10.0.0.11/24", "10.0.0.100", ""},
		{"IPv6", eth0, 2, "10.0.0.11/24 fe80::1/64 2001:db8::11/64", "2001:db8::100", "2001:db8::11"},
		{"IPv6 of another subnet", eth0, 2, "fe80::1/64 2001:db8::11/64", "2001:db8:1::100", "fe80::1"},
		{"down", down, 2, "10.0.0.11/24", "10.0.0.100", ""},
		{"a port", port, 2, "10.0.0.11/24", "10.0.0.100", ""},
		{"no ARP", noARP, 2, "10.0.0.11/24", "10.0.0.100", ""},
		{"no Ethernet", gre, 2, "10.0.0.11/24", "10.0.0.100", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &Host{Links: []sysctl.Interface{test.link}, Uplink: test.uplink}
			for word := range strings.FieldsSeq(test.addrs) {
				device, prefix := "eth0", word
				if word[:3] == "lo:" {
					device, prefix = "lo", word[3:]
				}
				h.Addrs = append(h.Addrs, loopback.Held{Addr: loopback.Addr{Device: device, Prefix: netip.MustParsePrefix(prefix)}, Scope: "global"})
			}
			vips := fromAddrs([]netip.Addr{netip.MustParseAddr(test.vip), netip.MustParseAddr("10.0.0.101")}).sorted()
			got := ""
			if from := h.asker(test.link, netip.MustParseAddr(test.vip), vips); from.IsValid() {
				got = from.String()
			}
			if got != test.want {
				t.Errorf("it asks as %q, want %q", got, test.want)
			}
		})
	}
}

// A second real server with bare guards is named from the first, which is silent; its director too.
func TestProbe(t *testing.T) {
	rs, bare, director := testnet.NewHost(t, "rs"), testnet.NewHost(t, "bare"), testnet.NewHost(t, "director")
	segment := testnet.NewSegment(t, "lan")
	const ofDirector, ofBare = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
	segment.Join(t, rs, "eth0", "10.0.0.11/24")
	segment.Join(t, bare, "eth0", "10.0.0.12/24")
	segment.Join(t, director, "eth0", "10.0.0.2/24")
	bare.Run(t, "ip", "link", "set", "eth0", "address", ofBare)
	director.Run(t, "ip", "link", "set", "eth0", "address", ofDirector)
	rs.Run(t, "ip", "addr", "add", "10.0.0.100/32", "dev", "lo")
	rs.Run(t, "ip", "addr", "add", "10.9.9.9/32", "dev", "lo")
	expect := func(want ...string) {
		t.Helper()
		vips := []netip.Addr{netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("10.0.0.100")}
		var got []Claim
		var err error
		rs.Do(func() { got, err = askedFor(vips) })
		if d := cmp.Diff([]Claim{{vips[1], "eth0", append([]string{}, want...)}}, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || err != nil {
			t.Errorf("%v: %s", err, d)
		}
	}
	expect()
	director.Run(t, "ip", "addr", "add", "10.0.0.100/32", "dev", "eth0")
	expect(ofDirector)
	bare.Run(t, "ip", "addr", "add", "10.0.0.100/32", "dev", "lo")
	expect(ofDirector, ofBare)
	director.Run(t, "ip", "addr", "del", "10.0.0.100/32", "dev", "eth0")
	expect(ofBare)
}

func askedFor(vips []netip.Addr) ([]Claim, error) {
	k, closer, err := Linux()
	if err != nil {
		return nil, err
	}
	defer closer()
	h, err := k.Look(Also{})
	if err != nil {
		return nil, err
	}
	return h.Probe(vips, time.Second)
}
