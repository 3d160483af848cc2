package cases

import (
	"net"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// servedOn calls the VIP's service, as the director hands it on.
func (s *site) servedOn(addr, at string) error {
	_, port, _ := net.SplitHostPort(at)
	return s.peer.Call("tcp", net.JoinHostPort(addr, port))
}

// serve has an echo on the VIP, which the peer hands packets for as a director does, and returns its port.
func (s *site) serve(t *testing.T, addr, on string) (port, at string) {
	t.Helper()
	at = s.rs.Echo(t, "tcp", on)
	s.direct(t, addr)
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	return port, at
}

// The service listens on the real server's own address, where the director's health check finds it and no client does.
// Seen at: seesaw issue 25.
func TestCase49_ListensOnRIPOnly(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	port, at := s.serve(t, vip, rip)
	if s.servedOn(vip, at) == nil || s.servedOn(rip, at) != nil {
		t.Fatal("the VIP is served: nothing to be found")
	}
	s.finds(t, "no-listener", "error", []string{vip, port + "/tcp", rip}, "--port", port)
	s.finds(t, "listeners", "info", []string{"not for them: " + port + "/tcp on " + rip})
	for _, on := range []string{vip, "0.0.0.0", ""} {
		port, at := s.serve(t, vip, on)
		if err := s.servedOn(vip, at); err != nil {
			t.Fatal(err)
		}
		s.lacks(t, "no-listener", "--port", port)
		s.finds(t, "no-listener", "error", []string{vip, port + "/udp"}, "--port", port+"/udp", "--port", port)
		if f := s.check(t, 0).finding("listeners"); !strings.Contains(strings.Split(f.Message, ";")[0], port+"/tcp") {
			t.Errorf("it says %+v", *f)
		}
	}
	_, udp, _ := net.SplitHostPort(s.rs.Echo(t, "udp", vip))
	s.lacks(t, "no-listener", "--port", udp+"/udp")
}

// IPv6 only, as servers with ipv6only=on, and a redirection, which needs no listener.
func TestCheckService(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip+","+vip6)
	port, _ := s.serve(t, vip, "::1")
	s.finds(t, "no-listener", "error", []string{vip6, "::1"}, "--port", port, "--vip", vip6)
	s.finds(t, "no-listener", "error", []string{vip}, "--port", port, "--vip", vip)
	testnet.Need(t, "nft")
	s.nft(t, "table ip nat { chain pre { type nat hook prerouting priority -100; tcp dport "+port+" redirect to :9; }; }")
	s.finds(t, "redirected", "info", []string{vip, port}, "--port", port, "--vip", vip)
	s.lacks(t, "no-listener", "--port", port, "--vip", vip)
	s.finds(t, "no-listener", "error", []string{vip6}, "--port", port, "--vip", vip6)
}
