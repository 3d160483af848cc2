package hostile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

var update = flag.Bool("update", false, "write what was observed into README.md")

// stopGiven stops what another journal knows about.
func stopGiven(s *site) { s.must(0, s.args("stop", "--vip", vips(1)[0])); s.putBack() }

// TestHosts runs a verb on each of them, and holds exit code, message and what is left to the table of README.md. On none
// of them is ARP answered for a VIP, and as soon as nothing is in the way, stop brings the host back to what it was.
func TestHosts(t *testing.T) {
	t.Parallel()
	table := readTable(t)
	var rows []string
	for _, h := range hosts {
		t.Run(h.name, func(t *testing.T) {
			testnet.Need(t, h.needs...)
			if h.mode == "tun" && hasIPIP(t) {
				testnet.Skip(t, "the kernel has ipip")
			}
			row := h.observe(t)
			rows = append(rows, row)
			if !*update && !slices.Contains(table, row) {
				t.Errorf("README.md does not have this row (go test -run TestHosts -update writes it):\n%s", row)
			}
		})
	}
	if *update && !t.Failed() {
		writeTable(t, rows)
	}
}

func (h host) observe(t *testing.T) string {
	if h.mode == "" {
		h.mode = "dr"
	}
	s := newSite(t, h.mode)
	if h.prepare != nil {
		h.prepare(s)
	}
	before := s.rs.Snapshot(t)
	if h.started {
		s.must(0, s.start(vips(1)))
	}
	undo := func() {}
	if h.tamper != nil {
		undo = h.tamper(s)
	}
	nobody := s.nobody()
	verb := h.verb
	if verb == nil {
		verb = []string{"start"}
	}
	args := append(slices.Clone(h.wrap), s.bin, verb[0])
	if !slices.Contains(verb, "--state-dir") {
		args = append(args, "--state-dir", s.state)
	}
	args = append(args, verb[1:]...)
	if verb[0] == "start" {
		args = append(args, "--vip", vips(1)[0], "--mode", h.mode)
	}
	named := strings.NewReplacer("STATE", s.state, " F", " "+goodKeys+"announce", "SECCOMP", os.Args[0], "NOBODY", nobody)
	for i, a := range args {
		args[i] = named.Replace(a)
	}
	r := s.rs.Try(args...)
	if err := s.silent(vips(1)); err != nil {
		t.Error(err)
	}
	row := s.row(h.name, verb[0], r, before)
	if strings.Contains(r.Stdout+r.Stderr, "goroutine ") || strings.Count(r.Stderr, "\n") > 1 {
		t.Errorf("more than a line:\n%s", r.Stderr)
	}
	undo()
	s.recover(h, before)
	return row
}

// recover: nothing is in the way any more.
func (s *site) recover(h host, before testnet.Snapshot) {
	s.t.Helper()
	s.must(0, s.args("stop"))
	if h.lasting != nil {
		h.lasting(s)
	}
	if err := s.as(before); err != nil {
		s.t.Error(err)
	}
}

// row is what was observed, with paths and numbers of this run left out.
func (s *site) row(name, verb string, r testnet.Result, before testnet.Snapshot) string {
	said := strings.NewReplacer(s.state, "/run/rsagent", s.nobody(), "/tmp/rsagent", "|", "\\|").Replace(strings.TrimSpace(r.Stderr))
	said = regexp.MustCompile(`/(\d+)\.(json|lock)`).ReplaceAllString(said, "/NAMESPACE.$2")
	said = regexp.MustCompile(`/lib/modules/[^;]*`).ReplaceAllString(said, "/lib/modules/RELEASE")
	if said != "" {
		said = "`" + strings.TrimPrefix(said, "rsagent: ") + "`"
	}
	return fmt.Sprintf("| %s | %s | %d | %s | %s |", name, verb, r.Code, said, s.left(before))
}

// left says how the host differs from before the verb, and before a start where one went well.
func (s *site) left(before testnet.Snapshot) string {
	s.t.Helper()
	now := s.rs.Snapshot(s.t)
	var parts []string
	for _, on := range s.bound(vips(1)) {
		parts = append(parts, "the VIP on "+strings.Join(on, ", "))
	}
	n := 0
	for key, v := range now.Sysctls {
		if before.Sysctls[key] != v {
			n++
		}
	}
	if n > 0 {
		parts = append(parts, fmt.Sprint(n, " settings"))
	}
	for name, l := range now.Links {
		if slices.Contains(l.Flags, "UP") && !slices.Contains(before.Links[name].Flags, "UP") {
			parts = append(parts, name+" up")
		}
	}
	if len(s.journal()) > 0 {
		parts = append(parts, "the journal")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// nobody makes, once, a folder of user 65534 that he can reach.
func (s *site) nobody() string {
	s.t.Helper()
	dir := filepath.Join(os.TempDir(), s.rs.Name) // testnet sweeps this name
	if err := os.Mkdir(dir, 0o755); err == nil {
		s.t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.Chown(dir, 65534, 65534); err != nil {
			s.t.Fatal(err)
		}
	}
	return dir
}

// replace puts something in the place of a file of the state directory.
func replace(pattern string, by func(path string) error) func(*site) func() {
	return func(s *site) func() {
		s.t.Helper()
		found, _ := filepath.Glob(filepath.Join(s.state, pattern))
		if len(found) != 1 {
			s.t.Fatalf("%s: %v", pattern, found)
		}
		aside := filepath.Join(filepath.Dir(s.state), "aside")
		if err := errors.Join(os.Rename(found[0], aside), by(found[0])); err != nil {
			s.t.Fatal(err)
		}
		return func() {
			if err := errors.Join(os.RemoveAll(found[0]), os.Rename(aside, found[0])); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

func (s *site) makeState() {
	if err := os.Mkdir(s.state, 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// putBack is for settings whose journal was lost with its folder.
func (s *site) putBack() {
	for _, iface := range []string{"all", "lo"} {
		s.rs.SetIPv4Conf(s.t, iface, "arp_ignore", "0")
	}
	s.rs.SetIPv4Conf(s.t, "all", "arp_announce", "1")
	s.rs.SetIPv4Conf(s.t, "lo", "arp_announce", "0")
}

// batch runs n lines of ip.
func (s *site) batch(n int, line func(i int) string) {
	s.t.Helper()
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i) + "\n")
	}
	if r := s.rs.Exec(testnet.Cmd{Args: []string{"ip", "-batch", "-"}, Stdin: b.String()}); r.Code != 0 {
		s.t.Fatal(r.Stderr)
	}
}

func hasIPIP(t *testing.T) bool {
	h := testnet.NewHost(t, "ipip")
	return h.Try("ip", "link", "add", "t0", "type", "ipip").Code == 0
}

const begin, end = "<!-- observed -->\n", "<!-- end of observed -->\n"

func readTable(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

func writeTable(t *testing.T, rows []string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no place for the table")
	}
	table := "| host | verb | exit | message | what is left |\n|---|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
	if err := os.WriteFile("README.md", []byte(head+begin+table+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
