package realserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxJournal is more than 10,000 VIPs with every option need, by ten times.
const maxJournal = 64 << 20

// A JournalError says that the journal cannot be relied on, which file it is, and the way out.
type JournalError struct {
	Path string
	Err  error
	VIPs []string // that it seems to name
}

func (e *JournalError) Error() string {
	named := ""
	if len(e.VIPs) > 0 {
		named = " (it names " + strings.Join(e.VIPs, ",") + ")"
	}
	return fmt.Sprintf("journal %s cannot be used: %v; to go on without it, remove it and run: rsagent stop --vip VIP%s; the settings it was to put back stay as they are", e.Path, e.Err, named)
}

// named are the addresses that stand in what cannot be read as a journal: a hundred at the most.
func named(b []byte) (vips []string) {
	for part := range bytes.SplitSeq(b, []byte(`"address":"`)) {
		word, _, _ := bytes.Cut(part, []byte(`"`))
		if a, err := ParseAddr(string(word)); err == nil && !slices.Contains(vips, a.String()) && len(vips) < 100 {
			vips = append(vips, a.String())
		}
	}
	return vips
}

func (e *JournalError) Unwrap() error { return e.Err }

// A store is the journal's file, and what is in it.
type store struct {
	path  string
	disk  []byte   // nil where there is no file
	saved *Journal // what disk was made of; nil where it was read
	boot  string
	moved func() // told of each step of a write; tests make it a place to be killed at

	replace func(path string, b []byte) error // replaceFile; tests have it fail
}

// A parsed is a journal's file with what is in it. A watcher looks at the same again and again, and with many VIPs to parse it
// is most of a look.
type parsed struct {
	disk    []byte
	journal *Journal
}

// parse is parseJournal, which it does not call again for the same.
func (p *parsed) parse(disk []byte) (*Journal, error) {
	if p.journal == nil || !bytes.Equal(p.disk, disk) {
		j, err := parseJournal(disk)
		if err != nil {
			return nil, err
		}
		*p = parsed{disk, j}
	}
	return p.journal.snapshot(), nil
}

// openStore reads the journal of this network namespace, which is empty where there is no file.
// stale says that one was there, of an earlier boot: nothing that it names exists any more.
func (a *Agent) openStore() (s *store, j *Journal, stale bool, err error) {
	path, err := a.JournalPath()
	if err != nil {
		return nil, nil, false, err
	}
	boot, err := a.boot()
	if err != nil {
		return nil, nil, false, err
	}
	s = &store{path: path, boot: boot, moved: a.moved, replace: a.replace}
	if s.moved == nil {
		s.moved = func() {}
	}
	if s.replace == nil {
		s.replace = replaceFile
	}
	fresh := &Journal{Version: journalVersion, Boot: s.boot}
	if s.disk, err = readJournal(s.path); errors.Is(err, fs.ErrNotExist) {
		return s, fresh, false, nil
	}
	if err == nil {
		j, err = a.last.parse(s.disk)
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOTDIR):
		return nil, nil, false, fmt.Errorf("read journal: %w", err)
	case err != nil:
		return nil, nil, false, &JournalError{s.path, err, named(s.disk)}
	case j.Boot != s.boot:
		return s, fresh, true, nil
	}
	return s, j, false, nil
}

// Managed is the managed set as the journal has it now. It takes no lock. Errors: *JournalError.
func (a *Agent) Managed() (Set, error) {
	_, j, _, err := a.openStore()
	if err != nil {
		return nil, err
	}
	return j.VIPs, nil
}

// JournalPath is where this network namespace's journal is, or would be.
func (a *Agent) JournalPath() (string, error) {
	name, err := a.namespace()
	return filepath.Join(a.StateDir, name+".json"), err
}

// readJournal reads a file that only root, or the user rsagent runs as, can have written.
func readJournal(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("it belongs to user %d, not to root", st.Uid)
	case st.Mode&0o022 != 0:
		return nil, fmt.Errorf("others than its owner may write it (mode %04o)", st.Mode&0o7777)
	case st.Size > maxJournal:
		return nil, fmt.Errorf("it has %d bytes, too many", st.Size)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err == nil && len(b) == 0 {
		err = errors.New("it is empty")
	}
	return b, err
}

// save makes the file hold j, by a new file and a rename; it writes nothing where it does already.
// An empty journal is no file.
func (s *store) save(j *Journal) error {
	if len(j.VIPs) == 0 && len(j.Leaving) == 0 && len(j.Undo) == 0 && len(j.Blackholes) == 0 && len(j.Changed) == 0 {
		if s.disk == nil {
			return s.sweep()
		}
		s.moved()
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove journal: %w", err)
		}
		s.disk, s.saved = nil, nil
		return nil
	}
	if s.saved.same(j) {
		return nil
	}
	b, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if b = append(b, '\n'); !bytes.Equal(b, s.disk) {
		s.moved()
		if err := s.replace(s.path, b); err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		s.moved()
		s.disk = b
	}
	s.saved = j.snapshot()
	return nil
}

// suffices says that j may go on without being saved, where err is that there is no room for it: it is that of a verb that
// takes out every VIP, and what is left to put back stands in the file as well. At its end there is no file. Killed before,
// it leaves one that names VIPs that are gone: a stop takes those out, any other verb binds them again.
func (s *store) suffices(j *Journal, h *Host, err error) bool {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || len(j.VIPs) > 0 || len(j.Undo) > 0 || len(j.Blackholes) > 0 {
		return false
	}
	file := &Journal{}
	if s.disk != nil {
		if file, err = parseJournal(s.disk); err != nil {
			return false
		}
	}
	file.follow(h)
	return slices.EqualFunc(j.Changed, file.Changed, func(a, b Entry) bool { return reflect.DeepEqual(a, b) })
}

// sweep removes what a run that was killed while it wrote its first journal has left.
func (s *store) sweep() error {
	if _, err := os.Lstat(s.path + ".new"); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Remove(s.path + ".new"); err != nil {
		return fmt.Errorf("remove journal: %w", err)
	}
	return nil
}

// replaceFile puts b in the place of the file, whole or not at all. The folder is in memory (/run),
// so nothing is synced.
func replaceFile(path string, b []byte) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o644) // world-readable whatever the umask: status needs no privilege
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// lock keeps other verbs out until the function returned is called. It waits as long as ctx lasts.
func (a *Agent) lock(ctx context.Context) (unlock func(), err error) {
	name, err := a.namespace()
	if err != nil {
		return nil, err
	}
	if err := makeDir(a.StateDir); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path := filepath.Join(a.StateDir, name+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another rsagent holds the lock %s: %w", path, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// makeDir makes a folder that anyone may read, whatever the umask; one that is there is left as it is.
func makeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, 0o755)
	}
	return err
}

// A where is a boot of this host, by its id, and a network namespace in it.
type where struct{ boot, namespace string }

func (a *Agent) boot() (string, error) {
	if a.here.boot != "" {
		return a.here.boot, nil
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (a *Agent) namespace() (string, error) {
	if a.here.namespace != "" {
		return a.here.namespace, nil
	}
	return namespace()
}

// namespace names the network namespace this process is in, as no other was or will be named in this
// boot: by its cookie (SO_NETNS_COOKIE, Linux 5.14), or where the kernel has none by its inode
// number, which is used again once the namespace is gone.
func namespace() (string, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
		return fmt.Sprint(cookie), nil
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", fmt.Errorf("tell the network namespace: %w", err)
	}
	return fmt.Sprintf("inode-%d", st.Ino), nil
}
