package lab

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// tool is what makes a real server: rsagent, or the script it replaces.
type tool interface {
	start(t *testing.T, mode, vip string)
	stop(t *testing.T, mode, vip string)
}

// classic is the script of testdata.
type classic struct{ host *testnet.Host }

func (c classic) start(t *testing.T, mode, vip string) {
	t.Helper()
	c.host.Run(t, "testdata/lvs_real.sh", "start", vip, mode)
}

func (c classic) stop(t *testing.T, mode, vip string) {
	t.Helper()
	c.host.Run(t, "testdata/lvs_real.sh", "stop", vip, mode)
}

// agent is rsagent on one host.
type agent struct {
	host       *testnet.Host
	bin, state string
}

func newAgent(t *testing.T, h *testnet.Host) agent {
	t.Helper()
	return agent{h, testnet.Rsagent(t), filepath.Join(t.TempDir(), "state")}
}

func newAgents(t *testing.T, hosts []*testnet.Host) (agents []agent) {
	t.Helper()
	for _, h := range hosts {
		agents = append(agents, newAgent(t, h))
	}
	return agents
}

func (a agent) start(t *testing.T, mode, vip string) {
	t.Helper()
	a.do(t, 0, "start", "--mode", mode, "--vip", vip)
}

func (a agent) stop(t *testing.T, _, vip string) {
	t.Helper()
	a.do(t, 0, "stop", "--vip", vip)
}

// report is what the tests read of rsagent's JSON.
type report struct {
	State    string
	Changed  bool
	VIPs     []struct{ Address, State string }
	Changes  []struct{ Item, From, To, Outcome string }
	Findings []struct{ Level, Code, Subject, Message, Cure string }
	Error    *struct {
		Code    int
		Message string
	}
	text string
}

// do runs a verb that must end with the given exit code.
func (a agent) do(t *testing.T, code int, verb string, flags ...string) report {
	t.Helper()
	args := append([]string{a.bin, verb, "--state-dir", a.state, "-o", "json"}, flags...)
	r := a.host.Try(args...)
	if r.Code != code {
		t.Fatalf("on %s: %s: exit %d, want %d\n%s%s", a.host.Name, strings.Join(args[1:], " "), r.Code, code, r.Stdout, r.Stderr)
	}
	out := report{text: r.Stdout}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%s: %v in %q", verb, err, r.Stdout)
	}
	if err := docs.Conforms([]byte(r.Stdout)); err != nil {
		t.Errorf("%s: %v, by the schema, in %s", verb, err, r.Stdout)
	}
	return out
}

// unchanged is do for a verb that has nothing to do, and says so, and does nothing.
func (a agent) unchanged(t *testing.T, verb string, flags ...string) {
	t.Helper()
	before := a.host.Snapshot(t)
	if r := a.do(t, 0, verb, flags...); r.Changed || len(r.Changes) > 0 {
		t.Errorf("a second %s says: %s", verb, r.text)
	}
	equal(t, a.host, before)
}

// warns says whether a finding of the given level speaks of the word.
func (r report) warns(level, word string) bool {
	for _, f := range r.Findings {
		if f.Level == level && strings.Contains(f.Subject+" "+f.Message, word) {
			return true
		}
	}
	return false
}

func equal(t *testing.T, h *testnet.Host, before testnet.Snapshot) {
	t.Helper()
	if diff := testnet.Diff(before, h.Snapshot(t)); diff != "" {
		t.Errorf("%s is not as it was (-before +after):\n%s", h.Name, diff)
	}
}

// holds: the host holds the address on exactly these devices, as bare /32.
func holds(t *testing.T, h *testnet.Host, addr string, on ...string) {
	t.Helper()
	if got := h.Holds(t, addr); !slices.Equal(got, on) {
		t.Errorf("%s has %s on %v, want %v", h.Name, addr, got, on)
	}
}

func isUp(t *testing.T, h *testnet.Host, dev string) bool {
	t.Helper()
	link, there := h.Links(t)[dev]
	return there && slices.Contains(link.Flags, "UP")
}

// ipip loads the module, so that each namespace has its tunl0 before a test looks, or unloads it from all of them.
func ipip(t *testing.T, loaded bool) {
	t.Helper()
	args := []string{"modprobe", "ipip"}
	if !loaded {
		args = []string{"modprobe", "-r", "ipip"}
	}
	hostRun(t, args...)
}

// hostRun runs a command that is no matter of network namespaces.
func hostRun(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// device is where a mode puts the VIP.
var device = map[string]string{"dr": "lo", "tun": "tunl0"}

// eachMode runs a test in both modes with the tunnel's module loaded.
func eachMode(t *testing.T, f func(t *testing.T, mode string)) {
	t.Helper()
	guest(t)
	ipip(t, true)
	for _, mode := range []string{"dr", "tun"} {
		t.Run(mode, func(t *testing.T) { f(t, mode) })
	}
}
