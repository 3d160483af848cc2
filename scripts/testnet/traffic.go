package testnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds a single exchange between two hosts of a test.
const patience = 5 * time.Second

// Echo serves on the host what it is sent, on network ("tcp", "udp") and a
// free port of address, until the test ends. It returns address and port.
func (h *Host) Echo(t testing.TB, network, address string) string {
	t.Helper()
	var at net.Addr
	var open io.Closer
	var err error
	h.Do(func() { at, open, err = echo(network, net.JoinHostPort(address, "0")) })
	if err != nil {
		t.Fatalf("serve on %s: %v", h.Name, err)
	}
	t.Cleanup(func() { open.Close() })
	return at.String()
}

func echo(network, address string) (net.Addr, io.Closer, error) {
	if network == "udp" {
		conn, err := net.ListenPacket(network, address)
		if err != nil {
			return nil, nil, err
		}
		go echoPackets(conn)
		return conn.LocalAddr(), conn, nil
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, nil, err
	}
	go echoStreams(listener)
	return listener.Addr(), listener, nil
}

func echoPackets(conn net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = conn.WriteTo(buf[:n], from) // the asker notices
		}
	}
}

func echoStreams(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// Call sends a word from the host to an echo and waits for it to come back,
// from the address it was sent to.
func (h *Host) Call(network, address string) error {
	var conn net.Conn
	var err error
	h.Do(func() { conn, err = net.DialTimeout(network, address, patience) })
	if err != nil {
		return err
	}
	defer conn.Close()
	const word = "hello"
	answer := make([]byte, len(word))
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte(word)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != word {
		return fmt.Errorf("sent %q, got %q", word, answer)
	}
	return nil
}

// Resolve makes the host's kernel ask for a neighbour on dev, by ARP or by
// neighbour discovery, and returns the MAC it learns; empty if none.
func (h *Host) Resolve(t testing.TB, dev, addr string) string {
	t.Helper()
	family := "ipv4"
	if netip.MustParseAddr(addr).Is6() {
		family = "ipv6"
	}
	h.SetSysctl(t, family, "neigh", dev, "retrans_time_ms", "50") // or a silent one takes 3 s
	h.Try("ip", "neigh", "del", addr, "dev", dev)
	if err := h.poke(dev, addr); err != nil {
		t.Fatalf("ask for %s on %s: %v", addr, dev, err)
	}
	var entry struct {
		LLAddr string
		State  []string
	}
	Eventually(t, "the kernel to resolve "+addr, func() bool {
		var found []struct {
			LLAddr string
			State  []string
		}
		decode(t, h.Run(t, "ip", "-j", "neigh", "show", addr, "dev", dev), &found)
		if len(found) == 0 {
			return false
		}
		entry = found[0]
		return strings.Join(entry.State, " ") != "INCOMPLETE"
	})
	h.Try("ip", "neigh", "del", addr, "dev", dev)
	return entry.LLAddr
}

// poke sends a datagram nobody waits for, out of dev whatever the routes say.
func (h *Host) poke(dev, addr string) (err error) {
	bind := func(_, _ string, c syscall.RawConn) error {
		var failed error
		return errors.Join(c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), dev) }), failed)
	}
	h.Do(func() {
		var conn net.Conn
		dialer := net.Dialer{Control: bind}
		if conn, err = dialer.Dial("udp", net.JoinHostPort(addr, "9")); err != nil {
			return
		}
		defer conn.Close()
		_, err = conn.Write([]byte("x"))
	})
	return err
}
