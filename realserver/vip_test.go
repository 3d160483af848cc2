package realserver

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAddr(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.100": "192.0.2.100", "192.0.2.100/32": "192.0.2.100", "203.0.113.255": "203.0.113.255", "2001:db8::100": "2001:db8::100", "2001:DB8:0::100/128": "2001:db8::100", "240.0.0.1": "240.0.0.1",
	} {
		if a, err := ParseAddr(in); err != nil || a.String() != want {
			t.Errorf("%q: %v, %v", in, a, err)
		}
	}
	for in, part := range map[string]string{
		"": "not an IP address", "vip.example": "not an IP address", "192.0.2": "not an IP address", "192.0.2.256": "not an IP address",
		"192.0.2.010": "not an IP address", " 192.0.2.1": "not an IP address", "0x7f.1": "not an IP address", "3221225985": "not an IP address",
		"192.0.2.100/24": "single address", "192.0.2.100/8": "single address", "192.0.2.100/0": "single address", "192.0.2.100/33": "single address",
		"192.0.2.100/": "single address", "192.0.2.100/032": "single address", "192.0.2.100/32/32": "single address",
		"127.0.0.1": "loopback", "127.1.2.3": "loopback", "0.0.0.0": "no host", "0.1.2.3": "no host", "255.255.255.255": "no host", "224.0.0.18": "multicast",
		"169.254.1.1": "link-local", "::ffff:192.0.2.1": "write 192.0.2.1", "2001:db8::1/64": "single address", "ff02::1": "multicast", "fe80::1": "link-local", "fe80::1%eth0": "link-local", "2001:db8::1%eth0": "not an IP address", "::1": "loopback", "::": "no host",
	} {
		if a, err := ParseAddr(in); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v, %v; want an error with %q", in, a, err, part)
		}
	}
}

func TestCheck(t *testing.T) {
	good := []VIP{vipA, vipAeth, vipAtun, vipB, vipBlo, vipC, vip6tun, vip4in6, vip6in4, vipGUE, vip6GUE, vipCSum,
		with(vipAtun, func(v *VIP) { v.RPFilter, v.Outer = "off", "4" }), with(vipGUE, func(v *VIP) { v.GUEPort, v.Outer = 65535, "6" }),
		with(vipA, func(v *VIP) { v.Device = "dummy0" }), with(vipA, func(v *VIP) { v.Guard = GuardNone })}
	for _, v := range good {
		if err := v.Check(); err != nil {
			t.Errorf("%+v: %v", v, err)
		}
	}
	for option, bad := range map[string][]func(*VIP){
		"mode":      {func(v *VIP) { v.Mode = "nat" }, func(v *VIP) { v.Mode = "" }, func(v *VIP) { v.Mode = "DR" }},
		"scope":     {func(v *VIP) { v.Scope = "link" }, func(v *VIP) { v.Scope = "" }},
		"arp-guard": {func(v *VIP) { v.Guard = "" }, func(v *VIP) { v.Guard = "arptables" }},
		"tunnel":    {func(v *VIP) { v.Tunnel = "ipip" }, func(v *VIP) { v.Mode, v.Tunnel = TUN, "vxlan" }},
		"rp-filter": {func(v *VIP) { v.RPFilter = "loose" }, func(v *VIP) { v.Mode, v.RPFilter = TUN, "strict" }},
		"outer": {func(v *VIP) { v.Outer = "4" }, func(v *VIP) { v.Mode, v.Outer = TUN, "5" }, func(v *VIP) { v.Mode, v.Outer = TUN, "04" },
			func(v *VIP) { v.Mode, v.Tunnel, v.CSum, v.Outer = TUN, "gre", true, "6" }},
		"gue-port": {func(v *VIP) { v.GUEPort = 6080 }, func(v *VIP) { v.Mode, v.GUEPort = TUN, 6080 }, func(v *VIP) { v.Mode, v.Tunnel, v.GUEPort = TUN, "gue", -1 },
			func(v *VIP) { v.Mode, v.Tunnel, v.GUEPort = TUN, "gue", 65536 }, func(v *VIP) { v.Mode, v.Tunnel, v.GUEPort = TUN, "gre", 6080 }},
		"csum": {func(v *VIP) { v.CSum = true }, func(v *VIP) { v.Mode, v.CSum = TUN, true }, func(v *VIP) { v.Mode, v.Tunnel, v.CSum = TUN, "gue", true }},
		"device": {func(v *VIP) { v.Device = "a/b" }, func(v *VIP) { v.Device = ".." }, func(v *VIP) { v.Device = "sixteen-bytes-ab" },
			func(v *VIP) { v.Device = "a b" }, func(v *VIP) { v.Device = "a\nb" }, func(v *VIP) { v.Device = "all" },
			func(v *VIP) { v.Device = "\xff\xff\xff\xff\xff\xff" }}, // a journal would read back three times as many bytes
		"interface": {func(v *VIP) { v.Guard = GuardInterface }, func(v *VIP) { v.Interfaces = []string{"eth0"} },
			func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"lo"} },
			func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"eth0", ""} }},
	} {
		for i, change := range bad {
			err := with(vipA, change).Check()
			var oe *OptionError
			if !errors.As(err, &oe) || oe.Option != option || oe.Reason == "" {
				t.Errorf("%s, %d: %v", option, i, err)
			}
		}
	}
}

func TestOn(t *testing.T) {
	for want, v := range map[string]VIP{"lo": vipA, "tunl0": vipB, "dummy0": with(vipA, func(v *VIP) { v.Device = "dummy0" })} {
		if v.On() != want {
			t.Errorf("%+v is on %s, want %s", v, v.On(), want)
		}
	}
}

func TestEdits(t *testing.T) {
	a := vipA.Addr
	conf := func(v VIP) VIP { v.Origin = Config; return v }
	both := func(v VIP) VIP { v.Origin = Config | Flag; return v }
	flag := func(v VIP) VIP { v.Origin = Flag; return v }
	for _, c := range []struct {
		name string
		old  Set
		edit Edit
		want Set
	}{
		{"add", Set{vipA}, Add(vipC, vipB), Set{vipA, vipB, vipC}},
		{"add again takes the options", Set{vipA}, Add(vipAtun), Set{vipAtun}},
		{"add keeps the other origin", Set{conf(vipA)}, Add(vipA), Set{both(vipA)}},
		{"drop", Set{vipA, vipB}, Drop(a), Set{vipB}},
		{"drop what is not there", Set{vipB}, Drop(a), Set{vipB}},
		{"drop takes a VIP out whoever asked for it", Set{both(vipA)}, Drop(a), nil},
		{"drop all", Set{vipA, vipB}, DropAll, nil},
		{"replace adds and drops", Set{vipA, conf(vipB)}, Replace(Config, conf(vipC)), Set{vipA, conf(vipC)}},
		{"replace leaves the other origin", Set{both(vipA)}, Replace(Config), Set{flag(vipA)}},
		{"replace gives a flag's VIP an origin", Set{flag(vipA)}, Replace(Config, conf(vipA)), Set{both(vipA)}},
		{"or, empty", nil, Or(Keep, Add(vipA)), Set{vipA}},
		{"or, not empty", Set{vipB}, Or(Keep, Add(vipA)), Set{vipB}},
		{"keep", Set{vipA, vipB}, Keep, Set{vipA, vipB}},
	} {
		old := append(Set(nil), c.old...)
		if d := cmp.Diff(c.want, c.edit(c.old), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if d := cmp.Diff(old, c.old, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s changed its argument: %s", c.name, d)
		}
	}
}

func TestOriginText(t *testing.T) {
	for _, o := range []Origin{Flag, Config, Flag | Config} {
		var back Origin
		b, _ := o.MarshalText()
		if err := back.UnmarshalText(b); err != nil || back != o {
			t.Errorf("%q: %v, %v", b, back, err)
		}
	}
	for _, s := range []string{"", "flags", "config,", "config,root"} {
		var o Origin
		if err := o.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}
