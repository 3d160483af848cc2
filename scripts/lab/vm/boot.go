package vm

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

	"rsagent/scripts/testnet"
)

// What the guest's last words begin with: each test that was skipped, and how it all ended.
const (
	skipped = "lab skipped: "
	verdict = "lab verdict: "
)

// boot runs the tests in a VM and returns the exit code they ended with.
func (g *Guest) boot(ctx context.Context, end time.Time) (int, error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	image, err := g.image(ctx)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "rsagent-lab")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	qemu, err := g.makeJob(ctx, dir)
	if err != nil {
		return 0, err
	}
	passed, err := g.passed(image, dir)
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(passed); err == nil && g.Once && os.Getenv("RSAGENT_LAB_AGAIN") != "1" {
		fmt.Printf("all of this has passed before (%s)\n", passed)
		return 0, nil
	}
	if err := g.makeDisk(ctx, dir, end); err != nil {
		return 0, err
	}
	code, err := g.run(ctx, image, dir, qemu)
	if g.Once && code == 0 && err == nil {
		err = os.WriteFile(passed, nil, 0o644)
	}
	return code, err
}

// folder is where this package lies.
func folder(ctx context.Context) (string, error) {
	return output(ctx, "go", "list", "-f", "{{.Dir}}", "rsagent/scripts/lab/vm")
}

// image builds the image if it is not there yet.
func (g *Guest) image(ctx context.Context) (string, error) {
	dir, err := folder(ctx)
	if err != nil {
		return "", err
	}
	return output(ctx, filepath.Join(dir, "build.sh"), g.Packages...)
}

// run starts qemu and passes on the lines of the guest's second serial port until the verdict. The first port is the
// console, which is shown only when there was none. Never KVM: on some hosts /dev/kvm is there and hangs. qemu translates
// code once for each address it runs at: with norandmaps programs start four times as fast. Each look at a clock that is not
// the TSC leaves the guest, which gives the TSC up unless told that it is reliable. And a processor that says it copies
// strings fast (ERMS, FSRM) is given them to copy byte by byte. A guest has one processor, and keeps most of one busy.
func (g *Guest) run(ctx context.Context, image, dir string, more []string) (int, error) {
	console := filepath.Join(dir, "console")
	args := append([]string{"-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm", "-m", "2048", "-smp", "1",
		"-display", "none", "-monitor", "none", "-nic", "none", "-serial", "file:" + console, "-serial", "stdio",
		"-kernel", filepath.Join(image, "vmlinuz"), "-initrd", filepath.Join(image, "initrd"),
		"-drive", "format=raw,if=virtio,snapshot=on,file=" + filepath.Join(image, "root.img"),
		"-drive", "format=raw,if=virtio,file=" + filepath.Join(dir, "job.img"),
		"-append", "console=ttyS0 panic=-1 quiet mitigations=off norandmaps tsc=reliable"}, more...)
	if len(g.Boots) < 2 {
		args = append(args, "-no-reboot")
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
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
	code, skips := passOn(lines)
	err = errors.Join(cmd.Wait(), ctx.Err(), testnet.Skipped(skips...))
	if code < 0 {
		tail, _ := output(context.Background(), "tail", "-n", "40", console)
		return 0, fmt.Errorf("the guest ended without a verdict: %v\nits console:\n%s", err, tail)
	}
	return code, err
}

// passOn prints up to the verdict and returns what it says, or -1 if there was none, and what was skipped.
func passOn(r io.Reader) (code int, skips []string) {
	code = -1
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if skip, is := strings.CutPrefix(line, skipped); is {
			skips = append(skips, strings.TrimSpace(skip))
		} else if code < 0 && !strings.HasPrefix(line, verdict) {
			fmt.Print(line)
		}
		fmt.Sscanf(line, verdict+"%d", &code)
		if err != nil {
			return code, skips
		}
	}
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}
