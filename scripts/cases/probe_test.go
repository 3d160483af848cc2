package cases

import (
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// neighbour is a further host on a segment with the site's real server.
func neighbour(t *testing.T, segment *testnet.Segment, label, cidr, mac string) *testnet.Host {
	t.Helper()
	h := testnet.NewHost(t, label)
	segment.Join(t, h, "eth0", cidr)
	h.Run(t, "ip", "link", "set", "eth0", "address", mac)
	return h
}

// check --probe names who answers for the VIP, from a real server that itself is silent: nobody, the director, or a second
// real server with bare guards beside it. What it asks names the VIP as nobody's own.
func TestProbe(t *testing.T) {
	testnet.Need(t, "setpriv", "tcpdump")
	const ofDirector, ofBare = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
	s := &site{rs: testnet.NewHost(t, "rs"), bin: testnet.Rsagent(t), state: t.TempDir() + "/state"}
	segment := testnet.NewSegment(t, "lan")
	segment.Join(t, s.rs, "eth0", rip+"/24")
	director := neighbour(t, segment, "director", "10.0.0.2/24", ofDirector)
	bare := neighbour(t, segment, "bare", "10.0.0.12/24", ofBare)
	s.do(t, "start", "--vip", vip)
	wire := director.Start(t, "tcpdump", "-lni", "eth0", "arp and host "+vip)
	wire.Await(t, "listening on")

	probe := func(code int, finding string, words ...string) {
		t.Helper()
		before := s.files(t)
		r := s.ask(t, code, "check", "--probe")
		var found []string
		for _, f := range r.Findings {
			if strings.HasPrefix(f.Code, "claimed") {
				found = append(found, f.Level+" "+f.Code+" "+f.Subject)
			}
		}
		if !slices.Equal(found, []string{finding + " " + vip}) || !r.says(append(words, finding)...) {
			t.Errorf("it finds %q in %+v, want %s with %q", found, r.Findings, finding, words)
		}
		if s.files(t) != before {
			t.Error("it wrote to the state directory")
		}
	}
	probe(0, "warning claimed-by-nobody")
	director.Run(t, "ip", "addr", "add", vip+"/32", "dev", "eth0")
	probe(0, "info claimed", ofDirector)
	bare.Run(t, "ip", "addr", "add", vip+"/32", "dev", "lo")
	s.rs.Run(t, "ip", "neigh", "replace", "10.0.0.12", "lladdr", ofBare, "dev", "eth0")
	probe(1, "error claimed-by-several", ofDirector, ofBare+" (10.0.0.12)")

	// By the cure it is the director's alone again.
	other := &site{rs: bare, bin: s.bin, state: t.TempDir() + "/state"}
	other.ask(t, 0, "start", "--vip", vip)
	probe(0, "info claimed", ofDirector)
	for line := range strings.Lines(wire.Stop()) {
		if strings.Contains(line, "tell "+vip) {
			t.Errorf("somebody asked as the VIP: %s", line)
		}
	}

	// Without the right, what could be seen is still told.
	command := append([]string{"setpriv", "--bounding-set=-net_raw"}, s.args("check", "--probe", "-o", "json")...)
	if got := parse(t, 4, "check", command, s.rs.Try(command...)); !got.says("unseen", "CAP_NET_RAW") {
		t.Errorf("without CAP_NET_RAW: %+v", got)
	}
}
