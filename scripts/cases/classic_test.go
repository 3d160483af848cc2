package cases

import (
	"os"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// The classic script's host route goes with the VIP where it was made by the label, as that script does it; one by the
// device stays, and goes by what the README says.
func TestClassicRoute(t *testing.T) {
	testnet.Need(t, "ifconfig", "route")
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	cure := strings.Replace(docs.Command(string(text), "ip route del"), "VIP", vip, 1)
	for _, by := range []string{"label", "device"} {
		t.Run("by "+by, func(t *testing.T) {
			s := newSite(t)
			s.restored(t, func() {
				s.rs.Run(t, "sh", "../lab/testdata/lvs_real.sh", "start", vip, "dr")
				if by == "device" {
					s.rs.Run(t, "ip", "route", "replace", vip, "dev", "lo")
				}
				route := func() string { return s.rs.Run(t, "ip", "route", "show", vip) }
				if route() == "" {
					t.Fatal("the classic script makes no host route")
				}
				s.do(t, "start", "--vip", vip)
				s.serves(t, vip)
				s.do(t, "stop")
				s.bound(t, vip)
				if left := route(); (left != "") != (by == "device") {
					t.Errorf("after the stop: %q", left)
				}
				if by == "device" {
					s.rs.Run(t, strings.Fields(cure)...)
				}
				for _, name := range []string{"all", "lo"} {
					s.rs.SetIPv4Conf(t, name, "arp_ignore", "0")
					s.rs.SetIPv4Conf(t, name, "arp_announce", "0")
				}
			})
		})
	}
}
