package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// health answers health checks on the real server's own address as the units of scripts/systemd do: one process for each
// connection, which is its stdin and stdout.
type health struct {
	*site
	listener *testnet.Process
	at       string
}

func (s *site) health(t *testing.T, timeout string) *health {
	t.Helper()
	testnet.Need(t, "systemd-socket-activate")
	h := &health{site: s, at: net.JoinHostPort(rip, "5380")}
	args := append([]string{"systemd-socket-activate", "--accept", "--inetd", "--listen=" + h.at}, s.args("status", "-o", "http", "--timeout", timeout)...)
	h.listener = s.rs.Start(t, args...)
	h.listener.Await(t, "Listening on")
	return h
}

// dial connects the neighbour, which plays director.
func (h *health) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	var conn net.Conn
	var err error
	h.peer.Do(func() { conn, err = net.Dial("tcp", h.at) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// get asks as any HTTP client does, and returns status code and body.
func (h *health) get(t *testing.T, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return h.dial(t), nil
	}}}
	r, err := client.Get("http://" + h.at + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func (h *health) expect(t *testing.T, path string, code int, state string) {
	t.Helper()
	got, body := h.get(t, path)
	var r report
	if err := json.Unmarshal([]byte(body), &r); err != nil || got != code || r.State != state {
		t.Errorf("GET %s: %d, %v: %s\nwant %d, %s", path, got, err, body, code, state)
	}
}

// alone waits until no process is left of any connection.
func (h *health) alone(t *testing.T) {
	t.Helper()
	pid := strconv.Itoa(h.listener.Pid())
	testnet.Eventually(t, "each connection's process to end", func() bool {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		return err == nil && len(children) == 0
	})
}

// A director's health check hears whether this host would serve the VIP, and changes nothing by asking.
func TestHealth(t *testing.T) {
	s := newSite(t)
	h := s.health(t, "1m")
	h.expect(t, "/", 503, "down")
	h.expect(t, "/"+vip, 503, "down")
	s.do(t, "start", "--vip", vip+","+vip2)
	host, journal := s.rs.Snapshot(t), s.files(t)
	h.expect(t, "/", 200, "up")
	h.expect(t, "/"+vip, 200, "up")
	s.mustBe(t, host)
	if now := s.files(t); now != journal {
		t.Errorf("a health check wrote:\n%s\nwas:\n%s", now, journal)
	}

	s.rs.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
	h.expect(t, "/", 503, "drifted")
	h.expect(t, "/"+vip, 503, "drifted")
	h.expect(t, "/"+vip2, 200, "up")
	s.ask(t, 0, "restart")
	h.expect(t, "/"+vip, 200, "up")
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "0")
	h.expect(t, "/"+vip2, 503, "drifted")
	s.ask(t, 0, "stop")
	h.expect(t, "/", 503, "down")

	// One that the old script holds is none of rsagent's, and is served.
	s.rs.SetIPv4Conf(t, "all", "arp_ignore", "1")
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "2")
	s.rs.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	h.expect(t, "/"+vip, 200, "up")
	if code, _ := h.get(t, "/nonsense"); code != 404 {
		t.Errorf("GET /nonsense: %d", code)
	}
	h.alone(t)
}

// Two hundred connections at once are answered, each as if it were alone, also while others hold theirs and say nothing.
func TestHealthManyAtOnce(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	h := s.health(t, "5m")
	var slow, all []*net.TCPConn
	for i := range 20 {
		conn := h.dial(t)
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: "[:i])
		slow = append(slow, conn)
	}
	for range 200 {
		all = append(all, h.dial(t))
	}
	for _, conn := range all {
		fmt.Fprintf(conn, "GET /%s HTTP/1.0\r\n\r\n", vip)
	}
	for i, conn := range all {
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 ") || !strings.Contains(string(b), `"state":"up"`) {
			t.Fatalf("connection %d: %v: %s", i, err, b)
		}
	}
	for _, conn := range slow {
		conn.SetLinger(0) // gone without a word
		conn.Close()
	}
	h.alone(t)
	h.expect(t, "/", 200, "up")
}

// A client that says nothing, or takes next to nothing, is not waited for beyond --timeout.
func TestHealthSlowClients(t *testing.T) {
	s := newSite(t)
	var vips []string
	for i := range 2000 {
		vips = append(vips, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	s.ask(t, 0, "start", "--vip", strings.Join(vips, ","))
	s.rs.SetSysctl(t, "ipv4", "tcp_wmem", "4096 4096 4096") // so that a response is more than the two kernels keep
	s.peer.SetSysctl(t, "ipv4", "tcp_rmem", "4096 4096 4096")
	h := s.health(t, "1s")
	for _, said := range []string{"", "GET / HTT"} {
		conn := h.dial(t)
		fmt.Fprint(conn, said)
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 408 ") {
			t.Errorf("said %q: %v: %s", said, err, b)
		}
	}
	conn := h.dial(t)
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
	first := make([]byte, 1) // the answer has begun
	if _, err := io.ReadFull(conn, first); err != nil {
		t.Fatal(err)
	}
	h.alone(t)
	if b, _ := io.ReadAll(conn); !strings.HasPrefix(string(first)+string(b), "HTTP/1.1 200 ") || strings.HasSuffix(string(b), "}\n") {
		t.Errorf("a client that takes nothing was given all of %d bytes: this test cannot fail", 1+len(b))
	}
}

// What monitors read writes nothing.
func TestHealthWritesNothing(t *testing.T) {
	s := newSite(t)
	s.do(t, "start", "--vip", vip)
	for _, form := range []string{"prometheus", "http"} {
		r, did := s.traced(t, testnet.Cmd{Args: s.args("status", "-o", form), Stdin: "GET / HTTP/1.0\r\n\r\n"})
		if r.Code != 0 || len(did) > 0 {
			t.Errorf("status -o %s: exit %d; writes:\n%s", form, r.Code, strings.Join(did, "\n"))
		}
	}
}
