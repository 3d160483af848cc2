package realserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rsagent/arp"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// fake is a kernel that is a Host changed in place. It can fail a change, and be killed at any write;
// and it judges itself at every write: a write after which the host would answer ARP for a VIP, and
// before which it would not, is a leak.
type fake struct {
	host      Host
	fallback  bool               // loading a tunnel's module brings its device
	tunWasUp  bool               // before rsagent
	ignoreWas int                // all.arp_ignore before rsagent
	fail      func(Change) error // nil where nothing fails
	killAt    int                // the number of the write that is not made; 0 is none
	writes    int
	leaking   map[netip.Addr]bool
	leaks     []string
	exempt    map[netip.Addr]bool // VIPs found unguarded, which rollback may leave as found
}

// killed is what a fake panics with where a process would be killed.
type killed struct{}

func (f *fake) write() {
	f.writes++
	if f.writes == f.killAt {
		panic(killed{})
	}
}

func (f *fake) kernel() Kernel { return Kernel{Look: f.look, Do: f.do} }

func (f *fake) look(Also) (*Host, error) {
	h := f.host
	h.Links, h.Conf, h.Addrs = slices.Clone(h.Links), maps.Clone(h.Conf), slices.Clone(h.Addrs)
	h.Modules, h.Dropped, h.Tables = maps.Clone(h.Modules), maps.Clone(h.Dropped), maps.Clone(h.Tables)
	h.Ports = maps.Clone(h.Ports)
	return &h, nil
}

func (f *fake) do(_ context.Context, _ *Host, changes []Change) []error {
	errs := make([]error, len(changes))
	skip := false
	for i, c := range changes {
		f.write()
		if f.fail != nil {
			errs[i] = f.fail(c)
		}
		if errs[i] == nil {
			f.apply(c)
			f.judge(c)
		} else if c.Stage != PutBack && !c.unjudged {
			skip = true // but addresses that follow each other travel together
		}
		if i+1 < len(changes) && skip && !(addrOf(c.Item).IsValid() && addrOf(changes[i+1].Item).IsValid()) {
			for n := i + 1; n < len(changes); n++ {
				errs[n] = errSkipped
			}
			break
		}
	}
	return errs
}

func (f *fake) apply(c Change) {
	switch it := c.Item.(type) {
	case sysctl.Key:
		if _, ok := f.host.Conf[it]; !ok {
			panic("written, and not there: " + it.String())
		}
		f.host.Conf[it], _ = strconv.Atoi(c.To)
	case loopback.Blackhole:
		f.host.Dropped[it.VIP] = c.To != ""
	case arp.GuardTable, tunnel.RulesTable:
		f.host.Tables[it] = c.To
	case tunnel.Module:
		f.host.Modules[it.Name] = true
		if k, ok := tunnel.ByModule(it.Name); ok && f.fallback {
			f.addDevice(k.Device, k.Link)
			f.host.link(k.Device).Mode = map[bool]string{true: tunnel.Fallback}[k.Link == "ip6tnl"]
		}
	case tunnel.Device:
		if c.To == "" {
			f.delDevice(it.Name)
		} else {
			f.addDevice(it.Name, c.To)
		}
	case tunnel.Mode:
		f.host.link(it.Device).Mode = c.To
	case tunnel.Port:
		if delete(f.host.Ports, it); c.To != "" {
			f.host.Ports[it] = c.To
		}
	case tunnel.Link:
		f.setLink(f.host.link(it.Name), c.To == "up")
	case loopback.Addr:
		if c.To == "" {
			f.delAddr(it)
		} else {
			f.addAddr(it, c.To)
		}
	}
}

// setLink does what follows too: sit0 is given addresses made of the host's, and a device that goes down
// keeps no IPv6 address.
func (f *fake) setLink(l *sysctl.Interface, up bool) {
	l.Up = up
	if !up {
		f.host.Addrs = slices.DeleteFunc(f.host.Addrs, func(a loopback.Held) bool { return a.Device == l.Name && a.Prefix.Addr().Is6() })
		return
	}
	if l.Kind != "sit" {
		return
	}
	for _, a := range slices.Clone(f.host.Addrs) {
		if ip := a.Prefix.Addr(); ip.Is4() {
			b := [16]byte{}
			copy(b[12:], ip.AsSlice())
			f.addAddr(loopback.Addr{Device: l.Name, Prefix: netip.PrefixFrom(netip.AddrFrom16(b), 96)}, "global")
		}
	}
}

func (f *fake) addDevice(name, value string) {
	if f.host.link(name) != nil {
		return
	}
	kind, args, _ := strings.Cut(value, " ")
	mode := ""
	if kind == "ip6tnl" {
		mode = tunnel.Any
	}
	index := 10
	for _, l := range f.host.Links {
		index = max(index, l.Index+1)
	}
	f.host.Links = append(f.host.Links, sysctl.Interface{Name: name, Index: index, Kind: kind, Args: args, Mode: mode, IPv6: true})
	for _, k := range knobs {
		f.host.Conf[sysctl.Key{Iface: name, Knob: k}] = f.host.Conf[sysctl.Key{Iface: sysctl.Default, Knob: k}]
	}
}

func (f *fake) delDevice(name string) {
	f.host.Links = slices.DeleteFunc(f.host.Links, func(l sysctl.Interface) bool { return l.Name == name })
	f.host.Addrs = slices.DeleteFunc(f.host.Addrs, func(a loopback.Held) bool { return a.Device == name })
	maps.DeleteFunc(f.host.Conf, func(k sysctl.Key, _ int) bool { return k.Iface == name })
}

func (f *fake) addAddr(a loopback.Addr, scope string) {
	secondary := false
	for _, b := range f.host.Addrs {
		if b.Addr == a {
			return
		}
		secondary = secondary || b.Device == a.Device && !b.Secondary && b.Prefix.Masked() == a.Prefix.Masked()
	}
	f.host.Addrs = append(f.host.Addrs, loopback.Held{Addr: a, Scope: scope, Secondary: secondary})
}

// delAddr deletes as the kernel does: a primary takes its secondaries along, unless
// promote_secondaries makes one of them the new primary.
func (f *fake) delAddr(a loopback.Addr) {
	i := slices.IndexFunc(f.host.Addrs, func(b loopback.Held) bool { return b.Addr == a })
	if i < 0 {
		return
	}
	gone := f.host.Addrs[i]
	f.host.Addrs = slices.Delete(f.host.Addrs, i, i+1)
	mine := func(b loopback.Held) bool {
		return b.Device == a.Device && b.Secondary && b.Prefix.Masked() == a.Prefix.Masked()
	}
	if gone.Secondary {
		return
	}
	if f.host.Conf.Effective(a.Device, sysctl.PromoteSecondaries) == 0 {
		f.host.Addrs = slices.DeleteFunc(f.host.Addrs, mine)
	} else if n := slices.IndexFunc(f.host.Addrs, mine); n >= 0 {
		f.host.Addrs[n].Secondary = false
	}
}

// judge is written from the measured behaviour of the kernel, and apart from package arp.
func (f *fake) judge(c Change) {
	now := map[netip.Addr]bool{}
	for _, l := range f.host.Links {
		if !l.ARP {
			continue
		}
		ignore, announce := f.host.Conf.Effective(l.Name, "arp_ignore"), f.host.Conf.Effective(l.Name, "arp_announce")
		for _, a := range f.host.Addrs {
			silent := announce == 2 && (ignore == 1 || ignore == 2 || ignore == 8 || ignore == 3 && a.Scope == "host")
			ip := a.Prefix.Addr()
			dropped, sent, _ := strings.Cut(f.host.Tables[arp.GuardTable{}], "send")
			silent = silent || slices.Contains(strings.Fields(dropped), ip.String()) && strings.Contains(sent, " "+l.Name+"=198.51.100.11")
			if isVIP(ip) && ip.Is4() && !silent {
				now[ip] = true
				if !f.leaking[ip] && !f.exempt[ip] {
					f.leaks = append(f.leaks, fmt.Sprintf("%s (to %q) makes %s answer for %s: ignore %d, announce %d", c.Item, c.To, l.Name, a.Addr, ignore, announce))
				}
			}
		}
	}
	f.leaking = now
}

const (
	tunAbsent = iota
	tunNone
	tunDown
	tunUp
)

// testPlace is where benches are: to ask the kernel each time would be a quarter of the crash model's time.
var testPlace = where{"00000000-0000-0000-0000-000000000000", "1"}

// A bench runs verbs on a fake, with the journal in a folder of its own.
type bench struct {
	*fake
	dir       string
	blackhole bool         // stop leaves a route
	full      bool         // there is no room for a journal
	unkilled  sysctl.Table // the settings after the scenario at hand, where nothing was killed
}

func newBench(t testing.TB) *bench {
	t.Helper()
	dir, err := os.MkdirTemp(memory(), "rsagent-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &bench{dir: dir}
}

// memory is a file system in memory, where there is one: the model writes a journal half a million
// times.
func memory() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// on puts another fake in place and forgets the journal.
func (b *bench) on(f *fake) {
	b.fake = f
	os.Remove(b.journal())
	os.Remove(b.journal() + ".new")
}

func (b *bench) journal() string {
	return filepath.Join(b.dir, testPlace.namespace+".json")
}

func (b *bench) converge(e Edit, given ...netip.Addr) (r *Result, err error, dead bool) {
	defer func() {
		if x := recover(); x != nil {
			if _, ok := x.(killed); !ok {
				panic(x)
			}
			dead = true
		}
	}()
	a := &Agent{Kernel: b.kernel(), StateDir: b.dir, Blackhole: b.blackhole, moved: b.write, replace: b.replace, here: testPlace}
	r, err = a.Converge(context.Background(), e, given...)
	return r, err, false
}

func (b *bench) replace(path string, text []byte) error {
	if b.full {
		return unix.ENOSPC
	}
	return replaceFile(path, text)
}

var errFault = errors.New("input/output error")
