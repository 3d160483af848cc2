package services

import (
	"os"
	"testing"
)

// eachShell makes /bin/sh another shell: Debian's, and busybox's.
func eachShell(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	guest.Need(t)
	for name, path := range map[string]string{"dash": "/usr/bin/dash", "busybox": "/job/busybox"} {
		t.Run(name, func(t *testing.T) {
			become := func(path string) {
				if err := os.Symlink(path, "/usr/bin/sh.new"); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename("/usr/bin/sh.new", "/usr/bin/sh"); err != nil {
					t.Fatal(err)
				}
			}
			become(path)
			t.Cleanup(func() { become("dash") })
			f(t)
		})
	}
}

// TestInitScript: the verbs, and LSB's codes.
func TestInitScript(t *testing.T) {
	eachShell(t, func(t *testing.T) {
		before := newSite(t)
		says(t, exits(t, 6, initScript, "start"), "not configured")
		exits(t, 3, initScript, "status")
		exits(t, 0, initScript, "stop")
		moves(t, func() { exits(t, 0, initScript, "try-restart") })
		equal(t, before)

		write(t, defaultFile, "VIP=\"10.9.0.104 10.9.0.105\"\n")
		moves(t, func() { exits(t, 0, initScript, "start") }, "+10.9.0.104", "+10.9.0.105")
		moves(t, func() { exits(t, 0, initScript, "start") })
		says(t, exits(t, 0, initScript, "status"), "10.9.0.105")
		holds(t, "10.9.0.104", "10.9.0.105")
		for _, change := range []struct{ verb, from, to string }{
			{"reload", "10.9.0.104", "10.9.0.106"}, {"force-reload", "10.9.0.106", "10.9.0.107"},
			{"restart", "10.9.0.107", "10.9.0.104"}, {"try-restart", "10.9.0.104", "10.9.0.106"},
		} {
			write(t, defaultFile, "VIP=\"10.9.0.105 "+change.to+"\"\n")
			moves(t, func() { exits(t, 0, initScript, change.verb) }, "-"+change.from, "+"+change.to)
		}
		here.SetIPv4Conf(t, "all", "arp_announce", "0")
		exits(t, 1, initScript, "status")
		moves(t, func() { exits(t, 0, initScript, "stop") }, "-10.9.0.105", "-10.9.0.106")
		equal(t, before)

		// Red Hat's file, and the config file.
		os.Remove(defaultFile)
		write(t, "/etc/sysconfig/rsagent", "VIP=10.9.0.104\nRSAGENT_MODE=tun\n")
		exits(t, 0, initScript, "start")
		holds(t, "10.9.0.104 tunl0")
		exits(t, 0, initScript, "stop")
		os.Remove("/etc/sysconfig/rsagent")
		configure(t, "10.9.0.105")
		exits(t, 0, initScript, "start")
		holds(t, "10.9.0.105")
	})
}

// TestInitScriptBadInput: it says why, by the code that LSB has for it, and nothing has come or gone.
func TestInitScriptBadInput(t *testing.T) {
	eachShell(t, func(t *testing.T) {
		newSite(t)
		for _, args := range [][]string{{}, {"nope"}, {"start", "10.9.0.104"}, {"status", ""}, {"--help"}} {
			says(t, exits(t, 2, append([]string{initScript}, args...)...),
				"Usage: "+initScript+" {start|stop|restart|try-restart|reload|force-reload|status}")
		}
		for _, args := range [][]string{{}, {"nope"}, {"start", "10.9.0.104", "nat"}, {"start", "10.9.0.104", "dr", "x"}} {
			says(t, exits(t, 2, append([]string{dropIn}, args...)...), "Usage: lvs_real.sh {start|stop|restart|reload|status} [VIP [dr|tun]]")
		}
		write(t, defaultFile, "VIP=10.9.0.105\n")
		exits(t, 0, initScript, "start")
		for list, reason := range map[string]string{
			"VIP='10.9.0.105 10.9.0.l04'":             `lvs_real.sh: VIP= in /etc/default/rsagent: "10.9.0.l04" is not an IP address`,
			"VIP='10.9.0.105 $(touch /tmp/evil)'":     `lvs_real.sh: VIP= in /etc/default/rsagent: "$(touch" is not an IP address`,
			"VIP='10.9.0.105 *'":                      `lvs_real.sh: VIP= in /etc/default/rsagent: "*" is not an IP address`,
			"VIP='10.9.0.105 10.9.0.300'":             `lvs_real.sh: VIP= in /etc/default/rsagent: address: "10.9.0.300" is not an IP address`,
			"VIP='10.9.0.105 10.9.0.104/24'":          `10.9.0.104/24: a VIP is a single address`,
			"VIP='10.9.0.105 10.9.0.104":              defaultFile,
			"VIP='10.9.0.104'\nRSAGENT_MODE=nat":      `RSAGENT_MODE: "nat" is none of dr, tun`,
			"VIP='10.9.0.105'\nRSAGENT_CONFIG=/a/b/c": "",
		} {
			write(t, defaultFile, list+"\n")
			code := 2
			if reason == "" {
				code = 0
			}
			moves(t, func() {
				for _, verb := range []string{"start", "reload", "restart"} {
					says(t, exits(t, code, initScript, verb), reason)
				}
			})
		}
		if _, err := os.Stat("/tmp/evil"); err == nil {
			t.Error("the VIP list was run")
		}
		// A stop takes out what was started, all the same.
		for _, list := range []string{"VIP='10.9.0.l05'\n", "VIP='\n", "VIP=10.9.0.300\n"} {
			write(t, defaultFile, list)
			moves(t, func() { says(t, exits(t, 0, initScript, "stop"), defaultFile) }, "-10.9.0.105")
			write(t, defaultFile, "VIP='10.9.0.105'\n")
			exits(t, 0, initScript, "start")
		}
		exits(t, 0, initScript, "stop")

		for _, path := range []string{"/usr/sbin/rsagent", dropIn} {
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			for verb, code := range map[string]int{"start": 5, "stop": 5, "reload": 5, "try-restart": 5} {
				says(t, exits(t, code, initScript, verb), "is not installed")
			}
			says(t, exits(t, 4, initScript, "status"), "is not installed")
			os.Rename(path+".away", path)
		}
		holds(t)

		// Not root: it cannot, and says so.
		said := exits(t, 4, "setpriv", "--reuid=65534", "--clear-groups", initScript, "start")
		says(t, said, "run as root")
		exits(t, 3, "setpriv", "--reuid=65534", "--clear-groups", initScript, "status")
		holds(t)
	})
}
