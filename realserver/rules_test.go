package realserver

import (
	"maps"
	"net/netip"
	"testing"

	"rsagent/arp"
)

// TestShrinkIsPutBack: a VIP goes from nftables to settings while another stays. The rules are about both
// until the settings have been seen to hold.
func TestShrinkIsPutBack(t *testing.T) {
	f := base{tun: tunUp}.kernel()
	f.host.Tables[arp.GuardTable{}] = "drop 192.0.2.1 192.0.2.2 send eth0=198.51.100.11"
	j := &Journal{VIPs: Set{vipA, vipBnft}}
	j.claim(&f.host)
	p, _ := plan(j, &f.host)
	seen := false
	for _, c := range p {
		if c.Item == (arp.GuardTable{}) {
			seen = true
			if c.Stage != PutBack || c.To != "drop 192.0.2.2 send eth0=198.51.100.11" {
				t.Errorf("in stage %s the rules become %q", c.Stage, c.To)
			}
		}
	}
	if !seen {
		t.Errorf("the rules stay about both: %v", p)
	}
}

// TestParseIPVS reads what Linux 6.1 shows in /proc/net/ip_vs.
func TestParseIPVS(t *testing.T) {
	got := parseIPVS(`IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C0000264:0050 rr
  -> C000020B:0050      Route   1      0          0
UDP  C0000265:0035 wrr persistent 360 FFFFFFFF
TCP  [2001:0db8:0000:0000:0000:0000:0000:0064]:0050 rr
FWM  00000001 rr
  -> C000020C:0000      Tunnel  1      0          0
`)
	want := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.100"): true, netip.MustParseAddr("192.0.2.101"): true, netip.MustParseAddr("2001:db8::64"): true}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
