package realserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseNetstat(t *testing.T) {
	const text = "TcpExt: SyncookiesSent IPReversePathFilter Other\nTcpExt: 1 22 3\nIpExt: InNoRoutes IPReversePathFilter\nIpExt: 4 5\n"
	if got := parseNetstat(text, "TcpExt:", "IPReversePathFilter"); got != 22 {
		t.Errorf("%d, want 22", got)
	}
	for _, s := range []string{"", "TcpExt:", "TcpExt: IPReversePathFilter\nTcpExt:\n", "TcpExt: X\nTcpExt: 1\n"} {
		if got := parseNetstat(s, "TcpExt:", "IPReversePathFilter"); got != 0 {
			t.Errorf("%q: %d", s, got)
		}
	}
}

// Files come in the order in which they hold, one in /etc instead of one of the same name elsewhere.
func TestConfigs(t *testing.T) {
	root := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"etc/sysctl.d/50-a.conf", "usr/lib/sysctl.d/50-a.conf", "usr/lib/sysctl.d/99-z.conf", "run/sysctl.d/60-b.conf", "etc/sysctl.conf", "etc/sysctl.d/README",
		"etc/systemd/network/lo.network", "usr/lib/tuned/web/tuned.conf", "etc/nftables.conf"} {
		put(path, path)
	}
	put("etc/tuned/active_profile", "web\n")
	paths := func() (out []string, systemd, enabled bool) {
		files, systemd, enabled, err := configs(root)
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			rel, _ := filepath.Rel(root, f.Path)
			out = append(out, f.Kind+" "+rel)
		}
		return out, systemd, enabled
	}
	want := []string{"sysctl etc/sysctl.d/50-a.conf", "sysctl run/sysctl.d/60-b.conf", "sysctl usr/lib/sysctl.d/99-z.conf", "sysctl etc/sysctl.conf", "nftables etc/nftables.conf"}
	if got, systemd, enabled := paths(); !slices.Equal(got, want) || systemd || enabled {
		t.Errorf("%q, %t, %t; want %q", got, systemd, enabled, want)
	}
	put("run/tuned/x", "")
	put("run/systemd/netif/state", "")
	put("run/systemd/system/x", "")
	put("usr/lib/systemd/system/rsagent.service", "")
	want = slices.Insert(want, 4, "sysctl usr/lib/tuned/web/tuned.conf", "network etc/systemd/network/lo.network")
	if got, systemd, enabled := paths(); !slices.Equal(got, want) || !systemd || enabled {
		t.Errorf("%q, %t, %t; want %q", got, systemd, enabled, want)
	}
	// What only looks like a file, or stands for another.
	link := func(target, path string) {
		if err := os.Symlink(target, filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	link("/dev/null", "etc/sysctl.d/99-z.conf")
	link("../target", "etc/sysctl.d/70-link.conf")
	link("nowhere", "etc/sysctl.d/71-dangling.conf")
	put("etc/target", "x")
	if err := os.Mkdir(filepath.Join(root, "etc/sysctl.d/72-folder.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	want[2] = "sysctl etc/target"
	if got, _, _ := paths(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	link("/dev/zero", "etc/sysctl.d/73-zero.conf")
	if err := unix.Mkfifo(filepath.Join(root, "etc/sysctl.d/74-fifo.conf"), 0o644); err != nil {
		t.Fatal(err)
	}
	put("etc/sysctl.d/75-huge.conf", "")
	if err := os.Truncate(filepath.Join(root, "etc/sysctl.d/75-huge.conf"), 1<<40); err != nil {
		t.Fatal(err)
	}
	files, _, _, err := configs(root)
	if err == nil || len(files) != len(want) {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, says := range []string{"73-zero.conf is not a regular file", "74-fifo.conf is not a regular file", "75-huge.conf is larger than"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q is not in: %v", says, err)
		}
	}
	for _, name := range []string{"73-zero", "74-fifo", "75-huge"} {
		os.Remove(filepath.Join(root, "etc/sysctl.d", name+".conf"))
	}

	put("etc/systemd/system/multi-user.target.wants/rsagent.service", "")
	if _, systemd, enabled := paths(); !systemd || !enabled {
		t.Error("it is not seen to be enabled")
	}
}
