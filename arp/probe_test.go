package arp

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// lan is a segment with one who asks, and two more hosts.
type lan struct{ asker, director, real *testnet.Host }

func newLAN(t *testing.T) lan {
	t.Helper()
	l := lan{testnet.NewHost(t, "asker"), testnet.NewHost(t, "director"), testnet.NewHost(t, "real")}
	segment := testnet.NewSegment(t, "lan")
	for i, h := range []*testnet.Host{l.asker, l.director, l.real} {
		end := string(rune('1' + i))
		segment.Join(t, h, "eth0", "10.0.0.1"+end+"/24", "2001:db8::1"+end+"/64")
	}
	return l
}

func mac(t *testing.T, h *testnet.Host) string {
	t.Helper()
	return h.NIC(t, "eth0").HardwareAddr.String()
}

// ask asks as 10.0.0.11 or 2001:db8::11. An answer is not waited for in vain: it comes long before the time is over.
func (l lan) ask(t *testing.T, addrs ...string) (claims [][]string) {
	t.Helper()
	var questions []Question
	for _, a := range addrs {
		q := Question{l.asker.NIC(t, "eth0").Index, netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr(a)}
		if q.Addr.Is6() {
			q.From = netip.MustParseAddr("2001:db8::11")
		}
		questions = append(questions, q)
	}
	var err error
	l.asker.Do(func() { claims, err = Ask(questions, time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// Nobody, one, several: each host that claims an address is named, and no other, however it holds it.
func TestAsk(t *testing.T) {
	l := newLAN(t)
	director, real := mac(t, l.director), mac(t, l.real)
	both := []string{director, real}
	slices.Sort(both)
	expect := func(what string, want ...[]string) {
		t.Helper()
		got := l.ask(t, "10.0.0.100", "2001:db8::100", "10.0.0.13", "2001:db8::13")
		for i, want := range append(want, []string{real}, []string{real}) {
			if !slices.Equal(got[i], want) {
				t.Errorf("%s: question %d is answered by %v, want %v", what, i, got[i], want)
			}
		}
	}
	expect("nobody", nil, nil)
	for _, a := range []string{"10.0.0.100/32", "2001:db8::100/128"} {
		l.director.Run(t, "ip", "addr", "add", a, "dev", "eth0")
		l.real.Run(t, "ip", "addr", "add", a, "dev", "lo")
		l.asker.Run(t, "ip", "addr", "add", a, "dev", "lo")
	}
	l.director.SetIPv4Conf(t, "all", "arp_ignore", "2") // answers its own subnet only
	expect("director, and a real server with bare guards", both, []string{director})
	l.real.SetIPv4Conf(t, "all", "arp_ignore", "1")
	expect("director, and a real server that is silent", []string{director}, []string{director})
	l.real.Run(t, "ip", "addr", "add", "10.0.0.100/32", "dev", "eth0")
	l.real.Run(t, "ip", "addr", "add", "2001:db8::100/128", "dev", "eth0")
	expect("on two NICs", both, both)
	l.director.Run(t, "ip", "link", "set", "eth0", "down")
	expect("director gone", []string{real}, []string{real})
}

// On the wire are two questions for each address, under the asker's own name, and nothing else of it about a VIP.
func TestAskFew(t *testing.T) {
	testnet.Need(t, "tcpdump", "arping")
	l := newLAN(t)
	l.asker.Run(t, "ip", "addr", "add", "10.0.0.100/32", "dev", "lo")
	l.asker.Run(t, "ip", "addr", "add", "2001:db8::100/128", "dev", "lo")
	wire := l.director.Start(t, "tcpdump", "-lni", "eth0", "--immediate-mode", "ether src "+mac(t, l.asker))
	wire.Await(t, "listening on")
	l.ask(t, "10.0.0.100", "2001:db8::100")
	l.asker.Try("arping", "-c", "1", "-W", "0.1", "-i", "eth0", "-S", "10.0.0.11", "10.0.0.77") // the last that is seen
	wire.Await(t, "who-has 10.0.0.77")
	said := wire.Stop()
	for text, want := range map[string]int{
		"ARP, Request who-has 10.0.0.100 tell 10.0.0.11,":                                            2,
		"IP6 2001:db8::11 > ff02::1:ff00:100: ICMP6, neighbor solicitation, who has 2001:db8::100, ": 2,
		"10.0.0.100":    2,
		"2001:db8::100": 2,
	} {
		if got := strings.Count(said, text); got != want {
			t.Errorf("%d times %q, want %d in\n%s", got, text, want, said)
		}
	}
}

// A question that may not be asked, or cannot, opens and sends nothing.
func TestAskMisused(t *testing.T) {
	l := newLAN(t)
	vip, rip, vip6 := netip.MustParseAddr("10.0.0.100"), netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("2001:db8::100")
	eth0 := l.asker.NIC(t, "eth0").Index
	for _, test := range []struct {
		questions []Question
		want      string
	}{
		{[]Question{{eth0, vip, vip}}, "ask for 10.0.0.100 as 10.0.0.100: no neighbour may be asked so"},
		{[]Question{{eth0, rip, vip}, {eth0, vip, rip}}, "no neighbour may be asked so"},
		{[]Question{{eth0, rip, vip6}}, "no neighbour may be asked so"},
		{[]Question{{eth0, netip.Addr{}, vip}}, "no neighbour may be asked so"},
		{[]Question{{eth0, netip.Addr{}, vip6}}, "no neighbour may be asked so"},
		{[]Question{{eth0 + 1000, rip, vip}}, "no such device"},
		{[]Question{{1, rip, vip}}, ""}, // lo has an address of that length
	} {
		var err error
		l.asker.Do(func() { _, err = Ask(test.questions, time.Millisecond) })
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.questions, err, test.want)
		}
	}
	for _, q := range []Question{{eth0, rip, vip}, {eth0, netip.MustParseAddr("2001:db8::11"), vip6}} {
		var err error
		l.asker.Do(func() {
			err = without(unix.CAP_NET_RAW, func() error { _, err := Ask([]Question{q}, time.Millisecond); return err })
		})
		if !errors.Is(err, ErrMayNotAsk) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
			t.Errorf("without the right: %v", err)
		}
	}
}

// without runs f on this thread without a capability.
func without(capability uint, f func() error) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all, fewer [2]unix.CapUserData
	if err := unix.Capget(&head, &all[0]); err != nil {
		return err
	}
	fewer = all
	fewer[0].Effective &^= 1 << capability
	if err := unix.Capset(&head, &fewer[0]); err != nil {
		return err
	}
	return errors.Join(f(), unix.Capset(&head, &all[0]))
}

func TestClaim(t *testing.T) {
	from, addr, mac := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), [6]byte{1, 2, 3, 4, 5, 6}
	good := request(mac, from, addr)
	with := func(at int, b byte) []byte { p := slices.Clone(good); p[at] = b; return p }
	for what, p := range map[string][]byte{"": good, "a reply": with(7, 2), "padded": append(slices.Clone(good), 0, 0)} {
		if a, m, ok := claim(p); !ok || a != from || string(m) != string(mac[:]) {
			t.Errorf("%s: %v %v %t", what, a, m, ok)
		}
	}
	for what, p := range map[string][]byte{"none": nil, "cut": good[:27], "InfiniBand": with(1, 32), "IPX": with(2, 0x81), "long addresses": with(4, 20), "RARP": with(7, 3)} {
		if _, _, ok := claim(p); ok {
			t.Errorf("%s is taken for a claim", what)
		}
	}
}

func FuzzAdvertised(f *testing.F) {
	good := append(append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, make([]byte, 16)...), 2, 1, 1, 2, 3, 4, 5, 6)
	for _, m := range [][]byte{good, good[:24], good[:27], nil, append(slices.Clone(good[:24]), 2, 0, 0, 0, 0, 0, 0, 0), append(slices.Clone(good[:24]), 2, 2, 0, 0, 0, 0, 0, 0)} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		if _, mac, ok := advertised(m); ok && (len(mac) != 6 || len(m) < 32 || m[0] != 136) {
			t.Errorf("%x is taken for one of %s", m, mac)
		}
		claim(m)
		near(m)
	})
}
