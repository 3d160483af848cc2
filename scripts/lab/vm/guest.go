package vm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// A Guest is the VM of one test package. Its job disk, /job, holds the test binary, the package's testdata, and rsagent,
// which RSAGENT_BIN names.
type Guest struct {
	// Packages are Debian's that the image has, with all they need, beyond systemd, udev and iproute2.
	Packages []string

	// Tools are programs of the host that Prepare needs.
	Tools []string

	// Prepare puts more into the folder that becomes the job disk, and returns further arguments of qemu's, such as
	// disks that it makes in dir.
	Prepare func(ctx context.Context, dir, job string) (qemu []string, err error)

	// Boots says for each boot which tests to leave out, as -test.skip does. The guest reboots in between, with its
	// disks as they are by then, unless a test failed. By default there is one boot with all tests.
	Boots []string

	// Once lets a run pass at once where the same image and job have passed before, unless RSAGENT_LAB_AGAIN=1.
	Once bool

	noBoot string
}

// inGuest is set by the script on the job disk.
var inGuest = os.Getenv("RSAGENT_LAB_GUEST") == "1"

// Main is the TestMain of the package.
func (g *Guest) Main(m *testing.M) int {
	flag.Parse()
	if inGuest || flag.Lookup("test.list").Value.String() != "" {
		return testnet.Main(m)
	}
	if g.noBoot = g.missing(); g.noBoot != "" {
		return m.Run()
	}
	runtime.LockOSThread() // the VM dies with the thread that started it
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if os.Getenv("RSAGENT_LAB_IMAGE") == "1" {
		if _, err := g.image(ctx); err != nil {
			fmt.Printf("FAIL\nlab: %v\n", err)
			return 1
		}
		return 0
	}
	code, err := g.boot(ctx, time.Now().Add(bound()))
	if err != nil {
		fmt.Printf("FAIL\nlab: %v\n", err)
		return 1
	}
	return code
}

// Need is how every test of the package begins.
func (g *Guest) Need(t *testing.T) {
	t.Helper()
	if !inGuest {
		testnet.Skip(t, "the lab cannot boot: "+g.noBoot)
	}
}

func (g *Guest) missing() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	var lack []string
	for _, name := range append([]string{"qemu-system-x86_64", "mmdebstrap", "mkfs.ext4", "busybox", "depmod", "flock", "go"}, g.Tools...) {
		if _, err := exec.LookPath(name); err != nil {
			lack = append(lack, name)
		}
	}
	if len(lack) > 0 {
		return "not installed: " + strings.Join(lack, ", ")
	}
	return ""
}

// bound is how long image, boot and tests may take together: what go test was told, or an hour where that is no limit.
func bound() time.Duration {
	d := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if d <= 0 {
		return time.Hour
	}
	return d
}
