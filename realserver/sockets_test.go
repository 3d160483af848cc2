package realserver

import (
	"testing"
)

func TestParseService(t *testing.T) {
	for s, want := range map[string]string{"80": "80/tcp", "80/tcp": "80/tcp", "53/udp": "53/udp", "65535": "65535/tcp",
		"": "", "0": "", "65536": "", "-1": "", "+1": "", "080": "", "80/": "", "80/sctp": "", "http": "", "80 ": "", "80/tcp/udp": ""} {
		got, err := ParseService(s)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %s, %v, want %q", s, got, err, want)
		}
	}
}
