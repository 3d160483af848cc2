package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

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

// fill moves the state directory to a file system that has no room left.
func fill(s *site) (undo func()) {
	s.t.Helper()
	testnet.Here().Run(s.t, "sh", "-ec", `cp -a "$1" "$1.copy"; mount -t tmpfs -o size=8k none "$1"; cp -a "$1.copy/." "$1"
		rm -r "$1.copy"; head -c 4096 /dev/zero >"$1/full" 2>/dev/null || :`, "sh", s.state)
	undo = func() { testnet.Here().Try("umount", s.state) }
	s.t.Cleanup(undo)
	return undo
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
	{name: "the state directory is full by the time of stop", started: true, verb: []string{"stop"}, tamper: fill},
	{name: "the state directory is full by the time of a stop of one of two VIPs", started: true, verb: []string{"stop", "--vip", vips(1)[0]},
		tamper: func(s *site) (undo func()) { s.must(0, s.start(vips(2))); return fill(s) }},
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
