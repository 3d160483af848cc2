package lab

import (
	"os"
	"testing"

	"rsagent/scripts/lab/vm"
)

var machine = vm.Guest{Packages: []string{"arping", "ipvsadm", "net-tools", "nftables"}}

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

// guest is how every test of this package begins.
func guest(t *testing.T) {
	t.Helper()
	machine.Need(t)
}
