package sysctl

import (
	"fmt"
	"strconv"

	gosysctl "github.com/lorenzosaino/go-sysctl"
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

func (t Tree) get(k Key) (int, error) {
	c, err := t.conf(k.Iface)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", k, err)
	}
	s, err := c.Get(k.Knob)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", k, err)
	}
	v, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", k, err)
	}
	return v, nil
}

// conf is a client rooted at one interface's directory: the library turns each dot of a key into a
// slash, so the interface's name must not be part of a key. It makes sure that the directory is
// there, so that Set, which would make a missing file on an ordinary file system, makes none.
func (t Tree) conf(iface string) (*gosysctl.Client, error) {
	return gosysctl.NewClient(t.Root + "/net/ipv4/conf/" + iface)
}
