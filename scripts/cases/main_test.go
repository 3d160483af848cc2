package cases

import (
	"os"
	"testing"

	"rsagent/scripts/testnet"
)

// long is the form of the tests that takes hours: an hour's soak, and every repetition.
var long = os.Getenv("RSAGENT_TEST_STRIDE") == "1"

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }
