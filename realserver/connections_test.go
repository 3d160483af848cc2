package realserver

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Messages of a kernel, Linux 6.18: of sock_diag, connections from 10.0.0.1 and 2001:db8::1 to sockets of both families; of
// conntrack, one that DNAT sends to a container, by each IP version, and one whose port alone it changes.
const (
	diag4  = "020100001f93ae180a0000640000000000000000000000000a00000100000000000000000000000000000000afe10100000000000000000000000000000000000000000000000000050008000000000008000f00000000000c00150001000000000000000600160052000000"
	diag46 = "0a0100001f9284e000000000000000000000ffff0a00006400000000000000000000ffff0a00000100000000b0e10100000000000000000000000000000000000000000000000000050008000000000008000f00000000000c00150001000000000000000600160012000000"
	diag6  = "0a0100001f92c46a20010db800000000000000000000010020010db800000000000000000000000100000000b1e10100000000000000000000000000000000000000000000000000050008000000000008000f00000000000c00150001000000000000000600160012000000"

	dnat4    = "020000003400018014000180080001000a000001080002000a0000641c000280050001000600000006000200e1fc000006000300005000003400028014000180080001000a580002080002000a0000011c0002800500010006000000060002001f90000006000300e1fc000008000300000001ae080008000000000008000c008c0b0a7108000b0000000001080007000006977f300004802c0001800500010003000000050002000a000000050003000a00000006000400230000000600050023000000"
	dnat6    = "0a0000004c0001802c0001801400030020010db80000000000000000000000011400040020010db80000000000000000000001001c000280050001000600000006000200b0ee000006000300005000004c0002802c00018014000300fd0000880000000000000000000000021400040020010db80000000000000000000000011c0002800500010006000000060002001f90000006000300b0ee000008000300000001ae080008000000000008000c000906fed508000b0000000001080007000006977f300004802c0001800500010003000000050002000a000000050003000a00000006000400230000000600050023000000"
	dnatPort = "020000003400018014000180080001000a000001080002000a0000641c000280050001000600000006000200c1b0000006000300005100003400028014000180080001000a000064080002000a0000011c0002800500010006000000060002001f91000006000300c1b0000008000300000001ae080008000000000008000c001571266b08000b0000000001080007000006977f300004802c0001800500010003000000050002000a000000050003000a00000006000400230000000600050023000000"
)

func bytesOf(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEnds(t *testing.T) {
	for message, want := range map[string]string{
		diag4:          "10.0.0.100:8083 10.0.0.1:44568 true",
		diag46:         "[::ffff:10.0.0.100]:8082 [::ffff:10.0.0.1]:34016 true",
		diag6:          "[2001:db8::100]:8082 [2001:db8::1]:50282 true",
		diag6[:2*72-2]: "invalid AddrPort invalid AddrPort false",
	} {
		if local, peer, ok := ends(bytesOf(t, message)); fmt.Sprint(local, peer, ok) != want {
			t.Errorf("%s: %s %s %t, want %s", message, local, peer, ok, want)
		}
	}
	s, ok := socket(bytesOf(t, diag6[:2*72]+"05000b0001000000"), Service{})
	if want := (Socket{Service{Port: 8082}, netip.MustParseAddr("2001:db8::100"), 0, true}); !ok || s != want {
		t.Errorf("%+v, %t, want %+v", s, ok, want)
	}
}

// TestRedirected bends the message of a connection that counts, attribute by attribute.
func TestRedirected(t *testing.T) {
	state := func(n int) string {
		return strings.Replace(dnat4, "800500010003", fmt.Sprintf("8005000100%02x", n), 1)
	}
	of4, of6, none := "10.0.0.100 10.0.0.1:57852", "2001:db8::100 [2001:db8::1]:45294", ""
	for _, c := range []struct{ name, message, want string }{
		{"established", dnat4, of4},
		{"IPv6", dnat6, of6},
		{"the port only", dnatPort, none},
		{"another way of NAT: the reply comes from where the request went", strings.Replace(dnat4, "080001000a580002", "080001000a000064", 1), none},
		{"not TCP", strings.Replace(dnat4, "1c0002800500010006", "1c0002800500010011", 1), none},
		{"no state", strings.Replace(dnat4, "30000480", "30000580", 1), none},
		{"no reply", strings.Replace(dnat4, "34000280", "34000980", 1), none},
		{"no source", strings.Replace(dnat4, "080001000a000001", "080009000a000001", 1), none},
		{"no port", strings.Replace(dnat4, "06000200e1fc", "06000900e1fc", 1), none},
		{"an address of five bytes", strings.Replace(dnat4, "080002000a000064", "090002000a000064", 1), none},
		{"SYN_SENT", state(1), none}, {"SYN_RECV", state(2), of4}, {"FIN_WAIT", state(4), of4}, {"CLOSE_WAIT", state(5), of4},
		{"LAST_ACK", state(6), of4}, {"TIME_WAIT", state(7), none}, {"CLOSE", state(8), none}, {"SYN_SENT2", state(9), none}, {"none of them", state(255), none},
	} {
		got := ""
		if x, ok := redirected(bytesOf(t, c.message)); ok {
			got = fmt.Sprint(x.VIP, " ", netip.AddrPortFrom(x.Peer, x.Port))
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if c.want == none && c.message == dnat4 {
			t.Errorf("%s: nothing was changed", c.name)
		}
	}
}

// TestMessagesCut: a message that ends too early, or whose lengths are not its own, is none.
func TestMessagesCut(t *testing.T) {
	for _, message := range []string{diag4, diag6, dnat4, dnat6} {
		whole := bytesOf(t, message)
		for n := range whole {
			ends(whole[:n])
			socket(whole[:n], Service{})
			redirected(whole[:n])
			for _, b := range []byte{0, 3, 0xff} {
				bent := append([]byte{}, whole...)
				bent[n] = b
				socket(bent, Service{})
				redirected(bent)
			}
		}
	}
}

// TestWithin: a filter of all that a list of VIPs has in common, as struct inet_diag_bc_op and inet_diag_hostcond.
func TestWithin(t *testing.T) {
	for _, c := range []struct{ vips, want string }{
		{"10.0.0.100", "07101400 02200000 ffffffff 0a000064"},
		{"10.0.0.101 10.0.0.100", "07101400 021f0000 ffffffff 0a000064"},
		{"10.0.0.100 10.0.0.255 10.0.0.1", "07101400 02180000 ffffffff 0a000001"},
		{"10.0.0.100 192.0.2.1", "07101400 02000000 ffffffff 0a000064"},
		{"2001:db8::1", "071c2000 0a800000 ffffffff 20010db8000000000000000000000001"},
		{"2001:db8::1 2001:db8::4", "071c2000 0a7d0000 ffffffff 20010db8000000000000000000000001"},
	} {
		var vips []netip.Addr
		for _, s := range strings.Fields(c.vips) {
			vips = append(vips, netip.MustParseAddr(s))
		}
		f := within(vips)
		if got := hex.EncodeToString(f.Data); got != strings.ReplaceAll(c.want, " ", "") || f.Type != 1 {
			t.Errorf("%s: type %d, %s, want %s", c.vips, f.Type, got, c.want)
		}
	}
}
