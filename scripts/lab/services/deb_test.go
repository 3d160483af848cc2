package services

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// purge takes the package off, with all that it leaves.
func purge(t *testing.T) {
	t.Helper()
	here.Run(t, "dpkg", "-P", "rsagent")
}

// leavings are the files of the guest that have to do with rsagent, but for dpkg's and this test's own.
func leavings(t *testing.T) []string {
	t.Helper()
	found := here.Run(t, "find", "/etc", "/usr", "/run", "/var", "/lib/systemd", "-name", "*rsagent*", "-not", "-path", "/var/log/*")
	out := strings.Fields(found)
	slices.Sort(out)
	return out
}

// TestDeb: installed, it does nothing yet; removed, it has taken all VIPs back; purged, it leaves nothing.
func TestDeb(t *testing.T) {
	before := newSite(t)
	t.Cleanup(func() { install(t, newDeb) })
	purge(t)
	if found := leavings(t); len(found) > 0 {
		t.Errorf("found before: %q", found)
	}
	moves(t, func() { install(t, oldDeb) })
	equal(t, before)
	for _, unit := range []string{"rsagent.service", "rsagent-watch.service", "rsagent-online.service", "rsagent-health.socket", "rsagent-metrics.timer"} {
		isActive(t, unit, "inactive")
		says(t, exits(t, 1, "systemctl", "is-enabled", unit), "disabled")
	}
	says(t, here.Run(t, "rsagent", "version"), "rsagent 1.0.0 ")
	exits(t, 6, "rsagent", "start")

	// By the file, an instance and by hand.
	configure(t, "10.9.0.104")
	systemctl(t, "enable", "--now", "rsagent", "rsagent@10.9.0.105", "rsagent-watch", "rsagent-online", "rsagent-health.socket", "rsagent-metrics.timer")
	here.Run(t, "rsagent", "start", "--vip", "10.9.0.106")
	holds(t, "10.9.0.104", "10.9.0.105", "10.9.0.106")

	here.Run(t, "dpkg", "-r", "rsagent")
	equal(t, before)
	for _, unit := range []string{"rsagent.service", "rsagent@10.9.0.105.service", "rsagent-watch.service", "rsagent-online.service", "rsagent-health.socket", "rsagent-metrics.timer"} {
		isActive(t, unit, "inactive")
	}
	if enabled, _ := filepath.Glob("/etc/systemd/system/*.wants/rsagent*"); len(enabled) > 0 {
		t.Errorf("enabled: %q", enabled)
	}
	said := exits(t, 5, initScript, "start")
	says(t, said, "is not installed")

	purge(t)
	if found := leavings(t); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// TestDebUpgrade: the VIPs are bound all the time, no connection is lost, no packet comes to a host without its VIP;
// then the new program looks after them.
func TestDebUpgrade(t *testing.T) {
	before := newSite(t)
	here.Run(t, "dpkg", "-i", "--force-downgrade", oldDeb)
	configure(t, "10.9.0.104")
	systemctl(t, "enable", "--now", "rsagent", "rsagent@10.9.0.105", "rsagent-watch")
	old := theWatcher(t)
	c := newClient(t, "10.9.0.104", "10.9.0.105")
	configure(t, "10.9.0.104", "10.9.0.106") // the upgrade reloads
	moves(t, func() {
		c.whole(t, func() { here.Run(t, "dpkg", "-i", newDeb) })
	}, "+10.9.0.106")
	says(t, here.Run(t, "rsagent", "version"), "rsagent 1.1.0 ")
	old = another(t, old)
	old.runs(t, "/usr/sbin/rsagent")
	for _, unit := range []string{"rsagent.service", "rsagent@10.9.0.105.service", "rsagent-watch.service"} {
		isActive(t, unit, "active")
		exits(t, 0, "systemctl", "is-enabled", unit)
	}
	exits(t, 0, "rsagent", "status")
	says(t, here.Run(t, "cat", yamlFile), "10.9.0.106") // a conffile that was edited stays

	// So that this can fail: a restart is seen, if not by each packet.
	if lost := c.lost(t, func() {
		for range 3 {
			systemctl(t, "restart", "rsagent", "rsagent@10.9.0.105")
		}
	}); lost == 0 {
		t.Error("a restart of the units lost no packet: this test cannot fail")
	}
	another(t, old) // it is restarted with rsagent.service

	// A config that cannot be is no reason to fail the upgrade, nor to take anything away.
	write(t, yamlFile, "vips: [nonsense]\n")
	moves(t, func() {
		c.whole(t, func() { says(t, exits(t, 0, "dpkg", "-i", newDeb), "could not reload") })
	})
	systemctl(t, "disable", "--now", "rsagent", "rsagent@10.9.0.105", "rsagent-watch")
	c.unplug(t)
	equal(t, before)
}

// client is a host that reaches the guest's VIPs by a cable of its own.
type client struct {
	host *testnet.Host
	vips []string
}

func newClient(t *testing.T, vips ...string) *client {
	t.Helper()
	c := &client{testnet.NewHost(t, "client"), vips}
	here.Run(t, "ip", "link", "add", "name", "cable0", "type", "veth", "peer", "name", "eth0", "netns", c.host.Name)
	t.Cleanup(func() { here.Try("ip", "link", "del", "cable0") })
	for h, cmd := range map[*testnet.Host]string{here: "cable0 10.8.0.11/24", c.host: "eth0 10.8.0.10/24"} {
		dev, addr, _ := strings.Cut(cmd, " ")
		h.Run(t, "ip", "link", "set", dev, "addrgenmode", "none", "up") // no IPv6 address that comes late
		h.Run(t, "ip", "addr", "add", addr, "dev", dev)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:8104")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); io.Copy(conn, conn) }()
		}
	}()
	for _, v := range vips {
		c.host.Run(t, "ip", "route", "add", v, "via", "10.8.0.11")
	}
	return c
}

func (c *client) unplug(t *testing.T) {
	t.Helper()
	here.Run(t, "ip", "link", "del", "cable0")
}

// whole: while f runs, connections are made to each VIP and talk, some of them all the time; none fails, and no packet
// for a VIP comes to a host that does not hold it.
func (c *client) whole(t *testing.T, f func()) {
	t.Helper()
	if lost := c.lost(t, f); lost != 0 {
		t.Errorf("%d packets came while the VIP was not there", lost)
	}
}

// lost runs f under traffic, and counts the packets for addresses that the guest did not hold.
func (c *client) lost(t *testing.T, f func()) int {
	t.Helper()
	var talk, done atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, len(c.vips))
	before := c.strays(t)
	for _, v := range c.vips {
		go func() {
			ended <- c.talk(v, stop, &talk)
			done.Add(1)
		}()
	}
	await := func(n int64) {
		goal := talk.Load() + n
		testnet.Eventually(t, "traffic", func() bool { return talk.Load() >= goal || done.Load() > 0 })
	}
	await(20)
	f()
	await(20)
	close(stop)
	for range c.vips {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	lost := c.strays(t) - before
	t.Logf("%d words were said and heard again, %d packets lost", talk.Load(), lost)
	return lost
}

func (c *client) strays(t *testing.T) int {
	t.Helper()
	var all struct{ Kernel map[string]int }
	if err := json.Unmarshal([]byte(here.Run(t, "nstat", "-asz", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	return all.Kernel["IpInAddrErrors"]
}

// talk keeps one connection, and makes new ones beside it.
func (c *client) talk(vip string, stop chan struct{}, count *atomic.Int64) error {
	long, err := c.dial(vip)
	if err != nil {
		return err
	}
	defer long.Close()
	for {
		began := time.Now()
		select {
		case <-stop:
			return nil
		default:
		}
		short, err := c.dial(vip)
		if err != nil {
			return err
		}
		err = errors.Join(echo(long), echo(short))
		short.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", vip, err)
		}
		count.Add(1)
		time.Sleep(3 * time.Since(began)) // the guest has other things to do
	}
}

func (c *client) dial(vip string) (conn net.Conn, err error) {
	c.host.Do(func() { conn, err = net.DialTimeout("tcp4", vip+":8104", time.Minute) })
	return conn, err
}

func echo(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintln(conn, "word"); err != nil {
		return err
	}
	_, err := bufio.NewReader(conn).ReadString('\n')
	return err
}
