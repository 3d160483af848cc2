package hostile

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// lines of the config that lvs_real.sh makes of VIP=.
var configLine = regexp.MustCompile(`^(vips:|  - '[0-9A-Fa-f.:/]+')$`)

// FuzzDefault: whatever VIP= of /etc/default/rsagent holds, the config that is made of it holds nothing but VIPs, and
// nothing of it is run. The script runs as it is installed, but for where it looks for rsagent, which does nothing here.
func FuzzDefault(f *testing.F) {
	if _, err := os.Stat("/etc/default/rsagent"); err == nil {
		testnet.Skip(f, "rsagent is installed here")
	}
	script, state := installed(f)
	dir := f.TempDir()
	for _, s := range []string{"", "192.0.2.1", "192.0.2.1 192.0.2.2", "192.0.2.1,\t2001:db8::1", "* ?", "$(touch ran)", "`touch ran`", "';touch ran;'", "a\nb: c",
		"- '", "%s%n", "-e", "192.0.2.1\\n", "\xff", "/", "..", "\r192.0.2.1\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "\x00") {
			return // no variable can hold it
		}
		list := filepath.Join(state, "default.yaml")
		os.Remove(list)
		cmd := exec.Command("sh", script, "start")
		cmd.Dir, cmd.Env = dir, []string{"VIP=" + s, "RSAGENT_STATE_DIR=" + state}
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 0 && code != 2 || (code == 2) != (strings.Count(string(out), "\n") > 0) {
			t.Fatalf("%q: %v: %s", s, err, out)
		}
		if text, err := os.ReadFile(list); err == nil {
			for line := range strings.Lines(string(text)) {
				if !configLine.MatchString(strings.TrimSuffix(line, "\n")) {
					t.Fatalf("%q becomes %q", s, text)
				}
			}
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Fatalf("%q: something was run: %v", s, left)
		}
		if left, _ := filepath.Glob(list + ".*"); len(left) > 0 {
			t.Fatalf("%q leaves %v", s, left)
		}
	})
}

// installed puts the script and a rsagent that does nothing into a folder.
func installed(f *testing.F) (script, state string) {
	f.Helper()
	dir := f.TempDir()
	text, err := os.ReadFile("../lvs_real.sh")
	if err != nil {
		f.Fatal(err)
	}
	path := regexp.MustCompile(`(?m)^PATH=.*$`)
	if len(path.FindAll(text, -1)) != 1 {
		f.Fatal("lvs_real.sh no longer sets PATH in one line: mend the test")
	}
	script, state = filepath.Join(dir, "lvs_real.sh"), filepath.Join(dir, "state")
	text = path.ReplaceAll(text, []byte("PATH="+dir+":/usr/bin:/bin"))
	for name, content := range map[string][]byte{script: text, filepath.Join(dir, "rsagent"): []byte("#!/bin/true\n")} {
		if err := os.WriteFile(name, content, 0o755); err != nil {
			f.Fatal(err)
		}
	}
	return script, state
}
