package cases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// Files of the host that undo the guard, or take the VIP away, when something applies them. They are put there for
// check's eyes only, in a mount namespace of its own.
func TestCheckPersistence(t *testing.T) {
	testnet.Need(t, "unshare", "mount", "sed")
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	root := t.TempDir()
	put := func(path, text string) string {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inside := func(command string) testnet.Result { // with this /etc and this /run/systemd
		for _, dir := range []string{"etc/sysctl.d", "etc/systemd", "systemd"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		script := `set -e; mount --bind "$1/etc" /etc; mkdir -p "$2"; mount -t tmpfs none /run; mkdir -p /run/systemd; mkdir /run/NetworkManager; mount --bind "$1/systemd" /run/systemd; exec sh -c "$3"`
		return s.rs.Exec(testnet.Cmd{Args: []string{"unshare", "--mount", "sh", "-c", script, "sh", root, s.state, command}})
	}
	check := func(exit int) report {
		got := inside(strings.Join(s.args("check", "-o", "json"), " "))
		return parse(t, exit, "check", s.args("check"), got)
	}
	for _, c := range []struct {
		code, level string
		files       map[string]string
		words       []string
		then        string // what the cure would have started
	}{
		{"sysctl-file", "warning", map[string]string{"etc/sysctl.d/50-old.conf": "# the router's\nnet.ipv4.conf.all.arp_ignore = 0\n"}, []string{"/etc/sysctl.d/50-old.conf:2", "arp_ignore"}, ""},
		{"sysctl-file", "warning", map[string]string{"etc/sysctl.conf": "net.ipv4.conf.eth0.arp_announce = 7\n"}, []string{"/etc/sysctl.conf:1", "eth0"}, ""},
		{"networkd", "warning", map[string]string{"systemd/netif/state": "", "etc/systemd/network/10-lo.network": "[Match]\nName=lo\n"}, []string{"10-lo.network", "lo"}, "networkctl"},
		{"networkmanager", "warning", map[string]string{"etc/NetworkManager/system-connections/lo.nmconnection": "[connection]\nid=lo\ntype=loopback\n"}, []string{"lo.nmconnection", "lo"}, "nmcli"},
		{"not-enabled", "info", map[string]string{"systemd/system/x": "", "etc/systemd/system/rsagent.service": ""}, []string{"systemctl enable rsagent"}, "systemctl"},
	} {
		os.RemoveAll(filepath.Join(root, "etc"))
		os.RemoveAll(filepath.Join(root, "systemd"))
		if f := check(0).finding(c.code); f != nil {
			t.Errorf("without the file: %+v", *f)
		}
		for path, text := range c.files {
			put(path, text)
		}
		f := check(0).finding(c.code)
		if f == nil || f.Level != c.level || !containsAll(f.Subject+f.Message+f.Cure, c.words) {
			t.Errorf("%s: %+v", c.code, f)
			continue
		}
		cure := f.Cure
		if c.then == "networkctl" {
			cure = "networkctl() { :; }; " + cure
		}
		if c.then == "nmcli" {
			cure = "nmcli() { :; }; " + cure
		}
		if c.then == "systemctl" { // which does this
			cure = "systemctl() { mkdir -p /etc/systemd/system/multi-user.target.wants && ln -s ../$2.service /etc/systemd/system/multi-user.target.wants/; }; " + cure
		}
		if r := inside(cure); r.Code != 0 {
			t.Fatalf("%s: %s%s", cure, r.Stdout, r.Stderr)
		}
		if f := check(0).finding(c.code); f != nil {
			t.Errorf("after the cure: %+v", *f)
		}
	}
	fifo := filepath.Join(root, "etc/sysctl.d/a.conf")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if f := check(4).finding("unseen"); f == nil || !strings.Contains(f.Message, "/etc/sysctl.d/a.conf is not a regular file") {
		t.Errorf("of a FIFO it says %+v", f)
	}
	os.Remove(fifo)
	s.do(t, "start", "--vip", vip, "--arp-guard", "nft")
	put("etc/nftables.conf", "flush ruleset\n")
	if f := check(0).finding("nft-flush"); f != nil {
		t.Errorf("the unit is enabled: %+v", *f)
	}
	os.RemoveAll(filepath.Join(root, "etc/systemd/system/multi-user.target.wants"))
	if f := check(0).finding("nft-flush"); f == nil || f.Cure != "systemctl enable rsagent" {
		t.Errorf("it says %+v", f)
	}
}
