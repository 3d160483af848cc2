package packages

import (
	"os"
	"strings"
	"testing"
)

// TestUnitsAlike: what one unit may do, the others may.
func TestUnitsAlike(t *testing.T) {
	sandbox := func(unit string) string {
		b, err := os.ReadFile("../systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		_, lines, found := strings.Cut(string(b), "\nCapabilityBoundingSet=")
		lines, _, _ = strings.Cut(lines, "\n\n")
		if !found || !strings.Contains(lines, "NoNewPrivileges=yes") {
			t.Fatalf("%s has no sandbox", unit)
		}
		return lines
	}
	want := sandbox("rsagent.service")
	for _, unit := range []string{"rsagent@.service", "rsagent-online.service"} {
		if got := sandbox(unit); got != want {
			t.Errorf("%s:\n%s\nwant, as in rsagent.service:\n%s", unit, got, want)
		}
	}
}
