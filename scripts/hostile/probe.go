package hostile

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// A prober asks by ARP, as a neighbour of the real server, and knows when there is no answer: the real server's own
// address is asked for last, and answers come in the order of the requests.
type prober struct {
	fd      int
	to      unix.SockaddrLinklayer
	mac     net.HardwareAddr
	sender  [4]byte
	control [4]byte
}

func newProber(t *testing.T, h *testnet.Host, dev, sender, control string) *prober {
	t.Helper()
	p := &prober{sender: netip.MustParseAddr(sender).As4(), control: netip.MustParseAddr(control).As4()}
	var err error
	h.Do(func() { err = p.open(dev) })
	if err != nil {
		t.Fatalf("ask by ARP on %s: %v", dev, err)
	}
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func (p *prober) open(dev string) error {
	iface, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	p.mac, p.to = iface.HardwareAddr, unix.SockaddrLinklayer{Protocol: proto, Ifindex: iface.Index}
	p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return err
	}
	return errors.Join(unix.Bind(p.fd, &p.to),
		unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
}

// answered lists those of the addresses that are answered for.
func (p *prober) answered(addrs ...string) (out []string, err error) {
	heard := map[[4]byte]bool{}
	for range 2 { // an answer that another processor's queue let pass is heard in the second round
		if err := p.round(addrs, heard); err != nil {
			return nil, err
		}
	}
	for _, a := range addrs {
		if heard[netip.MustParseAddr(a).As4()] {
			out = append(out, a)
		}
	}
	return out, nil
}

// round asks for all, and again where the control was not heard: frames may be lost.
func (p *prober) round(addrs []string, heard map[[4]byte]bool) error {
	for range 50 {
		for _, a := range addrs {
			if err := p.ask(netip.MustParseAddr(a).As4()); err != nil {
				return err
			}
		}
		if err := p.ask(p.control); err != nil {
			return err
		}
		if p.listen(heard) {
			return nil
		}
	}
	return errors.New("the real server does not answer for its own address either")
}

// listen notes who is answered for until the control is.
func (p *prober) listen(heard map[[4]byte]bool) bool {
	const op, senderIP = 20, 28
	frame := make([]byte, 128)
	for {
		n, _, err := unix.Recvfrom(p.fd, frame, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		if n < 42 || binary.BigEndian.Uint16(frame[op:]) != 2 {
			continue
		}
		a := [4]byte(frame[senderIP:])
		if heard[a] = true; a == p.control {
			return true
		}
	}
}

func (p *prober) ask(target [4]byte) error {
	f := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	f = append(f, p.mac...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1) // ARP, Ethernet, IPv4, request
	f = append(f, p.mac...)
	f = append(f, p.sender[:]...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return unix.Sendto(p.fd, append(f, target[:]...), 0, &p.to)
}
