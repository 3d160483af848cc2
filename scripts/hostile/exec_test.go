package hostile

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// TestPrograms: whatever the environment says, the one program that is run is modprobe, from a folder that is fixed, with
// an environment that is empty and with arguments that are constant; by no verb but one that needs a module.
func TestPrograms(t *testing.T) {
	t.Parallel()
	testnet.Need(t, "strace", "modprobe")
	s := newSite(t, "tun")
	trap := t.TempDir()
	s.rs.Run(t, "sh", "-c", `printf '#!/bin/sh\ntouch "$0.was-run"\n' >"$1/modprobe" && chmod +x "$1/modprobe" && cp "$1/modprobe" "$1/ip" && cp "$1/modprobe" "$1/sh"`, "sh", trap)
	ipip := hasIPIP(t)
	for _, verb := range [][]string{s.start(vips(1)), s.args("start", "--vip", vips(1)[0]), s.args("restart"), s.args("reload"), s.args("status"),
		s.args("stop"), s.args("start", "--mode", "tun", "--vip", vips(1)[0], "--dry-run")} {
		code, programs := s.programs(verb, trap)
		wants := slices.Contains(verb, "tun") && !slices.Contains(verb, "--dry-run") && !ipip
		if wants && (code != 5 || len(programs) != 1 || !modprobe.MatchString(programs[0])) || !wants && len(programs) > 0 {
			t.Errorf("%v: exit %d, runs\n%s", verb[1:], code, strings.Join(programs, "\n"))
		}
	}
	if run, _ := filepath.Glob(trap + "/*.was-run"); len(run) > 0 {
		t.Errorf("run from PATH: %v", run)
	}
}

var modprobe = regexp.MustCompile(`execve\("(/usr)?/s?bin/modprobe", \["(/usr)?/s?bin/modprobe", "ipip"\], 0x[0-9a-f]+ /\* 0 vars \*/\) = 0`)

// programs lists what the verb executes, with an environment that would have any shell, loader or modprobe do something
// else.
func (s *site) programs(verb []string, trap string) (code int, programs []string) {
	s.t.Helper()
	out := s.t.TempDir() + "/trace"
	r := s.rs.Exec(testnet.Cmd{
		Args: append([]string{"strace", "-f", "-qq", "-s", "256", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", out}, verb...),
		Env: []string{"PATH=" + trap, "ENV=" + trap + "/sh", "BASH_ENV=" + trap + "/sh", "MODPROBE_OPTIONS=-r -C " + trap, "SHELL=" + trap + "/sh",
			"RSAGENT_VERBOSE=true", "IFS=x"},
	})
	for line := range strings.Lines(s.rs.Run(s.t, "cat", out)) {
		if strings.Contains(line, "exec") { // strace also says whom it let go of
			programs = append(programs, strings.TrimSpace(line))
		}
	}
	return r.Code, programs[1:] // the first is the verb's own
}

// TestVariables: a variable is trusted no more than a flag. What cannot be is refused, one line, nothing touched.
func TestVariables(t *testing.T) {
	t.Parallel()
	s := newSite(t, "dr")
	before := s.rs.Snapshot(t)
	for _, v := range []string{"RSAGENT_VIP=10.0.0.100/24", "RSAGENT_VIP=10.0.0.100;id", "RSAGENT_VIP=$(id)", "RSAGENT_VIP=\n",
		"RSAGENT_MODE=../tun", "RSAGENT_DEVICE=../eth0", "RSAGENT_INTERFACE=a/b", "RSAGENT_CONFIG=/dev/zero/x", "RSAGENT_TIMEOUT=-1s", "RSAGENT_TIMEOUT=9e99h",
		"RSAGENT_OUTPUT=/etc/passwd", "RSAGENT_DRY_RUN=perhaps", "RSAGENT_SCOPE=\x1b[31m", "RSAGENT_VIP=" + strings.Repeat("10.0.0.1,", 10000)} {
		r := s.rs.Exec(testnet.Cmd{Args: s.args("start"), Env: []string{v}})
		if r.Code != 2 || r.Stdout != "" || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, strings.SplitN(v, "=", 2)[0]) && !strings.HasPrefix(v, "RSAGENT_CONFIG") {
			t.Errorf("%.60q: exit %d\n%s%.300s", v, r.Code, r.Stdout, r.Stderr)
		}
		s.printable(t, r.Stderr)
	}
	if err := s.as(before); err != nil || s.files() != "none" {
		t.Errorf("%v, %s", err, s.files())
	}
}
