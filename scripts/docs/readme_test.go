package docs

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/arp"
	"rsagent/scripts/bench"
	"rsagent/scripts/testnet"
	"rsagent/tunnel"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// realServer is the host of the README: eth0 with 192.0.2.11.
func realServer(t *testing.T) *testnet.Host {
	t.Helper()
	testnet.NeedRoot(t)
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "192.0.2.11/24", peer, "eth0", "192.0.2.1/24")
	return rs
}

// TestConsole types each console block of the README, and wants to see what stands there.
func TestConsole(t *testing.T) {
	found := Blocks(readme(t), "console")
	if len(found) == 0 {
		t.Fatal("no console block")
	}
	for _, block := range found {
		rs, state := realServer(t), t.TempDir()
		var got strings.Builder
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				continue
			}
			words := strings.Fields(command)
			if words[0] == "rsagent" {
				words[0] = testnet.Rsagent(t)
			}
			r := rs.Exec(testnet.Cmd{Args: words, Env: []string{"RSAGENT_STATE_DIR=" + state}})
			got.WriteString(line + r.Stdout + r.Stderr)
		}
		if d := cmp.Diff(block, got.String()); d != "" {
			t.Errorf("the README shows another thing than rsagent does: %s", d)
		}
	}
}

// TestConfigExample: the config shown is taken, and does what it says.
func TestConfigExample(t *testing.T) {
	rs := realServer(t)
	for _, block := range Blocks(readme(t), "yaml") {
		path := filepath.Join(t.TempDir(), "rsagent.yaml")
		if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
			t.Fatal(err)
		}
		out := rs.Run(t, testnet.Rsagent(t), "start", "--config", path, "--dry-run", "--state-dir", t.TempDir())
		for _, want := range []string{"ip addr add 192.0.2.100/32 dev lo scope host", "ip addr add 192.0.2.101/32 dev tunl0 scope host"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in %s", want, out)
			}
		}
	}
}

// TestTables: each verb, flag and row of policy stands in the README, in its own words.
func TestTables(t *testing.T) {
	text := readme(t)
	for _, verb := range []string{"start", "stop", "restart", "reload", "status", "check", "watch", "version"} {
		if !strings.Contains(text, "| `"+verb+"` |") {
			t.Errorf("no verb %s", verb)
		}
	}
	flags := map[string]bool{}
	for _, verb := range []string{"start", "stop", "status", "check", "watch"} {
		help, err := exec.Command(testnet.Rsagent(t), verb, "--help").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s+(--[a-z-]+)`).FindAllStringSubmatch(string(help), -1) {
			flags[m[1]] = true
		}
	}
	delete(flags, "--help")
	if len(flags) < 10 {
		t.Fatalf("help names only %v", flags)
	}
	for flag := range flags {
		if !strings.Contains(text, "| `"+flag+"`") {
			t.Errorf("no flag %s", flag)
		}
	}
	for _, r := range append(arp.Rules(true), tunnel.RPFilter(true)) {
		if !strings.Contains(text, "| "+r.Why+" | "+r.Source+" |") {
			t.Errorf("%s: neither reason %q nor source %q", r.Knob, r.Why, r.Source)
		}
	}
}

// TestFigures: the README's table is that of the run that was kept.
func TestFigures(t *testing.T) {
	figures, err := bench.Figures()
	if err != nil || len(figures.Rows) < 20 || figures.Machine == "" {
		t.Fatalf("%d figures, of %q: %v", len(figures.Rows), figures.Machine, err)
	}
	if text := readme(t); !strings.Contains(text, figures.Markdown()) || !strings.Contains(text, figures.Machine) {
		t.Errorf("the README has not the table of scripts/bench/figures.json, on %s:\n%s", figures.Machine, figures.Markdown())
	}
}

// TestBinary: one file that needs nothing else, of six million bytes at the most.
func TestBinary(t *testing.T) {
	path := testnet.Rsagent(t)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > 6_000_000 {
		t.Errorf("it has %d bytes: has a *netlink.Handle come to be a method's argument, or to be in an interface? go tool nm tells", st.Size())
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is not static: it has a %v", p.Type)
		}
	}
}
