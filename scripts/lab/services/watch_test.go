package services

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// adapted gives rsagent-watch.service a drop-in for the time of the test, and has it disabled in the end.
func adapted(t *testing.T, lines ...string) {
	t.Helper()
	const dir = "/run/systemd/system/rsagent-watch.service.d"
	write(t, dir+"/lab.conf", "[Service]\n"+strings.Join(lines, "\n")+"\n")
	t.Cleanup(func() {
		remove(t, dir)
		systemctl(t, "disable", "--now", "rsagent-watch")
	})
	systemctl(t, "daemon-reload")
}

// A watcher is what systemd knows of it.
type watcher struct {
	pid, state, says string
	restarts         int
}

func theWatcher(t *testing.T) (w watcher) {
	t.Helper()
	for line := range strings.Lines(here.Run(t, "systemctl", "show", "-p", "MainPID,ActiveState,StatusText,NRestarts", "rsagent-watch")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "MainPID":
			w.pid = value
		case "ActiveState":
			w.state = value
		case "StatusText":
			w.says = value
		case "NRestarts":
			w.restarts, _ = strconv.Atoi(value)
		}
	}
	return w
}

// until waits for the watcher to be as it should. It never is to be failed: nobody would start it then.
func until(t *testing.T, what string, is func(watcher) bool) (w watcher) {
	t.Helper()
	testnet.Eventually(t, "the watcher "+what, func() bool {
		if w = theWatcher(t); w.state == "failed" {
			t.Fatalf("rsagent-watch.service has failed:\n%s", journal(t, "rsagent-watch", ""))
		}
		return is(w)
	})
	return w
}

// another waits until there is a watcher, and not this one.
func another(t *testing.T, than watcher) watcher {
	t.Helper()
	return until(t, "to be another", func(w watcher) bool { return w.state == "active" && w.pid != than.pid })
}

func unbind(t *testing.T, vip string) {
	t.Helper()
	here.Run(t, "ip", "addr", "del", vip+"/32", "dev", "lo")
}

func silent(t *testing.T, knob, want string) {
	t.Helper()
	testnet.Eventually(t, knob+" to be "+want, func() bool { return here.IPv4Conf(t, "all", knob) == want })
}

// TestWatch: by the recipe, the VIP is there when systemctl says that the watcher is; from then on, though it never polls, nor
// is looked after itself, all that the kernel tells of is mended. Its end, however it comes, changes nothing. It comes and
// goes with those whose VIPs it keeps, and what they take out stays out. Only the VIP that may be heard is bound: its guard is
// taken away.
func TestWatch(t *testing.T) {
	newSite(t)
	adapted(t, "Environment=RSAGENT_INTERVAL=24h", "WatchdogSec=0", "RestartSec=100ms")
	configure(t, loud)
	systemctl(t, "start", "rsagent")
	unbind(t, loud)
	for _, line := range recipe(t, "enable --now rsagent-watch") {
		typed(t, line)
	}
	holds(t, loud)
	first := theWatcher(t)
	if first.state != "active" || !regexp.MustCompile(`^up; 1 repair, the last at ..:..:..: `+loud+`/32 dev lo$`).MatchString(first.says) {
		t.Errorf("systemd has it as %+v", first)
	}

	here.SetIPv4Conf(t, "all", "arp_ignore", "0")
	silent(t, "arp_ignore", "1")
	until(t, "to tell of it", func(w watcher) bool { return strings.HasPrefix(w.says, "up; 2 repairs, ") })
	asShown(t)
	priorities(t)
	unbind(t, loud)
	testnet.Eventually(t, "the VIP to be bound again", func() bool { return len(held(t)) == 1 })

	// Of this, nobody is told; a reload has it looked for.
	here.Run(t, "unshare", "-m", "sh", "-ec", "mount -t proc proc /proc; echo 1 >/proc/sys/net/ipv4/conf/all/arp_announce")
	exits(t, 1, "rsagent", "status")
	systemctl(t, "reload", "rsagent-watch")
	silent(t, "arp_announce", "2")
	if now := theWatcher(t); now.pid != first.pid || now.restarts > 0 {
		t.Errorf("after the reload it is %+v, and was %+v", now, first)
	}

	here.Run(t, "kill", "-9", first.pid)
	unbind(t, loud)
	second := another(t, first)
	holds(t, loud)
	c := newClient(t, loud)
	moves(t, func() { c.whole(t, func() { systemctl(t, "restart", "rsagent-watch") }) })
	another(t, second)
	c.unplug(t)
	moves(t, func() { systemctl(t, "stop", "rsagent-watch") })
	holds(t, loud)

	systemctl(t, "start", "rsagent-watch")
	moves(t, func() { systemctl(t, "stop", "rsagent") }, "-"+loud)
	isActive(t, "rsagent-watch", "inactive")
	systemctl(t, "start", "rsagent")
	third := another(t, watcher{pid: "0"})
	systemctl(t, "restart", "rsagent")
	another(t, third)
	moves(t, func() {
		here.Run(t, "rsagent", "stop")
		until(t, "to see that nothing is managed", func(w watcher) bool { return strings.HasPrefix(w.says, "down") })
		systemctl(t, "start", "rsagent-online") // that there is a watcher is no reason
	}, "-"+loud)

	systemctl(t, "stop", "rsagent")
	isActive(t, "rsagent-watch", "inactive")
	systemctl(t, "start", "rsagent@"+loud)
	another(t, watcher{pid: "0"})
	unbind(t, loud)
	testnet.Eventually(t, "the VIP to be bound again", func() bool { return len(held(t)) == 1 })
}

// asShown runs what the README shows, and wants to see what stands there, but for the times.
func asShown(t *testing.T) {
	t.Helper()
	here.Run(t, "journalctl", "--sync")
	alike := func(text string) string {
		text = regexp.MustCompile(`took=\S+|\d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
		return strings.Join(strings.Fields(text), " ")
	}
	shown := strings.ReplaceAll(strings.Join(docs.Blocks(readme(t), "text"), ""), "192.0.2.100", loud)
	var got strings.Builder
	for line := range strings.Lines(shown) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			got.WriteString(line + here.Run(t, "sh", "-c", command))
		}
	}
	if alike(got.String()) != alike(shown) {
		t.Errorf("the README shows\n%s\nand this is\n%s", shown, &got)
	}
}

// priorities: a repair is one line of the journal, a warning; all that it says else is none.
func priorities(t *testing.T) {
	t.Helper()
	seen := map[string]string{}
	for line := range strings.Lines(here.Run(t, "journalctl", "-b", "-u", "rsagent-watch", "_TRANSPORT=stdout", "-o", "json", "--no-pager")) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		text, _ := record["MESSAGE"].(string)
		word, _, _ := strings.Cut(text, " ")
		seen[word], _ = record["PRIORITY"].(string)
	}
	if seen["repaired"] != "4" || seen["watching"] != "6" || len(seen) != 2 {
		t.Errorf("words and their priorities: %v", seen)
	}
}

// TestWatchdog: one that hangs is ended, and mends what it missed once there is another; one that cannot begin is tried again
// however often that failed.
func TestWatchdog(t *testing.T) {
	newSite(t)
	adapted(t, "WatchdogSec=4s", "RestartSec=100ms")
	configure(t, loud)
	systemctl(t, "start", "rsagent", "rsagent-watch")
	first := another(t, watcher{pid: "0"})
	here.Run(t, "kill", "-STOP", first.pid)
	unbind(t, loud)
	second := another(t, first)
	holds(t, loud)
	says(t, journal(t, "rsagent-watch", ""), "Watchdog timeout")

	write(t, defaultFile, "RSAGENT_INTERVAL=soon\n")
	here.Run(t, "kill", "-9", second.pid)
	until(t, "to have failed often", func(w watcher) bool { return w.restarts >= second.restarts+8 })
	says(t, journal(t, "rsagent-watch", ""), `RSAGENT_INTERVAL: "soon" is no duration`)
	os.Remove(defaultFile)
	another(t, second)
}

// runs: the watcher is one of the given program, as it is now, and not of a file that it has replaced.
func (w watcher) runs(t *testing.T, program string) {
	t.Helper()
	if got, err := os.Readlink("/proc/" + w.pid + "/exe"); err != nil || got != program {
		t.Errorf("the watcher runs %q, want %q: %v", got, program, err)
	}
}
