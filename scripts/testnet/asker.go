package testnet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long an asker listens after its last request. A reply that is
// later is missed, which can hide a leak but not invent one.
const grace = 100 * time.Millisecond

// Asker asks for an address by ARP, again and again, as the neighbours of a
// real server do, and notes who answers.
type Asker struct {
	fd      int
	to      unix.SockaddrLinklayer
	request []byte
	target  [4]byte

	asked     atomic.Int64
	replies   map[string]int // the reader's until it is done
	stop      chan struct{}
	sent, got chan struct{} // closed when the sender, the reader is done
}

// AskARP broadcasts who-has requests for target from the host's device, one
// an interval, until Stop. It goes on when the device goes down and comes
// back; requests that could not be sent do not count.
func (h *Host) AskARP(t testing.TB, dev, target string, interval time.Duration) *Asker {
	t.Helper()
	a := &Asker{target: netip.MustParseAddr(target).As4(), replies: map[string]int{},
		stop: make(chan struct{}), sent: make(chan struct{}), got: make(chan struct{})}
	var err error
	h.Do(func() { err = a.open(dev) })
	if err != nil {
		t.Fatalf("ask for %s on %s: %v", target, dev, err)
	}
	go a.send(interval)
	go a.read()
	t.Cleanup(func() { a.Stop() })
	return a
}

func (a *Asker) open(dev string) error {
	iface, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	a.request = whoHas(iface, a.target)
	a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(unix.ETH_P_ARP)))
	if err != nil {
		return err
	}
	a.to = unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: iface.Index}
	tick := unix.Timeval{Usec: 50_000} // so that the reader sees the end
	return errors.Join(unix.Bind(a.fd, &a.to), unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tick))
}

// whoHas is the request as the device's own host would send it; a device
// without an address probes (RFC 5227: sender 0.0.0.0).
func whoHas(from *net.Interface, target [4]byte) []byte {
	var sender [4]byte
	addrs, _ := from.Addrs()
	for _, addr := range addrs {
		if ip, ok := addr.(*net.IPNet); ok && ip.IP.To4() != nil {
			sender = [4]byte(ip.IP.To4())
			break
		}
	}
	var f []byte
	f = append(f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	f = append(f, from.HardwareAddr...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1) // ARP, Ethernet, IPv4, request
	f = append(f, from.HardwareAddr...)
	f = append(f, sender[:]...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, target[:]...)
}

func (a *Asker) send(interval time.Duration) {
	defer close(a.sent)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if unix.Sendto(a.fd, a.request, 0, &a.to) == nil {
			a.asked.Add(1)
		}
		select {
		case <-a.stop:
			return
		case <-tick.C:
		}
	}
}

// read ends a moment after the last request: there is no last reply to wait
// for. An error of the socket (its device went down) is told once, and the
// socket goes on.
func (a *Asker) read() {
	defer close(a.got)
	frame := make([]byte, 128)
	var end time.Time
	for end.IsZero() || time.Now().Before(end) {
		if n, _, err := unix.Recvfrom(a.fd, frame, 0); err == nil {
			a.note(frame[:n])
		}
		select {
		case <-a.sent:
			if end.IsZero() {
				end = time.Now().Add(grace)
			}
		default:
		}
	}
}

// note counts the frame if it is a reply that claims the target.
func (a *Asker) note(frame []byte) {
	const op, senderMAC, senderIP = 20, 22, 28
	if len(frame) >= 42 && binary.BigEndian.Uint16(frame[op:]) == 2 && [4]byte(frame[senderIP:]) == a.target {
		a.replies[net.HardwareAddr(frame[senderMAC:senderIP]).String()]++
	}
}

// Await waits until n more requests have gone out.
func (a *Asker) Await(t testing.TB, n int) {
	t.Helper()
	goal := a.asked.Load() + int64(n)
	Eventually(t, "ARP requests to go out", func() bool { return a.asked.Load() >= goal })
}

// Stop ends the asking and tells how many requests went out, and how many
// replies came back from each MAC. It can be called again.
func (a *Asker) Stop() (asked int, replies map[string]int) {
	select {
	case <-a.stop:
	default:
		close(a.stop)
		<-a.got
		unix.Close(a.fd)
	}
	return int(a.asked.Load()), a.replies
}

func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
