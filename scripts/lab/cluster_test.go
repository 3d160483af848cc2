package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

const vip = "10.9.0.100"

// hung ends a connection that will never come about. Where one may come late, the tests count packets, not seconds.
const hung = time.Minute

// cluster is one segment with a client, a director that holds the VIPs, and two real servers that answer with their
// names on ports 80 and 81 of all their addresses.
type cluster struct {
	client, director *testnet.Host
	real             []*testnet.Host
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOf(t, testnet.NewHost(t, "rs1"), testnet.NewHost(t, "rs2"))
}

// newClusterOf makes real servers of the given hosts.
func newClusterOf(t *testing.T, real ...*testnet.Host) *cluster {
	t.Helper()
	c := &cluster{client: testnet.NewHost(t, "client"), director: testnet.NewHost(t, "director"), real: real}
	segment := testnet.NewSegment(t, "lan")
	join := func(h *testnet.Host, addr string) {
		segment.Join(t, h, "eth0", addr+"/24")
		t.Cleanup(func() { h.Try("ip", "link", "del", "eth0") })
		h.Run(t, "ip", "route", "add", "default", "via", "10.9.0.1")
	}
	join(c.client, "10.9.0.10")
	join(c.director, "10.9.0.2")
	for i, h := range real {
		join(h, realAddr(i))
		upOnce(t, h)
		for _, port := range []string{"80", "81"} {
			serve(t, h, port, fmt.Sprintf("rs%d", i+1))
		}
	}
	return c
}

func realAddr(i int) string { return fmt.Sprintf("10.9.0.%d", 11+i) }

// direct makes the director share out port 80 of the VIPs, round robin.
func (c *cluster) direct(t *testing.T, mode string, vips ...string) {
	t.Helper()
	c.directPort(t, "80", mode, vips...)
}

func (c *cluster) directPort(t *testing.T, port, mode string, vips ...string) {
	t.Helper()
	var rules, addrs strings.Builder
	for _, v := range vips {
		fmt.Fprintf(&addrs, "addr replace %s/32 dev eth0\n", v)
		fmt.Fprintf(&rules, "-A -t %s:%s -s rr\n", v, port)
		for i := range c.real {
			fmt.Fprintf(&rules, "-a -t %s:%s -r %s:%s %s\n", v, port, realAddr(i), port, forwarding[mode])
		}
	}
	c.mustFeed(t, addrs.String(), "ip", "-batch", "-")
	c.mustFeed(t, rules.String(), "ipvsadm", "-R")
}

var forwarding = map[string]string{"dr": "-g", "tun": "-i"}

func (c *cluster) mustFeed(t *testing.T, stdin string, args ...string) {
	t.Helper()
	if r := c.director.Exec(testnet.Cmd{Args: args, Stdin: stdin}); r.Code != 0 {
		t.Fatalf("%v: exit %d: %s%s", args, r.Code, r.Stdout, r.Stderr)
	}
}

// serve answers every connection with a name, then with what it says. A listener stays in the namespace it was made in.
func serve(t *testing.T, h *testnet.Host, port, name string) {
	t.Helper()
	var l net.Listener
	var err error
	h.Do(func() { l, err = net.Listen("tcp", ":"+port) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintln(conn, name)
				io.Copy(conn, conn)
			}()
		}
	}()
}

// session is a connection through the director.
type session struct {
	net.Conn
	in   *bufio.Reader
	name string // of the real server that serves it
}

func dial(h *testnet.Host, addr, port string) (*session, error) {
	s := &session{}
	var err error
	h.Do(func() { s.Conn, err = net.DialTimeout("tcp", net.JoinHostPort(addr, port), hung) })
	if err != nil {
		return nil, err
	}
	s.in = bufio.NewReader(s)
	s.name, err = s.read()
	return s, err
}

func (s *session) read() (string, error) {
	s.SetDeadline(time.Now().Add(hung))
	line, err := s.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

// echo says something and hears it again.
func (s *session) echo(word string) error {
	if _, err := fmt.Fprintln(s, word); err != nil {
		return err
	}
	if got, err := s.read(); err != nil || got != word {
		return fmt.Errorf("said %q, heard %q: %w", word, got, err)
	}
	return nil
}

// connect makes n connections to each VIP, one after another, and counts who served them.
func (c *cluster) connect(t *testing.T, n int, vips ...string) map[string]int {
	t.Helper()
	served := map[string]int{}
	for _, v := range vips {
		for range n {
			s, err := dial(c.client, v, "80")
			if err != nil {
				t.Fatalf("connect to %s: %v", v, err)
			}
			served[s.name]++
			s.Close()
		}
	}
	return served
}

// expectServed is connect with the answer it must have.
func (c *cluster) expectServed(t *testing.T, n int, want map[string]int, vips ...string) {
	t.Helper()
	got := c.connect(t, n, vips...)
	if !maps.Equal(got, want) {
		t.Errorf("connections served: %v, want %v\nthe director's table and connections, the client's counters:\n%s%s%s", got, want,
			c.director.Run(t, "ipvsadm", "-Ln", "--stats"), c.director.Run(t, "ipvsadm", "-Lnc"), c.client.Run(t, "nstat", "-as"))
	}
}

// dropped counts the packets a host did not take, for an address it does not hold or by rp_filter, in the words of nstat.
// Resets are no sign: one answers what a client repeats after the end of a connection as well.
func dropped(t *testing.T, h *testnet.Host) map[string]int {
	t.Helper()
	var all struct{ Kernel map[string]int }
	if err := json.Unmarshal([]byte(h.Run(t, "nstat", "-asz", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, name := range []string{"IpInAddrErrors", "TcpExtIPReversePathFilter"} {
		n, known := all.Kernel[name]
		if !known {
			t.Fatalf("nstat does not know %s", name)
		}
		counts[name] = n
	}
	return counts
}
