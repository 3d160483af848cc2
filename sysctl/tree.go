package sysctl

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	gosysctl "github.com/lorenzosaino/go-sysctl"
	"golang.org/x/sys/unix"
)

// A Tree is /proc/sys, or a stand-in for it. What it holds belongs to the network namespace of the
// thread that opens a file in it.
type Tree struct{ Root string }

// Set writes one value. That it holds is for the next Look to show: the kernel may refuse silently,
// and an interface that has gone, or has another name by now, is no failure.
// Errors wrap those of the system call: EROFS, EACCES, EPERM.
func (t Tree) Set(k Key, value int) error {
	c, err := t.conf(k.Iface)
	if err != nil && k.Iface != All && k.Iface != Default {
		return nil
	}
	if err == nil {
		err = c.Set(k.Knob, strconv.Itoa(value))
	}
	if err != nil {
		return fmt.Errorf("set %s to %d: %w", k, value, err)
	}
	return nil
}

// get reads one value. It opens the file by itself: the library's way (os.ReadFile) hands each file to Go's
// poller, since the kernel can tell of changes to these, and that costs three times as much as the reading.
func (t Tree) get(k Key) (int, error) {
	path := t.Path(k)
	v, err := readInt(path)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", k, &fs.PathError{Op: "read", Path: path, Err: err})
	}
	return v, nil
}

func readInt(path string) (int, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var b [32]byte
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, b[:]) })
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b[:n])))
}

func ignoringEINTR(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); err != unix.EINTR {
			return n, err
		}
	}
}

// conf is a client rooted at one interface's directory: the library turns each dot of a key into a
// slash, so the interface's name must not be part of a key. It makes sure that the directory is
// there, so that Set, which would make a missing file on an ordinary file system, makes none.
func (t Tree) conf(iface string) (*gosysctl.Client, error) {
	return gosysctl.NewClient(t.dir(iface))
}

// Path is the file of a setting.
func (t Tree) Path(k Key) string { return t.dir(k.Iface) + "/" + k.Knob }

func (t Tree) dir(iface string) string { return t.Root + "/net/ipv4/conf/" + iface }
