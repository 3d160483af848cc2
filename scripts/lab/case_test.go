package lab

import (
	"net"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// silent: nobody on the wire is answered for the VIP, and is for the host's own address.
func silent(t *testing.T, peer *testnet.Host, vip, own string) {
	t.Helper()
	if mac := peer.Resolve(t, "eth0", vip); mac != "" {
		t.Errorf("%s answers ARP for %s", mac, vip)
	}
	if peer.Resolve(t, "eth0", own) == "" {
		t.Errorf("nobody answers for %s: the test proves nothing", own)
	}
}

// Under systemd with ProtectKernelTunables=yes the guards cannot be written: nothing is bound, and the cure is named.
// Seen at: systemd issue 4018.
func TestCase41_ProtectKernelTunables(t *testing.T) {
	guest(t)
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "10.0.0.11/24", peer, "eth0", "10.0.0.1/24")
	a := newAgent(t, rs)
	before := rs.Snapshot(t)
	r := testnet.Here().Try("systemd-run", "--quiet", "--wait", "--pipe", "-p", "ProtectKernelTunables=yes",
		"-p", "NetworkNamespacePath=/run/netns/"+rs.Name, a.bin, "start", "--state-dir", a.state, "--vip", "10.0.0.100")
	if r.Code != 1 || !strings.Contains(r.Stderr, "read-only") || !strings.Contains(r.Stderr, "ProtectKernelTunables=") {
		t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	equal(t, rs, before)
	silent(t, peer, "10.0.0.100", "10.0.0.11")
}

// eth0 is in a VRF, whose port is judged by its own settings. A VIP on lo is not in the VRF, and refused with the cure; on
// the VRF's device it is served, and the host is silent. Seen at: opi-evpn-bridge issue 109.
func TestCase57_VRF(t *testing.T) {
	guest(t)
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "10.0.0.11/24", peer, "eth0", "10.0.0.1/24")
	rs.Run(t, "ip", "link", "add", "vrf0", "up", "type", "vrf", "table", "10")
	rs.Run(t, "ip", "link", "set", "eth0", "master", "vrf0")
	rs.Settle(t, "eth0")
	rs.SetSysctl(t, "ipv4", "tcp_l3mdev_accept", "1") // sockets need not be bound to the VRF
	silentVIP := "10.0.0.100"
	rs.SetIPv4Conf(t, "eth0", "arp_ignore", "3")
	a := newAgent(t, rs)
	before := rs.Snapshot(t)
	for _, flags := range [][]string{{}, {"--device", "lo"}} {
		r := a.do(t, 6, "start", append([]string{"--vip", silentVIP}, flags...)...)
		if r.Error == nil || !strings.HasSuffix(r.Error.Message, "(cure: --device vrf0)") {
			t.Errorf("the cure is not named: %s", r.text)
		}
		equal(t, rs, before)
	}
	a.do(t, 0, "start", "--vip", silentVIP, "--device", "vrf0", "--scope", "global")
	a.unchanged(t, "start", "--vip", silentVIP, "--device", "vrf0", "--scope", "global")
	holds(t, rs, silentVIP, "vrf0")
	silent(t, peer, silentVIP, "10.0.0.11")
	peer.Run(t, "ip", "neigh", "add", silentVIP, "lladdr", mac(t, rs), "dev", "eth0") // as a director sends to it
	_, port, err := net.SplitHostPort(rs.Echo(t, "tcp", "0.0.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Call("tcp", net.JoinHostPort(silentVIP, port)); err != nil {
		t.Errorf("the VIP on the VRF is not served: %v", err)
	}
	peer.Run(t, "ip", "neigh", "del", silentVIP, "dev", "eth0")
	a.do(t, 0, "status")
	a.stop(t, "dr", silentVIP)
	equal(t, rs, before)
	rs.Run(t, "ip", "addr", "add", silentVIP+"/32", "dev", "vrf0") // by hand, it is heard: so this can fail
	rs.SetIPv4Conf(t, "eth0", "arp_ignore", "0")
	if peer.Resolve(t, "eth0", silentVIP) == "" {
		t.Error("a VIP on a VRF without guards is silent too: the test proves nothing")
	}
}

// sit0, brought up for an IPv6 VIP, is given addresses made of the host's IPv4 ones, which would be the source of packets
// to anywhere. By hand that is so; after start they are gone.
func TestCase62_SourceOfIPv6(t *testing.T) {
	guest(t)
	loadTunnels(t)
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "10.0.0.11/24", peer, "eth0", "10.0.0.1/24")
	rs.Run(t, "ip", "-6", "route", "add", "default", "dev", "eth0")
	source := func() string { return rs.Run(t, "ip", "-6", "route", "get", "2001:db8::1") }
	rs.Run(t, "ip", "link", "set", "sit0", "up")
	if !strings.Contains(source(), "src ::10.0.0.11 ") {
		t.Errorf("by hand the source is not ::10.0.0.11: the test proves nothing: %s", source())
	}
	rs.Run(t, "ip", "link", "set", "sit0", "down")
	before := rs.Snapshot(t)
	a := newAgent(t, rs)
	a.do(t, 0, "start", "--vip", vip6, "--mode", "tun", "--outer", "4")
	holds(t, rs, vip6, "sit0")
	noCompat(t, rs)
	if strings.Contains(source(), "src ::") {
		t.Errorf("the source is made of an IPv4 address: %s", source())
	}
	a.do(t, 0, "stop")
	equal(t, rs, before)
}
