package hostile

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"rsagent/scripts/testnet"
)

// The test binary is also a program that runs another one under seccomp.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && (os.Args[1] == "modules" || os.Args[1] == "netlink") {
		fmt.Fprintln(os.Stderr, refusing(os.Args[1], os.Args[2:]))
		os.Exit(125)
	}
	os.Exit(testnet.Main(m))
}

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
