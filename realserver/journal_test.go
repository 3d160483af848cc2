package realserver

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// full is a journal with everything in it that one can hold.
func full() *Journal {
	return &Journal{Version: 1, Boot: "b", VIPs: Set{vipAeth, with(vipB, func(v *VIP) {
		v.Origin = Config | Flag
		v.Tunnel = "ipip"
		v.MSS = AutoMSS
		v.Directors = []string{"198.51.100.0/24"}
	}), vipC},
		Leaving: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Blackholes: []netip.Addr{netip.MustParseAddr("192.0.2.8")},
		Undo: []Copy{{netip.MustParseAddr("192.0.2.7"), "lo"}},
		Changed: []Entry{
			{sysctl.Key{Iface: "all", Knob: "arp_ignore"}, 0, "0", []string{"1"}},
			{sysctl.Key{Iface: "eth0.100", Knob: "rp_filter"}, 7, "1", []string{"2", "0"}},
			{tunnel.Link{Name: "tunl0"}, 9, "down", []string{"up"}},
			{tunnel.Device{Name: "tunl0"}, 0, "", []string{"ipip"}},
			{tunnel.Device{Name: "grecsum0"}, 0, "", []string{"gre local 192.0.2.11 icsum"}},
			{tunnel.Mode{Device: "ip6tnl0"}, 10, "ip6ip6", []string{"any"}},
			{tunnel.Port{Number: 6080}, 0, "", []string{"gue"}},
			{tunnel.Port{Number: 6080, IPv6: true}, 0, "", []string{"gue"}},
			{loopback.Blackhole{VIP: netip.MustParseAddr("192.0.2.8")}, 0, "", []string{"blackhole"}},
			{arp.GuardTable{}, 0, "", []string{rules}},
			{tunnel.RulesTable{}, 0, "", []string{rules}},
		}}
}

func TestJournalRoundTrip(t *testing.T) {
	b, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	j, err := parseJournal(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := json.Marshal(j); !bytes.Equal(b, again) {
		t.Errorf("wrote %s\nread  %s", b, again)
	}
}

// TestJournalTampered: only what rsagent itself writes is taken from a journal.
func TestJournalTampered(t *testing.T) {
	b, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	for _, edit := range [][2]string{
		{good, ""}, {good, "{}"}, {good, "null"}, {good, "[]"}, {good, good[:len(good)/2]}, {good, good + "x"},
		{`"version":1`, `"version":2`}, {`"version":1`, `"version":0`}, {`"boot":"b"`, `"boot":""`}, {`"boot"`, `"extra":1,"boot"`},
		{`"knob":"arp_ignore"`, `"knob":"forwarding"`}, {`"knob":"arp_ignore"`, `"knob":"../../ip_forward"`}, {`"name":"all"`, `"name":".."`},
		{`"name":"all"`, `"name":"lo"`}, {`"kind":"conf","name":"all","knob":"arp_ignore"`, `"kind":"conf","name":"all","knob":"promote_secondaries"`}, {`"name":"eth0.100"`, `"name":"../../../kernel"`}, {`"name":"eth0.100"`, `"name":"a/b"`},
		{`"ifindex":7`, `"ifindex":0`}, {`"ifindex":7`, `"ifindex":-7`}, {`"from":"0"`, `"from":"x"`}, {`"from":"0"`, `"from":"00"`}, {`"from":"0"`, `"from":""`},
		{`"wrote":["1"]`, `"wrote":[]`}, {`"wrote":["1"]`, `"wrote":["99999999999"]`}, {`"from":"down"`, `"from":"sideways"`},
		{`"kind":"device"`, `"kind":"file"`}, {`"wrote":["ipip"]`, `"wrote":["vlan"]`}, {`"kind":"device","name":"tunl0"`, `"kind":"device","name":"eth0"`},
		{`"wrote":["gre local 192.0.2.11 icsum"]`, `"wrote":["gre"]`}, {`"wrote":["gre local 192.0.2.11 icsum"]`, `"wrote":["gre local ; icsum"]`},
		{`"from":"ip6ip6"`, `"from":""`}, {`"from":"ip6ip6"`, `"from":"gre"`}, {`"ifindex":10`, `"ifindex":0`},
		{`"name":"4:6080"`, `"name":"6080"`}, {`"name":"4:6080"`, `"name":"4:06080"`}, {`"name":"4:6080"`, `"name":"4:0"`}, {`"name":"4:6080"`, `"name":"4:65536"`},
		{`"name":"4:6080"`, `"name":"5:6080"`}, {`"name":"4:6080"`, `"name":"6:6080"`}, {`"wrote":["gue"]`, `"wrote":["fou"]`}, {`"wrote":["gue"]`, `"wrote":["busy"]`},
		{`"kind":"table","name":"arp","from":""`, `"kind":"table","name":"ip","from":""`}, {`"kind":"table","name":"arp","from":""`, `"kind":"table","name":"arp","from":"rules"`},
		{`"kind":"table","name":"arp"`, `"kind":"table","name":"arp","ifindex":3`}, {`"wrote":["rules"]`, `"wrote":["drop"]`}, {`"wrote":["rules"]`, `"wrote":[]`},
		{`"mss":"auto"`, `"mss":"1"`}, {`"198.51.100.0/24"`, `"198.51.100.1/24"`}, {`"198.51.100.0/24"`, `"lvs1"`},
		{`"name":"192.0.2.8"`, `"name":"0.0.0.0"`}, {`"name":"192.0.2.8"`, `"name":"192.0.2.0/24"`}, {`"wrote":["blackhole"]`, `"wrote":["unicast"]`},
		{`"address":"192.0.2.1"`, `"address":"127.0.0.1"`}, {`"address":"192.0.2.1"`, `"address":"192.0.2.200"`}, {`"mode":"tun"`, `"mode":"nat"`},
		{`"origin":"config,flag"`, `"origin":"root"`}, {`"origin":"config,flag"`, `"origin":""`}, {`["192.0.2.9"]`, `["0.0.0.0"]`}, {`["192.0.2.9"]`, `["x"]`},
	} {
		if !strings.Contains(good, edit[0]) {
			t.Fatalf("%q is not in %s: mend the test", edit[0], good)
		}
		if j, err := parseJournal([]byte(strings.Replace(good, edit[0], edit[1], 1))); err == nil {
			t.Errorf("%.40s as %.60s is taken: %+v", edit[0], edit[1], j)
		}
	}
}

func FuzzJournal(f *testing.F) {
	b, err := json.Marshal(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1,"boot":"b","vips":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := parseJournal(b)
		if err != nil {
			return
		}
		for _, e := range j.Changed {
			if k, ok := e.Item.(sysctl.Key); ok && (!slices.Contains(knobs, k.Knob) || strings.ContainsAny(k.Iface, "/\x00")) {
				t.Fatalf("an entry for %q", k)
			}
		}
		if _, err := json.Marshal(j); err != nil {
			t.Fatalf("read, and cannot be written: %v", err)
		}
	})
}

// TestReadJournal: a file that someone else could have written is refused, and nothing blocks.
func TestReadJournal(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, mode os.FileMode) string {
		if err := os.WriteFile(path(name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path(name), mode); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	if b, err := readJournal(write("good", 0o644)); err != nil || string(b) != "{}" {
		t.Errorf("a good one: %q, %v", b, err)
	}
	write("empty", 0o644)
	must(t, os.Truncate(path("empty"), 0))
	must(t, os.Symlink(path("good"), path("link")))
	must(t, os.Mkdir(path("folder"), 0o755))
	must(t, unix.Mkfifo(path("fifo"), 0o644))
	write("huge", 0o644)
	must(t, os.Truncate(path("huge"), maxJournal+1))
	bad := map[string]string{"empty": "empty", "link": "symbolic link", "folder": "regular", "fifo": "regular", "huge": "too many",
		filepath.Base(write("group", 0o664)): "others", filepath.Base(write("world", 0o646)): "others"}
	if os.Geteuid() == 0 {
		bad["foreign"] = "belongs to user 65534"
		must(t, os.Chown(write("foreign", 0o644), 65534, 65534))
	}
	for name, part := range bad {
		if b, err := readJournal(path(name)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSave: the file has what the journal has, anyone may read it, and no second write happens.
func TestSave(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	dir := filepath.Join(t.TempDir(), "run", "rsagent")
	must(t, makeDir(dir))
	writes := 0
	s := &store{path: filepath.Join(dir, "1.json"), moved: func() { writes++ }, replace: replaceFile}
	j := full()
	must(t, s.save(j))
	for _, p := range []struct {
		path string
		mode os.FileMode
	}{{dir, 0o755}, {s.path, 0o644}} {
		if st, err := os.Stat(p.path); err != nil || st.Mode().Perm() != p.mode {
			t.Errorf("%s: %v, %v", p.path, st.Mode(), err)
		}
	}
	writes = 0
	must(t, s.save(j))
	if writes != 0 {
		t.Error("an unchanged journal was written again")
	}
	must(t, s.save(&Journal{Version: 1, Boot: "b"}))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("an empty journal leaves %v", left)
	}
}

// TestSnapshot: a journal is the same as its snapshot until anything in it changes, and no change reaches the snapshot.
func TestSnapshot(t *testing.T) {
	j := full()
	if s := j.snapshot(); !s.same(j) {
		t.Error("a snapshot is not the same as what it was made of")
	}
	for i := range reflect.TypeOf(*j).NumField() {
		j := full()
		s, name := j.snapshot(), reflect.TypeOf(*j).Field(i).Name
		f := reflect.ValueOf(j).Elem().Field(i)
		if f.IsZero() {
			t.Errorf("%s: this test has no value for it", name)
			continue
		}
		if f.Kind() == reflect.Slice && name != "VIPs" && f.Pointer() == reflect.ValueOf(s).Elem().Field(i).Pointer() {
			t.Errorf("%s: a change in place reaches the snapshot", name)
		}
		f.SetZero()
		if s.same(j) {
			t.Errorf("%s: a change is not seen", name)
		}
	}
	s := j.snapshot()
	j.Changed[0].Wrote[0] = "2"
	if s.same(j) {
		t.Error("a change of an entry is not seen")
	}
}

// A journal that cannot be used is told with the VIPs that it seems to name.
func TestJournalNames(t *testing.T) {
	a := &Agent{StateDir: t.TempDir()}
	path, err := a.JournalPath()
	must(t, err)
	must(t, os.WriteFile(path, []byte(`{"version":1,"vips":[{"address":"192.0.2.1"},{"address":"x"},{"address":"2001:db8::1"},{"address":"192.0.2.1"`), 0o644))
	_, err = a.Managed()
	if err == nil || !strings.HasSuffix(err.Error(), "remove it and run: rsagent stop --vip VIP (it names 192.0.2.1,2001:db8::1); the settings it was to put back stay as they are") {
		t.Error(err)
	}
}
