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

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

var update = flag.Bool("update", false, "write what was observed into README.md")

// A host is one on which something is in the way.
type host struct {
	name    string
	mode    string      // dr where empty
	verb    []string    // start of one VIP where empty
	prepare func(*site) // beforehand, without rsagent
	started bool        // a start has gone well before
	tamper  func(*site) (undo func())
	wrap    []string    // what the verb is run by
	needs   []string    // tools
	lasting func(*site) // undoes what stays by contract
}

// inMounts runs the verb in a mount namespace of its own, made by a script.
func inMounts(script string) []string {
	return []string{"unshare", "-m", "sh", "-ec", script + `; exec "$@"`, "sh"}
}

func asNobody(caps string) []string {
	return []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", caps, "--ambient-caps", caps}
}

const (
	readOnly = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
	goodKeys = "/proc/sys/net/ipv4/conf/all/arp_"
)

// STATE stands for the state directory in a script.
var hosts = []host{
	{name: "/proc/sys is read-only", wrap: inMounts(readOnly)},
	{name: "/proc/sys is read-only, and the values are good", wrap: inMounts(readOnly), prepare: func(s *site) {
		s.rs.SetIPv4Conf(s.t, "all", "arp_ignore", "1")
		s.rs.SetIPv4Conf(s.t, "all", "arp_announce", "2")
	}},
	{name: "/proc/sys is read-only by the time of stop", wrap: inMounts(readOnly), started: true, verb: []string{"stop"}},
	{name: "one key is read-only", wrap: inMounts("mount --bind F F; mount -o remount,bind,ro F")},
	{name: "there is no /proc", wrap: inMounts("mount -t tmpfs none /proc")},
	{name: "there is no /proc/sys", wrap: inMounts("mount -t tmpfs none /proc/sys")},
	{name: "the state directory is missing, and its parent", wrap: inMounts("rm -rf STATE; mkdir -p STATE; mount -t tmpfs none STATE"),
		verb: []string{"start", "--state-dir", "STATE/run/rsagent"}, lasting: stopGiven},
	{name: "the state directory is on a read-only file system", wrap: inMounts("mkdir -p STATE; mount -t tmpfs -o ro none STATE")},
	{name: "the state directory is full", wrap: inMounts("mkdir -p STATE; mount -t tmpfs -o size=4k none STATE; echo >STATE/full")},
	{name: "the state directory has no inodes left", wrap: inMounts("mkdir -p STATE; mount -t tmpfs -o nr_inodes=1 none STATE")},
	{name: "the state directory is full by the time of stop", started: true, verb: []string{"stop"},
		wrap: inMounts("cp -a STATE STATE.copy; mount -t tmpfs -o size=8k none STATE; cp -a STATE.copy/. STATE; rm -r STATE.copy; head -c 4096 /dev/zero >STATE/full 2>/dev/null || :")},
	{name: "the state directory is a file", verb: []string{"start", "--state-dir", "STATE/file"}, wrap: inMounts("mkdir -p STATE; echo >STATE/file")},
	{name: "the state directory is a link to nowhere", verb: []string{"start", "--state-dir", "STATE/link"}, wrap: inMounts("mkdir -p STATE; ln -sf nowhere STATE/link")},
	{name: "the lock is a link", started: true, verb: []string{"stop"}, tamper: replace("*.lock", func(f string) error { return os.Symlink("/etc/passwd", f) })},
	{name: "the lock is a FIFO", started: true, verb: []string{"stop"}, tamper: replace("*.lock", func(f string) error { return unix.Mkfifo(f, 0o600) })},
	{name: "the lock is a folder", started: true, verb: []string{"stop"}, tamper: replace("*.lock", func(f string) error { return os.Mkdir(f, 0o700) })},
	{name: "the journal is a folder", started: true, verb: []string{"stop"}, tamper: replace("*.json", func(f string) error { return os.Mkdir(f, 0o755) })},
	{name: "the journal is a FIFO", started: true, verb: []string{"stop"}, tamper: replace("*.json", func(f string) error { return unix.Mkfifo(f, 0o644) })},
	{name: "the journal is a link", started: true, verb: []string{"stop"}, tamper: replace("*.json", func(f string) error { return os.Symlink("/etc/passwd", f) })},
	{name: "the journal is another user's", started: true, verb: []string{"stop"}, tamper: replace("*.json", func(f string) error {
		return errors.Join(os.WriteFile(f, []byte("{}"), 0o644), os.Chown(f, 65534, 65534))
	})},
	{name: "the temporary file of the journal is a folder", started: true, verb: []string{"stop"}, tamper: func(s *site) (undo func()) {
		path := s.journal()[0] + ".new/x"
		if err := os.MkdirAll(path, 0o755); err != nil {
			s.t.Fatal(err)
		}
		return func() { os.RemoveAll(filepath.Dir(path)) }
	}},
	{name: "no CAP_NET_ADMIN", needs: []string{"setpriv"}, wrap: []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"}},
	{name: "no CAP_NET_ADMIN, status", needs: []string{"setpriv"}, started: true, verb: []string{"status"}, wrap: asNobody("-all")},
	{name: "CAP_NET_ADMIN without uid 0, a folder of its own", needs: []string{"setpriv"}, verb: []string{"start", "--state-dir", "NOBODY"},
		wrap: asNobody("-all,+net_admin"), lasting: stopGiven},
	{name: "CAP_NET_ADMIN without uid 0, the folder is root's", needs: []string{"setpriv"}, prepare: (*site).makeState, wrap: asNobody("-all,+net_admin")},
	{name: "CAP_NET_ADMIN without uid 0, the parent's parent is root's", needs: []string{"setpriv"}, prepare: (*site).makeState,
		verb: []string{"start", "--state-dir", "STATE/run/rsagent"}, wrap: asNobody("-all,+net_admin")},
	{name: "a user namespace, without a network namespace of its own", wrap: []string{"unshare", "-Ur"}},
	{name: "a user namespace with a network namespace of its own", wrap: []string{"unshare", "-Urn"}},
	{name: "the kernel has no ipip", mode: "tun", needs: []string{"modprobe"}},
	{name: "seccomp refuses init_module and finit_module", mode: "tun", needs: []string{"modprobe"}, wrap: []string{"SECCOMP", "modules"}},
	{name: "seccomp refuses netlink", wrap: []string{"SECCOMP", "netlink"}},
	{name: "lo is down", prepare: func(s *site) { s.rs.Run(s.t, "ip", "link", "set", "lo", "down") },
		lasting: func(s *site) { s.rs.Run(s.t, "ip", "link", "set", "lo", "down") }},
	{name: "1,500 foreign addresses on lo", prepare: func(s *site) {
		s.batch(1500, func(i int) string { return fmt.Sprintf("addr add 172.16.%d.%d/32 dev lo", i/250, i%250+1) })
	}},
	{name: "1,000 interfaces more", wrap: []string{"sh", "-c", `i=500
		while [ $i -gt 0 ]; do echo "link add d$i group 42 type veth peer name e$i group 42"; i=$((i-1)); done | ip -batch - || exit 99
		"$@"; code=$?; ip link del group 42; exit $code`, "sh"}},
	{name: "interfaces and addresses come and go, 20 times", wrap: []string{"sh", "-c", `while ip link add o0 up type veth peer name o1 &&
		ip addr add 192.0.2.1/32 dev o0 && ip link del o0; do :; done 2>/dev/null & code=0
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "$@" || code=$?; done
		kill $!; wait; ip link del o0 2>/dev/null; exit $code`, "sh"}},
	{name: "the clock was far ahead at start, and is back at stop", wrap: []string{"unshare", "-T", "--boottime", "100000000", "--monotonic", "100000000"}},
}

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
