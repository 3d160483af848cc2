package realserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Watching is what a watcher tells of itself, in a file beside the journal that anyone may read.
type Watching struct {
	Running   bool      `json:"running"`             // there is one now; else the rest is of one that was killed
	PID       int       `json:"pid,omitempty"`       // in its own PID namespace
	Since     time.Time `json:"since,omitzero"`      //
	State     State     `json:"state,omitempty"`     // as it last found the set
	Error     string    `json:"error,omitempty"`     // why it cannot mend, or see
	Repairs   []Repairs `json:"repairs,omitempty"`   // how often, by item
	Contended []string  `json:"contended,omitempty"` // items that something else keeps undoing
	Last      *Repair   `json:"last,omitempty"`
}

// Repairs is how often an item was mended.
type Repairs struct {
	Item  string `json:"item"`
	Count uint64 `json:"count"`
}

// A Repair is one thing mended. Milliseconds are from the news of it, which may come after the fact by as much as the
// poll's interval, to when it was done.
type Repair struct {
	At           time.Time `json:"at"`
	Item         string    `json:"item"`
	From         string    `json:"from"`
	To           string    `json:"to"`
	Milliseconds float64   `json:"milliseconds"`
}

// mostCounted bounds the items whose repairs are counted one by one; those of the rest are under this name.
const (
	mostCounted = 1000
	otherItems  = "other items"
)

// count adds one to an item's repairs.
func (w *Watching) count(item string) {
	i := slices.IndexFunc(w.Repairs, func(r Repairs) bool { return r.Item == item })
	if i < 0 && len(w.Repairs) >= mostCounted && item != otherItems {
		w.count(otherItems)
		return
	}
	if i < 0 {
		i = len(w.Repairs)
		w.Repairs = append(w.Repairs, Repairs{Item: item})
	}
	w.Repairs[i].Count++
}

// Total is the number of repairs.
func (w *Watching) Total() (n uint64) {
	for _, r := range w.Repairs {
		n += r.Count
	}
	return n
}

// errWatched says that another watcher runs in this network namespace.
var errWatched = errors.New("another rsagent watch runs here")

// claimWatch makes this process the watcher of its network namespace until the file returned is closed, or it ends.
// The lock is one of an open file description (F_OFD_SETLK): status can ask for it without taking it.
func (a *Agent) claimWatch() (*os.File, error) {
	if err := makeDir(a.StateDir); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path, err := a.watchPath()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	err = f.Chmod(0o644) // status needs no privilege, whatever the umask
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	}
	if errors.Is(err, unix.EAGAIN) {
		err = errWatched
		if w := a.watching(); w.PID != 0 {
			err = fmt.Errorf("%w, as process %d", err, w.PID)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// claimed says that a claim is where claimWatch would make it.
func (a *Agent) claimed(claim *os.File) bool {
	path, err := a.watchPath()
	if err != nil {
		return true // it cannot be told
	}
	mine, err := claim.Stat()
	there, err2 := os.Lstat(path)
	return err != nil || err2 == nil && os.SameFile(mine, there)
}

// watchPath is the lock of the watcher; what it tells of itself is beside it.
func (a *Agent) watchPath() (string, error) {
	name, err := a.namespace()
	return filepath.Join(a.StateDir, name+".watch"), err
}

// tellWatching writes what status is to know; nil is that there is no watcher any more.
func (a *Agent) tellWatching(w *Watching) error {
	path, err := a.watchPath()
	if err != nil {
		return err
	}
	if w == nil {
		return os.Remove(path + ".json")
	}
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return replaceFile(path+".json", append(b, '\n'))
}

// watching is what the watcher of this network namespace told last, and whether it runs. Where it cannot be told there is
// none: it decides nothing.
func (a *Agent) watching() (w Watching) {
	path, err := a.watchPath()
	if err != nil {
		return w
	}
	if b, err := readJournal(path + ".json"); err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		if d.Decode(&w) != nil {
			w = Watching{}
		}
	}
	w.Running = locked(path)
	return w
}

// locked says that someone holds a lock of claimWatch.
func locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// copied is what may be handed out.
func (w *Watching) copied() Watching {
	c := *w
	c.Repairs, c.Contended = slices.Clone(w.Repairs), slices.Clone(w.Contended)
	return c
}
