package realserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/arp"
	"rsagent/sysctl"
)

// Minded is what an alarm minds beside addresses, interfaces and rp_filter, of which the kernel tells by netlink.
type Minded struct {
	Settings []Setting // each is a file held open: see mostMinded
	Tables   bool      // nftables
	Journal  string    // path of the journal
}

// A Setting is a file of settings, of the interface that has this ifindex now; 0 is none.
type Setting struct {
	sysctl.Key
	Index int
}

// mostMinded bounds the settings minded, which are two descriptors' worth each: the file held open, and its place among
// those that inotify allows a user (fs.inotify.max_user_watches). What is beyond it is found by the next poll.
const mostMinded = 256

// minded is what the set rests on: what rsagent wrote first, then what would outweigh it.
func minded(r *Result) Minded {
	h, m := r.Host, Minded{Tables: len(r.VIPs.tables()) > 0}
	seen := map[sysctl.Key]bool{}
	mind := func(k sysctl.Key) {
		if _, there := h.Conf[k]; !there || seen[k] || len(m.Settings) == mostMinded {
			return
		}
		seen[k] = true
		s := Setting{Key: k}
		if l := h.link(k.Iface); l != nil {
			s.Index = l.Index
		}
		m.Settings = append(m.Settings, s)
	}
	for _, e := range r.entries {
		if k, ok := e.Item.(sysctl.Key); ok {
			mind(k)
		}
	}
	if slices.ContainsFunc(r.VIPs, func(v VIP) bool { return v.Addr.Is4() && (v.Guard == GuardAll || v.Guard == GuardInterface) }) {
		for _, name := range append([]string{sysctl.All, sysctl.Default}, h.speakers()...) {
			mind(sysctl.Key{Iface: name, Knob: sysctl.ARPIgnore})
			mind(sysctl.Key{Iface: name, Knob: sysctl.ARPAnnounce})
		}
	}
	return m
}

// alarm is the Kernel's Alarm: netlink and inotify. Both may lose what they were to tell: netlink where a burst is more
// than its buffer holds, inotify for writes through another mount of proc. They are there to be quick; a poll is the truth.
type alarm struct {
	wake    func()
	conf    sysctl.Tree
	tables  *os.File // nil until asked for
	links   *os.File
	inotify *os.File
	watches int // inotify's descriptor: asked of the File, it would block
	held    map[Setting]hold
	journal atomic.Pointer[watchedFile]
	closed  atomic.Bool
}

// A hold is a file held open, as inotify falls silent about one of proc's once the kernel has dropped its dentry; and the
// number of its watch.
type hold struct{ fd, watch int }

// A watchedFile is one by name in a folder, whose watch has this number.
type watchedFile struct {
	path  string
	watch int
}

// The groups of netlink messages (include/uapi/linux/rtnetlink.h, include/uapi/linux/netfilter/nfnetlink.h), as bits.
const (
	groupsRoute  = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1) | 1<<(unix.RTNLGRP_IPV4_NETCONF-1)
	groupsTables = 1 << (7 - 1) // NFNLGRP_NFTABLES
)

func (l linux) alarm(wake func()) (func(Minded) error, func(), error) {
	a := &alarm{wake: wake, conf: l.conf, held: map[Setting]hold{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK) // of which a user has few (fs.inotify.max_user_instances)
	if err != nil {
		err = fmt.Errorf("open inotify: %w", err)
	} else {
		a.watches, a.inotify = fd, os.NewFile(uintptr(fd), "inotify")
		go a.readInotify()
	}
	var err2 error
	a.links, err2 = a.listen(unix.NETLINK_ROUTE, groupsRoute)
	return a.mind, a.close, errors.Join(err, err2)
}

func (a *alarm) close() {
	a.closed.Store(true)
	for _, f := range []*os.File{a.inotify, a.links, a.tables} {
		if f != nil {
			f.Close()
		}
	}
	for _, h := range a.held {
		unix.Close(h.fd)
	}
}

// listen wakes the watcher at each message. What it says is not read: the look that follows sees all.
func (a *alarm) listen(protocol int, groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	go func() {
		var b [16]byte // a message that is cut off is one all the same
		for {
			// ENOBUFS tells that messages were lost, and the subscription goes on.
			if _, err := f.Read(b[:]); err != nil && !errors.Is(err, unix.ENOBUFS) {
				if a.closed.Load() {
					return
				}
				time.Sleep(time.Second)
			}
			a.wake()
		}
	}()
	return f, nil
}

// mind has inotify tell of these files, and of no others. What cannot be minded is left to the poll, and is an error. Of what
// was not minded before, a change may have come after the look that found it: it wakes the watcher once more.
func (a *alarm) mind(m Minded) error {
	var errs []error
	fresh := false
	if a.inotify == nil {
		m.Settings = nil
	} else {
		errs = append(errs, a.mindJournal(m.Journal))
	}
	want := make(map[Setting]bool, len(m.Settings))
	for _, s := range m.Settings {
		want[s] = true
	}
	for s, h := range a.held {
		if !want[s] {
			unix.InotifyRmWatch(a.watches, uint32(h.watch))
			unix.Close(h.fd)
			delete(a.held, s)
		}
	}
	for _, s := range m.Settings {
		if _, held := a.held[s]; held {
			continue
		}
		h, err := a.hold(a.conf.Path(s.Key))
		if errors.Is(err, unix.ENOENT) {
			continue // the interface has gone: the next look sees it
		}
		if err != nil {
			errs = append(errs, err)
			break // of descriptors or watches there are no more
		}
		a.held[s], fresh = h, true
	}
	if m.Tables && a.tables == nil {
		var err error
		a.tables, err = a.listen(unix.NETLINK_NETFILTER, groupsTables)
		errs, fresh = append(errs, err), fresh || err == nil
	}
	if fresh {
		a.wake()
	}
	return errors.Join(errs...)
}

func (a *alarm) hold(path string) (h hold, err error) {
	if h.fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return h, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if h.watch, err = unix.InotifyAddWatch(a.watches, path, unix.IN_MODIFY); err != nil {
		unix.Close(h.fd)
		return h, &os.PathError{Op: "watch", Path: path, Err: err}
	}
	return h, nil
}

// mindJournal watches the folder, as the file is replaced whole. To ask again where the folder is watched costs nothing,
// and finds one that was made anew.
func (a *alarm) mindJournal(path string) error {
	watch, err := unix.InotifyAddWatch(a.watches, filepath.Dir(path), unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR)
	if err != nil {
		return &os.PathError{Op: "watch", Path: filepath.Dir(path), Err: err}
	}
	a.journal.Store(&watchedFile{path, watch})
	return nil
}

func (a *alarm) readInotify() {
	b := make([]byte, 4096)
	for {
		n, err := a.inotify.Read(b)
		if err != nil {
			if a.closed.Load() {
				return
			}
			time.Sleep(time.Second)
		}
		if err != nil || a.concerns(b[:n]) {
			a.wake()
		}
	}
}

// concerns says whether one of the events (struct inotify_event of include/uapi/linux/inotify.h) is about more than other
// files beside the journal.
func (a *alarm) concerns(b []byte) bool {
	for len(b) >= unix.SizeofInotifyEvent {
		watch, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
		end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])), len(b))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		if mask&unix.IN_IGNORED != 0 {
			continue // the watch was taken away, by mind or with its file
		}
		if j := a.journal.Load(); j == nil || watch != j.watch || name == filepath.Base(j.path) {
			return true
		}
	}
	return false
}

// arpGuard says that a change is to silence ARP.
func (c Change) arpGuard() bool {
	switch it := c.Item.(type) {
	case sysctl.Key:
		return c.Stage == Guard && !c.unjudged && (it.Knob == sysctl.ARPIgnore || it.Knob == sysctl.ARPAnnounce)
	case arp.GuardTable:
		return c.Stage == Guard
	}
	return false
}
