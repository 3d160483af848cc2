package cases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// dropIn is the drop-in for the classic script, as it is installed, but for where it looks for rsagent and its files.
func (s *site) dropIn(t *testing.T) func(code int, args ...string) testnet.Result {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../lvs_real.sh")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "lvs_real.sh")
	r := strings.NewReplacer("PATH=/usr/local/sbin:", "PATH="+dir+":", "/etc/default/rsagent", dir+"/default", "/etc/sysconfig/rsagent", dir+"/sysconfig",
		"/etc/rsagent/rsagent.yaml", dir+"/rsagent.yaml")
	if err := os.WriteFile(script, []byte(r.Replace(string(text))), 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := "#!/bin/sh\nRSAGENT_CONFIG=${RSAGENT_CONFIG-}\n[ -n \"$RSAGENT_CONFIG\" ] || [ ! -e " + dir + "/rsagent.yaml ] || export RSAGENT_CONFIG=" + dir + "/rsagent.yaml\nexec " + s.bin + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "rsagent"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	return func(code int, args ...string) testnet.Result {
		t.Helper()
		if len(args) == 2 && strings.HasPrefix(args[0], "/") { // a file, and what it holds
			if err := os.WriteFile(filepath.Join(dir, args[0]), []byte(args[1]), 0o644); err != nil {
				t.Fatal(err)
			}
			return testnet.Result{}
		}
		got := s.rs.Exec(testnet.Cmd{Args: append([]string{"sh", script}, args...), Env: []string{"RSAGENT_STATE_DIR=" + s.state}})
		if got.Code != code {
			t.Fatalf("lvs_real.sh %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got.Code, code, got.Stdout, got.Stderr)
		}
		return got
	}
}

// TestDropInStopsAll: the drop-in's stop leaves no VIP that its start brought, or says which and fails.
func TestDropInStopsAll(t *testing.T) {
	t.Run("no config", func(t *testing.T) {
		s := newSite(t)
		run := s.dropIn(t)
		s.restored(t, func() {
			run(0, "start", vip)
			run(0, "stop")
			s.bound(t, vip)
		})
	})
	for file, text := range map[string]string{"/default": "VIP='" + vip + " " + vip2 + "'\n", "/rsagent.yaml": "vips: [" + vip + ", " + vip2 + "]\n"} {
		for _, verb := range []string{"restart", "reload", "start"} {
			t.Run(file[1:]+" "+verb, func(t *testing.T) {
				s := newSite(t)
				run := s.dropIn(t)
				s.restored(t, func() {
					run(0, file, text)
					run(0, "start")
					run(0, verb, vip)
					if origin := s.rs.Run(t, s.args("status", "--vip", vip)...); strings.Contains(origin, "by hand") != (verb == "start") {
						t.Errorf("after %s %s:\n%s", verb, vip, origin)
					}
					run(0, "stop")
					s.bound(t, vip)
					s.bound(t, vip2)
				})
			})
		}
	}
	t.Run("another one", func(t *testing.T) {
		s := newSite(t)
		run := s.dropIn(t)
		s.restored(t, func() {
			run(0, "/default", "VIP="+vip+"\n")
			run(0, "start")
			run(0, "start", vip2)
			if got := run(1, "stop"); !strings.Contains(got.Stdout, vip2+" stays") || !strings.Contains(got.Stderr, "stop VIP") {
				t.Errorf("%s%s", got.Stdout, got.Stderr)
			}
			s.bound(t, vip)
			s.bound(t, vip2, "lo")
			run(0, "stop", vip2)
		})
	})
}

// TestDropInBlames: a bad line of the defaults is named as its own, and keeps no status from being told.
func TestDropInBlames(t *testing.T) {
	s := newSite(t)
	run := s.dropIn(t)
	for text, want := range map[string]string{
		"VIP='" + vip + " 10.0.0.300'\n":     "lvs_real.sh: VIP= in FILE: address: \"10.0.0.300\" is not an IP address\n",
		"VIP=" + vip + "\nRSAGENT_MODE=dR\n": "rsagent: RSAGENT_MODE: \"dR\" is none of dr, tun\n",
	} {
		run(0, "/default", text)
		got := run(2, "start").Stderr
		if i, j := strings.Index(got, "/"), strings.Index(got, "/default"); i >= 0 && j >= i {
			got = got[:i] + "FILE" + got[j+len("/default"):]
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	run(0, "/default", "VIP="+vip+"\n")
	run(0, "start")
	run(0, "/default", "VIP='\n")
	run(0, "status")
	run(0, "stop")
	s.bound(t, vip)
}
