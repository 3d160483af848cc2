package hostile

import "testing"

func TestKills(t *testing.T) { Kills(t, "dr", stride(t, 13)) }
