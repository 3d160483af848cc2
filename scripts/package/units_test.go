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

func unit(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sandbox is what a unit may do.
func sandbox(t *testing.T, name string) []string {
	t.Helper()
	_, lines, found := strings.Cut(unit(t, name), "\nCapabilityBoundingSet=")
	lines, _, _ = strings.Cut(lines, "\n\n")
	if !found || !strings.Contains(lines, "NoNewPrivileges=yes") {
		t.Fatalf("%s has no sandbox", name)
	}
	return strings.Split("CapabilityBoundingSet="+strings.TrimSpace(lines), "\n")
}

// TestUnitsAlike: what one unit may do, the others may; those that only look, all but load modules and write settings.
func TestUnitsAlike(t *testing.T) {
	want := sandbox(t, "rsagent.service")
	for _, name := range []string{"rsagent@.service", "rsagent-online.service"} {
		if got := sandbox(t, name); !slices.Equal(got, want) {
			t.Errorf("%s: %q\nwant, as in rsagent.service: %q", name, got, want)
		}
	}
	// What mounts another /proc, where inotify is silent about what others write, is not for one that watches.
	watching := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return line == "ProtectProc=invisible" || line == "ProtectControlGroups=yes" })
	watching = append(watching, "PrivateMounts=yes")
	slices.Sort(watching)
	if got := sandbox(t, "rsagent-watch.service"); !slices.Equal(slices.Sorted(slices.Values(got)), watching) {
		t.Errorf("rsagent-watch.service: %q\nwant: %q", got, watching)
	}
	for i, line := range want {
		want[i] = strings.NewReplacer(" CAP_SYS_MODULE", "", " @module", "").Replace(line)
	}
	want = append(want, "ProtectKernelModules=yes", "ProtectKernelTunables=yes")
	slices.Sort(want)
	for _, name := range []string{"rsagent-metrics.service", "rsagent-health@.service"} {
		got := sandbox(t, name)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q\nwant: %q", name, got, want)
		}
	}
}

// TestUnitsVerify: systemd can read each, and finds no fault.
func TestUnitsVerify(t *testing.T) {
	testnet.Need(t, "systemd-analyze")
	paths, err := filepath.Glob("../systemd/*")
	if err != nil || len(paths) != 8 {
		t.Fatal(paths, err)
	}
	dir := t.TempDir()
	for i, path := range paths { // it wants programs to be there
		name := filepath.Base(path)
		text := strings.ReplaceAll(unit(t, name), "=rsagent ", "="+testnet.Rsagent(t)+" ")
		paths[i] = filepath.Join(dir, name)
		if err := os.WriteFile(paths[i], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, paths...)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMetricsUnit: what status says takes the file's place whole, whatever its exit code; what has no end does not.
func TestMetricsUnit(t *testing.T) {
	_, script, found := strings.Cut(unit(t, "rsagent-metrics.service"), "\nExecStart=/bin/sh -c '")
	script, _, _ = strings.Cut(script, "'\n")
	if !found {
		t.Fatal("the unit has another command")
	}
	script = strings.ReplaceAll(script, "$$", "$")
	dir, bin := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "rsagent.prom")
	for _, test := range []struct {
		says  string // of rsagent, as a script
		fails bool
		want  string
	}{
		{"echo one; echo '# EOF'", false, "one\n# EOF\n"},
		{"echo two; echo '# EOF'; exit 1", false, "two\n# EOF\n"},
		{"echo three; exit 0", true, "two\n# EOF\n"},
		{"exit 2", true, "two\n# EOF\n"},
		{"kill -9 $$", true, "two\n# EOF\n"},
		{"test \"$*\" = 'status --output prometheus' || exit; echo four; echo '# EOF'", false, "four\n# EOF\n"},
	} {
		if err := os.WriteFile(filepath.Join(bin, "rsagent"), []byte("#!/bin/sh\n"+test.says+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Stat(file)
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		err := cmd.Run()
		b, _ := os.ReadFile(file)
		if (err != nil) != test.fails || string(b) != test.want {
			t.Errorf("%s: %v, %q, want %q", test.says, err, b, test.want)
		}
		if after, _ := os.Stat(file); !test.fails && os.SameFile(before, after) {
			t.Errorf("%s: written in place, where a reader may see half of it", test.says)
		}
	}
}
