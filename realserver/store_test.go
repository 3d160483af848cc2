package realserver

import (
	"os"
	"reflect"
	"slices"
	"testing"

	"rsagent/sysctl"
)

// TestParsedOnce: what is done to a journal that was read is not in the next one that is read of the same file.
func TestParsedOnce(t *testing.T) {
	w := newWatchtower(t, vipA, vipC)
	disk, err := os.ReadFile(w.journal())
	if err != nil {
		t.Fatal(err)
	}
	var p parsed
	want, err := parseJournal(disk)
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []Edit{Keep, Withhold(vipA.Addr), DropAll, Keep} {
		j, err := p.parse(slices.Clone(disk))
		if err != nil || !reflect.DeepEqual(j, want) {
			t.Fatalf("read %+v, %v; want %+v", j, err, want)
		}
		j.edit(edit, true, vip2nd.Addr)
		j.record(&w.host, []Change{{Stage: Guard, Item: allIgnore, To: "8"}})
		j.forget(sysctl.Key{Iface: "lo", Knob: sysctl.ARPIgnore})
	}
	if _, err := p.parse(disk[:len(disk)/2]); err == nil {
		t.Error("half of it is one too")
	}
}
