package services

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// The guest's NIC is up by systemd-networkd, with another address in each boot.
func setAddress(t *testing.T, boot int) {
	t.Helper()
	write(t, "/etc/systemd/network/10-lan.network",
		fmt.Sprintf("[Match]\nMACAddress=%s\n[Network]\nAddress=%s/24\nGateway=10.9.0.1\n", guestMAC, rip(boot)))
}

// asked waits until the guest has been asked for an address for a while.
func asked(t *testing.T, addr string) {
	t.Helper()
	const arp = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP<<8&0xffff
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, arp)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	target, packet := netip.MustParseAddr(addr).As4(), make([]byte, 64)
	for n := 0; n < 20; {
		got, from, err := unix.Recvfrom(fd, packet, 0)
		if err != nil {
			t.Fatal(err)
		}
		if in, ok := from.(*unix.SockaddrLinklayer); ok && in.Pkttype != unix.PACKET_OUTGOING && got >= 28 && [4]byte(packet[24:]) == target {
			n++
		}
	}
}

// The server that comes after network.target binds a VIP by itself.
const server = `[Unit]
After=network.target
[Service]
ExecStart=/usr/local/bin/busybox httpd -f -p 10.9.0.100:8080
[Install]
WantedBy=multi-user.target
`

// otherwise is a sysctl.d that undoes all that keeps a host silent.
const otherwise = `net.ipv4.conf.all.arp_ignore = 0
net.ipv4.conf.default.arp_ignore = 0
net.ipv4.conf.*.arp_ignore = 0
net.ipv4.conf.all.arp_announce = 0
net.ipv4.conf.default.arp_announce = 0
net.ipv4.conf.*.arp_announce = 0
net.ipv4.conf.all.rp_filter = 1
net.ipv4.conf.default.rp_filter = 1
net.ipv4.conf.*.rp_filter = 1
`

// TestBoot1: there is no rsagent yet. An address that is bound by hand is heard: so the silence of the other boots, which
// is asked for in the same way, means something. Then the units are set up, by the recipe.
func TestBoot1(t *testing.T) {
	guest.Need(t)
	setAddress(t, 1)
	systemctl(t, "enable", "--now", "systemd-networkd")
	asked(t, loud)
	here.Run(t, "ip", "addr", "add", loud+"/32", "dev", "lo")
	asked(t, loud)
	asked(t, rip(1))
	here.Run(t, "ip", "addr", "del", loud+"/32", "dev", "lo")

	here.Run(t, "cp", "/job/busybox", "/usr/local/bin/busybox")
	write(t, "/etc/systemd/system/server.service", server)
	write(t, "/etc/sysctl.d/99-otherwise.conf", otherwise)
	systemctl(t, "enable", "--now", "server")
	awaitFailed(t, "server") // there is no such address: that it comes too early can be seen

	for _, line := range recipe(t, "systemctl enable --now rsagent rsagent-online") {
		if line.Command == "systemctl reload rsagent" {
			holds(t, "10.9.0.100", "10.9.0.101")
			write(t, yamlFile, "vips:\n  - 10.9.0.100\n  - address: 10.9.0.101\n    mode: tun\n")
		}
		typed(t, line)
	}
	typed(t, docs.Line{Command: strings.Replace(docs.Command(readme(t), "systemctl enable --now rsagent@"), "192.0.2.100", "10.9.0.102", 1)})
	holds(t, "10.9.0.100", "10.9.0.101 tunl0", "10.9.0.102")
	setAddress(t, 2)
}

func awaitFailed(t *testing.T, unit string) {
	t.Helper()
	testnet.Eventually(t, unit+" to fail", func() bool { return here.Try("systemctl", "is-failed", unit).Code == 0 })
}

// TestBoot2: at power-on the units bind the VIPs, before a server that needs them, and nobody outside ever hears of it.
func TestBoot2(t *testing.T) {
	guest.Need(t)
	for _, unit := range []string{"rsagent.service", "rsagent@10.9.0.102.service", "server.service"} {
		isActive(t, unit, "active")
	}
	if text := journal(t, "rsagent-online.service", ""); !strings.Contains(text, "up: ") {
		t.Errorf("rsagent-online.service says %q", text)
	}
	holds(t, "10.9.0.100", "10.9.0.101 tunl0", "10.9.0.102")
	exits(t, 0, "rsagent", "status")
	t.Log(here.Run(t, "rsagent", "status"))
	for _, addr := range []string{"10.9.0.100", "10.9.0.101", "10.9.0.102", rip(2)} {
		asked(t, addr)
	}
	order(t, "systemd-sysctl.service", "rsagent.service", "network.target", "server.service")
	order(t, "systemd-sysctl.service", "rsagent@10.9.0.102.service", "network.target")
	order(t, "network-online.target", "rsagent-online.service")

	// A stop puts back what sysctl.d had set, but for the VIP of the instance, which still must be silent.
	systemctl(t, "stop", "rsagent")
	holds(t, "10.9.0.102")
	asked(t, "10.9.0.100")
	systemctl(t, "stop", "rsagent@10.9.0.102")
	holds(t)
	for _, name := range []string{"all", "lo", "tunl0"} {
		for knob, want := range map[string]string{"arp_ignore": "0", "arp_announce": "0", "rp_filter": "1"} {
			if got := here.IPv4Conf(t, name, knob); got != want {
				t.Errorf("%s.%s is %s after the stop, want %s", name, knob, got, want)
			}
		}
	}
	before := here.Snapshot(t)
	systemctl(t, "start", "rsagent")
	asked(t, "10.9.0.101")
	systemctl(t, "stop", "rsagent")
	equal(t, before)
	setUpInit(t)
}

// order: each of the units was there before the next one began.
func order(t *testing.T, units ...string) {
	t.Helper()
	property := func(name, unit string) int {
		n, err := strconv.Atoi(strings.TrimSpace(here.Run(t, "systemctl", "show", "-P", name, unit)))
		if err != nil || n == 0 {
			t.Errorf("%s: %s is %d, %v", unit, name, n, err)
		}
		return n
	}
	for i := range units[1:] {
		began := "InactiveExitTimestampMonotonic"
		if strings.HasSuffix(units[i+1], ".target") {
			began = "ActiveEnterTimestampMonotonic" // it has no other
		}
		if property("ActiveEnterTimestampMonotonic", units[i]) > property(began, units[i+1]) {
			t.Errorf("%s began before %s was there", units[i+1], units[i])
		}
	}
}

// setUpInit makes the guest one that has the init script and no unit, set up by the recipe.
func setUpInit(t *testing.T) {
	t.Helper()
	systemctl(t, "disable", "server", "rsagent", "rsagent-online", "rsagent@10.9.0.102")
	remove(t, unitFiles+"rsagent.service", unitFiles+"rsagent@.service", unitFiles+"rsagent-online.service")
	systemctl(t, "daemon-reload")
	for _, line := range recipe(t, "update-rc.d") {
		typed(t, line)
	}
	holds(t, "10.9.0.100", "10.9.0.101")
	setAddress(t, 3)
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBoot3: the same for the init script, by Debian's service.
func TestBoot3(t *testing.T) {
	guest.Need(t)
	says(t, here.Run(t, "systemctl", "show", "-P", "SourcePath", "rsagent"), initScript)
	isActive(t, "rsagent", "active")
	holds(t, "10.9.0.100", "10.9.0.101")
	for _, addr := range []string{"10.9.0.100", "10.9.0.101", rip(3)} {
		asked(t, addr)
	}
	exits(t, 0, "service", "rsagent", "status")
	write(t, defaultFile, "VIP=\"10.9.0.101 10.9.0.104\"\n")
	moves(t, func() { exits(t, 0, "service", "rsagent", "reload") }, "-10.9.0.100", "+10.9.0.104")
	write(t, defaultFile, "VIP=\"10.9.0.101 10.9.0.l04\"\n")
	moves(t, func() { exits(t, 1, "service", "rsagent", "reload") })
	says(t, here.Run(t, "journalctl", "-u", "rsagent", "-o", "cat"), `VIP= in /etc/default/rsagent: "10.9.0.l04" is not an IP address`)
	moves(t, func() { exits(t, 0, "service", "rsagent", "stop") }, "-10.9.0.101", "-10.9.0.104")
	exits(t, 1, "service", "rsagent", "start")
	exits(t, 3, "service", "rsagent", "status")
	holds(t)

	here.Run(t, "update-rc.d", "rsagent", "remove")
	remove(t, "/usr/sbin/rsagent", "/usr/lib/rsagent", "/usr/share/man/man8/rsagent.8", initScript, "/etc/rsagent", defaultFile,
		"/run/rsagent", "/usr/share/zsh/site-functions/_rsagent", "/usr/share/fish/vendor_completions.d/rsagent.fish",
		"/usr/share/bash-completion/completions/rsagent")
	systemctl(t, "daemon-reload")
	systemctl(t, "reset-failed")
}
