package testnet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestHostsAreApart(t *testing.T) {
	a, b := NewHost(t, "a"), NewHost(t, "b")
	before := b.IPv4Conf(t, "all", "arp_ignore")
	a.SetIPv4Conf(t, "all", "arp_ignore", "8")
	if got := a.IPv4Conf(t, "all", "arp_ignore"); got != "8" {
		t.Errorf("wrote 8, read %s", got)
	}
	if got := b.IPv4Conf(t, "all", "arp_ignore"); got != before {
		t.Errorf("the other host's went from %s to %s", before, got)
	}
}

func TestDoNests(t *testing.T) {
	a, b := NewHost(t, "a"), NewHost(t, "b")
	id := func() string { ns, _ := os.Readlink("/proc/thread-self/ns/net"); return ns }
	home := id()
	a.Do(func() {
		outer := id()
		b.Do(func() {
			if id() == outer || outer == home {
				t.Error("not in another namespace")
			}
		})
		if id() != outer {
			t.Error("the inner call did not come back")
		}
	})
	if id() != home {
		t.Error("the outer call did not come back")
	}
}

func TestTryTellsTheExitCode(t *testing.T) {
	h := NewHost(t, "a")
	r := h.Exec(Cmd{Args: []string{"sh", "-c", `cat; echo "$WORD" >&2; exit 7`}, Env: []string{"WORD=err"}, Stdin: "in"})
	if r != (Result{Stdout: "in", Stderr: "err\n", Code: 7}) {
		t.Errorf("got %+v", r)
	}
	if r := h.Try("/no/such/command"); r.Code != -1 || r.Stderr == "" {
		t.Errorf("got %+v", r)
	}
}

func TestSegmentAsker(t *testing.T) {
	s := NewSegment(t, "lan")
	client, server, other := NewHost(t, "client"), NewHost(t, "server"), NewHost(t, "other")
	s.Join(t, client, "eth0", "10.0.0.1/24")
	s.Join(t, server, "eth0.100", "10.0.0.11/24", "10.0.0.12/24")
	s.Join(t, other, "eth0", "")
	for _, network := range []string{"tcp", "udp"} {
		if err := client.Call(network, server.Echo(t, network, "10.0.0.12")); err != nil {
			t.Error(err)
		}
	}
	if client.Resolve(t, "eth0", "10.0.0.12") == "" || client.Resolve(t, "eth0", "10.0.0.13") != "" {
		t.Error("the kernel should learn .12 and not .13")
	}

	asker := client.AskARP(t, "eth0", "10.0.0.12", time.Millisecond)
	asker.Await(t, 20)
	asked, replies := asker.Stop()
	if asked < 20 || len(replies) != 1 {
		t.Errorf("one host should answer %d requests, got %v", asked, replies)
	}
	probe := other.AskARP(t, "eth0", "10.0.0.13", time.Millisecond)
	probe.Await(t, 20)
	if _, replies := probe.Stop(); len(replies) != 0 {
		t.Errorf("nobody has the address, got %v", replies)
	}
}

func TestAskerOutlivesALinkGoingDown(t *testing.T) {
	a, b := NewHost(t, "a"), NewHost(t, "b")
	Wire(t, a, "eth0", "10.0.0.1/24", b, "eth0", "10.0.0.2/24")
	asker := a.AskARP(t, "eth0", "10.0.0.2", time.Millisecond)
	asker.Await(t, 5)
	a.Run(t, "ip", "link", "set", "eth0", "down")
	b.SetIPv4Conf(t, "all", "arp_ignore", "8")
	a.Run(t, "ip", "link", "set", "eth0", "up")
	asker.Await(t, 5)
	b.SetIPv4Conf(t, "all", "arp_ignore", "0")
	asker.Await(t, 5)
	asked, replies := asker.Stop()
	total := 0
	for _, n := range replies {
		total += n
	}
	if asked < 15 || total < 6 {
		t.Errorf("asked %d times, got %v", asked, replies)
	}
}

func TestSnapshotSeesEachKindOfChange(t *testing.T) {
	a, b := NewHost(t, "a"), NewHost(t, "b")
	Wire(t, a, "eth0", "10.0.0.1/24", b, "eth0", "")
	before := a.Snapshot(t)
	if diff := Diff(before, a.Snapshot(t)); diff != "" {
		t.Fatalf("nothing was done, but:\n%s", diff)
	}
	for _, c := range []struct{ do, undo, shows string }{
		{"ip addr add 10.0.0.100/32 dev lo scope host", "ip addr del 10.0.0.100/32 dev lo", "10.0.0.100"},
		{"ip addr add 2001:db8::1/128 dev lo", "ip addr del 2001:db8::1/128 dev lo", "2001:db8::1"},
		{"ip route add 192.0.2.0/24 dev eth0 table 7", "ip route del 192.0.2.0/24 dev eth0 table 7", "192.0.2.0"},
		{"ip link set eth0 arp off", "ip link set eth0 arp on", "NOARP"},
		{"ip rule add to 192.0.2.1 table 7", "ip rule del to 192.0.2.1 table 7", "192.0.2.1"},
		{"ip link set lo mtu 1400", "ip link set lo mtu 65536", "1400"},
	} {
		a.Run(t, strings.Fields(c.do)...)
		if diff := Diff(before, a.Snapshot(t)); !strings.Contains(diff, c.shows) {
			t.Errorf("%s does not show:\n%s", c.do, diff)
		}
		a.Run(t, strings.Fields(c.undo)...)
		if diff := Diff(before, a.Snapshot(t)); diff != "" {
			t.Errorf("after %s:\n%s", c.undo, diff)
		}
	}
	a.SetIPv4Conf(t, "eth0", "medium_id", "3")
	if diff := Diff(before, a.Snapshot(t)); !strings.Contains(diff, "medium_id") {
		t.Errorf("a written knob does not show:\n%s", diff)
	}
}

func TestSkipIsCollected(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips")
	t.Setenv("RSAGENT_SKIPS", list)
	t.Setenv("RSAGENT_TEST_ALL", "")
	t.Run("inner", func(t *testing.T) { Skip(t, "this is a test of skipping") })
	text, _ := os.ReadFile(list)
	if want := "TestSkipIsCollected/inner: this is a test of skipping\n"; string(text) != want {
		t.Errorf("collected %q, want %q", text, want)
	}
}

func TestProcessIsAwaited(t *testing.T) {
	h := NewHost(t, "a")
	p := h.Start(t, "sh", "-c", "trap 'echo bye; exit' INT; echo ready; while :; do sleep 0.01; done")
	p.Await(t, "ready")
	if said := p.Stop(); said != "ready\nbye\n" {
		t.Errorf("said %q", said)
	}
}
