package cases

import (
	"os"
	"testing"

	"rsagent/scripts/testnet"
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }
