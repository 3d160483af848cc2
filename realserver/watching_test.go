package realserver

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestWatching: what a watcher told is there for all, whether it runs or was killed.
func TestWatching(t *testing.T) {
	a := &Agent{StateDir: t.TempDir() + "/state"}
	if w := a.watching(); w.Running || w.PID != 0 {
		t.Errorf("there is none, and it says %+v", w)
	}
	claim, err := a.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.tellWatching(&Watching{PID: 7, State: Up, Repairs: []Repairs{{"x", 3}}}); err != nil {
		t.Fatal(err)
	}
	if w := a.watching(); !w.Running || w.PID != 7 || w.Total() != 3 {
		t.Errorf("one runs, and it says %+v", w)
	}
	if _, err := a.claimWatch(); err == nil || !strings.Contains(err.Error(), "another rsagent watch runs here") {
		t.Errorf("a second one: %v", err)
	}
	claim.Close()
	if w := a.watching(); w.Running || w.PID != 7 {
		t.Errorf("it was killed, and it says %+v", w)
	}
	path, _ := a.watchPath()
	if err := os.WriteFile(path+".json", []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w := a.watching(); w.Running || w.PID != 0 {
		t.Errorf("the file is half a file, and it says %+v", w)
	}
	var w Watching
	for i := range 2 * mostCounted {
		w.count(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
	}
	if len(w.Repairs) != mostCounted+1 || w.Total() != 2*mostCounted {
		t.Errorf("%d items, %d repairs", len(w.Repairs), w.Total())
	}
}

// TestWatchClaimsAgain: where its lock has gone with its folder it makes another, but where someone else has.
func TestWatchClaimsAgain(t *testing.T) {
	w := newWatchtower(t, vipA)
	claim, err := w.Agent.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if same, err := w.reclaim(claim); same != claim || err != nil {
		t.Errorf("nothing has happened: %v", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	if claim, err = w.reclaim(claim); err != nil || !w.Agent.watching().Running {
		t.Errorf("its folder was removed: %v", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	other, err := w.Agent.claimWatch()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.reclaim(claim); !errors.Is(err, errWatched) {
		t.Errorf("another one watches: %v", err)
	}
	claim.Close()
	other.Close()
}
