package main

import (
	"strings"
	"testing"
)

// What cannot be understood ends with 2 and one line on stderr, before anything is touched.
func TestMisuse(t *testing.T) {
	verbs := "start, stop, restart, reload, status, check, watch, version"
	for _, test := range []struct{ args, vars, want string }{
		{"", "", "no verb given; it is one of " + verbs},
		{"nope", "", `unknown verb "nope"; it is one of ` + verbs},
		{"help nope", "", `unknown verb "nope"; it is one of ` + verbs},
		{"--config F start", "", "--config stands before the verb; flags come after it: rsagent start --config"},
		{"--vip 10.0.0.1 start", "", "--vip stands before the verb; flags come after it: rsagent start --vip"},
		{"-o json status", "", "-o stands before the verb; flags come after it: rsagent start -o"},
		{"--nope start", "", "unknown flag --nope"},
		{"strat", "", `unknown verb "strat"; it is one of ` + verbs + "; did you mean start?"},
		{"start --vips 10.0.0.1", "", "unknown flag --vips; did you mean --vip?"},
		{"start --dev lo", "", "unknown flag --dev; did you mean --device?"},
		{"start -n", "", "unknown flag -n"},
		{"start --tunel gre", "", "unknown flag --tunel; did you mean --tunnel?"},
		{"start --vip 10.0.0.1", "RSAGENT_ARPGUARD=nft", "unknown variable RSAGENT_ARPGUARD; did you mean RSAGENT_ARP_GUARD?"},
		{"stop", "RSAGENT_DRYRUN=true", "unknown variable RSAGENT_DRYRUN; did you mean RSAGENT_DRY_RUN?"},
		{"status", "RSAGENT_COLOUR=no", "unknown variable RSAGENT_COLOUR"},
		{"start --vip 10.0.0.1", "RSAGENT_COLOUR=", ""},
		{"stop", "RSAGENT_MODE=nat", ""}, // of another verb
		{"version", "RSAGENT_ARPGUARD=nft", ""},
		{"start --nope", "", "unknown flag --nope"},
		{"start --vip", "", "--vip needs a value"},
		{"start 10.0.0.1", "", `start takes no arguments, and "10.0.0.1" is one (--vip 10.0.0.1)`},
		{"start vip", "", `start takes no arguments, and "vip" is one (flags begin with --)`},
		{"start help", "", `start takes no arguments, and "help" is one (flags begin with --)`},
		{"start --vip 10.0.0.1 x --mode tun", "", `start takes no arguments, and "x" is one (flags begin with --)`},
		{"start --vip 10.0.0.1 -- --mode tun", "", `start takes no arguments, and "--mode" is one (flags begin with --)`},
		{"version --vip 10.0.0.1", "", "unknown flag --vip"},
		{"stop --mode tun", "", "unknown flag --mode"},
		{"status --dry-run", "", "unknown flag --dry-run"},
		{"check --dry-run", "", "unknown flag --dry-run"},
		{"check --mode tun", "", "unknown flag --mode"},
		{"status --port 80", "", "unknown flag --port"},
		{"check --port 0", "", `--port: "0" is no port from 1 to 65535, with /tcp or /udp behind it or nothing`},
		{"check --port 80,http", "", `--port: "http" is no port from 1 to 65535, with /tcp or /udp behind it or nothing`},
		{"check", "RSAGENT_PORT=80/sctp", `RSAGENT_PORT: "80/sctp" is no port from 1 to 65535, with /tcp or /udp behind it or nothing`},
		{"check --port=", "", "--port: is empty"},
		{"check 80", "", `check takes no arguments, and "80" is one (flags begin with --)`},

		{"start --vip=", "", "--vip: is empty"},
		{"stop --vip=", "", "--vip: is empty"},
		{"start --vip 10.0.0.1,", "", "--vip: is empty"},
		{"start --vip 10.0.0.1/24", "", "--vip: 10.0.0.1/24: a VIP is a single address, without a prefix length (or with /32)"},
		{"start --vip 10.0.0.1/0", "", "--vip: 10.0.0.1/0: a VIP is a single address, without a prefix length (or with /32)"},
		{"start --vip 10.0.0.1/33", "", "--vip: 10.0.0.1/33: a VIP is a single address, without a prefix length (or with /32)"},
		{"start --vip localhost", "", `--vip: "localhost" is not an IP address`},
		{"start --vip 10.0.0.1,127.0.0.1", "", "--vip: 127.0.0.1 is a loopback address"},
		{"status --vip 224.0.0.1", "", "--vip: 224.0.0.1 is a multicast address"},
		{"stop --vip 010.0.0.1", "", `--vip: "010.0.0.1" is not an IP address`},
		{"start", "RSAGENT_VIP=10.0.0.300", `RSAGENT_VIP: "10.0.0.300" is not an IP address`},
		{"start", "RSAGENT_VIP=10.0.0.1,,10.0.0.2", "RSAGENT_VIP: is empty"},

		{"start --vip 10.0.0.1 --mode nat", "", `--mode: "nat" is none of dr, tun`},
		{"start --mode nat", "", `--mode: "nat" is none of dr, tun`},
		{"restart --mode nat", "", `--mode: "nat" is none of dr, tun`},
		{"reload --mode nat", "", `--mode: "nat" is none of dr, tun`},
		{"start --vip 10.0.0.1 --mode=", "", "--mode: is empty"},
		{"start --vip 10.0.0.1 --mode dr --mode tun", "", "--mode: is given twice: dr and tun"},
		{"start --vip 10.0.0.1", "RSAGENT_MODE=nat", `RSAGENT_MODE: "nat" is none of dr, tun`},
		{"start --vip 10.0.0.1 --scope link", "", `--scope: "link" is none of host, global`},
		{"start --vip 10.0.0.1 --arp-guard iptables", "", `--arp-guard: "iptables" is none of all, interface, nft, none`},
		{"start --vip 10.0.0.1 --arp-guard interface", "", "--arp-guard: guard interface needs the name of one at least"},
		{"start --vip 10.0.0.1 --interface eth0", "", "--interface: goes with arp-guard interface only"},
		{"start --vip 10.0.0.1 --arp-guard interface --interface lo", "", "--interface: lo takes no ARP: guarding it has no effect"},
		{"start --vip 10.0.0.1 --arp-guard interface", "RSAGENT_INTERFACE=eth0/1", `RSAGENT_INTERFACE: "eth0/1" is no interface name`},
		{"start --vip 10.0.0.1 --device a/b", "", `--device: "a/b" is no interface name`},
		{"start --vip 10.0.0.1 --tunnel ipip", "", "--tunnel: goes with mode tun only"},
		{"start --vip 10.0.0.1 --mode tun --tunnel vxlan", "", `--tunnel: "vxlan" is none of ipip, gre, gue`},
		{"start --vip 10.0.0.1 --outer 6", "", "--outer: goes with mode tun only"},
		{"start --vip 10.0.0.1 --mode tun --outer 5", "", `--outer: "5" is none of 4, 6`},
		{"start --vip 10.0.0.1 --mode tun --tunnel gre --csum --outer 6", "", "--outer: gre in IPv6 around IPv4 with these options is not taken"},
		{"start --vip 10.0.0.1 --mode tun --gue-port 6080", "", "--gue-port: goes with tunnel gue only"},
		{"start --vip 10.0.0.1 --gue-port 6080", "", "--gue-port: goes with mode tun only"},
		{"start --vip 10.0.0.1 --mode tun --tunnel gue --gue-port 0", "", "--gue-port: is no port from 1 to 65535"},
		{"start --vip 10.0.0.1 --mode tun --tunnel gue --gue-port 65536", "", "--gue-port: is no port from 1 to 65535"},
		{"start --vip 10.0.0.1 --mode tun --tunnel gue --gue-port x", "", "--gue-port: is no port from 1 to 65535"},
		{"start --vip 10.0.0.1 --mode tun --tunnel gue", "RSAGENT_GUE_PORT=06080", "RSAGENT_GUE_PORT: is no port from 1 to 65535"},
		{"start --vip 10.0.0.1 --mode tun --csum", "", "--csum: goes with tunnel gre only"},
		{"start --vip 10.0.0.1 --mode dr", "RSAGENT_GUE_PORT=6080", ""},
		{"start --vip 10.0.0.1 --mode dr", "RSAGENT_TUNNEL=gre", ""}, // meant for mode tun: left out
		{"start --vip 10.0.0.1 --mode tun --rp-filter strict", "", `--rp-filter: "strict" is none of loose, off`},
		{"start --vip 10.0.0.1 --mss 1400", "", "--mss: goes with mode tun only"},
		{"start --vip 10.0.0.1 --mode tun --mss 535", "", `--mss: "535" is neither auto nor a number from 536 to 65495`},
		{"start --vip 10.0.0.1 --mode tun --mss 65496", "", `--mss: "65496" is neither auto nor a number from 536 to 65495`},
		{"start --vip 10.0.0.1 --mode tun --mss 01400", "", `--mss: "01400" is neither auto nor a number from 536 to 65495`},
		{"start --vip 10.0.0.1 --mode tun --mss automatic", "", `--mss: "automatic" is neither auto nor a number from 536 to 65495`},
		{"start --vip 10.0.0.1 --mode dr", "RSAGENT_MSS=auto RSAGENT_DIRECTOR=10.0.0.2", ""}, // meant for mode tun: left out
		{"start --vip 10.0.0.1 --director 10.0.0.2", "", "--director: goes with mode tun only"},
		{"start --vip 10.0.0.1 --mode tun --director lvs1", "", `--director: "lvs1" is neither an address nor a prefix`},
		{"start --vip 10.0.0.1 --mode tun --director 192.0.2.1/99", "", `--director: "192.0.2.1/99" is neither an address nor a prefix`},
		{"start --vip 10.0.0.1 --mode tun --director 10.0.0.2/24", "", `--director: "10.0.0.2/24" is neither an address nor a prefix: 10.0.0.2/24 has bits set behind its length; the network is 10.0.0.0/24`},
		{"start --vip 10.0.0.1 --mode tun --director 10.0.0.2,2001:db8::2", "", "--director: 2001:db8::2 is IPv6, and the director's packets come by IPv4"},
		{"start --vip 10.0.0.1 --mode tun --director 0.0.0.0/0", "", "--director: 0.0.0.0/0 is where no director is"},
		{"start --vip 10.0.0.1 --mode tun --director ::ffff:10.0.0.2", "", "--director: ::ffff:10.0.0.2 is where no director is"},
		{"start --vip 10.0.0.1 --mode tun --director 10.0.0.2,", "", "--director: is empty"},
		{"start --vip 10.0.0.1 --allow-director=perhaps", "", `--allow-director: "perhaps" is neither true nor false`},
		{"start --vip 10.0.0.1", "RSAGENT_ALLOW_DIRECTOR=perhaps", `RSAGENT_ALLOW_DIRECTOR: "perhaps" is neither true nor false`},

		{"start --output xml", "", `--output: "xml" is none of text, json`},
		{"start -o xml", "", `--output: "xml" is none of text, json`},
		{"start -o json -o text", "", "--output: is given twice: json and text"},
		{"stop", "RSAGENT_OUTPUT=xml", `RSAGENT_OUTPUT: "xml" is none of text, json`},
		{"start --timeout 0s", "", `--timeout: "0s" is no duration above 0, such as 30s`},
		{"start --timeout -1s", "", `--timeout: "-1s" is no duration above 0, such as 30s`},
		{"start --timeout 5", "", `--timeout: "5" is no duration above 0, such as 30s`},
		{"stop --drain 0s", "", `--drain: "0s" is no duration above 0, such as 30s`},
		{"stop --drain -1s", "", `--drain: "-1s" is no duration above 0, such as 30s`},
		{"stop --drain 30", "", `--drain: "30" is no duration above 0, such as 30s`},
		{"stop --drain=", "", "--drain: is empty"},
		{"stop --drain", "", "--drain needs a value"},
		{"stop --drain 1s --drain 2s", "", "--drain: is given twice: 1s and 2s"},
		{"stop", "RSAGENT_DRAIN=soon", `RSAGENT_DRAIN: "soon" is no duration above 0, such as 30s`},
		{"stop --force", "", "--force: makes sense with --drain only"},
		{"stop", "RSAGENT_FORCE=true", "RSAGENT_FORCE: makes sense with --drain only"},
		{"stop --force=false", "", ""},
		{"stop --force --timeout soon", "", `--timeout: "soon" is no duration above 0, such as 30s`},
		{"start --vip 10.0.0.1 --drain 30s", "", "unknown flag --drain"},
		{"start --vip 10.0.0.1", "RSAGENT_DRAIN=soon", ""}, // meant for stop
		{"start --state-dir=", "", "--state-dir: is empty"},
		{"start --config /nonexistent", "", "open /nonexistent: no such file or directory"},
		{"start --vip 10.0.0.1 --config /nonexistent", "", "open /nonexistent: no such file or directory"},
		{"restart", "RSAGENT_CONFIG=/nonexistent", "open /nonexistent: no such file or directory"},
		{"stop --config /nonexistent", "", "open /nonexistent: no such file or directory"},
		{"status --config /nonexistent", "", "open /nonexistent: no such file or directory"},
		{"stop --config F --vip 10.0.0.1", "", "stop takes --vip or --config, not both"},
	} {
		t.Run(test.args+" "+test.vars, func(t *testing.T) {
			w := newWorld(t)
			if name, value, ok := strings.Cut(test.vars, "="); ok {
				w.vars[name] = value
			}
			if test.want == "" {
				w.must(0, strings.Fields(test.args)...)
				return
			}
			w.must(2, strings.Fields(test.args)...)
			if got := w.errs.String(); got != "rsagent: "+test.want+"\n" {
				t.Errorf("stderr: %swant:   rsagent: %s", got, test.want)
			}
			if w.out.Len() > 0 {
				t.Errorf("stdout: %s", &w.out)
			}
			w.untouched()
		})
	}
}

func TestHelp(t *testing.T) {
	for _, test := range []struct{ args, holds, lacks string }{
		{"--help", "restart", "--vip"},
		{"-h", "restart", "--vip"},
		{"help", "restart", "--vip"},
		{"start --help", "--arp-guard", "--tunnel KIND, "},
		{"help start", "RSAGENT_ARP_GUARD", "COMMANDS"},
		{"stop --help", "--vip ADDR", "--mode"},
		{"status --help", "--vip ADDR", "--dry-run"},
		{"start --help", "--dry-run  ", "--dry-run value"},
	} {
		t.Run(test.args, func(t *testing.T) {
			w := newWorld(t)
			w.must(0, strings.Fields(test.args)...)
			if s := w.out.String(); !strings.Contains(s, test.holds) || strings.Contains(s, test.lacks) {
				t.Errorf("want %q in it, and %q not in it:\n%s", test.holds, test.lacks, s)
			}
			if w.errs.Len() > 0 {
				t.Errorf("stderr: %s", &w.errs)
			}
			w.untouched()
		})
	}
}

func TestVersion(t *testing.T) {
	version, commit = "1.2.3", "0123abc"
	defer func() { version, commit = "", "" }()
	w := newWorld(t)
	w.must(0, "version")
	if got := w.out.String(); !strings.HasPrefix(got, "rsagent 1.2.3 (0123abc, go1.") {
		t.Error(got)
	}
	w.must(0, "--version", "-o", "json")
	if got := w.out.String(); !strings.HasPrefix(got, `{"version":"1.2.3","commit":"0123abc","go":"go1.`) {
		t.Error(got)
	}
	w.untouched()
}
