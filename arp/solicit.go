package arp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The messages of neighbour discovery (RFC 4861, sections 4.3, 4.4 and 4.6.1). The kernel adds their checksum.
const (
	solicitation  = 135
	advertisement = 136
	sourceMAC     = 1 // options
	targetMAC     = 2
	targetAddr    = 8 // where a message has the address that it is about
	firstOption   = 24
	hopLimit      = 255 // with any other, a message has come from elsewhere
)

// messages is a socket for the advertisements that come to one address of an interface.
func messages(index int, from netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return 0, err
	}
	var only unix.ICMPv6Filter // a bit is a kind that is left out
	for i := range only.Data {
		only.Data[i] = ^uint32(0)
	}
	only.Data[advertisement/32] &^= 1 << (advertisement % 32)
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &only),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, hopLimit),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
		unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16(), ZoneId: uint32(index)}))
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// solicit asks those who listen for the last three bytes of the address (RFC 4291, section 2.7.1).
func (e ear) solicit(addr netip.Addr) error {
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]}
	message := append([]byte{solicitation, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
	message = append(append(message, sourceMAC, 1), e.mac[:]...)
	return unix.Sendto(e.fd, message, 0, &unix.SockaddrInet6{Addr: group, ZoneId: uint32(e.index)})
}

// advertised reads an advertisement: whose an address is. One that answers a question to many has the MAC address.
func advertised(m []byte) (addr netip.Addr, mac net.HardwareAddr, ok bool) {
	if len(m) < firstOption || m[0] != advertisement {
		return addr, nil, false
	}
	addr, _ = netip.AddrFromSlice(m[targetAddr:firstOption])
	for o := m[firstOption:]; len(o) >= 8; o = o[8*int(o[1]):] { // an option's length is in units of 8 bytes
		if o[1] == 0 || 8*int(o[1]) > len(o) {
			break
		}
		if o[0] == targetMAC && o[1] == 1 {
			return addr, o[2:8], true
		}
	}
	return addr, nil, false
}

// near says that a message has crossed no router.
func near(control []byte) bool {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			return binary.NativeEndian.Uint32(m.Data) == hopLimit
		}
	}
	return false
}
