package services

import (
	"testing"
)

// old runs the classic script, which makes the host claim the VIP for a moment: only one that may be heard.
func old(t *testing.T, verb, mode string) {
	t.Helper()
	here.Run(t, "bash", "/job/classic.sh", verb, loud, mode)
}

// label is that of an address of a device.
func label(t *testing.T, dev, addr string) string {
	t.Helper()
	for _, a := range here.Addrs(t, dev) {
		if a.Local == addr {
			return a.Label
		}
	}
	return "none"
}

// keepConf puts the settings back that the classic script leaves behind.
func keepConf(t *testing.T) {
	t.Helper()
	for _, name := range []string{"all", "lo", "tunl0"} {
		for _, knob := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
			was := here.IPv4Conf(t, name, knob)
			t.Cleanup(func() { here.SetIPv4Conf(t, name, knob, was) })
		}
	}
}

// TestDropIn: the drop-in takes over a host that the classic script had set up, without a blink, and stops what that
// had started. Its label stays as long as the VIP does. Its settings stay for good: what was there before, nobody knows.
func TestDropIn(t *testing.T) {
	for mode, dev := range map[string]string{"dr": "lo", "tun": "tunl0"} {
		for _, how := range []string{"VIP=", "command line"} {
			t.Run(mode+" "+how, func(t *testing.T) {
				newSite(t)
				keepConf(t)
				args := []string{}
				if how == "VIP=" {
					write(t, defaultFile, "VIP="+loud+"\nRSAGENT_MODE="+mode+"\n")
				} else {
					args = []string{loud, mode}
				}
				script := func(code int, verb string) {
					exits(t, code, append([]string{dropIn, verb}, args...)...)
				}
				old(t, "start", mode)
				left := label(t, dev, loud)
				moves(t, func() { script(0, "start") })
				holds(t, loud+" "+dev)
				script(0, "status")
				if got := label(t, dev, loud); got != left || mode == "dr" && got != "lo:0" {
					t.Errorf("label %q, want %q", got, left)
				}
				if mode == "tun" {
					t.Logf("rp_filter: all %s, tunl0 %s", here.IPv4Conf(t, "all", "rp_filter"), here.IPv4Conf(t, "tunl0", "rp_filter"))
				}
				moves(t, func() { script(0, "restart") })
				moves(t, func() { script(0, "stop") }, "-"+loud)
				holds(t)
				script(3, "status")
				for _, name := range []string{"all", dev} {
					if here.IPv4Conf(t, name, "arp_ignore") != "1" || here.IPv4Conf(t, name, "arp_announce") != "2" {
						t.Errorf("%s is not as the classic script left it", name)
					}
				}
				if mode == "tun" { // raised by the classic script
					here.Run(t, "ip", "link", "set", "tunl0", "down")
				}
			})
		}
	}
}

// TestDropInStops: it stops at once what the classic script has started, knowing of nothing.
func TestDropInStops(t *testing.T) {
	newSite(t)
	keepConf(t)
	old(t, "start", "dr")
	write(t, defaultFile, "VIP="+loud+"\n")
	moves(t, func() { exits(t, 0, dropIn, "stop") }, "-"+loud)
	old(t, "start", "dr")
	moves(t, func() { exits(t, 0, dropIn, "stop", loud) }, "-"+loud)
	holds(t)
}

// TestDropInWide: a VIP with a wide prefix, which makes the whole subnet local, is replaced; the VIP is there all the time.
func TestDropInWide(t *testing.T) {
	newSite(t)
	keepConf(t)
	here.SetIPv4Conf(t, "all", "arp_ignore", "1")
	here.SetIPv4Conf(t, "all", "arp_announce", "2")
	here.Run(t, "ifconfig", "lo:0", loud, "netmask", "255.255.255.0", "up")
	write(t, defaultFile, "VIP="+loud+"\n")
	got := watch(t, func() { exits(t, 0, dropIn, "start") })
	if len(got) != 2 || got[0] != "+"+loud || got[1] != "-"+loud+"/24" {
		t.Errorf("addresses came and went: %q", got)
	}
	holds(t, loud)
	exits(t, 0, dropIn, "stop")
	holds(t)
}
