package cases

import (
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// refused: exit 2, one line on stderr, nothing on stdout, nothing opened for
// writing and nothing but questions to the kernel.
func (s *site) refused(t *testing.T, c testnet.Cmd) string {
	t.Helper()
	c.Args = append([]string{s.bin}, c.Args...)
	r, did := s.traced(t, c)
	if r.Code != 2 || r.Stdout != "" || lines(r.Stderr) != 1 || !strings.HasSuffix(r.Stderr, "\n") {
		t.Errorf("%q %q: exit %d\nstdout: %s\nstderr: %s", c.Args[1:], c.Env, r.Code, r.Stdout, r.Stderr)
	}
	if len(did) > 0 {
		t.Errorf("%q %q:\n%s", c.Args[1:], c.Env, strings.Join(did, "\n"))
	}
	return r.Stderr
}

// A VIP with a wide prefix takes its network, /0 the world.
// Seen at: seesaw issue 46.
func TestCase14_Prefixes(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for _, prefix := range []string{"/24", "/8", "/0", "/33", "/31", "/", "/-1", "/032", "/32/32"} {
			s.refused(t, testnet.Cmd{Args: s.args("start", "--vip", vip+prefix)[1:]})
		}
		s.refused(t, testnet.Cmd{Args: s.args("start", "--vip", "2001:db8::100/64")[1:]})
		s.do(t, "start", "--vip", vip+"/32")
		if r := s.ask(t, 0, "start", "--vip", vip); r.Changed {
			t.Error("the /32 is not taken for the bare address")
		}
		s.do(t, "stop", "--vip", vip+"/32")
	})
}

// What is no VIP, and whoever mistypes.
func TestBadArguments(t *testing.T) {
	s := newSite(t)
	addrs := []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "224.0.0.1", "239.255.255.250", "255.255.255.255", "169.254.7.7",
		"::", "::1", "ff02::1", "fe80::1", "fe80::1%eth0", "2001:db8::1%eth0", "::ffff:10.0.0.100", "::ffff:10.0.0.100/128",
		"localhost", "vip.example.net", "", " ", ",", "10.0.0.100,", "10.0.0.100,10.0.0.256", "10.0.0", "10.0.0.100.1",
		"010.0.0.100", "0x0a000064", "167772260", "10.0.0.100:80", "[2001:db8::1]", "10.0.0.100 10.0.0.101", "-1", "eth0",
	}
	s.restored(t, func() {
		for _, addr := range addrs {
			for _, verb := range []string{"start", "stop", "status"} {
				s.refused(t, testnet.Cmd{Args: s.args(verb, "--vip="+addr, "-o", "json")[1:]})
			}
		}
	})
}

func TestBadCommandLines(t *testing.T) {
	s := newSite(t)
	bare := []string{
		"strat", "START", "start,stop", "--vip 10.0.0.100 start", "-x", "--no-such-flag", "help-me", "v",
	}
	withState := []string{
		"start 10.0.0.100", "start --vip 10.0.0.100 --mode tun stray", "start 10.0.0.100 --mode tun", "start --vip 10.0.0.100 stray --dry-run",
		"start --vip 10.0.0.100 -- stray", "stop stray", "status stray", "restart stray", "reload stray", "version stray",
		"start --vpi 10.0.0.100", "start --vip", "start --no-such-flag", "stop --no-such-flag", "status --no-such-flag", "start -v",
		"start --vip 10.0.0.100 --mode nat", "start --vip 10.0.0.100 --mode DR", "start --vip 10.0.0.100 --mode=",
		"start --vip 10.0.0.100 --mode tun --tunnel l2tp", "start --vip 10.0.0.100 --scope link",
		"start --vip 10.0.0.100 --arp-guard some", "start --vip 10.0.0.100 --arp-guard interface",
		"start --vip 10.0.0.100 --arp-guard interface --interface a/b", "start --vip 10.0.0.100 --arp-guard interface --interface .",
		"start --vip 10.0.0.100 --arp-guard interface --interface ..", "start --vip 10.0.0.100 --arp-guard interface --interface=",
		"start --vip 10.0.0.100 --arp-guard interface --interface all", "start --vip 10.0.0.100 --arp-guard interface --interface default",
		"start --vip 10.0.0.100 --device a/b", "start --vip 10.0.0.100 --device a23456789012345678",
		"start --vip 10.0.0.100 --rp-filter strict", "start --vip 10.0.0.100 --output xml", "start --vip 10.0.0.100 -o prometheus",
		"start --vip 10.0.0.100 --timeout soon", "start --vip 10.0.0.100 --timeout -1s", "start --vip 10.0.0.100 --timeout 0s",
		"start --vip 10.0.0.100 --dry-run=maybe", "status --dry-run", "status --mode dr", "stop --mode dr",
		"stop --drain soon", "stop --drain 30", "stop --drain 0s", "stop --drain=-1s", "stop --drain", "stop --drain 1s --drain 2s", "stop --force",
		"stop --force --vip 10.0.0.100", "stop --drain 1s --force=maybe", "start --vip 10.0.0.100 --drain 30s", "restart --drain 30s", "reload --force",
		"check --dry-run", "check --mode dr", "check stray", "check --port 0", "check --port 65536", "check --port 080", "check --port http", "check --port 80/sctp",
		"check --port=", "check --port 80,", "check --port", "status --port 80", "check --vip 10.0.0.0/24", "check --config /no/such/file",
		"start --config /no/such/file", "start --config /", "start --config=",
		"start --vip 10.0.0.100 --mode dr --mode tun", "start --vip 10.0.0.100 --scope host --scope global",
	}
	s.restored(t, func() {
		for _, line := range bare {
			s.refused(t, testnet.Cmd{Args: strings.Fields(line)})
		}
		for _, line := range withState {
			words := strings.Fields(line)
			s.refused(t, testnet.Cmd{Args: s.args(words[0], words[1:]...)[1:]})
		}
		s.refused(t, testnet.Cmd{Args: s.args("start", "--vip", vip, "--state-dir", "")[1:]})
	})
}

// A variable stands for the flag, and is judged like it.
func TestBadVariables(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for _, v := range []string{
			"RSAGENT_VIP=10.0.0.0/8", "RSAGENT_VIP=127.0.0.1", "RSAGENT_VIP=a,b", "RSAGENT_MODE=nat", "RSAGENT_SCOPE=link",
			"RSAGENT_ARP_GUARD=some", "RSAGENT_RP_FILTER=strict", "RSAGENT_OUTPUT=xml", "RSAGENT_TIMEOUT=soon", "RSAGENT_DRY_RUN=maybe",
			"RSAGENT_CONFIG=/no/such/file",
		} {
			args := s.args("start")[1:]
			if !strings.HasPrefix(v, "RSAGENT_VIP") && !strings.HasPrefix(v, "RSAGENT_CONFIG") {
				args = append(args, "--vip", vip)
			}
			name, value, _ := strings.Cut(v, "=")
			said := s.refused(t, testnet.Cmd{Args: args, Env: []string{v}})
			if !strings.Contains(said, name) && !strings.Contains(said, value) {
				t.Errorf("%s is not named: %s", v, said)
			}
		}
	})
}

// Each mistake in a config is told with file and line. Where the table has no
// line, the mistake is no one line's or the YAML library counts it its way.
func TestBadConfigs(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for text, line := range map[string]string{
			"vips:\n  - 10.0.0.100\nmoed: dr\n":               ":3",
			"vips:\n  - address: 10.0.0.100\n    moed: dr\n":  ":3",
			"vips:\n  - address: 10.0.0.100\n    mode: nat\n": ":3",
			"mode: nat\nvips:\n  - 10.0.0.100\n":              ":1",
			"vips:\n  - 10.0.0.100\n  - 10.0.0.0/8\n":         ":3",
			"vips:\n  - 10.0.0.100\n  - 127.0.0.1\n":          ":3",
			"vips:\n  - 10.0.0.100\n  - 010.0.0.101\n":        ":3",
			"vips:\n  - 10.0.0.100\n  - ::ffff:10.0.0.101\n":  ":3",
			"vips:\n  - 10.0.0.100\n  - mode: dr\n":           ":3",
			"vips:\n  - 10.0.0.100\n  - [10.0.0.101]\n":       ":3",
			"vips:\n  - 10.0.0.100\n  -\n":                    ":3",
			"vips: 10.0.0.100\nmode: {dr: tun}\n":             ":",
			"vips:\n  - 10.0.0.100\n\t- 10.0.0.101\n":         ":",
			"vips:\n  - 10.0.0.100\nvips:\n  - 10.0.0.101\n":  ":3",
			"vips:\n  - 10.0.0.100\nmode: dr\nmode: tun\n":    ":4",
			"- 10.0.0.100\n": ":1",
			"just words\n":   ":1",
			"vips:\n  - 10.0.0.100\n---\nvips:\n  - 10.0.0.101\n":                                    ":",
			"vips:\n  - 10.0.0.100\narp-guard: interface\n":                                          ":",
			"vips:\n  - address: 10.0.0.100\n    mode: dr\n  - address: 10.0.0.100\n    mode: tun\n": ":4",
		} {
			path := s.config(t, text)
			for _, verb := range []string{"start", "reload"} {
				if said := s.refused(t, testnet.Cmd{Args: s.args(verb, "--config", path)[1:]}); !strings.Contains(said, path+line) {
					t.Errorf("%q: want %s%s in: %s", text, path, line, said)
				}
			}
		}
	})
}

// One VIP cannot be two things: the same address as dr and as tun. The same
// twice with the same options is one. Seen at: a review of the config.
func TestCase61_OneVIPTwice(t *testing.T) {
	s := newSite(t)
	s.restored(t, func() {
		for _, second := range []string{
			"{address: 10.0.0.100, mode: tun}", "{address: 10.0.0.100, scope: global}", "{address: 10.0.0.100/32, mode: tun}",
		} {
			path := s.config(t, "vips:\n  - 10.0.0.100\n  - "+second+"\n")
			said := s.refused(t, testnet.Cmd{Args: s.args("start", "--config", path)[1:]})
			if !strings.Contains(said, path+":3") || !strings.Contains(said, vip) {
				t.Errorf("file, line and VIP are not named: %s", said)
			}
		}
		if r := s.do(t, "start", "--vip", vip, "--vip", vip+"/32,"+vip); len(r.VIPs) != 1 {
			t.Errorf("one VIP given three times is %+v", r.VIPs)
		}
		s.do(t, "stop")
	})
}
