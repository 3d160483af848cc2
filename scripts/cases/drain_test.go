package cases

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// newDrainSite is a site with both VIPs started, IPv4 and IPv6, for which the neighbour is client and director.
func newDrainSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	for h, addr := range map[*testnet.Host]string{s.rs: "2001:db8::11/64", s.peer: "2001:db8::1/64"} {
		h.Run(t, "ip", "addr", "add", addr, "dev", "eth0", "nodad")
	}
	s.do(t, "start", "--vip", vip+","+vip6)
	s.direct(t, vip)
	s.direct(t, vip6)
	return s
}

// A talk is a connection, by both its ends.
type talk struct{ client, server net.Conn }

// talk connects the neighbour to an address of the real server, where something listens on another or the same; the sizes are of
// the server's and the client's buffers, 0 is the kernel's choice.
func (s *site) talk(t *testing.T, addr, on string, sending, receiving int) talk {
	t.Helper()
	sized := func(opt, n int) func(string, string, syscall.RawConn) error {
		return func(_, _ string, c syscall.RawConn) (err error) {
			if n > 0 {
				c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, n) })
			}
			return err
		}
	}
	var l net.Listener
	var err error
	s.rs.Do(func() {
		l, err = (&net.ListenConfig{Control: sized(unix.SO_SNDBUFFORCE, sending)}).Listen(t.Context(), "tcp", net.JoinHostPort(on, "0"))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var x talk
	s.peer.Do(func() {
		x.client, err = (&net.Dialer{Timeout: time.Minute, Control: sized(unix.SO_RCVBUF, receiving)}).Dial("tcp", net.JoinHostPort(addr, port))
	})
	if err == nil {
		t.Cleanup(func() { x.client.Close() })
		x.server, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.server.Close() })
	return x
}

// says sends a word from the client and hears it at the server, and the other way round.
func (x talk) says(t *testing.T) {
	t.Helper()
	for _, way := range [][2]net.Conn{{x.client, x.server}, {x.server, x.client}} {
		const word = "hello"
		got := make([]byte, len(word))
		way[1].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := way[0].Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != word {
			t.Fatalf("heard %q: %v", got, err)
		}
	}
}

// inState waits until the real server's end of a connection is in a state of TCP, in the words of ss; for one that no process has
// any more, too.
func (s *site) inState(t *testing.T, client net.Addr, state string) {
	t.Helper()
	testnet.Need(t, "ss")
	_, port, _ := net.SplitHostPort(client.String())
	testnet.Eventually(t, "the connection to be in "+state, func() bool {
		return s.rs.Run(t, "ss", "-Htn", "state", state, "dport", "= :"+port) != ""
	})
}

// draining starts a stop that waits, on a terminal, which says so.
func (s *site) draining(t *testing.T, connections int, more ...string) *testnet.Process {
	t.Helper()
	p := s.rs.StartWatched(t, s.args("stop", append([]string{"--drain", "10m"}, more...)...)...)
	p.Await(t, waiting(connections))
	return p
}

func waiting(connections int) string {
	return "waiting for " + strings.Replace(fmt.Sprint(connections, " connections"), "1 connections", "1 connection", 1) + " to end"
}

// goesOn: the stop has looked again since, and waits still.
func goesOn(t *testing.T, p *testnet.Process) {
	t.Helper()
	before := strings.Count(p.Output(), "waiting for ")
	testnet.Eventually(t, "the stop to look again", func() bool {
		select {
		case <-p.Done():
			t.Fatalf("it has ended: %s", p.Output())
		default:
		}
		return strings.Count(p.Output(), "waiting for ") > before+1
	})
}

func (s *site) drained(t *testing.T, p *testnet.Process) {
	t.Helper()
	if r := p.Wait(); r.Code != 0 {
		t.Errorf("exit %d: %s", r.Code, r.Stdout)
	}
}

// TestDrainDownload: a client reads slowly what a server has written, and closed, long ago: the rest stands in the kernel's queue,
// of a connection that no process has. It gets all of it, while the stop waits, and the VIP goes only then. The same by IPv6, and
// by a socket of IPv6 that speaks IPv4.
func TestDrainDownload(t *testing.T) {
	for _, c := range []struct{ name, vip, on string }{{"IPv4", vip, vip}, {"IPv4 by a socket of IPv6", vip, ""}, {"IPv6", vip6, vip6}} {
		t.Run(c.name, func(t *testing.T) {
			s := newDrainSite(t)
			var want bytes.Buffer
			for i := 0; want.Len() < 1<<20; i++ {
				fmt.Fprintf(&want, "line %d\n", i)
			}
			x := s.talk(t, c.vip, c.on, 4<<20, 4096)
			if _, err := x.server.Write(want.Bytes()); err != nil {
				t.Fatal(err)
			}
			x.server.Close()
			s.inState(t, x.client.LocalAddr(), "fin-wait-1")
			p := s.draining(t, 1, "--vip", c.vip)

			x.client.SetReadDeadline(time.Now().Add(time.Minute))
			got, half := make([]byte, want.Len()), want.Len()/2
			if _, err := io.ReadFull(x.client, got[:half]); err != nil {
				t.Fatal(err)
			}
			goesOn(t, p)
			s.inState(t, x.client.LocalAddr(), "fin-wait-1")
			s.bound(t, c.vip, "lo")
			if _, err := io.ReadFull(x.client, got[half:]); err != nil {
				t.Fatal(err)
			}
			if n, err := x.client.Read(make([]byte, 1)); n > 0 || err != io.EOF {
				t.Errorf("behind the end: %d bytes, %v", n, err)
			}
			if !bytes.Equal(got, want.Bytes()) {
				t.Error("what came is not what was sent")
			}
			s.drained(t, p)
			s.bound(t, c.vip)
			s.ask(t, 0, "status")
		})
	}
}

// TestDrainCounts: which states of a connection are waited for. What a client only has to close is not; what it may still send or
// get something by is.
func TestDrainCounts(t *testing.T) {
	s := newDrainSite(t)
	for name, c := range map[string]struct {
		bring  func(x talk)
		counts bool
	}{
		"established":         {func(talk) {}, true},
		"close-wait":          {func(x talk) { x.client.(*net.TCPConn).CloseWrite() }, true},
		"fin-wait-2, read on": {func(x talk) { x.server.(*net.TCPConn).CloseWrite() }, true},
		"fin-wait-2":          {func(x talk) { x.server.Close() }, false},
		"time-wait":           {func(x talk) { x.server.Close(); x.client.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s.ask(t, 0, "start", "--vip", vip+","+vip6)
			x := s.talk(t, vip, "0.0.0.0", 0, 0)
			c.bring(x)
			state, _, _ := strings.Cut(name, ",")
			s.inState(t, x.client.LocalAddr(), state)
			r := s.ask(t, 0, "stop", "--drain", "10m", "--dry-run")
			if r.says("info", "drain", vip, x.client.LocalAddr().String()) != c.counts {
				t.Errorf("it would wait: %+v", r.Findings)
			}
			if c.counts {
				p := s.draining(t, 1)
				goesOn(t, p)
				x.client.Close()
				x.server.Close()
				s.drained(t, p)
			} else {
				s.ask(t, 0, "stop", "--drain", "10m")
			}
			s.bound(t, vip)
		})
	}
}

// TestDrainHalfOpen: a connection whose client has not been heard of since the answer to its SYN is waited for.
func TestDrainHalfOpen(t *testing.T) {
	testnet.Need(t, "nft")
	s := newDrainSite(t)
	var l net.Listener
	var err error
	s.rs.Do(func() { l, err = net.Listen("tcp", net.JoinHostPort(vip, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.peer.Run(t, "nft", "table inet t { chain in { type filter hook input priority 0; tcp flags & (syn | ack) == syn | ack drop; }; }")
	done := make(chan net.Conn, 1)
	go s.peer.Do(func() {
		c, _ := net.Dial("tcp", l.Addr().String())
		done <- c
	})
	testnet.Eventually(t, "a connection that is half open", func() bool { return s.rs.Run(t, "ss", "-Htn", "state", "syn-recv") != "" })
	p := s.draining(t, 1)
	s.bound(t, vip, "lo")
	s.peer.Run(t, "nft", "delete table inet t")
	client := <-done
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	talk{client, server}.says(t)
	client.Close()
	server.Close()
	s.drained(t, p)
	s.bound(t, vip)
}

// TestDrainOver: when the time is over the exit code is 1, who is left is named, and nothing was touched: the VIP is there and
// guarded, the connection alive. With --force it is cut, and a warning says so.
func TestDrainOver(t *testing.T) {
	s := newDrainSite(t)
	x := s.talk(t, vip, vip, 0, 0)
	before, files := s.rs.Snapshot(t), s.files(t)
	r := s.ask(t, 1, "stop", "--drain", "300ms")
	client := x.client.LocalAddr().String()
	if !r.says("1 connection to "+vip, client, "300ms", "nothing was touched") || r.State != "up" || r.Changed || len(r.VIPs) != 2 {
		t.Errorf("it says %+v", r)
	}
	s.mustBe(t, before)
	if now := s.files(t); now != files {
		t.Errorf("the state directory is\n%s\nwas\n%s", now, files)
	}
	s.silent(t, vip)
	s.direct(t, vip) // the question has taken it from the neighbour
	x.says(t)
	s.ask(t, 0, "status")

	r = s.ask(t, 0, "stop", "--drain", "300ms", "--force")
	if !r.says("warning", "cut", "1 connection to "+vip, client) || r.says(vip6) || r.State != "down" {
		t.Errorf("it says %+v", r)
	}
	s.bound(t, vip)
	lost := s.lost(t)
	if _, err := x.client.Write([]byte("anyone there?")); err != nil {
		t.Fatal(err)
	}
	testnet.Eventually(t, "the client's packets to find no VIP", func() bool { return s.lost(t) > lost })
}

// lost counts packets for addresses that the real server has not.
func (s *site) lost(t *testing.T) (n int) {
	t.Helper()
	testnet.Need(t, "nstat")
	for line := range strings.Lines(s.rs.Run(t, "nstat", "-asz", "IpInAddrErrors")) {
		fmt.Sscanf(line, "IpInAddrErrors %d", &n)
	}
	return n
}

// TestDrainMeanwhile: while a stop waits, new connections are served, which it then waits for too; other verbs go on, and so does a
// watcher; connections to other addresses are nothing to it. A stop of a VIP that has none waits for nothing.
func TestDrainMeanwhile(t *testing.T) {
	s := newDrainSite(t)
	x := s.talk(t, vip, vip, 0, 0)
	s.talk(t, vip6, vip6, 0, 0)
	s.talk(t, rip, rip, 0, 0)
	p := s.draining(t, 1, "--vip", vip)
	y := s.talk(t, vip, "0.0.0.0", 0, 0)
	p.Await(t, waiting(2))
	s.do(t, "start", "--vip", vip2)
	s.ask(t, 0, "status")
	watch := s.rs.Start(t, s.args("watch")...)
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	testnet.Eventually(t, "a watcher to mend a guard", func() bool { return s.rs.IPv4Conf(t, "all", "arp_ignore") == "1" })
	watch.Signal(unix.SIGTERM)
	watch.Wait()
	x.client.Close()
	x.server.Close()
	goesOn(t, p)
	y.says(t)
	s.bound(t, vip, "lo")
	s.ask(t, 0, "stop", "--vip", vip2, "--drain", "10m")
	s.bound(t, vip2)
	y.client.Close()
	y.server.Close()
	s.drained(t, p)
	s.bound(t, vip)
	s.bound(t, vip6, "lo")
}

// TestDrainInterrupted: a signal ends the waiting, with --force too, and nothing is touched.
func TestDrainInterrupted(t *testing.T) {
	s := newDrainSite(t)
	x := s.talk(t, vip, vip, 0, 0)
	for signal, name := range map[unix.Signal]string{unix.SIGTERM: "terminated", unix.SIGINT: "interrupt"} {
		before, files := s.rs.Snapshot(t), s.files(t)
		p := s.draining(t, 1, "--force")
		p.Signal(signal)
		if r := p.Wait(); r.Code != 1 || !strings.Contains(r.Stdout, "rsagent: interrupted: "+name+" signal received; nothing was touched; left: 1 connection to "+vip) {
			t.Errorf("exit %d: %q", r.Code, r.Stdout)
		}
		s.mustBe(t, before)
		if now := s.files(t); now != files {
			t.Errorf("the state directory is\n%s\nwas\n%s", now, files)
		}
		x.says(t)
	}
}

// TestDrainOnNIC: the VIP is on a NIC too, as on a director that is a real server as well: its connections are waited for, and
// live on by that copy after it has gone from lo.
func TestDrainOnNIC(t *testing.T) {
	s := newDrainSite(t)
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0")
	x := s.talk(t, vip, vip, 0, 0)
	if r := s.ask(t, 1, "stop", "--vip", vip, "--drain", "300ms"); !r.says("1 connection to " + vip) {
		t.Errorf("it says %+v", r)
	}
	s.ask(t, 0, "stop", "--vip", vip, "--drain", "300ms", "--force")
	s.bound(t, vip, "eth0")
	x.says(t)
	s.ask(t, 0, "stop", "--vip", vip, "--drain", "10m") // it has nothing to take out
}

// TestDrainDNAT: the service is in a container, to which DNAT sends what comes for the VIP: no socket of this namespace has the
// connection, conntrack has. One whose port alone is changed has a socket here, and counts once. To ask conntrack takes
// CAP_NET_ADMIN, which a dry run does without.
func TestDrainDNAT(t *testing.T) {
	testnet.Need(t, "nft", "setpriv")
	s := newDrainSite(t)
	box := testnet.NewHost(t, "box")
	testnet.Wire(t, s.rs, "eth1", "10.88.0.1/24", box, "eth0", "10.88.0.2/24")
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	s.rs.SetSysctl(t, "ipv6", "conf", "all", "forwarding", "1")
	s.rs.Run(t, "ip", "addr", "add", "fd00:88::1/64", "dev", "eth1", "nodad")
	box.Run(t, "ip", "addr", "add", "fd00:88::2/64", "dev", "eth0", "nodad")
	box.Run(t, "ip", "route", "add", "default", "via", "10.88.0.1")
	box.Run(t, "ip", "-6", "route", "add", "default", "via", "fd00:88::1")
	at := func(h *testnet.Host, addr string) string {
		_, port, _ := net.SplitHostPort(h.Echo(t, "tcp", addr))
		return port
	}
	inBox, here := at(box, "::"), at(s.rs, vip)
	rules := "add table inet t\nadd chain inet t pre { type nat hook prerouting priority -100; }\n" +
		"add rule inet t pre ip daddr " + vip + " tcp dport 80 dnat ip to 10.88.0.2:" + inBox + "\n" +
		"add rule inet t pre ip daddr " + vip + " tcp dport 81 dnat ip to " + vip + ":" + here + "\n" +
		"add rule inet t pre ip6 daddr " + vip6 + " tcp dport 80 dnat ip6 to [fd00:88::2]:" + inBox + "\n"
	if r := s.rs.Exec(testnet.Cmd{Args: []string{"nft", "-f", "-"}, Stdin: rules}); r.Code != 0 {
		testnet.Skip(t, "this kernel has no NAT: "+r.Stderr)
	}
	for _, c := range []struct{ vip, port string }{{vip, "80"}, {vip, "81"}, {vip6, "80"}} {
		s.do(t, "start", "--vip", vip+","+vip6)
		var client net.Conn
		var err error
		s.peer.Do(func() { client, err = net.Dial("tcp", net.JoinHostPort(c.vip, c.port)) })
		if err != nil {
			t.Fatal(err)
		}
		echo(t, client)
		if r := s.ask(t, 1, "stop", "--drain", "300ms"); !r.says("left: 1 connection to "+c.vip+" (from "+client.LocalAddr().String()+")") || r.State != "up" {
			t.Errorf("%s, port %s: it says %+v", c.vip, c.port, r)
		}
		r := s.rs.Try(append([]string{"setpriv", "--bounding-set=-net_admin"}, s.args("stop", "--drain", "1s", "--dry-run")...)...)
		if want := "# warning: the connections that stop would wait for cannot be told: "; r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("without CAP_NET_ADMIN: %+v", r)
		}
		s.writesNothing(t, "stop", "--drain", "1s", "--dry-run")
		p := s.draining(t, 1)
		goesOn(t, p)
		echo(t, client)
		client.Close()
		s.drained(t, p)
		s.bound(t, c.vip)
	}
}

// echo says something and hears it again.
func echo(t *testing.T, c net.Conn) {
	t.Helper()
	got := make([]byte, 5)
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Fatalf("heard %q: %v", got, err)
	}
}
