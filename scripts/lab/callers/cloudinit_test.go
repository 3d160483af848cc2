package callers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

const userData = "scripts/cloud-init/user-data"

// atRest waits for cloud-init to end, which must have started from the disk, and found no fault.
func atRest(t *testing.T) {
	t.Helper()
	guest.Need(t)
	if r := testnet.Here().Try("cloud-init", "status", "--wait", "--long"); r.Code != 0 {
		log, _ := os.ReadFile("/var/log/cloud-init-output.log")
		t.Errorf("cloud-init status: exit %d\n%s%s\n%s", r.Code, r.Stdout, r.Stderr, log)
	}
	var result struct {
		V1 struct {
			Datasource string
			Errors     []string
		}
	}
	text, err := os.ReadFile("/run/cloud-init/result.json")
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(result.V1.Datasource, "DataSourceNoCloud [seed=/dev/") || len(result.V1.Errors) > 0 {
		t.Errorf("cloud-init says %s", text)
	}
}

func TestFirstBoot(t *testing.T) {
	atRest(t)
	serves(t, "192.0.2.100 lo", "192.0.2.101 lo")
	is(t, "is-active", "active")
	is(t, "is-enabled", "enabled")
	says(t, testnet.Here().Run(t, "cloud-init", "schema", "--config-file", userData), "Valid")
}

// TestReboot: the VIPs are back, and not by cloud-init, which comes late: web servers come after network.target.
func TestReboot(t *testing.T) {
	atRest(t)
	serves(t, "192.0.2.100 lo", "192.0.2.101 lo")
	is(t, "is-active", "active")
	if vips, network := activated(t, "rsagent.service"), activated(t, "network.target"); vips > network {
		t.Errorf("rsagent.service was up %d µs after boot, network.target %d", vips, network)
	}
	testnet.Here().Run(t, "systemctl", "stop", "rsagent.service")
	serves(t)
}

func activated(t *testing.T, unit string) int {
	t.Helper()
	text := testnet.Here().Run(t, "systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", unit)
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n == 0 {
		t.Fatalf("%s was never up: %s", unit, text)
	}
	return n
}

// TestSeed: with a fault in what cloud-init is given, no VIP is bound and no unit enabled, and it says why.
func TestSeed(t *testing.T) {
	guest.Need(t)
	for _, c := range []struct{ name, from, to, says string }{
		{"typing error", "192.0.2.101", "192.0.2.l01", `rsagent.yaml:4: address: "192.0.2.l01" is not an IP address`},
		{"missing binary", "/run/cidata/rsagent /usr", "/run/cidata/rsagnet /usr", "'/run/cidata/rsagnet': No such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			retire(t)
			before := testnet.Here().Snapshot(t)
			said := cloudInit(t, c.from, c.to)
			says(t, said, c.says)
			serves(t)
			if diff := testnet.Diff(before, testnet.Here().Snapshot(t)); diff != "" {
				t.Errorf("the host is not as it was (-before +after):\n%s", diff)
			}
			if enabled, _ := filepath.Glob(units + "/*/rsagent*"); len(enabled) > 0 {
				t.Errorf("enabled: %q", enabled)
			}
			testnet.Here().Try("umount", "/run/cidata")
		})
	}
	retire(t)
}

// cloudInit has the modules that user-data uses run on a copy of it with a fault; the last must fail, and say why.
func cloudInit(t *testing.T, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(userData)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(module string) testnet.Result {
		return testnet.Here().Try("cloud-init", "--file", file, "single", "--name", module, "--frequency", "always")
	}
	for _, module := range []string{"write-files", "runcmd"} {
		if r := run(module); r.Code != 0 {
			t.Fatalf("%s: exit %d\n%s%s", module, r.Code, r.Stdout, r.Stderr)
		}
	}
	r := run("scripts-user")
	if r.Code == 0 {
		t.Errorf("cloud-init takes it for good:\n%s%s", r.Stdout, r.Stderr)
	}
	return r.Stdout + r.Stderr
}
