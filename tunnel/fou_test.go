package tunnel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestReadPort takes apart what kernels of 6.1 and later answer: every attribute is there, and zero where it says nothing.
func TestReadPort(t *testing.T) {
	answer := func(af byte, port []byte, typ byte, more ...*nl.RtAttr) []byte {
		b := []byte{fouGet, 1, 0, 0}
		for _, a := range append([]*nl.RtAttr{nl.NewRtAttr(fouAF, []byte{af}), nl.NewRtAttr(fouPort, port), nl.NewRtAttr(10, []byte{0, 0}),
			nl.NewRtAttr(3, []byte{0}), nl.NewRtAttr(fouTyp, []byte{typ}), nl.NewRtAttr(fouIfIndex, make([]byte, 4))}, more...) {
			b = append(b, a.Serialize()...)
		}
		return b
	}
	none4, none6 := nl.NewRtAttr(6, make([]byte, 4)), nl.NewRtAttr(7, make([]byte, 16))
	for _, c := range []struct {
		name string
		in   []byte
		port Port
		want string
	}{
		{"GUE", answer(unix.AF_INET, []byte{0x17, 0xc0}, 2, none4), Port{6080, false}, "gue"},
		{"GUE over IPv6", answer(unix.AF_INET6, []byte{0x17, 0xc0}, 2, none6), Port{6080, true}, "gue"},
		{"FOU", answer(unix.AF_INET, []byte{0x15, 0xb3}, 1, none4), Port{5555, false}, "fou"},
		{"bound to an address", answer(unix.AF_INET, []byte{0x17, 0xc0}, 2, nl.NewRtAttr(6, []byte{10, 0, 0, 1})), Port{6080, false}, "bound"},
		{"bound to a device", answer(unix.AF_INET, []byte{0x17, 0xc0}, 2, none4, nl.NewRtAttr(fouIfIndex, []byte{3, 0, 0, 0})), Port{6080, false}, "bound"},
		{"cut short", answer(unix.AF_INET, []byte{0x17, 0xc0}, 2)[:3], Port{}, ""},
	} {
		if p, value := readPort(c.in); p != c.port || value != c.want {
			t.Errorf("%s: %v %q", c.name, p, value)
		}
	}
}
