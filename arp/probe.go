package arp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A Question is: whose is Addr? It goes to all neighbours on an interface, as from an address of that interface.
type Question struct {
	Interface int        // ifindex
	From      netip.Addr // of Addr's family; a neighbour with arp_ignore 2 answers only to its own subnet
	Addr      netip.Addr
}

// ErrMayNotAsk is that this process may not send frames of its own making.
var ErrMayNotAsk = fmt.Errorf("to ask neighbours needs CAP_NET_RAW: %w", fs.ErrPermission)

// Ask puts each question twice, half of the time apart, by ARP (RFC 826) or neighbour solicitation (RFC 4861), and tells
// by the question's index which MAC addresses claim the address before the time is over, itself not counted: one is as it
// should be, several are a leak. What a neighbour asks in the name of the address is a claim too (RFC 5227, section 2.1.1).
// The sender of a question is never an address that is asked for, so that no neighbour learns anything about one.
// Errors: ErrMayNotAsk; a sender that cannot be; those of sockets.
func Ask(questions []Question, during time.Duration) (claims [][]string, err error) {
	ears, err := listen(questions)
	defer func() {
		for _, e := range ears {
			unix.Close(e.fd)
		}
	}()
	if err != nil || len(questions) == 0 {
		return nil, err
	}
	claims = make([][]string, len(questions))
	end := time.Now()
	for range 2 {
		for _, q := range questions {
			if err := ears[slices.IndexFunc(ears, q.by)].ask(q.Addr); err != nil {
				return nil, fmt.Errorf("ask for %s: %w", q.Addr, err)
			}
		}
		end = end.Add(during / 2)
		err := hear(ears, end, func(e ear, addr netip.Addr, mac string) {
			for i, q := range questions {
				if q.Addr == addr && q.by(e) && !slices.Contains(claims[i], mac) {
					claims[i] = append(claims[i], mac)
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("listen to neighbours: %w", err)
		}
	}
	for _, macs := range claims {
		slices.Sort(macs)
	}
	return claims, nil
}

// An ear is a socket by which is asked on one interface, from one address.
type ear struct {
	fd, index int
	from      netip.Addr
	mac       [6]byte
}

func (q Question) by(e ear) bool { return e.index == q.Interface && e.from == q.From }

// listen opens what the questions need. It returns what is open on failure too.
func listen(questions []Question) (ears []ear, err error) {
	for _, q := range questions {
		asked := func(o Question) bool { return o.Addr == q.From }
		if !q.From.IsValid() || q.From.Is4() != q.Addr.Is4() || slices.ContainsFunc(questions, asked) {
			return ears, fmt.Errorf("ask for %s as %s: no neighbour may be asked so", q.Addr, q.From)
		}
		if slices.ContainsFunc(ears, q.by) {
			continue
		}
		e := ear{index: q.Interface, from: q.From}
		if e.mac, err = hardware(q.Interface); err == nil && q.From.Is4() {
			e.fd, err = packets(q.Interface, unix.ETH_P_ARP)
		} else if err == nil {
			e.fd, err = messages(q.Interface, q.From)
		}
		if errors.Is(err, fs.ErrPermission) {
			return ears, ErrMayNotAsk
		}
		if err != nil {
			return ears, fmt.Errorf("ask on interface %d as %s: %w", q.Interface, q.From, err)
		}
		ears = append(ears, e)
	}
	return ears, nil
}

// hardware is the interface's MAC address, which its packet sockets have as their name (packet(7)).
func hardware(index int) (mac [6]byte, err error) {
	fd, err := packets(index, 0)
	if err != nil {
		return mac, err
	}
	defer unix.Close(fd)
	name, err := unix.Getsockname(fd)
	if err != nil {
		return mac, err
	}
	if a, ok := name.(*unix.SockaddrLinklayer); ok && a.Halen == MAC {
		return [6]byte(a.Addr[:MAC]), nil
	}
	return mac, errors.New("it has no Ethernet address")
}

// packets is a socket for the packets of a protocol on one interface, without their Ethernet headers; with protocol 0 for none.
func packets(index int, protocol uint16) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(protocol), Ifindex: index}); err != nil {
		unix.Close(fd)
	}
	return fd, err
}

func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

func (e ear) ask(addr netip.Addr) error {
	if addr.Is6() {
		return e.solicit(addr)
	}
	to := unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: e.index, Halen: MAC, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	return unix.Sendto(e.fd, request(e.mac, e.from, addr), 0, &to)
}

// ipv4 begins every ARP packet between IPv4 hosts on Ethernet: address kinds 1 and 0x0800, of 6 and 4 bytes (RFC 826).
var ipv4 = []byte{0, 1, 8, 0, MAC, 4}

const ( // in such a packet
	operation = 6 // 1 is a request, 2 a reply
	senderMAC = 8
	arpLength = 28
)

// request is an ARP packet that asks for an address.
func request(mac [6]byte, from, addr netip.Addr) []byte {
	p := append(slices.Clone(ipv4), 0, 1)
	p = append(append(p, mac[:]...), from.AsSlice()...)
	return append(append(p, 0, 0, 0, 0, 0, 0), addr.AsSlice()...)
}

// claim reads an ARP packet: its sender says that the address is its own.
func claim(p []byte) (addr netip.Addr, mac net.HardwareAddr, ok bool) {
	if len(p) < arpLength || string(p[:len(ipv4)]) != string(ipv4) {
		return addr, nil, false
	}
	op := binary.BigEndian.Uint16(p[operation:])
	addr, _ = netip.AddrFromSlice(p[senderIP : senderIP+4])
	return addr, p[senderMAC : senderMAC+MAC], op == 1 || op == 2
}

// hear tells each claim that comes in before the end.
func hear(ears []ear, end time.Time, claimed func(e ear, addr netip.Addr, mac string)) error {
	ready := make([]unix.PollFd, len(ears))
	for i, e := range ears {
		ready[i] = unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN}
	}
	buf := make([]byte, 1500)
	for {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if _, err := unix.Poll(ready, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for i, e := range ears {
			if ready[i].Revents == 0 {
				continue
			}
			addr, mac, ok, err := e.read(buf)
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return err
			}
			if ok && err == nil && string(mac) != string(e.mac[:]) {
				claimed(e, addr, mac.String())
			}
			ready[i].Revents = 0
		}
	}
}

func (e ear) read(buf []byte) (addr netip.Addr, mac net.HardwareAddr, ok bool, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, o, _, _, err := unix.Recvmsg(e.fd, buf, oob, unix.MSG_DONTWAIT)
	switch {
	case err != nil:
	case e.from.Is4():
		addr, mac, ok = claim(buf[:n])
	case near(oob[:o]):
		addr, mac, ok = advertised(buf[:n])
	}
	return addr, mac, ok, err
}
