package cases

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

const (
	vip    = "10.0.0.100"
	vip2   = "10.0.0.101"
	vip6   = "2001:db8::100"
	rip    = "10.0.0.11"
	peerIP = "10.0.0.1"
)

// site is the smallest place a real server can stand in: the host under test,
// and a neighbour on the same wire that plays client and director.
type site struct {
	rs, peer *testnet.Host
	bin      string
	state    string // --state-dir
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteWith(t, rip+"/24")
}

// newSiteWith: the real server's eth0 has the given address, or none.
func newSiteWith(t *testing.T, cidr string) *site {
	t.Helper()
	s := &site{bin: testnet.Rsagent(t), state: filepath.Join(t.TempDir(), "state")}
	s.peer, s.rs = testnet.NewHost(t, "peer"), testnet.NewHost(t, "rs")
	testnet.Wire(t, s.rs, "eth0", cidr, s.peer, "eth0", peerIP+"/24")
	return s
}

// report is the JSON every verb answers with.
type report struct {
	Version  int
	Verb     string
	State    string
	Changed  bool
	VIPs     []vipState
	Changes  []change
	Findings []finding
	Watch    watching
	Error    *failure
}

type vipState struct{ Address, Mode, Device, State string }

type change struct{ Stage, Item, From, To, Why, Outcome string }

type finding struct{ Level, Code, Subject, Message, Cure string }

type failure struct {
	Code    int
	Message string
}

// args is the command line of a verb with this site's state directory.
func (s *site) args(verb string, more ...string) []string {
	return append([]string{s.bin, verb, "--state-dir", s.state}, more...)
}

// ask runs a verb that must end with the given exit code, and holds its
// answer to the contract: one JSON object on stdout, and an error also as
// one line on stderr.
func (s *site) ask(t *testing.T, code int, verb string, more ...string) report {
	t.Helper()
	command := s.args(verb, append(more, "-o", "json")...)
	return parse(t, code, verb, command, s.rs.Try(command...))
}

func parse(t *testing.T, code int, verb string, command []string, got testnet.Result) report {
	t.Helper()
	said := strings.Join(command[1:], " ")
	if got.Code != code {
		t.Fatalf("%s: exit %d, want %d\n%s%s", said, got.Code, code, got.Stdout, got.Stderr)
	}
	var r report
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil {
		t.Fatalf("%s: %v in\n%s", said, err, got.Stdout)
	}
	if err := docs.Conforms([]byte(got.Stdout)); err != nil {
		t.Errorf("%s: %v, by the schema, in\n%s", said, err, got.Stdout)
	}
	if r.Version != 1 || r.Verb != verb {
		t.Errorf("%s: answers as version %d of %s", said, r.Version, r.Verb)
	}
	want := 0
	if r.Error != nil {
		want = 1
		if r.Error.Code != code || r.Error.Message == "" {
			t.Errorf("%s: exit %d, but error %+v", said, code, *r.Error)
		}
	}
	if lines(got.Stderr) != want {
		t.Errorf("%s: want %d lines on stderr, got:\n%s", said, want, got.Stderr)
	}
	return r
}

// do runs a verb that must succeed, and runs it again: the second time must
// change nothing and say so. It returns what the first run said.
func (s *site) do(t *testing.T, verb string, more ...string) report {
	t.Helper()
	first := s.ask(t, 0, verb, more...)
	host, journal := s.rs.Snapshot(t), s.files(t)
	second := s.ask(t, 0, verb, more...)
	if second.Changed || len(second.Changes) > 0 {
		t.Errorf("%s %v: the second run says it changed %+v", verb, more, second.Changes)
	}
	if diff := testnet.Diff(host, s.rs.Snapshot(t)); diff != "" {
		t.Errorf("%s %v: the second run changed the host:\n%s", verb, more, diff)
	}
	if now := s.files(t); now != journal {
		t.Errorf("%s %v: the second run wrote to the state directory:\n%s\nwas:\n%s", verb, more, now, journal)
	}
	return first
}

// files lists the state directory in a form that shows every write.
func (s *site) files(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(s.state); err != nil {
		return "none"
	}
	return s.rs.Run(t, "find", s.state, "-printf", `%P %i %m %u %s %T@\n`)
}

// journal is the path of this host's journal.
func (s *site) journal(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(s.state, "*.json"))
	found = slices.DeleteFunc(found, func(path string) bool { return strings.HasSuffix(path, ".watch.json") })
	if len(found) != 1 {
		t.Fatalf("want one journal, got %v", found)
	}
	return found[0]
}

// restored runs f, after which the host must be as it was before.
func (s *site) restored(t *testing.T, f func()) {
	t.Helper()
	before := s.rs.Snapshot(t)
	f()
	s.mustBe(t, before)
}

func (s *site) mustBe(t *testing.T, want testnet.Snapshot) {
	t.Helper()
	if diff := testnet.Diff(want, s.rs.Snapshot(t)); diff != "" {
		t.Errorf("the host is not as it should be:\n%s", diff)
	}
}

// says whether a finding or an error speaks of all the words.
func (r report) says(words ...string) bool {
	for _, f := range r.Findings {
		if containsAll(f.Level+" "+f.Code+" "+f.Subject+" "+f.Message+" "+f.Cure, words) {
			return true
		}
	}
	return r.Error != nil && containsAll(r.Error.Message, words)
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(w)) {
			return false
		}
	}
	return true
}

func lines(text string) int {
	if text == "" {
		return 0
	}
	return strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
}
