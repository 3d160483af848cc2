package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// A file is what clients download.
var file = bytes.Repeat([]byte("a line of a long download\n"), 40_000)

// sized gives a socket a buffer of n bytes, before it connects or listens.
func sized(option, n int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, n) })
		return err
	}
}

// offer has a host answer each connection with a name and the file, and close it: what the client has not read by then stands in
// the kernel's queue.
func offer(t *testing.T, h *testnet.Host, port, name string) {
	t.Helper()
	var l net.Listener
	var err error
	h.Do(func() {
		l, err = (&net.ListenConfig{Control: sized(unix.SO_SNDBUFFORCE, 4*len(file))}).Listen(t.Context(), "tcp", ":"+port)
	})
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
				fmt.Fprintln(conn, name)
				conn.Write(file)
				conn.Close()
			}()
		}
	}()
}

// download begins to, and reads no more than the server's name.
func download(t *testing.T, h *testnet.Host, port string) *session {
	t.Helper()
	s := &session{}
	var err error
	h.Do(func() {
		s.Conn, err = (&net.Dialer{Timeout: hung, Control: sized(unix.SO_RCVBUF, 4096)}).Dial("tcp", net.JoinHostPort(vip, port))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.in = bufio.NewReaderSize(s, 16)
	if s.name, err = s.read(); err != nil {
		t.Fatal(err)
	}
	return s
}

// takes reads on, to where the rest is so long, and compares.
func (s *session) takes(t *testing.T, from, to int) {
	t.Helper()
	s.SetDeadline(time.Now().Add(hung))
	got := make([]byte, to-from)
	if _, err := io.ReadFull(s.in, got); err != nil || !bytes.Equal(got, file[from:to]) {
		t.Errorf("a download from %s, bytes %d to %d: %v", s.name, from, to, err)
	}
	if to < len(file) {
		return
	}
	if _, err := s.in.ReadByte(); err != io.EOF {
		t.Errorf("a download from %s: %v behind its end", s.name, err)
	}
}

// TestDrain takes a real server out of service as the README has it: weight 0 on the director, then a stop that waits. Each
// download that was under way comes to its end, whole, though its server has closed it long before; new ones are the other's; the
// VIP goes when the last has ended, and not before.
func TestDrain(t *testing.T) {
	const port = "82"
	eachMode(t, func(t *testing.T, mode string) {
		text, err := os.ReadFile("/job/README.md")
		if err != nil {
			t.Fatal(err)
		}
		typed := docs.Recipe(string(text), "--drain")
		if len(typed) != 2 || !strings.HasPrefix(typed[0].Command, "ipvsadm -e ") || !strings.HasPrefix(typed[1].Command, "rsagent stop ") {
			t.Fatalf("the README has another recipe: %q", typed)
		}
		here := strings.NewReplacer("192.0.2.", "10.9.0.", ":80", ":"+port, " -g", " "+forwarding[mode], " 30s", " 10m")

		c := newCluster(t)
		c.directPort(t, port, mode, vip)
		agents := newAgents(t, c.real)
		a := agents[0]
		before := a.host.Snapshot(t)
		for i, a := range agents {
			offer(t, a.host, port, fmt.Sprintf("rs%d", i+1))
			a.start(t, mode, vip)
		}
		var all, leaving []*session
		for range 8 {
			s := download(t, c.client, port)
			if all = append(all, s); s.name == "rs1" {
				leaving = append(leaving, s)
			}
		}
		if len(leaving) != 4 {
			t.Fatalf("%d of 8 downloads are from rs1", len(leaving))
		}

		c.director.Run(t, strings.Fields(here.Replace(typed[0].Command))...)
		stop := append(strings.Fields(here.Replace(typed[1].Command)), "--state-dir", a.state)
		stop[0] = a.bin
		p := a.host.StartWatched(t, stop...)
		p.Await(t, "waiting for 4 connections to end")
		for range 5 {
			if s := download(t, c.client, port); s.name != "rs2" {
				t.Errorf("with weight 0, a new connection goes to %s", s.name)
			}
		}
		half := len(file) / 2
		for _, s := range leaving {
			s.takes(t, 0, half)
		}
		looks := strings.Count(p.Output(), "waiting for ")
		testnet.Eventually(t, "the stop to look again", func() bool { return strings.Count(p.Output(), "waiting for ") > looks+1 })
		for _, s := range leaving[1:] {
			s.takes(t, half, len(file))
		}
		p.Await(t, "waiting for 1 connection to end")
		holds(t, a.host, vip, device[mode])
		leaving[0].takes(t, half, len(file))
		if r := p.Wait(); r.Code != 0 {
			t.Errorf("stop: exit %d: %s", r.Code, r.Stdout)
		}
		holds(t, a.host, vip)
		equal(t, a.host, before)
		for _, s := range all {
			if s.name != "rs1" {
				s.takes(t, 0, len(file))
			}
		}
	})
}

// TestDrainDNAT: the service is in a container behind the real server, where only conntrack has its connections.
func TestDrainDNAT(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newClusterOf(t, testnet.NewHost(t, "rs"))
		c.direct(t, mode, vip)
		a := newAgent(t, c.real[0])
		container(t, a.host)
		before := a.host.Snapshot(t)
		a.start(t, mode, vip)
		s, err := dial(c.client, vip, "80")
		if err != nil || s.name != "box" {
			t.Fatalf("it is not the container that answers: %+v, %v", s, err)
		}
		defer s.Close()
		if r := a.do(t, 1, "stop", "--drain", "1s"); r.Error == nil || !strings.Contains(r.Error.Message, "left: 1 connection to "+vip+" (from "+s.LocalAddr().String()+")") {
			t.Errorf("it says %s", r.text)
		}
		holds(t, a.host, vip, device[mode])
		p := a.host.StartWatched(t, a.bin, "stop", "--drain", "10m", "--state-dir", a.state)
		p.Await(t, "waiting for 1 connection to end")
		if err := s.echo("still here"); err != nil {
			t.Error(err)
		}
		s.Close()
		if r := p.Wait(); r.Code != 0 {
			t.Errorf("stop: exit %d: %s", r.Code, r.Stdout)
		}
		holds(t, a.host, vip)
		equal(t, a.host, before)
	})
}
