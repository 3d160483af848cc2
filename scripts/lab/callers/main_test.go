package callers

import (
	"context"
	"fmt"
	"net"
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
	Packages: []string{"cloud-init", "openssh-server", "python3-apt"},
	Tools:    []string{"genisoimage", "ansible-playbook", "ssh", "ssh-keygen"},
	Prepare:  prepare,
	Boots:    []string{"^Test(Reboot|Seed|Role)", "^TestFirstBoot"},
	Once:     true,
}

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }

// prepare lays the files under test out as they lie in the source tree, and makes the disk that cloud-init starts from. The
// same folder is Ansible's on its controller, which is this machine: see controller.sh.
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
	if err := run(ctx, []string{"RSAGENT_BIN=" + filepath.Join(job, "rsagent")}, filepath.Join(job, "scripts/cloud-init/seed.sh"), seed); err != nil {
		return nil, err
	}
	key := filepath.Join(dir, "key")
	if err := run(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	inventory := fmt.Sprintf("lab ansible_host=127.0.0.1 ansible_port=%d ansible_user=root ansible_ssh_private_key_file=%s ansible_python_interpreter=/usr/bin/python3\n", port, key)
	if err := os.WriteFile(filepath.Join(dir, "HOSTS"), []byte(inventory), 0o644); err != nil {
		return nil, err
	}
	script, err := filepath.Abs("controller.sh")
	if err != nil {
		return nil, err
	}
	return []string{"-drive", "format=raw,if=virtio,readonly=on,file=" + seed, "-device", "virtio-net-pci,netdev=wire",
		"-netdev", fmt.Sprintf("user,id=wire,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:%d-:22,guestfwd=tcp:%s-cmd:%s %s", port, controller, script, dir)}, nil
}

// freePort is a TCP port of loopback's that nobody has at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
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
