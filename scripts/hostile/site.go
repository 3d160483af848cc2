package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

const (
	rip    = "10.0.0.11"
	peerIP = "10.0.0.1"
)

// vips names the first n VIPs of these tests.
func vips(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint("10.0.0.", 100+i))
	}
	return out
}

// A site is a real server, and a neighbour on the same wire.
type site struct {
	t        *testing.T
	rs, peer *testnet.Host
	mode     string
	bin      string
	state    string // --state-dir
	config   string
	probe    *prober
}

// newSite makes one with values that were set before, so that putting back is not the same as writing zeros.
func newSite(t *testing.T, mode string) *site {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // others than root come here too
		t.Fatal(err)
	}
	s := &site{t: t, mode: mode, bin: testnet.Rsagent(t), state: filepath.Join(dir, "state"), config: filepath.Join(dir, "rsagent.yaml")}
	s.peer, s.rs = testnet.NewHost(t, "peer"), testnet.NewHost(t, "rs")
	testnet.Wire(t, s.rs, "eth0", rip+"/24", s.peer, "eth0", peerIP+"/24")
	s.rs.SetIPv4Conf(t, "all", "arp_announce", "1")
	if mode == "tun" {
		s.rs.SetIPv4Conf(t, "all", "rp_filter", "1")
	}
	s.probe = newProber(t, s.peer, "eth0", peerIP, rip)
	return s
}

// device is where the mode puts a VIP.
func (s *site) device() string {
	if s.mode == "tun" {
		return "tunl0"
	}
	return "lo"
}

// args is a command line of rsagent.
func (s *site) args(verb string, more ...string) []string {
	return append([]string{s.bin, verb, "--state-dir", s.state}, more...)
}

// start is the verb for these VIPs.
func (s *site) start(addrs []string) []string {
	return s.args("start", "--mode", s.mode, "--vip", strings.Join(addrs, ","))
}

// must runs a command that must end with the code given.
func (s *site) must(code int, args []string) testnet.Result {
	s.t.Helper()
	r := s.rs.Try(args...)
	if r.Code != code {
		s.t.Fatalf("%v: exit %d, want %d\n%s%s", args[1:], r.Code, code, r.Stdout, r.Stderr)
	}
	return r
}

// configure writes the config file.
func (s *site) configure(addrs []string) {
	s.t.Helper()
	text := "mode: " + s.mode + "\nvips: [" + strings.Join(addrs, ", ") + "]\n"
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// bound tells the addresses that the host holds on any device, with the devices.
func (s *site) bound(addrs []string) map[string][]string {
	s.t.Helper()
	out := map[string][]string{}
	for dev, held := range s.rs.Snapshot(s.t).Addrs {
		for _, a := range held {
			if slices.Contains(addrs, a.Local) {
				out[a.Local] = append(out[a.Local], fmt.Sprintf("%s/%d", dev, a.PrefixLen))
			}
		}
	}
	return out
}

// silent holds the host to the first promise, by the neighbour's ears and by the kernel's settings: whatever is bound is
// not answered for.
func (s *site) silent(addrs []string) error {
	said, err := s.probe.answered(addrs...)
	if err != nil || len(said) > 0 {
		return fmt.Errorf("ARP is answered for %v (%w)", said, err)
	}
	if len(s.bound(addrs)) == 0 {
		return nil
	}
	ignore, announce := s.effective("arp_ignore"), s.effective("arp_announce")
	if announce != "2" || !slices.Contains([]string{"1", "2", "3", "8"}, ignore) { // 3: the VIPs have scope host
		return fmt.Errorf("VIPs are bound, and eth0 has arp_ignore %s, arp_announce %s in effect", ignore, announce)
	}
	return nil
}

func (s *site) effective(knob string) string {
	return max(s.rs.IPv4Conf(s.t, "all", knob), s.rs.IPv4Conf(s.t, "eth0", knob))
}

// up: each of the addresses is bound where it belongs and nowhere else, silent, and status says so.
func (s *site) up(addrs []string) error {
	if r := s.rs.Try(s.args("status", "--vip", strings.Join(addrs, ","))...); r.Code != 0 {
		return fmt.Errorf("status: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	bound := s.bound(addrs)
	for _, a := range addrs {
		if !slices.Equal(bound[a], []string{s.device() + "/32"}) {
			return fmt.Errorf("%s is on %v", a, bound[a])
		}
	}
	return s.silent(addrs)
}

// as says how the host differs from what it was.
func (s *site) as(was testnet.Snapshot) error {
	s.t.Helper()
	if diff := testnet.Diff(was, s.rs.Snapshot(s.t)); diff != "" {
		return fmt.Errorf("the host is not as it was:\n%s", diff)
	}
	return nil
}

// files lists the state directory in a form that shows every write.
func (s *site) files() string {
	if _, err := os.Stat(s.state); err != nil {
		return "none"
	}
	return s.rs.Run(s.t, "find", s.state, "-printf", `%P %i %m %u %s %T@\n`)
}

// journal lists the journals that are there.
func (s *site) journal() []string {
	found, _ := filepath.Glob(filepath.Join(s.state, "*.json*"))
	return found
}
