package testnet

import (
	"os"
	"os/exec"
	"testing"
)

// Skip skips the test out loud: in `go test -v`, and as a line in the file
// named by RSAGENT_SKIPS. With RSAGENT_TEST_ALL=1 nothing may be skipped,
// and it fails.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("RSAGENT_TEST_ALL") == "1" {
		t.Fatal("must not be skipped, but: " + reason)
	}
	if err := Skipped(t.Name() + ": " + reason); err != nil {
		t.Fatal(err)
	}
	t.Skip("SKIPPED: " + reason)
}

// Skipped adds lines to the file named by RSAGENT_SKIPS, if it names one.
func Skipped(lines ...string) error {
	path := os.Getenv("RSAGENT_SKIPS")
	if path == "" {
		return nil
	}
	for _, line := range lines {
		if err := appendLine(path, line); err != nil {
			return err
		}
	}
	return nil
}

// appendLine writes the line in one piece: test binaries run side by side.
func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// NeedRoot skips a test that cannot make namespaces.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root, to make network namespaces")
	}
	Need(t, "ip")
}

// Need skips a test whose outside tools are not installed.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			Skip(t, "needs "+tool)
		}
	}
}
