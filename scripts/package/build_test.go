// Package packages tests what build.sh makes, as far as a build host can.
package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

func run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, &stderr)
	}
	return string(out)
}

// files are a package's files, without its folders.
func files(list string) (out []string) {
	for line := range strings.Lines(list) {
		if path := strings.TrimPrefix(strings.TrimSpace(line), "."); path != "" && !strings.HasSuffix(path, "/") {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

var both = []string{
	"/etc/rsagent/rsagent.yaml",
	"/usr/lib/rsagent/lvs_real.sh",
	"/usr/lib/systemd/system/rsagent-health.socket", "/usr/lib/systemd/system/rsagent-health@.service",
	"/usr/lib/systemd/system/rsagent-metrics.service", "/usr/lib/systemd/system/rsagent-metrics.timer",
	"/usr/lib/systemd/system/rsagent-online.service", "/usr/lib/systemd/system/rsagent-watch.service",
	"/usr/lib/systemd/system/rsagent.service", "/usr/lib/systemd/system/rsagent@.service",
	"/usr/sbin/rsagent",
	"/usr/share/bash-completion/completions/rsagent", "/usr/share/fish/vendor_completions.d/rsagent.fish",
	"/usr/share/doc/rsagent/copyright",
	"/usr/share/man/man8/rsagent.8.gz",
}

// TestInstall: all is in its place, and a config that is there stays.
func TestInstall(t *testing.T) {
	testnet.Need(t, "git", "go", "make")
	dest := t.TempDir()
	install := []string{"make", "-C", "../..", "install", "PREFIX=/usr", "DESTDIR=" + dest}
	run(t, nil, install...)
	want := slices.Concat(both, []string{"/etc/default/rsagent", "/etc/init.d/rsagent", "/usr/share/zsh/site-functions/_rsagent"})
	want = slices.DeleteFunc(want, func(path string) bool { return path == "/usr/share/doc/rsagent/copyright" })
	for i, path := range want {
		want[i] = strings.TrimSuffix(path, ".gz")
	}
	slices.Sort(want)
	if got := files(strings.ReplaceAll(run(t, nil, "find", dest, "-type", "f"), dest, "")); !slices.Equal(got, want) {
		t.Errorf("files: %q, want %q", got, want)
	}
	run(t, nil, "cmp", "../../build/rsagent", dest+"/usr/sbin/rsagent")

	const edited = "vips: [192.0.2.100]\n"
	config := dest + "/etc/rsagent/rsagent.yaml"
	if err := os.WriteFile(config, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, nil, install...)
	if b, err := os.ReadFile(config); err != nil || string(b) != edited {
		t.Errorf("the config is %q by now: %v", b, err)
	}
}

// TestPackages: the same source gives the same bytes, whoever builds it, and holds what it should.
func TestPackages(t *testing.T) {
	testnet.Need(t, "bash", "git", "go", "gzip", "make")
	dirs := []string{t.TempDir(), t.TempDir()}
	env := []string{"VERSION=v1.2.3-4-gabc", "COMMIT=abc", "SOURCE_DATE_EPOCH=1750000000", "MAINTAINER=A <a@a.net>"}
	run(t, append(env, "OUT="+dirs[0], "TZ=UTC"), "sh", "-c", "umask 022; make -C ../.. deb rpm")
	run(t, append(env, "OUT="+dirs[1], "TZ=Asia/Tokyo"), "sh", "-c", "umask 077; ./build.sh rpm deb")
	for _, name := range []string{"rsagent_1.2.3+4+gabc-1_amd64.deb", "rsagent_1.2.3+4+gabc-1_arm64.deb",
		"rsagent-1.2.3+4+gabc-1.x86_64.rpm", "rsagent-1.2.3+4+gabc-1.aarch64.rpm"} {
		run(t, nil, "cmp", filepath.Join(dirs[0], name), filepath.Join(dirs[1], name))
	}
	deb := filepath.Join(dirs[0], "rsagent_1.2.3+4+gabc-1_amd64.deb")
	rpm := filepath.Join(dirs[0], "rsagent-1.2.3+4+gabc-1.x86_64.rpm")

	t.Run("deb", func(t *testing.T) {
		testnet.Need(t, "dpkg-deb")
		root := t.TempDir()
		run(t, nil, "dpkg-deb", "-R", deb, root)
		conffiles := "/etc/default/rsagent\n/etc/init.d/rsagent\n/etc/rsagent/rsagent.yaml\n"
		b, err := os.ReadFile(root + "/DEBIAN/conffiles")
		if got := files(string(b)); err != nil || !slices.Equal(got, files(conffiles)) {
			t.Errorf("conffiles: %q, %v", got, err)
		}
		want := slices.Concat(both, files(conffiles), []string{"/usr/share/zsh/vendor-completions/_rsagent",
			"/usr/share/doc/rsagent/changelog.Debian.gz", "/usr/share/lintian/overrides/rsagent"})
		slices.Sort(want)
		list := strings.ReplaceAll(run(t, nil, "find", root, "-type", "f", "-not", "-path", "*/DEBIAN/*"), root, "")
		if got := files(list); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("files: %q, want %q", got, want)
		}
		if got := run(t, nil, root+"/usr/sbin/rsagent", "version"); !strings.HasPrefix(got, "rsagent v1.2.3-4-gabc (abc, ") {
			t.Error(got)
		}
	})
	t.Run("lintian", func(t *testing.T) {
		testnet.Need(t, "lintian")
		cmd := exec.Command("lintian", "--fail-on", "error", "--allow-root", deb)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		testnet.Need(t, "rpm")
		conf := "/etc/rc.d/init.d/rsagent\n/etc/rsagent/rsagent.yaml\n/etc/sysconfig/rsagent\n"
		if got := files(run(t, nil, "rpm", "-qpc", rpm)); !slices.Equal(got, files(conf)) {
			t.Errorf("config files: %q", got)
		}
		want := slices.Concat(both, files(conf), []string{"/usr/share/zsh/site-functions/_rsagent"})
		slices.Sort(want)
		list := run(t, nil, "rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpm)
		var got []string
		for _, line := range files(list) {
			if mode, path, _ := strings.Cut(line, " "); mode[0] == '-' {
				got = append(got, path)
			}
		}
		if slices.Sort(got); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("files: %q, want %q", got, want)
		}
	})
}
