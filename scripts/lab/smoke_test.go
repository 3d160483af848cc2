package lab

import (
	"os/exec"
	"testing"
)

func TestGuest(t *testing.T) {
	guest(t)
	out, err := exec.Command("sh", "-c", "uname -r; systemctl is-system-running; systemctl --failed; systemd-analyze; modprobe -v ipip; modprobe -v ip_vs; ip -br link; cat /proc/uptime").CombinedOutput()
	t.Logf("%s %v", out, err)
}
