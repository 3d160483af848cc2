package lab

import (
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

const cycles = 20

// leaks starts and stops a real server again and again while the client asks for the VIP without pause, and counts the
// answers that came from it and not from the director.
func leaks(t *testing.T, c *cluster, mode string, with tool, real *testnet.Host) (asked, leaked int) {
	t.Helper()
	asker := c.client.AskARP(t, "eth0", vip, 500*time.Microsecond)
	for range cycles {
		with.start(t, mode, vip)
		asker.Await(t, 5)
		with.stop(t, mode, vip)
		asker.Await(t, 5)
	}
	asked, replies := asker.Stop()
	if replies[mac(t, c.director)] == 0 {
		t.Errorf("nobody heard the director: %v", replies)
	}
	return asked, replies[mac(t, real)]
}

func mac(t *testing.T, h *testnet.Host) string {
	t.Helper()
	return h.NIC(t, "eth0").HardwareAddr.String()
}

// TestARP: nobody ever hears the real server answer for the VIP. The classic script, watched in the same way, is heard:
// so this can fail.
func TestARP(t *testing.T) {
	eachMode(t, func(t *testing.T, mode string) {
		c := newCluster(t)
		c.direct(t, mode, vip)
		asked, leaked := leaks(t, c, mode, classic{c.real[0]}, c.real[0])
		t.Logf("the classic script: asked %d times, %d leaks", asked, leaked)
		if leaked == 0 {
			t.Error("the classic script leaked nothing: this test cannot fail")
		}
		asked, leaked = leaks(t, c, mode, newAgent(t, c.real[1]), c.real[1])
		t.Logf("rsagent: asked %d times, %d leaks", asked, leaked)
		if leaked > 0 {
			t.Errorf("rsagent leaked %d times", leaked)
		}
	})
}
