package services

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

const healthDropIn = "/etc/systemd/system/rsagent-health.socket.d"

// hears asks at an address of the guest's, as a director does, and returns all of the answer.
func hears(t *testing.T, at, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, request)
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func healthy(t *testing.T, at, path string, want int) {
	t.Helper()
	if said := hears(t, at, "GET "+path+" HTTP/1.0\r\n\r\n"); !strings.HasPrefix(said, fmt.Sprintf("HTTP/1.1 %d ", want)) {
		t.Errorf("GET %s: %q, want %d", path, said, want)
	}
}

// noneLeft waits until systemd knows of no connection's unit any more, however it ended.
func noneLeft(t *testing.T) {
	t.Helper()
	testnet.Eventually(t, "the units of the connections to go", func() bool {
		return strings.TrimSpace(here.Run(t, "systemctl", "list-units", "--all", "--plain", "--no-legend", "rsagent-health@*")) == ""
	})
}

// TestHealth: by the recipe the socket listens on the RIP, on which it answers for the VIPs; neither many at once, nor slow
// clients, nor nonsense end that, or leave anything behind.
func TestHealth(t *testing.T) {
	newSite(t)
	t.Cleanup(func() {
		systemctl(t, "disable", "--now", "rsagent-health.socket")
		os.RemoveAll(healthDropIn)
		systemctl(t, "daemon-reload")
	})
	systemctl(t, "start", "rsagent-health.socket")
	healthy(t, "127.0.0.1:5380", "/", 503)
	if conn, err := net.Dial("tcp", rip(3)+":5380"); err == nil {
		conn.Close()
		t.Error("without the drop-in it listens on the RIP")
	}
	systemctl(t, "stop", "rsagent-health.socket")
	for _, line := range recipe(t, "rsagent-health.socket") {
		line.Command = strings.ReplaceAll(line.Command, "10.9.0.11:", rip(3)+":")
		typed(t, line)
	}
	at := rip(3) + ":5380"
	healthy(t, at, "/10.9.0.104", 503)
	configure(t, "10.9.0.104", "10.9.0.105")
	systemctl(t, "start", "rsagent")
	healthy(t, at, "/10.9.0.104", 200)
	healthy(t, at, "/", 200)
	here.Run(t, "ip", "addr", "del", "10.9.0.104/32", "dev", "lo")
	healthy(t, at, "/10.9.0.104", 503)
	healthy(t, at, "/10.9.0.105", 200)
	systemctl(t, "reload", "rsagent")
	healthy(t, at, "/10.9.0.104", 200)

	// With --arp-guard nft it takes the right to see nftables.
	here.Run(t, "rsagent", "start", "--vip", "10.9.0.106", "--arp-guard", "nft")
	healthy(t, at, "/10.9.0.106", 200)
	here.Run(t, "rsagent", "stop", "--vip", "10.9.0.106")

	for _, nonsense := range []string{"x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "POST / HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\n\r\n"} {
		if said := hears(t, at, nonsense); !strings.HasPrefix(said, "HTTP/1.1 40") {
			t.Errorf("%q: %q", nonsense, said)
		}
	}
	// Many at once (as many as one source may have would keep this guest busy for minutes): each is answered, or told
	// after 5 s that it said nothing.
	const many, slow = 20, 3
	var all []net.Conn
	for range many {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	answered := map[string]int{}
	for i, conn := range all {
		if i >= slow { // the first say nothing
			fmt.Fprint(conn, "GET /10.9.0.104 HTTP/1.0\r\n\r\n")
		}
	}
	for _, conn := range all {
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		b, _ := io.ReadAll(conn)
		status, _, _ := strings.Cut(string(b), "\r\n")
		answered[status]++
		conn.Close()
	}
	t.Logf("%d at once: %v", many, answered)
	for status := range answered {
		if status != "HTTP/1.1 200 OK" && status != "HTTP/1.1 408 Request Timeout" {
			t.Errorf("some of %d at once are answered %q", many, status)
		}
	}
	if n := answered["HTTP/1.1 200 OK"]; n != many-slow {
		t.Errorf("%d of %d are answered", n, many-slow)
	}
	isActive(t, "rsagent-health.socket", "active")
	healthy(t, at, "/10.9.0.104", 200)
	noneLeft(t)
	if said := here.Run(t, "systemctl", "list-units", "--failed", "--plain", "--no-legend", "rsagent*"); strings.TrimSpace(said) != "" {
		t.Errorf("failed: %s", said)
	}
	holds(t, "10.9.0.104", "10.9.0.105")
}

// TestMetrics: by the recipe the metrics are in the collector's folder, where there is one, and say what status does.
func TestMetrics(t *testing.T) {
	newSite(t)
	const dir, file = "/var/lib/prometheus/node-exporter", "/var/lib/prometheus/node-exporter/rsagent.prom"
	t.Cleanup(func() {
		systemctl(t, "disable", "--now", "rsagent-metrics.timer")
		os.RemoveAll("/var/lib/prometheus")
	})
	systemctl(t, "start", "rsagent-metrics.service")
	if _, err := os.Stat(dir); err == nil {
		t.Fatalf("there is %s without an exporter", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	typed(t, docs.Line{Command: strings.TrimPrefix(docs.Command(readme(t), "sudo systemctl enable --now rsagent-metrics"), "sudo ")})
	written := func(want string) {
		t.Helper()
		testnet.Eventually(t, "the metrics to say "+want, func() bool {
			b, _ := os.ReadFile(file)
			return strings.Contains(string(b), "\n"+want+"\n") && strings.HasSuffix(string(b), "\n# EOF\n")
		})
	}
	written(`rsagent_state{state="down"} 1`)
	configure(t, "10.9.0.104")
	systemctl(t, "start", "rsagent")
	written(`rsagent_vip_state{vip="10.9.0.104",mode="dr",device="lo",state="up"} 1`)
	here.Run(t, "rsagent", "start", "--vip", "10.9.0.106", "--arp-guard", "nft") // it takes the right to see nftables
	here.SetIPv4Conf(t, "all", "arp_announce", "1")                              // not arp_ignore: nobody is to hear of the VIP
	systemctl(t, "start", "rsagent-metrics.service")                             // drifted is no failure of it
	written(`rsagent_vip_state{vip="10.9.0.104",mode="dr",device="lo",state="drifted"} 1`)
	written(`rsagent_vip_state{vip="10.9.0.106",mode="dr",device="lo",state="up"} 1`)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", st, err)
	}
	here.Run(t, "rsagent", "restart")
}
