package callers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/scripts/lab/vm"
	"rsagent/scripts/testnet"
)

var guest = &vm.Guest{
	Packages: []string{"cloud-init", "ansible-core", "python3-apt"},
	Tools:    []string{"genisoimage"},
	Prepare:  prepare,
	Boots:    []string{"^Test(Reboot|Seed|Role)", "^TestFirstBoot"},
	Once:     true,
}

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }

// prepare lays the files under test out as they lie in the source tree, and makes the disk that cloud-init starts from.
func prepare(ctx context.Context, dir, job string) ([]string, error) {
	for _, name := range []string{"ansible", "cloud-init", "systemd"} {
		if err := os.CopyFS(filepath.Join(job, "scripts", name), os.DirFS(filepath.Join("../..", name))); err != nil {
			return nil, err
		}
	}
	if err := run(ctx, nil, "cp", "../../../README.md", job); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(job, "build"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Link(filepath.Join(job, "rsagent"), filepath.Join(job, "build/rsagent")); err != nil {
		return nil, err
	}
	if err := run(ctx, []string{"VERSION=1.0.0", "COMMIT=lab", "SOURCE_DATE_EPOCH=1000000000", "ARCHES=amd64", "OUT=" + job}, "../../package/build.sh", "deb"); err != nil {
		return nil, err
	}
	seed := filepath.Join(dir, "seed.iso")
	err := run(ctx, []string{"RSAGENT_BIN=" + filepath.Join(job, "rsagent")}, filepath.Join(job, "scripts/cloud-init/seed.sh"), seed)
	return []string{"-drive", "format=raw,if=virtio,readonly=on,file=" + seed}, err
}

func run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return err
}

// The files of this host that rsagent's callers make.
const (
	binary = "/usr/local/sbin/rsagent"
	config = "/etc/rsagent"
	units  = "/etc/systemd/system"
)

// A state is all of the host that a caller may change.
type state struct {
	Net   testnet.Snapshot
	Files map[string]string
}

func look(t *testing.T) state {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{binary, config, config + "/*", units + "/rsagent*", units + "/*/rsagent*", "/tmp/rsagent.*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				text = []byte(err.Error())
			}
			if path == binary {
				text = []byte("a binary")
			}
			files[path] = string(text)
		}
	}
	return state{testnet.Here().Snapshot(t), files}
}

// unchanged fails where the host is not as it was.
func unchanged(t *testing.T, before state) {
	t.Helper()
	if diff := cmp.Diff(before, look(t)); diff != "" {
		t.Errorf("the host is not as it was (-before +after):\n%s", diff)
	}
}

// serves: the host holds these VIPs and no other of 192.0.2.0/24, each as "address dev", and is silent about them.
func serves(t *testing.T, want ...string) {
	t.Helper()
	h := testnet.Here()
	var got []string
	for dev := range h.Links(t) {
		for _, a := range h.Addrs(t, dev) {
			if strings.HasPrefix(a.Local, "192.0.2.") && a.PrefixLen == 32 {
				got = append(got, a.Local+" "+dev)
			}
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the host holds %q, want %q", got, want)
	}
	ignore, announce := "0", "0"
	if len(want) > 0 {
		ignore, announce = "1", "2"
	}
	for knob, want := range map[string]string{"arp_ignore": ignore, "arp_announce": announce} {
		if got := h.IPv4Conf(t, "all", knob); got != want {
			t.Errorf("all.%s is %s, want %s", knob, got, want)
		}
	}
}

// is asks systemd about the unit, such as is-active.
func is(t *testing.T, verb, want string) {
	t.Helper()
	if r := testnet.Here().Try("systemctl", verb, "rsagent.service"); strings.TrimSpace(r.Stdout) != want {
		t.Errorf("systemctl %s rsagent.service: %s%s, want %s", verb, r.Stdout, r.Stderr, want)
	}
}

// says fails where a text lacks one of the words.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
}

// retire makes of the host one that has never had rsagent.
func retire(t *testing.T) {
	t.Helper()
	testnet.Here().Try("systemctl", "disable", "--now", "rsagent.service", "rsagent-online.service", "rsagent-watch.service")
	testnet.Here().Try("dpkg", "--purge", "rsagent")
	for _, pattern := range []string{binary, config, units + "/rsagent*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	testnet.Here().Run(t, "systemctl", "daemon-reload")
	testnet.Here().Try("systemctl", "reset-failed")
	serves(t)
}
