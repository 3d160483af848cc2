package lab

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"rsagent/scripts/hostile"
	"rsagent/scripts/testnet"
)

// The verbs are killed where they write, with the VIP on the tunnel. The VM is slow, so in the short form it is at few of
// the points.
func TestCase05_KilledWithTunnel(t *testing.T) {
	guest(t)
	ipip(t, true)
	stride := 401
	if s := os.Getenv("RSAGENT_TEST_STRIDE"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("RSAGENT_TEST_STRIDE=%q is no number from 1", s)
		}
		stride = n
	}
	hostile.Kills(t, "tun", stride, 3)
}

// The clock is set back by years between start and stop: nothing is taken for old, and nothing waits.
func TestClockSetBack(t *testing.T) {
	guest(t)
	rs := testnet.NewHost(t, "rs")
	before := rs.Snapshot(t)
	a := newAgent(t, rs)
	a.start(t, "dr", "10.0.0.100")
	now := strings.TrimSpace(rs.Run(t, "date", "+%s"))
	defer rs.Run(t, "date", "-s", "@"+now)
	rs.Run(t, "date", "-s", "2001-01-01")
	a.unchanged(t, "start", "--vip", "10.0.0.100")
	a.do(t, 0, "status")
	a.stop(t, "dr", "10.0.0.100")
	equal(t, rs, before)
}
