package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// runs says for everything that the README has one type which test runs it: the test's folder and name. Those
// of the lab take it from the README themselves.
var runs = map[string][2]string{
	"make demo": {"scripts/docs", "TestMake"},
	"make help": {"scripts/docs", "TestMake"},
	"make test": {".ci/run", ""}, // that one runs the tests

	"make build":               {"scripts/package", "TestInstall"},
	"make install PREFIX=/usr": {"scripts/package", "TestInstall"},
	"make deb rpm":             {"scripts/package", "TestPackages"},

	"make install PREFIX=/usr && systemctl daemon-reload": {"scripts/lab/services", "TestBoot1"},
	"sudoedit /etc/rsagent/rsagent.yaml":                  {"scripts/lab/services", "TestBoot1"},
	"systemctl enable --now rsagent rsagent-online":       {"scripts/lab/services", "TestBoot1"},
	"systemctl reload rsagent":                            {"scripts/lab/services", "TestBoot1"},
	"systemctl enable --now rsagent@192.0.2.100":          {"scripts/lab/services", "TestBoot1"},
	"systemd-analyze security":                            {"scripts/lab/services", "TestVerify"},

	`echo 'VIP="192.0.2.100 192.0.2.101"' | tee /etc/default/rsagent`: {"scripts/lab/services", "TestBoot2"},
	"update-rc.d rsagent defaults && update-rc.d rsagent enable":      {"scripts/lab/services", "TestBoot2"},
	"service rsagent start": {"scripts/lab/services", "TestBoot2"},

	"mkdir -p /etc/systemd/system/rsagent-health.socket.d":                                                                        {"scripts/lab/services", "TestHealth"},
	`printf '[Socket]\nListenStream=\nListenStream=192.0.2.11:5380\n' | tee /etc/systemd/system/rsagent-health.socket.d/rip.conf`: {"scripts/lab/services", "TestHealth"},
	"systemctl daemon-reload && systemctl enable --now rsagent-health.socket":                                                     {"scripts/lab/services", "TestHealth"},
	"systemctl enable --now rsagent-metrics.timer":                                                                                {"scripts/lab/services", "TestMetrics"},

	"systemctl enable --now rsagent-watch": {"scripts/lab/services", "TestWatch"},
	"systemctl reload rsagent-watch":       {"scripts/lab/services", "TestWatch"},
	"systemctl start rsagent-watch":        {"scripts/lab/services", "TestWatch"},

	"ipvsadm -e -t 192.0.2.100:80 -r 192.0.2.11 -g -w 0": {"scripts/lab", "TestDrain"},
	"rsagent stop --vip 192.0.2.100 --drain 30s":         {"scripts/lab", "TestDrain"},

	"lvs_real.sh start|stop":  {"scripts/lab/services", "TestDropIn"},
	"start VIP tun":           {"scripts/lab/services", "TestDropIn"},
	"ip route del VIP dev lo": {"scripts/cases", "TestClassicRoute"},

	"ansible-playbook -i HOSTS --become scripts/ansible/playbook.yml": {"scripts/lab/callers", "TestRole"},
	"seed.sh DISK": {"scripts/lab/callers", "TestFirstBoot"},

	"rsagent check":        {"scripts/cases", "TestCheckHealthy"},
	"rsagent start":        {"scripts/lab/services", "TestUnit"},
	"rsagent watch":        {"scripts/lab", "TestWatchRestarts"},
	"rsagent VERB [flags]": {"scripts/docs", "TestTables"},
	"stop --config":        {"scripts/cases", "TestDropInStopsAll"},
	"stop --blackhole":     {"scripts/cases", "TestCase58_ForwardingHost"},
	"stop --drain":         {"scripts/cases", "TestDrainOver"},
	"stop --vip":           {"scripts/cases", "TestCase04_GuardsStayForTheOtherVIP"},
	"stop --vip VIP":       {"scripts/cases", "TestCase58_ForwardingHost"},
}

// names are no commands, though they have more than one word; nor are options, which TestTables holds to the program.
var names = []string{"arp rsagent", "inet rsagent", "mode any", "rsagent_watch: true", `rsagent_vip_state{state="up"} == 0`}

// TestRecipes: all that the README has one type is run by a test, and nothing else is in the table.
func TestRecipes(t *testing.T) {
	text := readme(t)
	var typed []string
	for _, block := range Blocks(text, "sh") {
		for _, line := range Recipe(text, block) {
			typed = append(typed, line.Command)
		}
	}
	for _, command := range Commands(text) {
		if !strings.HasPrefix(command, "--") && !slices.Contains(names, command) {
			typed = append(typed, strings.TrimPrefix(command, "sudo "))
		}
	}
	for _, command := range typed {
		if _, ok := runs[command]; !ok {
			t.Errorf("no test is named that runs %q", command)
		}
	}
	for command, by := range runs {
		if !slices.Contains(typed, command) {
			t.Errorf("%q is not in the README", command)
		}
		want, pattern := regexp.QuoteMeta(command), filepath.Join("../..", by[0])
		if by[1] != "" {
			want, pattern = `(?m)^func `+by[1]+`\(t \*testing\.T\) {`, filepath.Join(pattern, "*_test.go")
		}
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(paths, func(path string) bool {
			source, err := os.ReadFile(path)
			return err == nil && regexp.MustCompile(want).Match(source)
		}) {
			t.Errorf("%q: %s has no %s", command, by[0], by[1])
		}
	}
}

// TestMake: the demo comes to its end, which it does not where something is not as it should be; the help names it.
func TestMake(t *testing.T) {
	testnet.NeedRoot(t)
	testnet.Need(t, "make", "bash", "arping", "tcpdump")
	for target, want := range map[string]string{
		"demo": "all of /proc/sys/net/ipv4/conf, the addresses and the routes are as before the start",
		"help": "demo      the main job",
	} {
		out, err := exec.Command("make", "-C", "../..", target).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("make %s: %v, want %q in:\n%s", target, err, want, out)
		}
	}
}
