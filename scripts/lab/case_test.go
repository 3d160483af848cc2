package lab

import (
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

// eth0 is in a VRF, whose port is judged by its own settings. Where the VIP is served behind one is the VRF's device; on
// either the host is silent. Seen at: opi-evpn-bridge issue 109.
func TestCase57_VRF(t *testing.T) {
	guest(t)
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "10.0.0.11/24", peer, "eth0", "10.0.0.1/24")
	rs.Run(t, "ip", "link", "add", "vrf0", "up", "type", "vrf", "table", "10")
	rs.Run(t, "ip", "link", "set", "eth0", "master", "vrf0")
	rs.Settle(t, "eth0")
	silentVIP := "10.0.0.100"
	rs.SetIPv4Conf(t, "eth0", "arp_ignore", "3")
	a := newAgent(t, rs)
	before := rs.Snapshot(t)
	for _, device := range []string{"lo", "vrf0"} {
		a.do(t, 0, "start", "--vip", silentVIP, "--device", device, "--scope", "global")
		a.unchanged(t, "start", "--vip", silentVIP, "--device", device, "--scope", "global")
		holds(t, rs, silentVIP, device)
		silent(t, peer, silentVIP, "10.0.0.11")
		a.do(t, 0, "status")
		a.stop(t, "dr", silentVIP)
		equal(t, rs, before)
	}
	rs.Run(t, "ip", "addr", "add", silentVIP+"/32", "dev", "vrf0") // by hand, it is heard: so this can fail
	rs.SetIPv4Conf(t, "eth0", "arp_ignore", "0")
	if peer.Resolve(t, "eth0", silentVIP) == "" {
		t.Error("a VIP on a VRF without guards is silent too: the test proves nothing")
	}
}
