package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const verdict = "lab verdict: "

// boot runs the tests in a VM and returns the exit code they ended with.
func boot(ctx context.Context, end time.Time) (int, error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	image, err := output(ctx, "", "./build.sh")
	if err != nil {
		return 0, err
	}
	unlock, err := oneAtATime(filepath.Dir(image))
	if err != nil {
		return 0, err
	}
	defer unlock()
	dir, err := os.MkdirTemp("", "rsagent-lab")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := makeJob(ctx, dir, end); err != nil {
		return 0, err
	}
	return run(ctx, image, dir)
}

// oneAtATime keeps two boots from making each other slow.
func oneAtATime(cache string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(cache, "boot.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
}

// makeJob makes the disk with what the guest runs: both binaries without cgo, so that they need nothing of the guest.
func makeJob(ctx context.Context, dir string, end time.Time) error {
	job := filepath.Join(dir, "job")
	if err := os.CopyFS(filepath.Join(job, "testdata"), os.DirFS("testdata")); err != nil {
		return err
	}
	if _, err := output(ctx, "", "go", "test", "-c", "-o", filepath.Join(job, "lab.test"), "."); err != nil {
		return err
	}
	if _, err := output(ctx, "../..", "go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w",
		"-o", filepath.Join(job, "rsagent"), "./cmd/rsagent"); err != nil {
		return err
	}
	script := fmt.Sprintf("stty -F /dev/ttyS1 -opost\ncd /job\nexport RSAGENT_LAB_GUEST=1 RSAGENT_TEST_ALL=%s RSAGENT_BIN=/job/rsagent\n"+
		"./lab.test%s 2>&1\necho '%s'$?\n", os.Getenv("RSAGENT_TEST_ALL"), guestArgs(os.Args[1:], end), verdict)
	if err := os.WriteFile(filepath.Join(job, "run"), []byte(script), 0o755); err != nil {
		return err
	}
	_, err := output(ctx, "", "mkfs.ext4", "-q", "-d", job, filepath.Join(dir, "job.img"), "128M")
	return err
}

// guestArgs quotes the flags of this run for the guest's shell, without those that name files of the host. The guest
// stops a while before the host would, so that a test that hangs is named.
func guestArgs(args []string, end time.Time) string {
	var b strings.Builder
	for _, a := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch name {
		case "test.testlogfile", "test.outputdir", "test.gocoverdir", "test.coverprofile", "test.timeout":
			continue
		}
		b.WriteString(" '" + strings.ReplaceAll(a, "'", `'\''`) + "'")
	}
	left := time.Until(end) - 45*time.Second
	fmt.Fprintf(&b, " -test.timeout=%v", max(left, 30*time.Second).Round(time.Second))
	return b.String()
}

// run starts qemu and passes on the lines of the guest's second serial port until the verdict. The first port is the
// console, which is shown only when there was none. Never KVM: on some hosts /dev/kvm is there and hangs.
func run(ctx context.Context, image, dir string) (int, error) {
	console := filepath.Join(dir, "console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2048", "-smp", "2",
		"-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot", "-serial", "file:"+console, "-serial", "stdio",
		"-kernel", filepath.Join(image, "vmlinuz"), "-initrd", filepath.Join(image, "initrd"),
		"-drive", "format=raw,if=virtio,snapshot=on,file="+filepath.Join(image, "root.img"),
		"-drive", "format=raw,if=virtio,file="+filepath.Join(dir, "job.img"),
		"-append", "console=ttyS0 panic=-1 quiet mitigations=off")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	code := passOn(lines)
	err = errors.Join(cmd.Wait(), ctx.Err())
	if code < 0 {
		tail, _ := output(context.Background(), "", "tail", "-n", "40", console)
		return 0, fmt.Errorf("the guest ended without a verdict: %v\nits console:\n%s", err, tail)
	}
	return code, err
}

// passOn prints up to the verdict and returns what it says, or -1 if there was none.
func passOn(r io.Reader) int {
	code := -1
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if code < 0 && !strings.HasPrefix(line, verdict) {
			fmt.Print(line)
		}
		fmt.Sscanf(line, verdict+"%d", &code)
		if err != nil {
			return code
		}
	}
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}
