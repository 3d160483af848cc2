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

// Asker asks for an address by ARP, or for IPv6 by neighbour solicitation,
// again and again, as the neighbours of a real server do, and notes who answers.
type Asker struct {
	fd      int
	to      unix.SockaddrLinklayer
	request []byte
	target  netip.Addr

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
	return h.ask(t, dev, netip.MustParseAddr(target), interval)
}

// AskND multicasts neighbour solicitations for target, as AskARP does requests.
func (h *Host) AskND(t testing.TB, dev, target string, interval time.Duration) *Asker {
	t.Helper()
	return h.ask(t, dev, netip.MustParseAddr(target), interval)
}

func (h *Host) ask(t testing.TB, dev string, target netip.Addr, interval time.Duration) *Asker {
	t.Helper()
	a := &Asker{target: target, replies: map[string]int{},
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
	var protocol uint16 = unix.ETH_P_IPV6
	if a.target.Is4() {
		protocol, a.request = unix.ETH_P_ARP, whoHas(iface, a.target.As4())
	} else if a.request, err = solicitation(iface, a.target.As16()); err != nil {
		return err
	}
	a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(protocol)))
	if err != nil {
		return err
	}
	a.to = unix.SockaddrLinklayer{Protocol: bigEndian(protocol), Ifindex: iface.Index}
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

// solicitation is RFC 4861's, sent to the target's solicited-node group from
// the device's first IPv6 address that is not link-local.
func solicitation(from *net.Interface, target [16]byte) ([]byte, error) {
	addrs, _ := from.Addrs()
	for _, addr := range addrs {
		ip, ok := addr.(*net.IPNet)
		if !ok || ip.IP.To4() != nil || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		group := []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, target[13], target[14], target[15]}
		message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target[:]...)
		message = append(append(message, 1, 1), from.HardwareAddr...)
		pseudo := append(append([]byte{}, ip.IP.To16()...), group...)
		pseudo = append(append(pseudo, 0, 0, 0, byte(len(message)), 0, 0, 0, unix.IPPROTO_ICMPV6), message...)
		sum := uint32(0)
		for i := 0; i < len(pseudo); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
		f := append([]byte{0x33, 0x33, 0xff, target[13], target[14], target[15]}, from.HardwareAddr...)
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, 255)
		return append(append(append(f, ip.IP.To16()...), group...), message...), nil
	}
	return nil, errors.New("no IPv6 address to ask from")
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
	if a.target.Is6() { // an advertisement, behind headers of 14 and 40 bytes
		if len(frame) >= 78 && frame[20] == unix.IPPROTO_ICMPV6 && frame[54] == 136 && [16]byte(frame[62:78]) == a.target.As16() {
			a.replies[net.HardwareAddr(frame[6:12]).String()]++
		}
		return
	}
	const op, senderMAC, senderIP = 20, 22, 28
	if len(frame) >= 42 && binary.BigEndian.Uint16(frame[op:]) == 2 && [4]byte(frame[senderIP:]) == a.target.As4() {
		a.replies[net.HardwareAddr(frame[senderMAC:senderIP]).String()]++
	}
}

// Await waits until n more requests have gone out.
func (a *Asker) Await(t testing.TB, n int) {
	t.Helper()
	goal := a.asked.Load() + int64(n)
	Eventually(t, "requests to go out", func() bool { return a.asked.Load() >= goal })
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
