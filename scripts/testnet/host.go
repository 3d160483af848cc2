// Package testnet makes hosts out of network namespaces, for tests that
// judge rsagent by the kernel and by outside tools, not by its own words.
// It needs root and `ip`; a test package that uses it has a TestMain that
// calls [Main].
package testnet

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	netnsDir = "/run/netns"
	prefix   = "rsa-"
)

var hosts atomic.Int64

// Host is a network namespace that lasts as long as the test that made it.
type Host struct {
	Name string // as `ip netns` shows it
}

// NewHost makes a namespace with lo up.
func NewHost(t testing.TB, label string) *Host {
	t.Helper()
	NeedRoot(t)
	h := &Host{Name: fmt.Sprintf("%s%d-%d-%s", prefix, os.Getpid(), hosts.Add(1), label)}
	here.Run(t, "ip", "netns", "add", h.Name)
	t.Cleanup(func() {
		if r := here.Try("ip", "netns", "del", h.Name); r.Code != 0 {
			t.Errorf("remove namespace %s: %s", h.Name, r.Stderr)
		}
	})
	h.Run(t, "ip", "link", "set", "lo", "up")
	return h
}

// here is the namespace the tests themselves run in.
var here = &Host{}

// Do runs f on a thread inside the namespace; f must not leave that thread,
// so what it starts as a goroutine runs outside. Calls nest.
//
// /proc/sys/net belongs to the thread that opens it, /proc/net to the
// process: inside f, read /proc/thread-self/net.
func (h *Host) Do(f func()) {
	if h == here {
		f()
		return
	}
	runtime.LockOSThread()
	home := mustOpen("/proc/thread-self/ns/net")
	defer home.Close()
	there := mustOpen(filepath.Join(netnsDir, h.Name))
	defer there.Close()

	mustEnter(there)
	defer func() {
		mustEnter(home)
		runtime.UnlockOSThread()
	}()
	f()
}

// A thread that cannot be moved would run the rest of the test on the wrong
// host, so there is nothing to go on with.
func mustEnter(ns *os.File) {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(fmt.Sprintf("enter %s: %v", ns.Name(), err))
	}
}

func mustOpen(path string) *os.File {
	f, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	return f
}

// Sysctl reads /proc/sys/net/<parts…>; the parts are separate because an
// interface name may hold dots.
func (h *Host) Sysctl(t testing.TB, parts ...string) string {
	t.Helper()
	var text []byte
	var err error
	h.Do(func() { text, err = os.ReadFile(sysctlPath(parts)) })
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// SetSysctl writes value, the last of the arguments, to the key before it.
func (h *Host) SetSysctl(t testing.TB, partsAndValue ...string) {
	t.Helper()
	last := len(partsAndValue) - 1
	path, value := sysctlPath(partsAndValue[:last]), partsAndValue[last]
	var err error
	h.Do(func() { err = os.WriteFile(path, []byte(value), 0) })
	if err != nil {
		t.Fatal(err)
	}
}

// IPv4Conf reads a knob of an interface, of all or of default.
func (h *Host) IPv4Conf(t testing.TB, iface, knob string) string {
	t.Helper()
	return h.Sysctl(t, "ipv4", "conf", iface, knob)
}

// SetIPv4Conf writes a knob of an interface, of all or of default.
func (h *Host) SetIPv4Conf(t testing.TB, iface, knob, value string) {
	t.Helper()
	h.SetSysctl(t, "ipv4", "conf", iface, knob, value)
}

func sysctlPath(parts []string) string {
	return filepath.Join(append([]string{"/proc/sys/net"}, parts...)...)
}
