package callers

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// A recap is how a run of the playbook on this host ended.
type recap struct{ changed, failed, text string }

var recapLine = regexp.MustCompile(`changed=(\d+) +unreachable=0 +failed=(\d+)`)

// What answers at this address, behind the guest's NIC, is controller.sh.
const controller = "10.0.2.100:7"

// ask has the controller run a command, and is what that prints.
func ask(t *testing.T, words ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", controller)
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, strings.Join(words, "\n")+"\n\n")
	must(t, err)
	out, err := io.ReadAll(c)
	must(t, err)
	return string(out)
}

// play has it run the playbook on this host as the README has it, with the role's list of VIPs if one is given, as JSON.
func play(t *testing.T, vips string, flags ...string) recap {
	t.Helper()
	text, err := os.ReadFile("README.md")
	must(t, err)
	command := strings.Replace(docs.Command(string(text), "ansible-playbook "), "HOSTS", "../HOSTS", 1)
	args := append(strings.Fields(command), flags...)
	if vips != "" {
		args = append(args, "-e", `{"rsagent_vips": `+vips+`}`)
	}
	out := ask(t, args...)
	m := recapLine.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("%s:\n%s", strings.Join(args, " "), out)
	}
	return recap{m[1], m[2], out}
}

// reachable lets the controller in.
func reachable(t *testing.T) {
	t.Helper()
	h := testnet.Here()
	for dev := range h.Links(t) {
		if strings.HasPrefix(dev, "en") || strings.HasPrefix(dev, "eth") {
			h.Run(t, "ip", "link", "set", dev, "addrgenmode", "none") // no IPv6 address that comes when it likes
			h.Run(t, "ip", "link", "set", dev, "up")
			h.Run(t, "ip", "addr", "add", "10.0.2.15/24", "dev", dev)
		}
	}
	const dir = "/run/sshd" // which sshd wants
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(dir+"/keys", []byte(ask(t, "cat", "../key.pub")), 0o600))
	h.Start(t, "/usr/sbin/sshd", "-D", "-e", "-o", "AuthorizedKeysFile="+dir+"/keys", "-o", "UseDNS=no")
	t.Cleanup(func() { h.Run(t, "pkill", "-x", "sshd") }) // with those of connections, which Ansible keeps
}

// went fails where the run changed nothing, or failed.
func (r recap) went(t *testing.T) {
	t.Helper()
	if r.changed == "0" || r.failed != "0" {
		t.Errorf("changed=%s failed=%s, want some changed, none failed\n%s", r.changed, r.failed, r.text)
	}
}

// refused fails where the run did not fail before it changed anything, with a message that has these words.
func (r recap) refused(t *testing.T, words ...string) {
	t.Helper()
	if r.changed != "0" || r.failed != "1" {
		t.Errorf("changed=%s failed=%s, want 0 and 1", r.changed, r.failed)
	}
	says(t, r.text, words...)
}

// TestRole: each part goes on with the host as the one before left it.
func TestRole(t *testing.T) {
	guest.Need(t)
	retire(t)
	reachable(t)
	fresh := look(t)

	t.Run("to begin with", func(t *testing.T) { // none of them changes anything
		t.Run("a check foretells", func(t *testing.T) {
			r := play(t, "", "--check", "--diff")
			r.went(t)
			says(t, r.text, "guard net.ipv4.conf.all.arp_ignore: 0 -> 1", "bind 192.0.2.100/32 dev lo: absent -> host", "+- 192.0.2.101")
		})
		t.Run("a list with a typing error", func(t *testing.T) {
			play(t, `["192.0.2.100", "192.0.2.l01"]`).refused(t, `"msg": "rsagent: rsagent.yaml:4: address: `, `192.0.2.l01\" is not an IP address`)
		})
		t.Run("a missing binary", func(t *testing.T) {
			play(t, "", "-e", "rsagent_binary=/nowhere/rsagent").refused(t, "/nowhere/rsagent: no such file on the controller")
		})
	})
	unchanged(t, fresh)
	t.Run("the first run", func(t *testing.T) {
		play(t, "").went(t)
		serves(t, "192.0.2.100 lo", "192.0.2.101 lo")
		is(t, "is-active", "active")
		is(t, "is-enabled", "enabled")
	})
	t.Run("the second run", func(t *testing.T) {
		before := look(t)
		if r := play(t, "", "--diff"); r.changed != "0" || r.failed != "0" {
			t.Errorf("changed=%s failed=%s, want 0 and 0\n%s", r.changed, r.failed, r.text)
		}
		unchanged(t, before)
	})
	t.Run("a host that has drifted, by the package", func(t *testing.T) {
		testnet.Here().SetIPv4Conf(t, "all", "arp_ignore", "0")
		testnet.Here().Run(t, "ip", "addr", "del", "192.0.2.101/32", "dev", "lo")
		play(t, "", "-e", "rsagent_binary=", "-e", "rsagent_deb=../../rsagent_1.0.0-1_amd64.deb").went(t)
		serves(t, "192.0.2.100 lo", "192.0.2.101 lo")
		says(t, testnet.Here().Run(t, "/usr/sbin/rsagent", "version"), "rsagent 1.0.0 ")
	})
	t.Run("a list that is edited", func(t *testing.T) {
		seen := monitor(t)
		r := play(t, `["192.0.2.100", {"address": "192.0.2.102", "mode": "tun"}]`, "--diff", "-e", "rsagent_watch=true")
		r.went(t)
		says(t, testnet.Here().Run(t, "systemctl", "is-active", "rsagent-watch.service"), "active")
		says(t, r.text, "withdraw 192.0.2.101/32 dev lo: host -> absent", "-- 192.0.2.101")
		serves(t, "192.0.2.100 lo", "192.0.2.102 tunl0")
		events := seen()
		says(t, events, "192.0.2.101/32", "192.0.2.102/32")
		if strings.Contains(events, "192.0.2.100") {
			t.Errorf("the VIP that stays was touched:\n%s", events)
		}
	})
	t.Run("an empty list", func(t *testing.T) {
		play(t, `[]`).went(t)
		serves(t)
		is(t, "is-active", "inactive")
		is(t, "is-enabled", "disabled")
		for _, verb := range []string{"is-active", "is-enabled"} { // it is asked for no longer, either
			if testnet.Here().Try("systemctl", verb, "rsagent-watch.service").Code == 0 {
				t.Errorf("systemctl %s rsagent-watch.service: it is", verb)
			}
		}
	})
	t.Run("a start that fails", func(t *testing.T) {
		dir := "/run/systemd/system/rsagent.service.d"
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "lab.conf"), []byte("[Service]\nReadOnlyPaths=/proc/sys\n"), 0o644))
		r := play(t, "")
		if r.failed != "1" {
			t.Errorf("failed=%s, want 1", r.failed)
		}
		says(t, r.text, `"msg": "rsagent: set net.ipv4.conf.`, "read-only file system")
		serves(t)
		must(t, os.RemoveAll(dir))
	})
	retire(t)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// monitor watches the addresses of the host. What it returns is to be called in the end, and tells what happened.
func monitor(t *testing.T) func() string {
	t.Helper()
	h := testnet.Here()
	p := h.Start(t, "ip", "monitor", "address")
	mark := func(addr string) bool {
		h.Try("ip", "addr", "add", addr, "dev", "lo")
		h.Try("ip", "addr", "del", addr, "dev", "lo")
		return strings.Contains(p.Output(), addr)
	}
	testnet.Eventually(t, "ip monitor to listen", func() bool { return mark("127.0.0.8/32") })
	return func() string {
		testnet.Eventually(t, "ip monitor to catch up", func() bool { return mark("127.0.0.9/32") })
		return p.Stop()
	}
}
