package realserver

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"rsagent/sysctl"
)

// TestMinded: what rsagent wrote comes first, and the number is bounded.
func TestMinded(t *testing.T) {
	w := newWatchtower(t, vipA)
	r, err := w.Agent.Look(Keep)
	if err != nil {
		t.Fatal(err)
	}
	m := minded(r)
	names := map[string]int{}
	for i, s := range m.Settings {
		names[s.Key.String()] = i
	}
	for _, k := range []string{"all.arp_ignore", "all.arp_announce", "default.arp_ignore", "eth0.arp_ignore", "eth0.arp_announce"} {
		if _, ok := names["net.ipv4.conf."+k]; !ok {
			t.Errorf("%s is not minded: %v", k, slices.Sorted(maps.Keys(names)))
		}
	}
	if names[allIgnore.String()] > names["net.ipv4.conf.eth0.arp_ignore"] {
		t.Errorf("others' settings come first: %v", names)
	}
	for range mostMinded {
		w.addDevice("x"+string(rune('0'+len(w.host.Links)%10))+time.Now().Format("150405.000000000")[7:], "")
		w.host.Links[len(w.host.Links)-1].ARP = true
	}
	if r, err = w.Agent.Look(Keep); err != nil {
		t.Fatal(err)
	}
	if m = minded(r); len(m.Settings) != mostMinded {
		t.Errorf("%d settings are minded, of %d interfaces", len(m.Settings), len(r.Host.Links))
	}
}

// TestAlarmWakesForWhatIsNew: what was not minded yet may have changed since it was looked at.
func TestAlarmWakesForWhatIsNew(t *testing.T) {
	dir := t.TempDir()
	l := linux{conf: sysctl.Tree{Root: dir}}
	s := Setting{Key: allIgnore}
	path := l.conf.Path(s.Key)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("1\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	wakes := make(chan bool, 100)
	mind, closer, err := l.alarm(func() { wakes <- true })
	if err != nil {
		t.Fatal(err)
	}
	defer closer()
	for i, want := range []int{1, 0} {
		if err := mind(Minded{Settings: []Setting{s}, Journal: dir + "/x.json"}); err != nil {
			t.Fatal(err)
		}
		if len(wakes) != want {
			t.Errorf("minded %d times, it woke %d times", i+1, len(wakes))
		}
		for len(wakes) > 0 {
			<-wakes
		}
	}
	if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	<-wakes
}
