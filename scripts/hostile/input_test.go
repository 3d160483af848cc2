package hostile

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"rsagent/scripts/testnet"
)

// names are interface names that the kernel takes, and that a careless program does not. None holds %, which the kernel
// reads as a pattern.
var names = []string{
	"eth0.100", "a.b.c", "...", "-", "--", "-rf", "'", `"`, "a'b", "$(id)", "`id`", "a;b", "a&b", "a|b", "*", "?", "[a]", "~", "#x", "\\n",
	"a123456789bcdef", "\xff\xfe", "\xc3\xa4\xc3\xb6", "x=y", "a,b", "conf",
}

// TestNames guards interfaces by their names, whatever these are: with the guard on all, whose settings they outweigh; and
// by name, where a name can be written in a list. Everything is put back, also under a name of later.
func TestNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	s.rs.SetSysctl(t, "ipv6", "conf", "default", "disable_ipv6", "1") // a new link's own address would come late
	for _, name := range sampled(names, stride(t, 4), 1) {
		t.Run(name, func(t *testing.T) {
			if r := s.rs.Try("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "far"); r.Code != 0 {
				t.Fatalf("%q: %s", name, r.Stderr)
			}
			defer s.rs.Run(t, "ip", "link", "del", "far")
			s.rs.SetIPv4Conf(t, name, "arp_ignore", "5") // outweighs what all will be
			s.rs.Run(t, "ip", "link", "set", "dev", name, "up")
			s.rs.Run(t, "ip", "link", "set", "far", "up")
			before := s.rs.Snapshot(t)
			s.named(t, name)
			if err := s.as(before); err != nil {
				t.Error(err)
			}
			if !strings.Contains(name, ",") && utf8.ValidString(name) {
				s.byName(t, name)
			}
			if err := s.as(before); err != nil {
				t.Error(err)
			}
		})
	}
}

func (s *site) named(t *testing.T, name string) {
	t.Helper()
	out := s.must(0, append(s.start(vips(1)), "-o", "json")).Stdout
	if !json.Valid([]byte(out)) {
		t.Errorf("no JSON: %s", out)
	}
	if got := s.rs.IPv4Conf(t, name, "arp_ignore"); got != "1" {
		t.Errorf("arp_ignore is %s", got)
	}
	s.printable(t, s.must(0, s.args("status")).Stdout)
	s.printable(t, s.must(0, s.args("stop", "--dry-run")).Stdout)
	s.must(0, s.args("stop"))
}

// TestControlCharacters: ip(8) writes such names as they are, which is no JSON, so the settings alone are looked at.
func TestControlCharacters(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"\x1b[31m", "\x01\x02", "\x08\x08", strings.Repeat("\xff", 15)} {
		s := newSite(t, "dr")
		s.rs.Run(t, "ip", "link", "add", "name", name, "up", "type", "veth", "peer", "name", "far")
		s.rs.SetIPv4Conf(t, name, "arp_ignore", "5")
		s.named(t, name)
		if got := s.rs.IPv4Conf(t, name, "arp_ignore"); got != "5" {
			t.Errorf("%q: arp_ignore is %s after stop", name, got)
		}
	}
}

// byName: the interface has another name at stop, and its own again after that.
func (s *site) byName(t *testing.T, name string) {
	t.Helper()
	s.must(0, append(s.start(vips(1)), "--arp-guard", "interface", "--interface="+name))
	if got := s.rs.IPv4Conf(t, name, "arp_announce"); got != "2" {
		t.Errorf("arp_announce is %s", got)
	}
	rename := func(from, to string) {
		s.rs.Run(t, "ip", "link", "set", "dev", from, "down")
		s.rs.Run(t, "ip", "link", "set", "dev", from, "name", to)
		s.rs.Run(t, "ip", "link", "set", "dev", to, "up")
	}
	rename(name, "later")
	s.must(0, s.args("stop"))
	rename("later", name)
}

// printable: what a name holds reaches no terminal.
func (s *site) printable(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
		t.Errorf("not printable: %q", text)
	}
}

// TestAltnames: another name of an interface is refused, or means the interface; never nothing.
func TestAltnames(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	if r := s.rs.Try("ip", "link", "property", "add", "dev", "eth0", "altname", "uplink-with-a-name-of-more-than-15-bytes"); r.Code != 0 {
		testnet.Skip(t, "no altnames: "+r.Stderr)
	}
	s.rs.Run(t, "ip", "link", "property", "add", "dev", "eth0", "altname", "uplink0")
	before := s.rs.Snapshot(t)
	for _, name := range []string{"uplink0", "uplink-with-a-name-of-more-than-15-bytes"} {
		r := s.rs.Try(append(s.start(vips(1)), "--arp-guard", "interface", "--interface", name)...)
		if r.Code == 0 {
			if err := s.up(vips(1)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !slices.Contains([]int{2, 6}, r.Code) || !strings.Contains(r.Stderr, name) {
			t.Errorf("%s: exit %d: %s", name, r.Code, r.Stderr)
		}
		s.must(0, s.args("stop"))
		if err := s.as(before); err != nil {
			t.Error(err)
		}
	}
}

// TestBadNames: what the kernel would not take, or a journal could not hold, is refused on the command line, before anything is touched.
func TestBadNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	before := s.rs.Snapshot(t)
	for _, name := range []string{"", " ", "a b", "a\nb", "a\tb", "/", "a/b", "..", ".", "a:b", "\xff", strings.Repeat("a", 16), strings.Repeat("a", 128), "all", "default", "lo"} {
		for _, flag := range []string{"--interface", "--device"} {
			if flag == "--device" && name == "lo" || flag == "--interface" && len(name) == 16 { // an alternative name may have 127 bytes
				continue
			}
			args := append(s.start(vips(1)), flag+"="+name)
			if flag == "--interface" {
				args = append(args, "--arp-guard", "interface")
			}
			r := s.must(2, args)
			if r.Stdout != "" || strings.Count(r.Stderr, "\n") != 1 {
				t.Errorf("%s=%q: %q %q", flag, name, r.Stdout, r.Stderr)
			}
		}
	}
	if err := s.as(before); err != nil || s.files() != "none" {
		t.Errorf("%v, %s", err, s.files())
	}
}

// TestOutput has nowhere to write to, and says so where it can. What was done, or found, is as it is: so is the exit code.
func TestOutput(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	down := s.rs.Snapshot(t)
	// A descriptor that is closed is /dev/null to Go's runtime, so that no journal can come to be the output.
	for _, out := range []string{"1>&-", ">/dev/full", "| true", "2>&-", "1>&- 2>&-", "</dev/null 1>&- 2>/dev/full", "<&- 1>&- 2>&-"} {
		for _, form := range []string{"text", "json"} {
			t.Run(out+" "+form, func(t *testing.T) {
				s.unheard(t, out, "3", s.args("status", "-o", form))
				s.unheard(t, out, "0", append(s.start(vips(3)), "-o", form))
				if err := s.up(vips(3)); err != nil {
					t.Error(err)
				}
				s.unheard(t, out, "0", s.args("status", "-o", form))
				s.unheard(t, out, "0", s.args("stop", "-o", form))
				if err := s.as(down); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// unheard runs a command whose output goes nowhere. A pipe that is closed is told by a write only, so that the reader's
// being gone is waited for first.
func (s *site) unheard(t *testing.T, out, want string, args []string) {
	t.Helper()
	script := `"$@" ` + out + `; echo $?`
	if out == "| true" {
		script = `exec 4>&1; { while echo x; do :; done 2>/dev/null; "$@"; echo $? >&4; } | true`
	}
	r := s.rs.Try(append([]string{"sh", "-c", "trap '' PIPE; " + script, "sh"}, args...)...)
	if !strings.HasSuffix("\n"+r.Stdout, "\n"+want+"\n") {
		t.Errorf("%v %s: exit %q, want %s\n%s", args[1:], out, r.Stdout, want, r.Stderr)
	}
	said := map[bool]string{true: "rsagent: write output: "}[out == ">/dev/full" || out == "| true"]
	if !strings.HasPrefix(r.Stderr, said) || strings.Count(r.Stderr, "\n") != len(said)/len("rsagent: write output: ") {
		t.Errorf("%v %s: says %q", args[1:], out, r.Stderr)
	}
}
