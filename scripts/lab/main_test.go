package lab

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

// inGuest is set by the script on the job disk.
var inGuest = os.Getenv("RSAGENT_LAB_GUEST") == "1"

// noBoot says why this host cannot run the guest; then each test skips and gives it as the reason.
var noBoot string

func TestMain(m *testing.M) {
	flag.Parse()
	if inGuest || flag.Lookup("test.list").Value.String() != "" {
		os.Exit(testnet.Main(m))
	}
	if noBoot = missing(); noBoot != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the VM dies with the thread that started it
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code, err := boot(ctx, time.Now().Add(bound()))
	stop()
	if err != nil {
		fmt.Printf("FAIL\nlab: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// guest is how every test of this package begins.
func guest(t *testing.T) {
	t.Helper()
	if !inGuest {
		testnet.Skip(t, "the lab cannot boot: "+noBoot)
	}
}

func missing() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	var lack []string
	for _, name := range []string{"qemu-system-x86_64", "mmdebstrap", "mkfs.ext4", "busybox", "depmod", "flock", "go"} {
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
