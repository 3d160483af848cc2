package sysctl

import (
	"fmt"
	"strconv"

	gosysctl "github.com/lorenzosaino/go-sysctl"
)

// A Tree is /proc/sys, or a stand-in for it. What it holds belongs to the network namespace of the
// thread that opens a file in it.
type Tree struct{ Root string }

// Set writes one value and reads it back: the kernel may refuse silently.
// Errors wrap those of the system call: EROFS, EACCES, ENOENT.
func (t Tree) Set(k Key, value int) error {
	err := t.set(k, value)
	if err != nil {
		return fmt.Errorf("set %s to %d: %w", k, value, err)
	}
	return nil
}

func (t Tree) set(k Key, value int) error {
	c, err := t.conf(k.Iface)
	if err != nil {
		return err
	}
	if _, err := c.Get(k.Knob); err != nil { // Set would make a missing file on an ordinary file system
		return err
	}
	if err := c.Set(k.Knob, strconv.Itoa(value)); err != nil {
		return err
	}
	now, err := read(c, k)
	if err == nil && now != value {
		err = fmt.Errorf("it reads %d afterwards", now)
	}
	return err
}

// conf is a client rooted at one interface's directory: the library turns each dot of a key into a
// slash, so the interface's name must not be part of a key.
func (t Tree) conf(iface string) (*gosysctl.Client, error) {
	return gosysctl.NewClient(t.Root + "/net/ipv4/conf/" + iface)
}

func read(c *gosysctl.Client, k Key) (int, error) {
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
