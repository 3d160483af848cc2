package services

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

const unitFiles = "/usr/lib/systemd/system/"

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	here.Run(t, append([]string{"systemctl"}, args...)...)
}

// fails: a verb of systemctl does not succeed, and the journal has the reason.
func fails(t *testing.T, verb, unit, reason string) {
	t.Helper()
	from := cursor(t)
	said := exits(t, 1, "systemctl", verb, unit)
	says(t, said+journal(t, unit, from), reason)
}

func TestUnit(t *testing.T) {
	before := newSite(t)
	configure(t, "10.9.0.104", "10.9.0.105")
	moves(t, func() { systemctl(t, "start", "rsagent") }, "+10.9.0.104", "+10.9.0.105")
	isActive(t, "rsagent", "active")
	holds(t, "10.9.0.104", "10.9.0.105")

	configure(t, "10.9.0.105", "{address: 10.9.0.106, mode: tun}")
	moves(t, func() { systemctl(t, "reload", "rsagent") }, "-10.9.0.104", "+10.9.0.106")
	holds(t, "10.9.0.105", "10.9.0.106 tunl0")
	moves(t, func() { systemctl(t, "reload", "rsagent"); systemctl(t, "start", "rsagent") })

	// Why all recipes say reload, and so that the above can fail.
	moves(t, func() { systemctl(t, "restart", "rsagent") }, "-10.9.0.105", "-10.9.0.106", "+10.9.0.105", "+10.9.0.106")

	// A stop needs no config that can be read.
	write(t, yamlFile, "vips: [nonsense")
	moves(t, func() { systemctl(t, "stop", "rsagent") }, "-10.9.0.105", "-10.9.0.106")
	isActive(t, "rsagent", "inactive")
	equal(t, before)
}

func TestUnitBadInput(t *testing.T) {
	guest.Need(t)
	away := func(path string) func(t *testing.T) {
		return func(t *testing.T) {
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Rename(path+".away", path) })
		}
	}
	config := func(text string) func(t *testing.T) { return func(t *testing.T) { write(t, yamlFile, text) } }
	vips := func(list string) func(t *testing.T) {
		return func(t *testing.T) { write(t, defaultFile, list); t.Cleanup(func() { os.Remove(defaultFile) }) }
	}
	own := rip(3)
	for _, c := range []struct {
		name   string
		bad    func(t *testing.T)
		reason string
		alive  bool // on reload it is no error
	}{
		{"typing error", config("vips: [10.9.0.104, 10.9.0.l05]"), yamlFile + `:1: address: "10.9.0.l05" is not an IP address`, false},
		{"unknown key", config("vips:\n- 10.9.0.104\nmood: tun"), yamlFile + `:3: unknown key "mood"`, false},
		{"unreadable", func(t *testing.T) { configure(t, "10.9.0.104"); os.Chmod(yamlFile, 0) }, "open " + yamlFile + ": permission denied", false},
		{"a folder", func(t *testing.T) { os.Remove(yamlFile); os.Mkdir(yamlFile, 0o755) }, yamlFile + " is not a regular file", false},
		{"nothing configured", config("vips: []"), "not configured", true},
		{"own address", config("vips: [10.9.0.106, " + own + "]"), own, false},
		{"missing binary", func(t *testing.T) { configure(t, "10.9.0.104"); away("/usr/sbin/rsagent")(t) }, "Failed to locate executable rsagent: No such file or directory", false},
		{"typing error in VIP=", vips(`VIP="10.9.0.104 10.9.0.l05"`), `lvs_real.sh: VIP= in /etc/default/rsagent: "10.9.0.l05" is not an IP address`, false},
		{"no address in VIP=", vips(`VIP="10.9.0.104 10.9.0.300"`), `lvs_real.sh: VIP= in /etc/default/rsagent: address: "10.9.0.300" is not an IP address`, false},
		{"missing script", func(t *testing.T) { vips("VIP=10.9.0.104")(t); away(dropIn)(t) }, "lvs_real.sh: not found", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := newSite(t)
			t.Run("start", func(t *testing.T) {
				c.bad(t)
				fails(t, "start", "rsagent", c.reason)
				isActive(t, "rsagent", "failed")
				equal(t, before)
			})
			os.RemoveAll(yamlFile)
			if c.alive {
				return
			}
			configure(t, "10.9.0.106")
			systemctl(t, "start", "rsagent")
			t.Run("reload", func(t *testing.T) {
				c.bad(t)
				moves(t, func() { fails(t, "reload", "rsagent", c.reason) })
				isActive(t, "rsagent", "active")
				holds(t, "10.9.0.106")
			})
		})
	}
}

// TestUnitVIP: under systemd, too, VIP= is enough.
func TestUnitVIP(t *testing.T) {
	before := newSite(t)
	write(t, defaultFile, "VIP=\"10.9.0.104 10.9.0.105\"\n")
	systemctl(t, "start", "rsagent")
	holds(t, "10.9.0.104", "10.9.0.105")
	write(t, defaultFile, "VIP='10.9.0.105,10.9.0.106'\n")
	moves(t, func() { systemctl(t, "reload", "rsagent") }, "-10.9.0.104", "+10.9.0.106")

	// Without it the file counts again.
	os.Remove(defaultFile)
	configure(t, "10.9.0.106")
	moves(t, func() { systemctl(t, "reload", "rsagent") }, "-10.9.0.105")
	write(t, defaultFile, "RSAGENT_MODE=tun\n")
	moves(t, func() { systemctl(t, "reload", "rsagent") }, "-10.9.0.106", "+10.9.0.106")
	holds(t, "10.9.0.106 tunl0")
	systemctl(t, "stop", "rsagent")
	equal(t, before)
}

func TestInstance(t *testing.T) {
	before := newSite(t)
	systemctl(t, "start", "rsagent@10.9.0.104")
	holds(t, "10.9.0.104")
	configure(t, "10.9.0.105")
	moves(t, func() { systemctl(t, "start", "rsagent", "rsagent@10.9.0.106", "rsagent@2001:db8::100") },
		"+10.9.0.105", "+10.9.0.106", "+2001:db8::100/128")
	holds(t, "10.9.0.104", "10.9.0.105", "10.9.0.106", "2001:db8::100")

	// Neither kind takes the other's VIPs.
	configure(t, "10.9.0.107")
	moves(t, func() { systemctl(t, "reload", "rsagent", "rsagent@10.9.0.104") }, "-10.9.0.105", "+10.9.0.107")
	moves(t, func() { systemctl(t, "stop", "rsagent@10.9.0.106") }, "-10.9.0.106")
	moves(t, func() { systemctl(t, "stop", "rsagent") }, "-10.9.0.107")
	holds(t, "10.9.0.104", "2001:db8::100")

	// An instance has the options of the config, for what a reload of it needs no blink.
	write(t, yamlFile, "mode: tun\n")
	moves(t, func() { systemctl(t, "reload", "rsagent@10.9.0.104") }, "+10.9.0.104", "-10.9.0.104")
	holds(t, "10.9.0.104 tunl0", "2001:db8::100")
	systemctl(t, "stop", "rsagent@10.9.0.104", "rsagent@2001:db8::100")
	equal(t, before)

	fails(t, "start", "rsagent@10.9.0.l04", `--vip: "10.9.0.l04" is not an IP address`)
	write(t, yamlFile, "mood: tun\n")
	fails(t, "start", "rsagent@10.9.0.104", yamlFile+`:1: unknown key "mood"`)
	equal(t, before)
}

// TestOnline: once the network is up, what has drifted is mended; where nothing is managed, nothing is done.
func TestOnline(t *testing.T) {
	newSite(t)
	configure(t, "10.9.0.104")
	systemctl(t, "start", "rsagent-online")
	holds(t)
	systemctl(t, "start", "rsagent")
	here.SetIPv4Conf(t, "lo", "arp_ignore", "0")
	here.SetIPv4Conf(t, "all", "arp_announce", "1")
	exits(t, 1, "rsagent", "status")
	moves(t, func() { systemctl(t, "start", "rsagent-online") })
	exits(t, 0, "rsagent", "status")
	holds(t, "10.9.0.104")

	// So it is while someone edits the config.
	write(t, yamlFile, "vips: [nonsense")
	here.SetIPv4Conf(t, "all", "arp_announce", "1")
	moves(t, func() { systemctl(t, "restart", "rsagent-online") })
	exits(t, 0, "rsagent", "status")
	here.SetIPv4Conf(t, "all", "arp_announce", "1")
	moves(t, func() { fails(t, "reload", "rsagent", yamlFile) })
	exits(t, 0, "rsagent", "status")
}

// TestUnitFollowsNFTables: a reload of nftables.service flushes every table, and the unit's own reload, which follows, has
// that of the nft guard back. In between the guest may be heard.
func TestUnitFollowsNFTables(t *testing.T) {
	before := newSite(t)
	systemctl(t, "start", "nftables")
	t.Cleanup(func() { systemctl(t, "stop", "nftables") })
	write(t, yamlFile, "arp-guard: nft\nvips: ["+loud+"]\n")
	systemctl(t, "start", "rsagent")
	isActive(t, "rsagent", "active")
	says(t, here.Run(t, "nft", "list", "table", "arp", "rsagent"), loud)
	moves(t, func() {
		from := cursor(t)
		systemctl(t, "reload", "nftables")
		testnet.Eventually(t, "the unit's reload to end", func() bool { return strings.Contains(journal(t, "rsagent", from), "Reloaded rsagent.service") })
	})
	says(t, here.Run(t, "nft", "list", "table", "arp", "rsagent"), loud)
	exits(t, 0, "rsagent", "status")

	// Other flushes nobody would mend, until check's cure is taken.
	here.Run(t, "sh", "-ec", unwatched(t))
	if cure := unwatched(t); cure != "" {
		t.Errorf("rsagent-watch runs, and check still wants: %s", cure)
	}
	here.Run(t, "nft", "flush", "ruleset")
	testnet.Eventually(t, "the table to be back", func() bool { return strings.Contains(here.Run(t, "nft", "list", "ruleset"), loud) })
	systemctl(t, "disable", "--now", "rsagent-watch")

	// So that the above can fail: without a reload the table is gone.
	here.Run(t, "nft", "flush", "ruleset")
	exits(t, 1, "rsagent", "status")
	systemctl(t, "stop", "rsagent")
	equal(t, before)
}

// unwatched is the cure of the finding nft-unwatched, if check has it.
func unwatched(t *testing.T) (cure string) {
	t.Helper()
	var r struct{ Findings []struct{ Code, Cure string } }
	if err := json.Unmarshal([]byte(here.Try("rsagent", "check", "-o", "json").Stdout), &r); err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Code == "nft-unwatched" {
			return f.Cure
		}
	}
	return ""
}

// TestVerify: systemd finds no fault with the units, and few with their exposure.
func TestVerify(t *testing.T) {
	newSite(t)
	units := []string{unitFiles + "rsagent.service", unitFiles + "rsagent@.service", unitFiles + "rsagent-online.service",
		unitFiles + "rsagent-watch.service", unitFiles + "rsagent-metrics.service", unitFiles + "rsagent-health@.service"}
	if said := exits(t, 0, append([]string{"systemd-analyze", "verify", "--man=no"}, units...)...); said != "" {
		t.Error(said)
	}
	_, stated, _ := strings.Cut(readme(t), "(`systemd-analyze security`: at most ")
	stated, _, _ = strings.Cut(stated, ")")
	level := regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d) OK`)
	worst := ""
	for _, unit := range units {
		said := exits(t, 0, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30", unit)
		found := level.FindStringSubmatch(said)
		if found == nil {
			t.Fatalf("no figure for %s: %s", unit, said)
		}
		worst = max(worst, found[1])
	}
	if worst != stated {
		t.Errorf("the worst of the units has %s, the README says %s", worst, stated)
	}
}
