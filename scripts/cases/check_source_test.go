package cases

import (
	"net"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// The director is on another NIC than the default route leads by, and strict reverse path filtering drops its clients.
func TestCheckReversePath(t *testing.T) {
	s := newSiteWith(t, "192.168.7.11/24") // the uplink
	s.peer.Run(t, "ip", "addr", "add", "192.168.7.1/24", "dev", "eth0")
	testnet.Wire(t, s.rs, "eth1", rip+"/24", s.peer, "eth1", peerIP+"/24")
	s.rs.Run(t, "ip", "route", "add", "default", "via", "192.168.7.1")
	s.peer.Run(t, "ip", "addr", "del", peerIP+"/24", "dev", "eth0")
	s.peer.Run(t, "ip", "addr", "add", "203.0.113.7/32", "dev", "lo") // the client
	s.do(t, "start", "--vip", vip)
	s.peer.Run(t, "ip", "route", "add", vip, "dev", "eth1", "src", "203.0.113.7")
	mac := strings.TrimSpace(s.rs.Run(t, "cat", "/sys/class/net/lo/address"))
	s.rs.Do(func() {
		if i, err := net.InterfaceByName("eth1"); err == nil {
			mac = i.HardwareAddr.String()
		}
	})
	s.peer.Run(t, "ip", "neigh", "replace", vip, "lladdr", mac, "dev", "eth1", "nud", "permanent")
	at := s.rs.Echo(t, "tcp", vip)
	if err := s.servedOn(vip, at); err != nil {
		t.Fatal(err)
	}
	s.lacks(t, "rp-filter-nic")
	s.rs.SetIPv4Conf(t, "eth1", "rp_filter", "1")
	if s.servedOn(vip, at) == nil {
		t.Fatal("it is served: nothing to be found")
	}
	s.lacks(t, "rp-filter-drops")
	stop := s.knock(t, vip)
	s.finds(t, "rp-filter-drops", "warning", []string{"reverse path filter dropped"})
	stop()
	f := s.finds(t, "rp-filter-nic", "warning", []string{"eth1", "eth0", vip})
	s.cured(t, f)
	if err := s.servedOn(vip, at); err != nil {
		t.Errorf("after the cure: %v", err)
	}
	defer s.knock(t, vip)()
	s.lacks(t, "rp-filter-drops")
}

// knock sends datagrams from the peer to an address all the while, until it is told to stop.
func (s *site) knock(t *testing.T, addr string, from ...string) (stop func()) {
	t.Helper()
	var conn net.Conn
	var err error
	d := net.Dialer{}
	if len(from) > 0 {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from[0])}
	}
	s.peer.Do(func() { conn, err = d.Dial("udp", net.JoinHostPort(addr, "9")) })
	if err != nil {
		t.Fatal(err)
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				_, _ = conn.Write([]byte("x"))
			}
		}
	}()
	return func() { close(end); <-done; conn.Close() }
}

// An unnumbered uplink, and a VIP of scope global: the host would speak as the VIP. Seen at: seesaw issue 117.
func TestCheckSource(t *testing.T) {
	s := newSiteWith(t, "")
	s.rs.Run(t, "ip", "route", "add", "default", "dev", "eth0")
	source := func() bool { return strings.Contains(s.rs.Run(t, "ip", "route", "get", "192.0.2.9"), "src "+vip) }
	s.do(t, "start", "--vip", vip)
	if source() {
		t.Fatal("a VIP of scope host is the source")
	}
	s.lacks(t, "vip-as-source")
	s.do(t, "stop")
	s.do(t, "start", "--vip", vip, "--scope", "global")
	if !source() {
		t.Fatal("the VIP is not the source: nothing to be found")
	}
	f := s.finds(t, "vip-as-source", "warning", []string{vip})
	s.cured(t, f)
	if source() {
		t.Error("after the cure the VIP is the source")
	}
}

// The same for IPv6: an address of the host's own is the cure.
func TestCheckSourceIPv6(t *testing.T) {
	s := newSite(t)
	s.rs.Run(t, "ip", "route", "add", "default", "via", "fe80::1", "dev", "eth0")
	s.do(t, "start", "--vip", vip6)
	if !strings.Contains(s.rs.Run(t, "ip", "route", "get", "2001:db8:7::9"), "src "+vip6) {
		t.Fatal("the VIP is not the source: nothing to be found")
	}
	s.finds(t, "vip-as-source", "warning", []string{vip6, "ip addr add"})
	s.rs.Run(t, "ip", "addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad")
	s.lacks(t, "vip-as-source")
}

// The director speaks from the VIP, which the real server has too: what it sends is dropped as from a liar.
// Seen at: katran issue 45.
func TestCase51_DirectorSpeaksFromTheVIP(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.peer.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	at := s.rs.Echo(t, "tcp", rip)
	call := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(vip)}, Timeout: time.Second}
	var err error
	s.peer.Do(func() { _, err = call.Dial("tcp", at) })
	if err == nil {
		t.Fatal("the real server hears the director: nothing to be found")
	}
	s.direct(t, rip) // its ARP requests would have the VIP as sender too
	stop := s.knock(t, rip, vip)
	s.finds(t, "own-source", "info", []string{"dropped", "director that speaks from the VIP", "address of its own"})
	stop()
}

// A host that forwards is told how to stop.
func TestCheckForwarding(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	s.lacks(t, "forwarding")
	s.rs.SetSysctl(t, "ipv4", "ip_forward", "1")
	s.rs.SetIPv4Conf(t, "all", "accept_redirects", "0")
	s.finds(t, "forwarding", "info", []string{"--blackhole"})
}
