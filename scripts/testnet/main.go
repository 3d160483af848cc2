package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Main is the TestMain of packages that use this one:
//
//	func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }
func Main(m *testing.M) int {
	sweep()
	defer os.RemoveAll(buildDir(os.Getpid()))
	return m.Run()
}

// sweep removes what killed test processes left behind.
func sweep() {
	for _, path := range leftBehind(filepath.Join(netnsDir, prefix)) {
		here.Try("ip", "netns", "del", filepath.Base(path))
	}
	for _, path := range leftBehind(filepath.Join(os.TempDir(), prefix)) {
		os.RemoveAll(path)
	}
}

// leftBehind lists the paths "<stem><pid>-…" whose process is gone.
func leftBehind(stem string) []string {
	var gone []string
	paths, _ := filepath.Glob(stem + "*")
	for _, path := range paths {
		digits, _, _ := strings.Cut(strings.TrimPrefix(path, stem), "-")
		pid, err := strconv.Atoi(digits)
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			gone = append(gone, path)
		}
	}
	return gone
}

func buildDir(pid int) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-build", prefix, pid))
}

// Rsagent is the path of the static binary under test: RSAGENT_BIN, or one
// built on first use, as it is built for a release.
func Rsagent(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("RSAGENT_BIN"); path != "" {
		return path
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir(os.Getpid()), "rsagent")
	here, err := exec.Command("go", "list", "-f", "{{.Dir}}", "rsagent/scripts/testnet").Output()
	if err != nil {
		return "", fmt.Errorf("find build.sh: %w", err)
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(here)), "../build.sh"), path)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rsagent: %w\n%s", err, output)
	}
	return path, nil
})
