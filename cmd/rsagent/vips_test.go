package main

import (
	"strings"
	"testing"

	"rsagent/realserver"
)

// FuzzVIPs: of a list of VIPs, however it is written, come addresses that can be VIPs, each once, or a line that says why
// not.
func FuzzVIPs(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "192.0.2.1, 192.0.2.2/32", "2001:db8::1/128,192.0.2.1", "192.0.2.1,,", "::ffff:192.0.2.1",
		"fe80::1%eth0", "010.0.0.1", "192.0.2.1/33", "\x00", "192.0.2.1\n", "\xff,\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := (&flag{name: "vip", list: true}).read([]string{s}, "--vip")
		c := &call{flags: options{"vip": w}}
		addrs, err2 := c.addresses()
		if err == nil {
			err = err2
		}
		if err != nil {
			if line := clean(oneLine(err)); line == "" || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Fatalf("%q is refused with %q", s, line)
			}
			return
		}
		seen := map[string]bool{}
		for _, a := range addrs {
			again, err := realserver.ParseAddr(a.String())
			if err != nil || again != a || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() || seen[a.String()] {
				t.Fatalf("%q gives %v: %v", s, addrs, err)
			}
			seen[a.String()] = true
		}
		if len(addrs) == 0 && s != "" {
			t.Fatalf("%q gives nothing, and no error", s)
		}
	})
}
