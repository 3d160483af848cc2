package lab

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"rsagent/scripts/lab/vm"
)

var machine = vm.Guest{Packages: []string{"arping", "ipvsadm", "keepalived", "net-tools", "nftables"}, Prepare: prepare}

// prepare has the README at hand, whose recipes are tried.
func prepare(_ context.Context, _, job string) ([]string, error) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		return nil, err
	}
	return nil, os.WriteFile(filepath.Join(job, "README.md"), text, 0o644)
}

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

// guest is how every test of this package begins.
func guest(t *testing.T) {
	t.Helper()
	machine.Need(t)
}
