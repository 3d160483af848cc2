package services

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

const (
	yamlFile    = "/etc/rsagent/rsagent.yaml"
	defaultFile = "/etc/default/rsagent"
	initScript  = "/etc/init.d/rsagent"
	dropIn      = "/usr/lib/rsagent/lvs_real.sh"
)

var here = testnet.Here()

// newSite is the guest with the package installed, and nothing managed or configured. It must be found like that
// again when the test is over and all is stopped.
func newSite(t *testing.T) testnet.Snapshot {
	t.Helper()
	guest.Need(t)
	if here.Try("dpkg-query", "-W", "rsagent").Code != 0 {
		install(t, newDeb)
	}
	loadIPIP(t)
	stopAll(t)
	before := here.Snapshot(t)
	t.Cleanup(func() {
		stopAll(t)
		equal(t, before)
	})
	return before
}

func install(t *testing.T, deb string) {
	t.Helper()
	here.Run(t, "dpkg", "--force-confnew", "--force-confmiss", "-i", deb)
}

// loadIPIP loads the module, and raises its device once: both leave something behind that is not rsagent's.
func loadIPIP(t *testing.T) {
	t.Helper()
	if !strings.Contains(here.Run(t, "lsmod"), "ipip ") {
		here.Run(t, "modprobe", "ipip")
		here.Run(t, "udevadm", "settle")
		here.Run(t, "ip", "link", "set", "tunl0", "up")
		here.Run(t, "ip", "link", "set", "tunl0", "down")
	}
}

func stopAll(t *testing.T) {
	t.Helper()
	here.Run(t, "systemctl", "stop", "rsagent.service", "rsagent-watch.service", "rsagent-online.service", "rsagent@*.service")
	here.Run(t, "rsagent", "stop")
	here.Try("systemctl", "reset-failed", "rsagent*")
	for _, path := range []string{yamlFile, defaultFile, "/etc/sysconfig/rsagent"} {
		os.RemoveAll(path)
	}
}

func equal(t *testing.T, before testnet.Snapshot) {
	t.Helper()
	if diff := testnet.Diff(before, here.Snapshot(t)); diff != "" {
		t.Errorf("the host is not as it was (-before +after):\n%s", diff)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// configure writes the config file.
func configure(t *testing.T, vips ...string) {
	t.Helper()
	write(t, yamlFile, "vips: ["+strings.Join(vips, ", ")+"]\n")
}

// holds: of all VIPs, the guest holds exactly these, on lo, and is silent about them.
func holds(t *testing.T, want ...string) {
	t.Helper()
	for i, v := range want {
		if !strings.Contains(v, " ") {
			want[i] = v + " lo"
		}
	}
	if got := held(t); !slices.Equal(got, want) {
		t.Errorf("holds %q, want %q", got, want)
	}
	if len(want) > 0 {
		if here.IPv4Conf(t, "all", "arp_ignore") != "1" || here.IPv4Conf(t, "all", "arp_announce") != "2" {
			t.Error("holds VIPs and is not silent")
		}
	}
}

func held(t *testing.T) []string {
	t.Helper()
	return here.Held(t, append(slices.Clone(vips), loud, "2001:db8::100")...)
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/job/README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// recipe is that of the README which has the words, for the addresses of the lab.
func recipe(t *testing.T, words string) (lines []docs.Line) {
	t.Helper()
	text := strings.ReplaceAll(readme(t), "192.0.2.", "10.9.0.")
	if lines = docs.Recipe(text, words); len(lines) == 0 {
		t.Fatalf("the README has no recipe with %q", words)
	}
	return lines
}

// typed runs a line of a recipe. What make installs was made by it on the host, and what the editor is to write is in
// the remark.
func typed(t *testing.T, line docs.Line) {
	t.Helper()
	const known = `make() { [ "$*" = "install PREFIX=/usr" ] && cp -a /job/root/. /; }
sudoedit() { cat >"$1"; }
`
	if r := here.Exec(testnet.Cmd{Args: []string{"bash", "-ec", known + line.Command}, Stdin: line.Remark}); r.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", line.Command, r.Code, r.Stdout, r.Stderr)
	}
}

// exits runs a command that must end with the given code, and returns what it said.
func exits(t *testing.T, code int, args ...string) string {
	t.Helper()
	r := here.Try(args...)
	if r.Code != code {
		t.Errorf("%s: exit %d, want %d\n%s%s", strings.Join(args, " "), r.Code, code, r.Stdout, r.Stderr)
	}
	return r.Stdout + r.Stderr
}

func says(t *testing.T, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("want %q in it:\n%s", want, text)
	}
}

// isActive: systemd takes the unit to be in the given state.
func isActive(t *testing.T, unit, want string) {
	t.Helper()
	if got := strings.TrimSpace(here.Try("systemctl", "is-active", unit).Stdout); got != want {
		t.Errorf("%s is %s, want %s\n%s", unit, got, want, journal(t, unit, ""))
	}
}

// journal is what the journal has of a unit in this boot, from the cursor on.
func journal(t *testing.T, unit, cursor string) string {
	t.Helper()
	here.Run(t, "journalctl", "--sync")
	args := []string{"journalctl", "-b", "-o", "cat", "--no-pager", "-u", unit}
	if cursor != "" {
		args = append(args, "--after-cursor="+cursor)
	}
	return here.Try(args...).Stdout
}

// cursor is where the journal ends by now.
func cursor(t *testing.T) string {
	t.Helper()
	_, c, found := strings.Cut(here.Run(t, "journalctl", "-n", "1", "-o", "cat", "--show-cursor", "--no-pager"), "-- cursor: ")
	if !found {
		t.Fatal("the journal has no cursor")
	}
	return strings.TrimSpace(c)
}

// watch sees every address that comes and goes while f runs: "+10.9.0.104", "-10.9.0.104", in the order of the kernel.
func watch(t *testing.T, f func()) []string {
	t.Helper()
	p := here.Start(t, "ip", "-o", "monitor", "address")
	mark := func(addr string) {
		testnet.Eventually(t, "ip monitor to see the mark", func() bool {
			here.Run(t, "ip", "addr", "add", addr, "dev", "lo")
			here.Run(t, "ip", "addr", "del", addr, "dev", "lo")
			return strings.Contains(p.Output(), addr)
		})
	}
	mark("10.255.0.1/32")
	f()
	mark("10.255.0.2/32")
	var seen []string
	for line := range strings.Lines(p.Stop()) {
		m := address.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(m[1], "10.255.0.") {
			continue
		}
		sign := "+"
		if strings.Contains(line, "Deleted") {
			sign = "-"
		}
		seen = append(seen, sign+strings.TrimSuffix(m[1], "/32"))
	}
	return seen
}

var address = regexp.MustCompile(` inet6? (\S+)`)

// moves: while f runs, these addresses come and go, in any order, and no others.
func moves(t *testing.T, f func(), want ...string) {
	t.Helper()
	got := watch(t, f)
	slices.SortFunc(got, cmp.Compare)
	slices.SortFunc(want, cmp.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("addresses came and went: %q, want %q", got, want)
	}
}
