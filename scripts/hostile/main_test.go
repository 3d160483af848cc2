package hostile

import (
	"os"
	"strconv"
	"testing"

	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

// stride is how many points apart the short form tests; RSAGENT_TEST_STRIDE=1 is the long form, all of them.
func stride(t *testing.T, short int) int {
	t.Helper()
	s := os.Getenv("RSAGENT_TEST_STRIDE")
	if s == "" {
		return short
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("RSAGENT_TEST_STRIDE=%q is no number from 1", s)
	}
	return n
}
