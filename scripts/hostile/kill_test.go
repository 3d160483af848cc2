package hostile

import "testing"

func TestKills(t *testing.T) {
	t.Parallel()
	Kills(t, "dr", stride(t, 13), 1)
}
