package testnet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Wire connects two hosts by a veth pair, both ends up. An empty CIDR leaves
// that end without an address.
func Wire(t testing.TB, a *Host, devA, cidrA string, b *Host, devB, cidrB string) {
	t.Helper()
	a.Run(t, "ip", "link", "add", "name", devA, "type", "veth",
		"peer", "name", devB, "netns", b.Name)
	a.raise(t, devA, cidrA)
	b.raise(t, devB, cidrB)
	a.Settle(t, devA)
	b.Settle(t, devB)
}

// Segment is an Ethernet segment for any number of hosts: a bridge in a
// namespace of its own.
type Segment struct {
	Switch *Host // the bridge is br0
	ports  int
}

// NewSegment makes a segment that nobody has joined.
func NewSegment(t testing.TB, label string) *Segment {
	t.Helper()
	s := &Segment{Switch: NewHost(t, label)}
	s.Switch.Run(t, "ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
	s.Switch.raise(t, "br0", "")
	return s
}

// Join plugs a host's new device dev into the segment.
func (s *Segment) Join(t testing.TB, h *Host, dev string, cidrs ...string) {
	t.Helper()
	s.ports++
	port := fmt.Sprintf("port%d", s.ports)
	h.Run(t, "ip", "link", "add", "name", dev, "type", "veth",
		"peer", "name", port, "netns", s.Switch.Name)
	s.Switch.Run(t, "ip", "link", "set", port, "master", "br0")
	s.Switch.raise(t, port, "")
	h.raise(t, dev, cidrs...)
	h.Settle(t, dev)
}

// raise brings a device up. Duplicate address detection is off on it: the
// second in which an IPv6 address is tentative would show as a change of the
// host.
func (h *Host) raise(t testing.TB, dev string, cidrs ...string) {
	t.Helper()
	if h.hasIPv6(dev) {
		h.SetSysctl(t, "ipv6", "conf", dev, "accept_dad", "0")
	}
	h.Run(t, "ip", "link", "set", dev, "up")
	for _, cidr := range cidrs {
		if cidr != "" {
			h.Run(t, "ip", "addr", "add", cidr, "dev", dev)
		}
	}
}

// Settle waits until the kernel has done by itself what follows the carrier:
// the link-local address and its routes.
func (h *Host) Settle(t testing.TB, dev string) {
	t.Helper()
	if !h.hasIPv6(dev) {
		return
	}
	Eventually(t, dev+"'s link-local address", func() bool {
		ready := false
		h.Do(func() { ready = hasLinkLocal(dev) })
		return ready
	})
}

func hasLinkLocal(dev string) bool {
	iface, err := net.InterfaceByName(dev)
	if err != nil {
		return false
	}
	addrs, _ := iface.Addrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() == nil && ip.IP.IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}

// hasIPv6 says whether the device will get IPv6 addresses.
func (h *Host) hasIPv6(dev string) bool {
	var text []byte
	h.Do(func() { text, _ = os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", dev, "disable_ipv6")) })
	return strings.TrimSpace(string(text)) == "0"
}
