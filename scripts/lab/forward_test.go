package lab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// A real server that forwards, and a director that goes on sending to it after stop: what the one sends back, the other
// sends again, until its TTL ends. stop warns. With stop --blackhole one SYN makes one frame, and the route goes with the
// next start. The tunnel's device is up all the time: were it rsagent's to put down again, nothing would come out of it.
// Seen at: a review of hosts with containers.
func TestCase58_ForwardingHost(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newClusterOf(t, testnet.NewHost(t, "rs"))
		c.direct(t, mode, vip)
		a := newAgent(t, c.real[0])
		a.host.SetSysctl(t, "ipv4", "ip_forward", "1")
		for _, dev := range []string{"all", "default", "eth0", "tunl0"} {
			a.host.SetIPv4Conf(t, dev, "rp_filter", "0") // or what comes back out of the tunnel would be dropped for another reason
		}
		a.host.Run(t, "ip", "link", "set", "tunl0", "up")
		frames := newFrames(t, c, mode)
		before := a.host.Snapshot(t)

		a.start(t, mode, vip)
		c.expectServed(t, 2, map[string]int{"rs1": 2}, vip)
		frames.are(t, "served", func(n int) bool { return n == 1 })
		if r := a.do(t, 0, "stop"); !r.warns("warning", "round and round") {
			t.Errorf("stop does not warn: %s", r.text)
		}
		equal(t, a.host, before)
		frames.are(t, "after stop", func(n int) bool { return n >= 20 }) // so it can fail

		a.start(t, mode, vip)
		if r := a.do(t, 0, "stop", "--blackhole"); r.warns("warning", "round and round") {
			t.Errorf("stop --blackhole warns of what it prevents: %s", r.text)
		}
		holds(t, a.host, vip)
		if got := blackholes(t, a.host); got != vip {
			t.Errorf("blackhole routes for %q, want %s", got, vip)
		}
		frames.are(t, "after stop --blackhole", func(n int) bool { return n == 1 })

		a.start(t, mode, vip)
		holds(t, a.host, vip, device[mode])
		if got := blackholes(t, a.host); got != "" {
			t.Errorf("start leaves a blackhole route for %s", got)
		}
		c.expectServed(t, 2, map[string]int{"rs1": 2}, vip)
		frames.are(t, "served again", func(n int) bool { return n == 1 })
		a.stop(t, mode, vip)
		equal(t, a.host, before)
	})
}

func blackholes(t *testing.T, h *testnet.Host) string {
	t.Helper()
	var vips []string
	for line := range strings.Lines(h.Run(t, "ip", "route", "show", "table", "main", "type", "blackhole")) {
		vips = append(vips, strings.Fields(line)[1])
	}
	return strings.Join(vips, " ")
}

// frames counts, on the real server's NIC, the frames that a SYN of the client's becomes. Each SYN is known by its port.
type frames struct {
	c    *cluster
	mode string
	port uint16 // of the last SYN
}

// SYNs are sent from the ports from here on, which no connection of these tests has.
const firstPort, ports = 100, 20

// newFrames has the real server's kernel count, as its NIC takes the frames in: what has this source port, and of all
// flags SYN only, and in TUN is inside another packet.
func newFrames(t *testing.T, c *cluster, mode string) *frames {
	t.Helper()
	f := &frames{c: c, mode: mode, port: firstPort - 1}
	rules, inner := "add table netdev lab\nadd chain netdev lab in { type filter hook ingress device eth0 priority 0; }\n", 0
	what := "ip daddr " + vip + " ip protocol tcp"
	if mode == "tun" {
		what, inner = "ip daddr "+realAddr(0)+" ip protocol 4", 20
	}
	for port := firstPort; port < firstPort+ports; port++ {
		rules += fmt.Sprintf("add rule netdev lab in %s @nh,%d,16 %d @nh,%d,8 2 counter comment \"%d\"\n", what, 8*(inner+20), port, 8*(inner+20+13), port)
	}
	if r := c.real[0].Exec(testnet.Cmd{Args: []string{"nft", "-f", "-"}, Stdin: rules}); r.Code != 0 {
		t.Fatalf("%s%s", r.Stderr, rules)
	}
	return f
}

func (f *frames) of(t *testing.T, port uint16) int {
	t.Helper()
	var out struct {
		Nftables []struct {
			Rule struct {
				Comment string
				Expr    []struct{ Counter struct{ Packets int } }
			}
		}
	}
	if err := json.Unmarshal([]byte(f.c.real[0].Run(t, "nft", "-j", "list", "table", "netdev", "lab")), &out); err != nil {
		t.Fatal(err)
	}
	for _, x := range out.Nftables {
		if x.Rule.Comment == fmt.Sprint(port) {
			n := 0
			for _, e := range x.Rule.Expr {
				n += e.Counter.Packets
			}
			return n
		}
	}
	t.Fatalf("no counter for port %d", port)
	return 0
}

// are sends one SYN and counts its frames. How many there will be nobody says; but each has gone its way when one that was
// sent later has, which is waited for twice. In a loop the first goes round more than once before that.
func (f *frames) are(t *testing.T, when string, right func(int) bool) {
	t.Helper()
	one := f.syn(t)
	for range 2 {
		last := f.syn(t)
		testnet.Eventually(t, "a later SYN to arrive", func() bool { return f.of(t, last) > 0 })
	}
	n := f.of(t, one)
	for end := -1; n != end; n = f.of(t, one) { // a loop is counted to its end
		end = n
	}
	t.Logf("%s: one SYN made %d frames", when, n)
	if !right(n) {
		t.Errorf("%s: one SYN made %d frames", when, n)
	}
}

// syn sends one, as a client's kernel would, but never again.
func (f *frames) syn(t *testing.T) (port uint16) {
	t.Helper()
	f.port++
	from, to := netip.MustParseAddr("10.9.0.10").As4(), netip.MustParseAddr(vip).As4()
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment[0:], f.port)
	binary.BigEndian.PutUint16(segment[2:], 80)
	segment[12], segment[13] = 5<<4, 2 // words of header; SYN
	binary.BigEndian.PutUint16(segment[14:], 65535)
	pseudo := append(append(append([]byte{}, from[:]...), to[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(segment)))
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	var err error
	f.c.client.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP); err == nil {
			err = unix.Sendto(fd, segment, 0, &unix.SockaddrInet4{Addr: to})
			unix.Close(fd)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return f.port
}

// checksum is the Internet's (RFC 1071), of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
