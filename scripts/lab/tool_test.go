package lab

import (
	"testing"

	"rsagent/scripts/testnet"
)

// tool is what makes a real server: rsagent, or the script it replaces.
type tool interface {
	start(t *testing.T, mode, vip string)
	stop(t *testing.T, mode, vip string)
}

// classic is the script of testdata.
type classic struct{ host *testnet.Host }

func (c classic) start(t *testing.T, mode, vip string) {
	t.Helper()
	c.host.Run(t, "testdata/lvs_real.sh", "start", vip, mode)
}

func (c classic) stop(t *testing.T, mode, vip string) {
	t.Helper()
	c.host.Run(t, "testdata/lvs_real.sh", "stop", vip, mode)
}
