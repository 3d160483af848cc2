package main

import (
	"net/netip"
	"strings"
	"testing"

	"rsagent/realserver"
)

// Each error of a config file names the file and the line.
func TestConfigErrors(t *testing.T) {
	for _, test := range []struct{ name, file, want string }{
		{"unknown key", "mode: dr\nmodes: dr\n", `2: unknown key "modes"; did you mean mode?`},
		{"underscore for dash", "arp_guard: all\n", `1: unknown key "arp_guard"; did you mean arp-guard?`},
		{"one VIP", "vip: 10.0.0.1\n", `1: unknown key "vip"; did you mean vips?`},
		{"an address misspelt", "vips:\n  - adress: 10.0.0.1\n", `2: unknown key "adress"; did you mean address?`},
		{"address at the top", "address: 10.0.0.1\n", `1: unknown key "address"`},
		{"unknown key of a VIP", "vips:\n  - address: 10.0.0.1\n    mdoe: tun\n", `3: unknown key "mdoe"; did you mean mode?`},
		{"vips within a VIP", "vips:\n  - address: 10.0.0.1\n    vips: []\n", `3: unknown key "vips"`},
		{"key twice", "mode: dr\nscope: host\nmode: tun\n", `3: key "mode" is in line 1 already`},
		{"key of a VIP twice", "vips:\n  - address: 10.0.0.1\n    address: 10.0.0.2\n", `3: key "address" is in line 2 already`},
		{"merge key", "x: &x {mode: tun}\nvips: []\n", `1: unknown key "x"`},
		{"a list", "- 10.0.0.1\n", "1: must be keys with values"},
		{"a word", "\n10.0.0.1\n", "2: must be keys with values"},
		{"two documents", "mode: dr\n---\nmode: tun\n", "2: a second document; there may be one only"},
		{"vips is a word", "vips: 10.0.0.1\n", "1: vips: must be a list (write [] for none)"},
		{"vips is nothing", "mode: dr\nvips:\n", "2: vips: must be a list (write [] for none)"},
		{"an empty entry", "vips:\n  - 10.0.0.1\n  -\n", "3: address: must be an IP address"},
		{"an entry without keys", "vips:\n  - {}\n", "2: vips: an entry without address"},
		{"an entry without address", "vips:\n  - 10.0.0.1\n  - mode: tun\n", "3: vips: an entry without address"},
		{"an entry is a list", "vips:\n  - [10.0.0.1]\n", "2: vips: must be an address, or keys with values, address among them"},
		{"an address is a number", "vips:\n  - 10.0\n", "2: address: must be an IP address"},
		{"an address is a list", "vips:\n  - address: [10.0.0.1]\n", "2: address: must be an IP address"},
		{"bad address", "vips:\n  - 10.0.0.1\n  - 10.0.0.0/24\n", "3: address: 10.0.0.0/24: a VIP is a single address, without a prefix length (or with /32)"},
		{"bad address among keys", "vips:\n  - mode: dr\n    address: ::1\n", "3: address: ::1 is a loopback address"},
		{"mode", "mode: nat\n", `1: mode: "nat" is none of dr, tun`},
		{"mode of a VIP", "vips:\n  - address: 10.0.0.1\n    mode: nat\n", `3: mode: "nat" is none of dr, tun`},
		{"gue-port is a list", "gue-port: [6080]\n", "1: gue-port: must be a number or a string"},
		{"gue-port is true", "gue-port: true\n", "1: gue-port: must be a number or a string"},
		{"gue-port in another base", "mode: tun\ntunnel: gue\ngue-port: 0x17c0\nvips: [10.0.0.1]\n", "3: gue-port: is no port from 1 to 65535"},
		{"outer is no version", "mode: tun\nouter: 5\nvips: [10.0.0.1]\n", "2: outer: \"5\" is none of 4, 6"},
		{"mode is a number", "mode: 1\n", "1: mode: must be a string"},
		{"mode is a list", "mode: [dr]\n", "1: mode: must be a string"},
		{"mode is nothing", "mode:\n", "1: mode: must be a string"},
		{"mode is empty", "mode: ''\n", "1: mode: is empty"},
		{"truth is a word", "allow-director: yes\n", "1: allow-director: must be true or false"},
		{"interface is a mapping", "interface: {eth0: 1}\n", "1: interface: must be a string, or a list of them"},
		{"interface holds a number", "interface:\n  - eth0\n  - 5\n", "3: interface: must be a string, or a list of them"},
		{"interface is empty", "interface: []\n", "1: interface: is empty"},
		{"interface without its guard", "vips:\n  - address: 10.0.0.1\n    interface: eth0\n", "3: interface: goes with arp-guard interface only"},
		{"guard without interface", "arp-guard: interface\nvips: [10.0.0.1]\n", "1: arp-guard: guard interface needs the name of one at least"},
		{"tunnel in mode dr", "tunnel: ipip\nvips: [10.0.0.1]\n", "1: tunnel: goes with mode tun only"},
		{"one VIP, two sets of options", "vips:\n  - 10.0.0.1\n  - address: 10.0.0.1\n    mode: tun\n", "3: VIP 10.0.0.1 has other options in line 2"},
		{"no YAML", "mode: [dr\n", "1: did not find expected ',' or ']'"},
		{"something behind a list", "mode: dr\nvips: [192.0.2.100, ]x\n", "2: did not find expected key"},
		{"a tab in the first line", "\tmode: dr\n", "1: found character that cannot start any token"},
		{"a tab", "vips:\n\t- 10.0.0.1\n", "2: found character that cannot start any token"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.write(test.file)
			w.must(2, "start")
			if got, want := w.errs.String(), "rsagent: "+w.config+":"+test.want+"\n"; got != want {
				t.Errorf("stderr: %swant:   %s", got, want)
			}
			w.untouched()
		})
	}
}

// A file is judged also where only its defaults are asked for, but not by verbs that have no use for
// it: a broken file must not keep a host in service.
func TestConfigIsReadWhereItCounts(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.1")
	w.write("vips: [10.0.0.2, {address: 10.0.0.3, mode: nat}]")
	w.must(2, "start", "--vip", "10.0.0.4")
	w.must(0, "restart")
	w.must(2, "restart", "--config", w.config)
	w.must(0, "status")
	w.must(0, "status", "--vip", "10.0.0.1")
	w.must(0, "stop", "--vip", "10.0.0.4")
	w.must(2, "stop", "--config", w.config)
	w.write("mode: nat\nvips: []")
	w.must(2, "stop", "--config", w.config)
	w.must(2, "status", "--config", w.config)
	w.must(0, "stop")
	w.write("vips: [10.0.0.2, {address: 10.0.0.3, mode: dr}]")
	w.must(0, "start", "--vip", "10.0.0.4", "--mode", "tun", "--tunnel", "ipip") // no business of the file's VIPs
}

func TestParseFile(t *testing.T) {
	f, err := parseFile("F", []byte("mode: tun\nvips:\n - 10.0.0.1\n - &a {address: 10.0.0.2/32, interface: [eth0, eth1]}\n - *a\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.entries) != 3 || f.entries[0].line != 3 || f.entries[1].addr != netip.MustParseAddr("10.0.0.2") || f.entries[2].line != 5 {
		t.Errorf("%+v", f.entries)
	}
	if w := f.entries[1].options["interface"]; strings.Join(w.words, " ") != "eth0 eth1" || w.where != "F:4: interface" {
		t.Errorf("%+v", w)
	}
	if w := f.defaults["mode"]; strings.Join(w.words, " ") != "tun" || w.where != "F:1: mode" {
		t.Errorf("%+v", w)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "{}\n", "null\n"} {
		if f, err := parseFile("F", []byte(empty)); err != nil || len(f.entries) > 0 || len(f.defaults) > 0 {
			t.Errorf("%q: %+v, %v", empty, f, err)
		}
	}
}

// Whatever a file holds, it is refused in one line that names it, or each VIP of it is sound.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{"mode: dr\nvips:\n  - 192.0.2.100\n  - address: 192.0.2.101\n    mode: tun\n",
		"arp-guard: interface\ninterface: [eth0, eth1]\nvips: [10.0.0.1]", "a: &a [*a]", "vips: &a\n - *a", "<<: *x", "? [a]\n: b", "vips: [!!binary MTAuMC4wLjE=]", "---\n---\n", "\xff\xfe"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parseFile("F", b)
		var vips []realserver.VIP
		if err == nil {
			vips, err = file.vips()
		}
		if err != nil {
			if s := err.Error(); !strings.HasPrefix(s, "F:") {
				t.Errorf("%q does not name the file", s)
			}
			return
		}
		seen := map[netip.Addr]bool{}
		for _, v := range vips {
			if err := v.Check(); err != nil || seen[v.Addr] || v.Origin != realserver.Config {
				t.Errorf("%+v: %v", v, err)
			}
			if _, err := realserver.ParseAddr(v.Addr.String()); err != nil {
				t.Error(err)
			}
			seen[v.Addr] = true
		}
	})
}
