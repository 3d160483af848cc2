package vm

import (
	"slices"
	"strings"
	"testing"
)

// TestPassOn: the guest's last words tell what was skipped, and how it ended.
func TestPassOn(t *testing.T) {
	for words, want := range map[string]int{
		"=== RUN   TestX\n" + skipped + "TestX: needs tcpdump\r\n" + verdict + "0\n": 0,
		skipped + "TestX: needs tcpdump\n" + verdict + "1\n":                         1,
		skipped + "TestX: needs tcpdump\n":                                           -1,
	} {
		code, skips := passOn(strings.NewReader(words))
		if code != want || !slices.Equal(skips, []string{"TestX: needs tcpdump"}) {
			t.Errorf("%q: %d, %q", words, code, skips)
		}
	}
}

// TestSettings: what the host's tests go by, the guest's do.
func TestSettings(t *testing.T) {
	t.Setenv("RSAGENT_TEST_ALL", "1")
	t.Setenv("RSAGENT_TEST_STRIDE", "it's 7")
	t.Setenv("RSAGENT_TEST_ROWS", "")
	if got, want := settings(), ` RSAGENT_TEST_ALL='1' RSAGENT_TEST_STRIDE='it'\''s 7'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
