package realserver

import (
	"net/netip"
	"testing"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// TestCommandIsSafeToPaste: an interface may be called nearly anything.
func TestCommandIsSafeToPaste(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Item: sysctl.Key{Iface: "eth0.100", Knob: "arp_ignore"}, To: "1"}, "sysctl -w net/ipv4/conf/eth0.100/arp_ignore=1"},
		{Change{Item: sysctl.Key{Iface: "a;reboot", Knob: "arp_ignore"}, To: "1"}, "sysctl -w net.ipv4.conf.'a;reboot'.arp_ignore=1"},
		{Change{Item: tunnel.Link{Name: "it's$(id)"}, To: "up"}, `ip link set 'it'\''s$(id)' up`},
		{Change{Item: tunnel.Link{Name: "a\n%\\'b"}, To: "up"}, `ip link set "$(printf %b '\0141\0012\0045\0134\0047\0142')" up`},
		{Change{Item: loopback.Addr{Device: "-n", Prefix: netip.MustParsePrefix("192.0.2.1/32")}, To: ""}, "ip addr del 192.0.2.1/32 dev '-n'"},
		{Change{Item: tunnel.Module{Name: "ipip"}, To: "loaded"}, "modprobe ipip"},
	} {
		if got := c.change.Command(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
