package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// makeJob fills the folder that becomes the job disk: both binaries without cgo, so that they need nothing of the guest.
func (g *Guest) makeJob(ctx context.Context, dir string) (qemu []string, err error) {
	job := filepath.Join(dir, "job")
	if err := os.Mkdir(job, 0o755); err != nil {
		return nil, err
	}
	if err := os.CopyFS(filepath.Join(job, "testdata"), os.DirFS("testdata")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := output(ctx, "go", "test", "-c", "-trimpath", "-o", filepath.Join(job, "lab.test"), "."); err != nil {
		return nil, err
	}
	rsagent := filepath.Join(job, "rsagent")
	if bin := os.Getenv("RSAGENT_BIN"); bin != "" {
		_, err = output(ctx, "cp", bin, rsagent)
	} else {
		var here string
		if here, err = folder(ctx); err == nil {
			_, err = output(ctx, filepath.Join(here, "../../build.sh"), rsagent)
		}
	}
	if err != nil || g.Prepare == nil {
		return nil, err
	}
	return g.Prepare(ctx, dir, job)
}

// makeDisk adds the script that the guest runs at the end of each boot, and makes the disk.
func (g *Guest) makeDisk(ctx context.Context, dir string, end time.Time) error {
	boots := g.Boots
	if len(boots) == 0 {
		boots = []string{""}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "stty -F /dev/ttyS1 -opost\ncd /job\necho >>boots\n"+
		"export RSAGENT_LAB_GUEST=1%s RSAGENT_BIN=/job/rsagent RSAGENT_SKIPS=/job/skips\ncase $(wc -l <boots) in\n", settings())
	for i, skip := range boots {
		fmt.Fprintf(&b, "%d) ./lab.test%s -test.skip=%s 2>&1", i+1, guestArgs(os.Args[1:], end), quote(skip))
		if i+1 < len(boots) {
			b.WriteString(" && touch /run/job-goes-on && exec systemctl --no-block reboot")
		}
		b.WriteString(" ;;\n")
	}
	fmt.Fprintf(&b, "*) echo 'one boot too many'; false ;;\nesac\ncode=$?\n[ ! -e skips ] || sed 's/^/%s/' skips\necho '%s'$code\n", skipped, verdict)
	job := filepath.Join(dir, "job")
	if err := os.WriteFile(filepath.Join(job, "run"), []byte(b.String()), 0o755); err != nil {
		return err
	}
	_, err := output(ctx, "mkfs.ext4", "-q", "-d", job, filepath.Join(dir, "job.img"), "128M")
	return err
}

// settings are those of the host's environment that the tests go by.
func settings() string {
	var b strings.Builder
	for _, name := range []string{"RSAGENT_TEST_ALL", "RSAGENT_TEST_STRIDE", "RSAGENT_TEST_ROWS"} {
		if value := os.Getenv(name); value != "" {
			b.WriteString(" " + name + "=" + quote(value))
		}
	}
	return b.String()
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
		b.WriteString(" " + quote(a))
	}
	left := time.Until(end) - 45*time.Second
	fmt.Fprintf(&b, " -test.timeout=%v", max(left, 30*time.Second).Round(time.Second))
	return b.String()
}

func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// passed is the file that says that this image with this job, and these flags, has passed.
func (g *Guest) passed(image, dir string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, image, g.Boots, settings(), guestArgs(os.Args[1:], time.Now()))
	err := filepath.WalkDir(filepath.Join(dir, "job"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintln(sum, strings.TrimPrefix(path, dir))
		_, err = io.Copy(sum, f)
		return err
	})
	return filepath.Join(filepath.Dir(image), fmt.Sprintf("passed-%x", sum.Sum(nil)[:8])), err
}
