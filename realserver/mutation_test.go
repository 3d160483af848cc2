package realserver

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rsagent/scripts/testnet"
)

// Each mutation is a mistake that once was made, or nearly. The crash model must catch every one:
// what it lets through, it does not test.
var mutations = []struct {
	name, file string
	edits      []string // old, new, old, new …
}{
	{"bind before guard", "plan.go", []string{
		"	Guard                 // settings", "	Bind                 // settings",
		"	Bind                  // VIPs of", "	Guard                  // VIPs of"}},
	{"put back before guard", "plan.go", []string{
		"	Guard                 // settings", "	PutBack                 // settings",
		"	Bind                  // VIPs of", "	Guard                  // VIPs of",
		"	PutBack               // what no VIP", "	Bind               // what no VIP"}},
	{"put back before withdraw", "plan.go", []string{
		"	Withdraw Stage = iota", "	PutBack Stage = iota",
		"	Create                // modules", "	Withdraw                // modules",
		"	Guard                 // settings", "	Create                 // settings",
		"	Bind                  // VIPs of", "	Guard                  // VIPs of",
		"	PutBack               // what no VIP", "	Bind               // what no VIP"}},
	{"the leaving are not journalled", "journal.go", []string{`json:"leaving,omitempty"`, `json:"-"`}},
	{"journal after the change", "converge.go", []string{"if err := r.store.save(r.journal); err != nil && ", "if err := error(nil); err != nil && "}},
	{"policy judges the host as it is", "policy.go", []string{"base: h.baseline(j.Changed)", "base: h.Conf"}},
	{"the blackholes are not journalled", "journal.go", []string{`json:"blackholes,omitempty"`, `json:"-"`}},
	{"no rollback", "converge.go", []string{"	j.VIPs = slices.DeleteFunc(", "	_ = slices.DeleteFunc("}},
	{"only the last value written is known", "journal.go", []string{
		"j.Changed[i].Wrote = append(j.Changed[i].Wrote, c.To)", "j.Changed[i].Wrote = []string{c.To}"}},
	{"the first value is captured again", "journal.go", []string{
		"} else if !j.Changed[i].ours(c.To) {", "} else if j.Changed[i].From = c.From; !j.Changed[i].ours(c.To) {"}},
	{"an interface guard forgets what outweighs it", "../sysctl/sysctl.go", []string{
		"if !r.Good(max(t[Key{All, r.Knob}], r.Want)) {", "if false {"}},
	{"an interface that outweighs all is forgotten", "../sysctl/sysctl.go", []string{
		"if !r.Good(max(all, t.Own(i, r.Knob))) {", "if false {"}},
	{"a wide VIP takes its neighbours along", "plan.go", []string{
		"if a.Secondary || a.Prefix.Addr().Is6() ||", "if true ||"}},
	{"a copy goes before the VIP is there", "plan.go", []string{
		"c.copy, c.later = bound[i], !bound[i]", "c.copy, c.later = true, false"}},
	{"a failed start takes what it found", "converge.go", []string{"if !found[i] {", "if !found[i] || true {"}},
	{"the nftables guard is not journalled", "rules.go", []string{"if !known && h.value(it)", "if false && !known && h.value(it)"}},
	{"a VIP joins the nftables guard after it is bound", "nftguard.go", []string{"wider.VIPs = slices.Concat(want.VIPs, old.VIPs)", "wider.VIPs = slices.Clone(old.VIPs)"}},
	{"an altered nftables guard is left behind", "journal.go", []string{` || isTable(e.Item) && now != ""`, ""}},
	{"the nftables guard goes when others' settings come", "policy.go", []string{"		p.nftGuard()\n", ""}},
	{"a failed start leaves a copy beside what it found", "converge.go", []string{"} else if !placed[i] {", "} else if !placed[i] && false {"}},
	{"sit0 keeps what the kernel gives it", "tunnels.go", []string{"case p.host.compat(a) && raised:", "case p.host.compat(a) && raised && false:"}},
	{"a mode that was set is taken for the one found", "tunnels.go", []string{"		now = p.changed[i].From", "		_ = p.changed[i].From"}},
	{"a VIP withheld is not journalled as such", "vip.go", []string{`json:"withheld,omitempty"`, `json:"-"`}},
	{"the ports are not journalled", "journal.go", []string{"case tunnel.Device, tunnel.Port, loopback.Blackhole", "case tunnel.Device, loopback.Blackhole"}},
}

func TestMutations(t *testing.T) {
	testnet.Need(t, "go")
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // one compiles while another tests
			overlay := mutate(t, m.file, m.edits)
			var out []byte
			var err error
			for _, stride := range []string{"487", "97", "23"} { // most are caught on a few hosts
				cmd := exec.Command("go", "test", "-vet=off", "-gcflags=-N -l", "-ldflags=-s -w", "-failfast", "-overlay", overlay, "-run", "^(TestKilled|TestFault)$", ".")
				cmd.Env = append(os.Environ(), "RSAGENT_TEST_STRIDE="+stride)
				if out, err = cmd.CombinedOutput(); err != nil {
					break
				}
			}
			if err == nil {
				t.Fatal("the crash model let it through")
			}
			if !strings.Contains(string(out), "--- FAIL: Test") {
				t.Fatalf("the tests did not run: %s", out)
			}
		})
	}
}

// mutate writes a mutated copy of a file, and an overlay that has the go command take it instead.
func mutate(t *testing.T, file string, edits []string) (overlay string) {
	t.Helper()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	src := string(b)
	for i := 0; i < len(edits); i += 2 {
		if n := strings.Count(src, edits[i]); n != 1 {
			t.Fatalf("%q stands %d times in %s, not once: mend the mutation", edits[i], n, file)
		}
		src = strings.Replace(src, edits[i], edits[i+1], 1)
	}
	dir := t.TempDir()
	mutant := filepath.Join(dir, filepath.Base(file))
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	for name, content := range map[string][]byte{mutant: []byte(src), overlay: spec} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
