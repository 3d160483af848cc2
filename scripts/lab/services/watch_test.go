package services

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"rsagent/scripts/docs"
	"rsagent/scripts/testnet"
)

// adapt gives rsagent-watch.service a drop-in for the time of the test, in the place of the last one.
func adapt(t *testing.T, lines ...string) {
	t.Helper()
	write(t, watchDropIn+"/lab.conf", "[Service]\n"+strings.Join(lines, "\n")+"\n")
	systemctl(t, "daemon-reload")
}

const watchDropIn = "/run/systemd/system/rsagent-watch.service.d"

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

// TestWatch: by the recipe, the watcher mends what drifts; that it ends, however that comes, changes nothing; and it comes and
// goes with those whose VIPs it keeps. Only the VIP that may be heard is bound, as its guard is taken away.
func TestWatch(t *testing.T) {
	newSite(t)
	t.Cleanup(func() {
		remove(t, watchDropIn)
		systemctl(t, "disable", "--now", "rsagent-watch")
	})
	configure(t, loud)
	systemctl(t, "start", "rsagent")
	mends(t)
	ends(t)
	follows(t)
}

// mends: the VIP is there when systemctl says that the watcher is; from then on, all that the kernel tells of is mended,
// though it never looks by itself.
func mends(t *testing.T) {
	adapt(t, "Environment=RSAGENT_INTERVAL=24h", "WatchdogSec=0")
	unbind(t, loud)
	for _, line := range recipe(t, "enable --now rsagent-watch") {
		typed(t, line)
	}
	holds(t, loud)
	first := theWatcher(t)
	if first.state != "active" || !regexp.MustCompile(`^up; 1 repair, the last at ....-..-.. ..:..:.. UTC: `+loud+`/32 dev lo$`).MatchString(first.says) {
		t.Errorf("systemd has it as %+v", first)
	}
	here.SetIPv4Conf(t, "all", "arp_ignore", "0")
	silent(t, "arp_ignore", "1")
	until(t, "to tell of it", func(w watcher) bool { return strings.HasPrefix(w.says, "up; 2 repairs, ") })
	asShown(t)
	priorities(t)
	unbind(t, loud)
	bound(t)

	// Of this, nobody is told; a reload has it looked for.
	testnet.Eventually(t, "the watcher not to look at something else meanwhile", func() bool {
		here.Run(t, "unshare", "-m", "sh", "-ec", "mount -t proc proc /proc; echo 1 >/proc/sys/net/ipv4/conf/all/arp_announce")
		return here.Try("rsagent", "status").Code == 1
	})
	systemctl(t, "reload", "rsagent-watch")
	silent(t, "arp_announce", "2")
	if now := theWatcher(t); now.pid != first.pid || now.restarts > 0 {
		t.Errorf("after the reload it is %+v, and was %+v", now, first)
	}
}

// ends: where it is killed, or hangs, there is another, which mends what was missed; one that cannot begin is tried again, however
// often that failed. A restart costs no connection and no packet, and with a stop nothing comes or goes.
func ends(t *testing.T) {
	adapt(t, "WatchdogSec=4s", "RestartSec=100ms")
	was := theWatcher(t)
	here.Run(t, "kill", "-9", was.pid)
	unbind(t, loud)
	was = another(t, was)
	holds(t, loud)
	here.Run(t, "kill", "-STOP", was.pid)
	unbind(t, loud)
	was = another(t, was)
	holds(t, loud)
	says(t, journal(t, "rsagent-watch", ""), "Watchdog timeout")

	write(t, defaultFile, "RSAGENT_INTERVAL=soon\n")
	here.Run(t, "kill", "-9", was.pid)
	until(t, "to have failed often", func(w watcher) bool { return w.restarts >= was.restarts+6 })
	says(t, journal(t, "rsagent-watch", ""), `RSAGENT_INTERVAL: "soon" is no duration`)
	remove(t, defaultFile)
	was = another(t, was)

	c := newClient(t, loud)
	moves(t, func() {
		c.whole(t, func() { systemctl(t, "restart", "rsagent-watch") })
		another(t, was)
		systemctl(t, "stop", "rsagent-watch")
	})
	c.unplug(t)
	holds(t, loud)
}

// follows: it goes with rsagent.service and comes with an instance; what is taken out stays out, and that there is a watcher
// is no reason for rsagent-online.service to bind anything.
func follows(t *testing.T) {
	systemctl(t, "start", "rsagent-watch")
	moves(t, func() { systemctl(t, "stop", "rsagent") }, "-"+loud)
	isActive(t, "rsagent-watch", "inactive")
	systemctl(t, "start", "rsagent@"+loud)
	another(t, watcher{pid: "0"})
	if by := here.Run(t, "systemctl", "show", "-P", "WantedBy", "rsagent-watch"); !slices.Contains(strings.Fields(by), "rsagent.service") {
		t.Errorf("it comes with %s", by)
	}
	unbind(t, loud)
	bound(t)
	moves(t, func() {
		here.Run(t, "rsagent", "stop")
		until(t, "to see that nothing is managed", func(w watcher) bool { return strings.HasPrefix(w.says, "down") })
		systemctl(t, "start", "rsagent-online")
	}, "-"+loud)
}

func bound(t *testing.T) {
	t.Helper()
	testnet.Eventually(t, "the VIP to be bound again", func() bool { return len(held(t)) == 1 })
}

// asShown runs what the README shows, and wants to see what stands there, but for the times, and for what the journal has from
// before.
func asShown(t *testing.T) {
	t.Helper()
	here.Run(t, "journalctl", "--sync")
	alike := func(text string) string {
		text = regexp.MustCompile(`took=\S+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
		return strings.Join(strings.Fields(text), " ")
	}
	shown := strings.ReplaceAll(strings.Join(docs.Blocks(readme(t), "text"), ""), "192.0.2.100", loud)
	for _, part := range strings.Split(shown, "$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		got := here.Run(t, "sh", "-c", command)
		t.Logf("%s\n%s", command, got)
		if !strings.HasSuffix(alike(got), alike(want)) {
			t.Errorf("the README shows\n%s", want)
		}
	}
}

// priorities: a repair is one line of the journal, a warning; all that it says else is none.
func priorities(t *testing.T) {
	t.Helper()
	run := strings.TrimSpace(here.Run(t, "systemctl", "show", "-P", "InvocationID", "rsagent-watch"))
	seen := map[string]string{}
	for line := range strings.Lines(here.Run(t, "journalctl", "_SYSTEMD_INVOCATION_ID="+run, "_TRANSPORT=stdout", "-o", "json", "--no-pager")) {
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

// runs: the watcher is one of the given program, as it is now, and not of a file that it has replaced.
func (w watcher) runs(t *testing.T, program string) {
	t.Helper()
	if got, err := os.Readlink("/proc/" + w.pid + "/exe"); err != nil || got != program {
		t.Errorf("the watcher runs %q, want %q: %v", got, program, err)
	}
}
