package packages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// A root is a host of rpm's: a folder with a shell, and a network namespace.
type root struct {
	*testnet.Host
	dir string
}

// newRoot makes one. Its systemctl notes what it is told, and says that one unit of each kind is up.
func newRoot(t *testing.T) root {
	t.Helper()
	testnet.NeedRoot(t)
	testnet.Need(t, "rpm", "busybox", "unshare", "chroot")
	r := root{testnet.NewHost(t, "rpm"), t.TempDir()}
	for _, dir := range []string{"bin", "dev", "proc", "run/systemd/system"} {
		must(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	run(t, nil, "sh", "-c", `cp "$(command -v busybox)" "$1/bin/busybox"`, "sh", r.dir)
	for _, name := range []string{"sh", "find", "sed", "ls", "rm"} {
		must(t, os.Symlink("busybox", filepath.Join(r.dir, "bin", name)))
	}
	must(t, os.WriteFile(filepath.Join(r.dir, "bin/systemctl"), []byte(`#!/bin/sh
echo "$*" >>/systemctl.log
[ "$1" != list-units ] || printf '%s loaded active exited x\n' rsagent.service rsagent@192.0.2.101.service
`), 0o755))
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// try runs a command with the root's network, and its /proc and /dev.
func (r root) try(args ...string) testnet.Result {
	return r.Try(append([]string{"unshare", "-m", "sh", "-c", `mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec "$@"`, r.dir}, args...)...)
}

// rpm runs rpm on the root, which must end with the given code, and returns what systemctl was told.
func (r root) rpm(t *testing.T, code int, args ...string) []string {
	t.Helper()
	log := filepath.Join(r.dir, "systemctl.log")
	os.Remove(log)
	if got := r.try(append([]string{"rpm", "--root", r.dir, "--nodeps"}, args...)...); got.Code != code {
		t.Errorf("rpm %v: exit %d, want %d\n%s%s", args, got.Code, code, got.Stdout, got.Stderr)
	}
	told, _ := os.ReadFile(log)
	return strings.Split(strings.TrimSpace(string(told)), "\n")
}

// rsagent runs the program that was installed.
func (r root) rsagent(t *testing.T, args ...string) string {
	t.Helper()
	got := r.try(append([]string{"chroot", r.dir, "/usr/sbin/rsagent"}, args...)...)
	if got.Code != 0 {
		t.Errorf("rsagent %v: exit %d\n%s%s", args, got.Code, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

// leavings are the files that have to do with rsagent.
func (r root) leavings(t *testing.T) []string {
	t.Helper()
	return strings.Fields(strings.ReplaceAll(run(t, nil, "find", r.dir, "-name", "*rsagent*"), r.dir, ""))
}

// TestRPM: by rpm itself, with the scripts run: installed, it does nothing yet; upgraded, the VIPs stay and the new
// program looks after them; erased, it has taken all VIPs back and left nothing but a config that was edited.
func TestRPM(t *testing.T) {
	testnet.Need(t, "bash", "git", "go", "gzip", "rpm")
	dir, packages := t.TempDir(), []string{}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		run(t, []string{"VERSION=" + version, "ARCHES=amd64", "OUT=" + dir}, "./build.sh", "rpm")
		packages = append(packages, filepath.Join(dir, "rsagent-"+version+"-1.x86_64.rpm"))
	}
	reload := []string{"daemon-reload", "try-restart rsagent-watch.service", "list-units --plain --no-legend --state=active rsagent.service rsagent@*.service",
		"reload rsagent.service", "reload rsagent@192.0.2.101.service", "daemon-reload"}
	stop := []string{"disable --quiet rsagent.service rsagent-watch.service rsagent-online.service rsagent-health.socket rsagent-metrics.timer rsagent@192.0.2.101.service",
		"stop rsagent-health.socket rsagent-metrics.timer rsagent-metrics.service",
		"stop rsagent-watch.service rsagent-online.service rsagent.service rsagent@*.service", "daemon-reload"}
	for _, c := range []struct {
		name                   string
		bare                   bool
		install, upgrade, gone []string
	}{
		{"with systemd", false, []string{"daemon-reload"}, reload, stop},
		{"without", true, []string{""}, []string{""}, []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoot(t)
			before := r.Snapshot(t)
			unchanged := func() {
				t.Helper()
				if d := testnet.Diff(before, r.Snapshot(t)); d != "" {
					t.Errorf("the host is not as it was (-before +after):\n%s", d)
				}
			}
			told := func(got, want []string) {
				t.Helper()
				if !slices.Equal(got, want) {
					t.Errorf("systemctl was told %q, want %q", got, want)
				}
			}
			if c.bare {
				must(t, os.RemoveAll(filepath.Join(r.dir, "run/systemd")))
			}
			told(r.rpm(t, 0, "-i", packages[0]), c.install)
			unchanged()
			if got := r.rsagent(t, "version"); !strings.HasPrefix(got, "rsagent 1.0.0 ") {
				t.Error(got)
			}
			config := filepath.Join(r.dir, "etc/rsagent/rsagent.yaml")
			must(t, os.WriteFile(config, []byte("vips: [192.0.2.100]\n"), 0o644))
			wants := filepath.Join(r.dir, "etc/systemd/system/multi-user.target.wants")
			must(t, os.MkdirAll(wants, 0o755))
			must(t, os.Symlink("/usr/lib/systemd/system/rsagent@.service", filepath.Join(wants, "rsagent@192.0.2.101.service")))
			r.rsagent(t, "start")
			r.rsagent(t, "start", "--vip", "192.0.2.102")

			managed := r.Snapshot(t)
			events := r.Start(t, "ip", "monitor", "address")
			told(r.rpm(t, 0, "-U", packages[1]), c.upgrade)
			if d := testnet.Diff(managed, r.Snapshot(t)); d != "" {
				t.Errorf("the upgrade changed the host (-before +after):\n%s", d)
			}
			r.Run(t, "ip", "addr", "add", "127.0.0.9/32", "dev", "lo") // the last that is seen
			events.Await(t, "127.0.0.9")
			if got := events.Stop(); strings.Contains(got, "192.0.2.") {
				t.Errorf("VIPs came or went:\n%s", got)
			}
			r.Run(t, "ip", "addr", "del", "127.0.0.9/32", "dev", "lo")
			if got := r.rsagent(t, "version"); !strings.HasPrefix(got, "rsagent 1.1.0 ") {
				t.Error(got)
			}
			r.rsagent(t, "status")

			// Where it cannot take all back, it stays.
			journals, _ := filepath.Glob(filepath.Join(r.dir, "run/rsagent/*.json"))
			if len(journals) != 1 {
				t.Fatalf("journals: %q", journals)
			}
			whole, err := os.ReadFile(journals[0])
			must(t, err)
			must(t, os.WriteFile(journals[0], whole[:len(whole)/2], 0o644))
			r.rpm(t, 1, "-e", "rsagent")
			if len(r.Holds(t, "192.0.2.100")) == 0 {
				t.Error("it was not erased, and the VIP is gone")
			}
			must(t, os.WriteFile(journals[0], whole, 0o644))

			told(r.rpm(t, 0, "-e", "rsagent"), c.gone)
			unchanged()
			os.Remove(filepath.Join(wants, "rsagent@192.0.2.101.service"))
			if got, want := r.leavings(t), []string{"/etc/rsagent", "/etc/rsagent/rsagent.yaml.rpmsave"}; !slices.Equal(got, want) {
				t.Errorf("left: %q, want %q", got, want)
			}
		})
	}
}
