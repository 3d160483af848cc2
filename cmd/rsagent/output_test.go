package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/realserver"
	"rsagent/tunnel"
)

const (
	whyIgnore   = "answer ARP only for addresses of the interface it came in on, so never for the VIP"
	whyAnnounce = "never send an ARP request with the VIP as its sender"
	classic     = "as the classic recipe writes; the kernel pays no heed to it"
)

// The form of JSON output is a promise to those who parse it.
func TestJSON(t *testing.T) {
	const (
		head  = `{"version":1,"verb":"%s","state":"%s","changed":%t,"vips":[%s],"changes":[`
		tail  = `],"findings":[],"error":null}`
		upVIP = `{"address":"10.0.0.100","mode":"dr","device":"lo","state":"up"}`
		more  = `,"origin":["flag"],"arp-guard":"all","scope":"host"}` // status only
	)
	changes := func(outcome string) string {
		return `{"stage":"guard","item":"net.ipv4.conf.lo.arp_ignore","from":"0","to":"1","why":"` + classic + `","outcome":"` + outcome + `"},` +
			`{"stage":"guard","item":"net.ipv4.conf.lo.arp_announce","from":"0","to":"2","why":"` + classic + `","outcome":"` + outcome + `"},` +
			`{"stage":"guard","item":"net.ipv4.conf.all.arp_ignore","from":"0","to":"1","why":"` + whyIgnore + `","outcome":"` + outcome + `"},` +
			`{"stage":"guard","item":"net.ipv4.conf.all.arp_announce","from":"0","to":"2","why":"` + whyAnnounce + `","outcome":"` + outcome + `"},` +
			`{"stage":"bind","item":"10.0.0.100/32 dev lo","from":"","to":"host","why":"the VIP","outcome":"` + outcome + `"}`
	}
	guard := func(name string, ignore, announce int, good bool, why string) string {
		return fmt.Sprintf(`{"interface":"%s","arp_ignore":%d,"arp_announce":%d,"good":%t,"why":"%s","asked":%t}`, name, ignore, announce, good, why, good || announce == 2)
	}
	guards := func(ignore, announce int, good bool, why string) string {
		return `],"guards":[` + guard("all", ignore, announce, good, why) + "," + guard("eth0", ignore, announce, good, why) +
			`],"tunnels":[{"device":"tunl0","tunnel":"ipip","state":"down","rp_filter":0,"received":0}],"watch":{"running":false}` + tail[1:]
	}
	silent := guards(1, 2, true, "arp_ignore 1: "+whyIgnore+"; arp_announce 2: "+whyAnnounce)
	drifted := guards(0, 2, false, "arp_ignore is 0, not 1: "+whyIgnore)
	open := guards(0, 0, false, "arp_ignore is 0, not 1: "+whyIgnore+"; arp_announce is 0, not 2: "+whyAnnounce)
	back := func(item, from string) string {
		return `{"stage":"put back","item":"net.ipv4.conf.` + item + `","from":"` + from + `","to":"0","why":"as it was before rsagent changed it","outcome":"done"}`
	}
	withdraw := `{"stage":"withdraw","item":"10.0.0.100/32 dev lo","from":"host","to":"","why":"no longer served here","outcome":"%s"},`

	w := newWorld(t)
	for _, step := range []struct {
		args, want string
		code       int
	}{
		{"status", fmt.Sprintf(head, "status", "down", false, "") + open, 3},
		{"start --vip 10.0.0.100 --dry-run", fmt.Sprintf(head, "start", "down", true, strings.Replace(upVIP, `"up"`, `"down"`, 1)) + changes("would") + tail, 0},
		{"start --vip 10.0.0.100", fmt.Sprintf(head, "start", "up", true, upVIP) + changes("done") + tail, 0},
		{"start --vip 10.0.0.100", fmt.Sprintf(head, "start", "up", false, upVIP) + tail, 0},
		{"start --dry-run", fmt.Sprintf(head, "start", "up", false, upVIP) + tail, 0},
		{"status", fmt.Sprintf(head, "status", "up", false, strings.Replace(upVIP, "}", more, 1)) + silent, 0},
		{"LEAK", "", 0},
		{"status", fmt.Sprintf(head, "status", "drifted", false, strings.Replace(upVIP, `"up"}`, `"drifted"`+more, 1)) +
			`{"stage":"guard","item":"net.ipv4.conf.all.arp_ignore","from":"0","to":"1","why":"` + whyIgnore + `","outcome":"would"}` +
			strings.Replace(drifted, `"findings":[]`, `"findings":[{"level":"warning","code":"was-answering","subject":"10.0.0.100",`+
				`"message":"VIP 10.0.0.100 was bound while this host answered ARP for it, or asked as it: neighbours may have cached its MAC address",`+
				`"cure":"on the director: arping -U -I NIC 10.0.0.100"}]`, 1), 1},
		{"MEND", "", 0},
		{"stop", fmt.Sprintf(head, "stop", "down", true, "") + fmt.Sprintf(withdraw, "done") + back("all.arp_announce", "2") + "," +
			back("all.arp_ignore", "1") + "," + back("lo.arp_announce", "2") + "," + back("lo.arp_ignore", "1") + tail, 0},
		{"stop", fmt.Sprintf(head, "stop", "down", false, "") + tail, 0},
		{"start", fmt.Sprintf(head, "start", "down", false, "") +
			`],"findings":[],"error":{"code":6,"message":"not configured: no --vip, no VIP in ` + w.config + `, and nothing is managed"}}`, 6},
	} {
		switch step.args {
		case "LEAK":
			w.set1("all", "arp_ignore", 0)
			continue
		case "MEND":
			w.set1("all", "arp_ignore", 1)
			continue
		}
		w.must(step.code, append(strings.Fields(step.args), "-o", "json")...)
		if d := cmp.Diff(step.want+"\n", w.out.String()); d != "" {
			t.Errorf("%s: %s\ngot: %s", step.args, d, &w.out)
		}
	}
}

func (w *world) set1(iface, knob string, value int) {
	for k := range w.host.Conf {
		if k.Iface == iface && k.Knob == knob {
			w.host.Conf[k] = value
		}
	}
}

func TestText(t *testing.T) {
	w := newWorld(t)
	w.host.Links[0].Name = "lo"
	for _, step := range []struct {
		args, want string
		code       int
	}{
		{"status", "down: nothing is managed\ntunnel  tunl0  ipip, rp_filter 0  down, 0 packets received\n", 3},
		{"start --vip 10.0.0.100 --dry-run", "" +
			"sysctl -w net.ipv4.conf.lo.arp_ignore=1      # " + classic + "\n" +
			"sysctl -w net.ipv4.conf.lo.arp_announce=2    # " + classic + "\n" +
			"sysctl -w net.ipv4.conf.all.arp_ignore=1     # " + whyIgnore + "\n" +
			"sysctl -w net.ipv4.conf.all.arp_announce=2   # " + whyAnnounce + "\n" +
			"ip addr add 10.0.0.100/32 dev lo scope host  # the VIP\n", 0},
		{"start --vip 10.0.0.100", "" +
			"guard  net.ipv4.conf.lo.arp_ignore     0 -> 1          " + classic + "\n" +
			"guard  net.ipv4.conf.lo.arp_announce   0 -> 2          " + classic + "\n" +
			"guard  net.ipv4.conf.all.arp_ignore    0 -> 1          " + whyIgnore + "\n" +
			"guard  net.ipv4.conf.all.arp_announce  0 -> 2          " + whyAnnounce + "\n" +
			"bind   10.0.0.100/32 dev lo            absent -> host  the VIP\n" +
			"up: 1 VIP, 5 changes\n", 0},
		{"start --vip 10.0.0.100", "up: nothing to do\n", 0},
		{"start --dry-run", "# up: nothing to do\n", 0},
		{"status", "up\n" +
			"VIP     10.0.0.100  dr on lo                      up  by hand\n" +
			"guard   all         arp_ignore 1, arp_announce 2  silent\n" +
			"guard   eth0        arp_ignore 1, arp_announce 2  silent\n" +
			"tunnel  tunl0       ipip, rp_filter 0             down, 0 packets received\n", 0},
		{"LEAK", "", 0},
		{"status", "drifted\n" +
			"VIP     10.0.0.100  dr on lo                      drifted  by hand\n" +
			"guard   all         arp_ignore 0, arp_announce 2  not silent\n" +
			"guard   eth0        arp_ignore 0, arp_announce 2  not silent\n" +
			"tunnel  tunl0       ipip, rp_filter 0             down, 0 packets received\n" +
			"drift: net.ipv4.conf.all.arp_ignore is 0, should be 1: " + whyIgnore + "\n" +
			"mend: rsagent restart\n" +
			"warning: VIP 10.0.0.100 was bound while this host answered ARP for it, or asked as it: neighbours may have cached its MAC address (cure: on the director: arping -U -I NIC 10.0.0.100)\n", 1},
	} {
		if step.args == "LEAK" {
			w.set1("all", "arp_ignore", 0)
			continue
		}
		w.must(step.code, strings.Fields(step.args)...)
		if d := cmp.Diff(step.want, w.out.String()); d != "" {
			t.Errorf("%s: %s\ngot:\n%s", step.args, d, &w.out)
		}
	}
}

// A link is not guarded, but raised; a stop of what is not here is told from one that took something out.
func TestWordsOfText(t *testing.T) {
	w := newWorld(t)
	w.host.Links[0].Up = false
	w.must(0, "start", "--vip", "10.0.0.100")
	if want := "raise  link lo "; !strings.Contains(w.out.String(), want) {
		t.Errorf("want %q in\n%s", want, &w.out)
	}
	w.must(0, "stop", "--vip", "10.0.0.7,10.0.0.8")
	if want := "up: nothing to do, not here: 10.0.0.7, 10.0.0.8\n"; w.out.String() != want {
		t.Errorf("%q, want %q", &w.out, want)
	}
	w.must(0, "stop", "--vip", "10.0.0.100")
	w.must(0, "stop", "--vip", "10.0.0.100")
	if want := "down: nothing to do\n"; w.out.String() != want {
		t.Errorf("%q, want %q", &w.out, want)
	}
}

// A long command pushes no other's reason away.
func TestDryRunWidth(t *testing.T) {
	w := newWorld(t)
	w.host.Links[3].Name = "dummy0"
	w.must(0, "start", "--vip", "10.0.0.100", "--arp-guard", "nft", "--dry-run")
	wide, narrow := 0, 0
	for line := range strings.Lines(w.out.String()) {
		command, _, ok := strings.Cut(line, "  # ")
		if long := len(strings.TrimRight(command, " ")) > 80; ok && long {
			wide++
		} else if ok && len(command) <= 80 {
			narrow++
		}
	}
	if wide != 1 || narrow != 1 {
		t.Errorf("%d long lines, %d short ones in\n%s", wide, narrow, &w.out)
	}
}

// A status with a config says where it is not what is managed.
func TestStatusAgainstConfig(t *testing.T) {
	w := newWorld(t)
	w.write("vips: [10.0.0.1, 10.0.0.2, 10.0.0.3]")
	w.must(0, "start")
	w.must(0, "start", "--vip", "10.0.0.9")
	for file, want := range map[string]string{"vips: [10.0.0.1, 10.0.0.2, 10.0.0.3]": "",
		"vips: [{address: 10.0.0.1, scope: global}, 10.0.0.2, 10.0.0.4]": "10.0.0.1, 10.0.0.3, 10.0.0.4"} {
		w.write(file)
		w.must(0, "status", "--config", w.config)
		if want != "" {
			want = "info: " + w.config + " is not what is managed: " + want + " (cure: rsagent reload --config " + w.config + ")\n"
		}
		_, got, _ := strings.Cut(w.out.String(), "info: ")
		if got = strings.TrimPrefix("info: "+got, "info: "); want != "" && "info: "+got != want || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

// What is found of many VIPs is cut short in text.
func TestManyFindings(t *testing.T) {
	w := newWorld(t)
	var vips []string
	for i := range 9 {
		vips = append(vips, fmt.Sprintf("10.0.0.%d", 101+i))
	}
	w.must(0, "start", "--vip", strings.Join(vips, ","))
	w.set1("all", "arp_ignore", 0)
	w.must(0, "restart", "--dry-run")
	if got := strings.Count(w.out.String(), "was bound while"); got != 5 || !strings.Contains(w.out.String(), "# warning: and 4 more of this kind (--output json has all)\n") {
		t.Errorf("%d of them in\n%s", got, &w.out)
	}
	w.must(0, "restart")
	if got := strings.Count(w.out.String(), "was bound while"); got != 5 || !strings.Contains(w.out.String(), "\nwarning: and 4 more of this kind (--output json has all)\n") {
		t.Errorf("%d of them in\n%s", got, &w.out)
	}
}

// Colour is for terminals whose owner does not object.
func TestColour(t *testing.T) {
	for _, test := range []struct {
		terminal bool
		vars     map[string]string
		want     string
	}{
		{false, nil, "down: nothing to do\n"},
		{true, nil, "\x1b[33mdown\x1b[0m: nothing to do\n"},
		{true, map[string]string{"NO_COLOR": ""}, "\x1b[33mdown\x1b[0m: nothing to do\n"},
		{true, map[string]string{"NO_COLOR": "1"}, "down: nothing to do\n"},
		{true, map[string]string{"TERM": "dumb"}, "down: nothing to do\n"},
	} {
		w := newWorld(t)
		w.terminal = test.terminal
		if test.vars != nil {
			w.vars = test.vars
		}
		if w.must(0, "stop"); w.out.String() != test.want {
			t.Errorf("%+v: %q", test, &w.out)
		}
	}
}

// An interface's name may hold what steers a terminal.
func TestNothingSteersTheTerminal(t *testing.T) {
	w := newWorld(t)
	w.host.Links[1].Name = "eth\x1b[2J"
	w.host.Addrs[0].Device = w.host.Links[1].Name
	w.must(0, "start", "--vip", "10.0.0.100")
	w.must(0, "status")
	if s := w.out.String(); strings.Contains(s, "\x1b") || !strings.Contains(s, "eth?[2J") {
		t.Errorf("%q", s)
	}
	w.must(2, "start", "--mode", "\u202e"+strings.Repeat("d", 100_000)) // right to left
	if s := w.errs.String(); strings.Contains(s, "\u202e") || len(s) > 5000 || strings.Count(s, "\n") != 1 {
		t.Errorf("%d bytes: %.80q", len(s), s)
	}
}

// A failure is told in the changes, in the error, and on one line of stderr.
func TestFailure(t *testing.T) {
	w := newWorld(t)
	w.fail["10.0.0.100/32 dev lo"] = fmt.Errorf("add 10.0.0.100/32 dev lo: %w", syscall.ENOBUFS)
	w.must(1, "start", "--vip", "10.0.0.100", "-o", "json")
	if got := w.errs.String(); got != "rsagent: add 10.0.0.100/32 dev lo: no buffer space available\n" {
		t.Errorf("stderr: %s", got)
	}
	var r report
	if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.State != "down" || !r.Changed || len(r.VIPs) > 0 || *r.Error != (failure{1, "add 10.0.0.100/32 dev lo: no buffer space available"}) {
		t.Errorf("%s", &w.out)
	}
	var outcomes []string
	for _, c := range r.Changes {
		outcomes = append(outcomes, c.Stage+" "+c.Outcome)
	}
	if got, want := strings.Join(outcomes, ", "), "guard done, guard done, guard done, guard done, bind failed, put back done, put back done, put back done, put back done"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.must(1, "start", "--vip", "10.0.0.100")
	if !strings.Contains(w.out.String(), "\nFAILED bind  10.0.0.100/32 dev lo ") || strings.Contains(w.out.String(), "changes\n") {
		t.Error(&w.out)
	}
}

// What was not tried, because something before it failed, is no change.
func TestSkipped(t *testing.T) {
	r := &report{}
	r.changes([]realserver.Change{{Item: tunnel.Link{Name: "lo"}, Outcome: "skipped"}, {Item: tunnel.Link{Name: "lo"}, Outcome: "failed"}}, false)
	if len(r.Changes) != 1 || r.Changes[0].Outcome != "failed" {
		t.Errorf("%+v", r.Changes)
	}
}

// What a refused verb would do is nothing.
func TestRefusedDryRun(t *testing.T) {
	w := newWorld(t)
	w.must(6, "start", "--vip", "10.0.0.11,10.0.0.100", "--dry-run", "-o", "json")
	var r report
	if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Changed || len(r.Changes) > 0 || len(r.VIPs) > 0 || r.Error.Code != 6 || r.Findings[0].Code != "own-address" {
		t.Error(&w.out)
	}
}

// Under --dry-run the states are those of now.
func TestDryRunTellsOfNow(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.1,10.0.0.2")
	w.must(0, "stop", "--vip", "10.0.0.1", "--dry-run", "-o", "json")
	want := `{"version":1,"verb":"stop","state":"up","changed":true,"vips":[{"address":"10.0.0.2","mode":"dr","device":"lo","state":"up"},` +
		`{"address":"10.0.0.1","mode":"dr","device":"lo","state":"up"}],"changes":[{"stage":"withdraw",`
	if got := w.out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("%swant %s…", got, want)
	}
}

// A journal that cannot be used is a failure of what changes, and all that status can tell.
func TestUnusableJournal(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100")
	files, _ := filepath.Glob(filepath.Join(w.folder, "state", "*.json"))
	if err := os.WriteFile(files[0], []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		verb string
		code int
	}{{"start", 1}, {"stop", 1}, {"restart", 1}, {"status", 4}} {
		w.must(test.code, test.verb, "-o", "json")
		want := fmt.Sprintf(`{"version":1,"verb":"%s","state":"unknown","changed":false,"vips":[],"changes":[],`, test.verb)
		if test.verb == "status" {
			want += `"guards":[],"tunnels":[],"watch":{"running":false},`
		}
		want += fmt.Sprintf(`"findings":[],"error":{"code":%d,"message":"journal %s cannot be used`, test.code, files[0])
		if got := w.out.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s…", got, want)
		}
		if strings.Count(w.errs.String(), "\n") != 1 || !strings.Contains(w.errs.String(), files[0]) {
			t.Errorf("stderr: %s", &w.errs)
		}
	}
	if w.must(4, "status"); w.out.String() != "unknown\n" {
		t.Errorf("%q", &w.out)
	}
}

// Output that cannot be written is said, and changes nothing about what was done, or found.
func TestBrokenPipe(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
	}{{"start --vip 10.0.0.100", 0}, {"start", 6}, {"status", 3}, {"start -o json", 6}, {"version", 1}, {"--help", 1}} {
		w := newWorld(t)
		w.brokenPipe = true
		w.must(test.code, strings.Fields(test.args)...)
		want := "rsagent: write output: broken pipe\n"
		if test.code == 6 {
			want = "rsagent: not configured: "
		}
		if got := w.errs.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s", test.args, got)
		}
	}
}

func TestVerbose(t *testing.T) {
	w := newWorld(t)
	w.must(0, "stop", "--verbose", "-o", "json")
	if s := w.errs.String(); !strings.HasPrefix(s, "rsagent: stop took ") || !strings.Contains(s, "; journal "+w.folder+"/state/") {
		t.Error(s)
	}
	if !json.Valid(w.out.Bytes()) {
		t.Error(&w.out)
	}
}
