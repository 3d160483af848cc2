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

// isVIP tells the test's VIPs from the addresses of the test's hosts.
func isVIP(a netip.Addr) bool { return vips4.Contains(a) || vips6.Contains(a) }

var (
	vips4 = netip.MustParsePrefix("192.0.2.0/28")
	vips6 = netip.MustParsePrefix("2001:db8::/124")
)

var (
	vipA    = with(New(netip.MustParseAddr("192.0.2.1")), func(v *VIP) { v.Origin = Flag })
	vipAeth = with(vipA, func(v *VIP) { v.Guard, v.Interfaces = GuardInterface, []string{"eth0"} })
	vipAnft = with(vipA, func(v *VIP) { v.Guard = GuardNFT })
	vipBnft = with(vipB, func(v *VIP) { v.Guard = GuardNFT })
	vipBrul = with(vipB, func(v *VIP) { v.MSS, v.Directors = "1400", []string{"198.51.100.2"} })
	vipAtun = with(vipA, func(v *VIP) { v.Mode = TUN })
	vipB    = with(New(netip.MustParseAddr("192.0.2.2")), func(v *VIP) { v.Mode, v.Origin = TUN, Config })
	vipBlo  = with(vipB, func(v *VIP) { v.Device = "lo" })
	vip6    = with(New(netip.MustParseAddr("2001:db8::1")), func(v *VIP) { v.Origin = Flag })
	vip6tun = with(vip6, func(v *VIP) { v.Mode = TUN })
	vip6in4 = with(vip6tun, func(v *VIP) { v.Outer = "4" })
	vip4in6 = with(vipA, func(v *VIP) { v.Mode, v.Outer = TUN, "6" })
	vipGUE  = with(vipB, func(v *VIP) { v.Tunnel, v.GUEPort = "gue", 6081 })
	vip6GUE = with(vip6tun, func(v *VIP) { v.Tunnel = "gue" })
	vipCSum = with(vipB, func(v *VIP) { v.Tunnel, v.CSum = "gre", true })
	vipBoff = with(vipB, func(v *VIP) { v.RPFilter = "off" })
	vipC    = with(New(netip.MustParseAddr("192.0.2.3")), func(v *VIP) { v.Scope, v.Origin = "global", Flag })
)

func with(v VIP, change func(*VIP)) VIP {
	change(&v)
	return v
}

// neighbour is an address on lo that is nobody's VIP, in the subnet that a wide VIP would cover.
var neighbour = loopback.Addr{Device: "lo", Prefix: netip.MustParsePrefix("192.0.2.77/24")}

// A base is a host before rsagent: the settings that matter, tunl0 (absent, absent and not brought
// by the module, down, up), and VIP A put on lo by hand (no, /32, /24 with a neighbour).
type base struct{ allIgnore, ethIgnore, allAnnounce, ethAnnounce, allRP, tunRP, tun, hand int }

const (
	tunAbsent = iota
	tunNone
	tunDown
	tunUp
)

func bases() (out []base) {
	for _, allIgnore := range []int{0, 1, 2, 5} {
		for _, ethIgnore := range []int{0, 1, 3} {
			for _, allAnnounce := range []int{0, 2} {
				for _, ethAnnounce := range []int{0, 3} {
					for _, allRP := range []int{0, 1} {
						for _, tunRP := range []int{0, 1} {
							for tun := range 4 {
								for hand := range 3 {
									out = append(out, base{allIgnore, ethIgnore, allAnnounce, ethAnnounce, allRP, tunRP, tun, hand})
								}
							}
						}
					}
				}
			}
		}
	}
	return out
}

func (b base) kernel() *fake {
	f := &fake{fallback: b.tun != tunNone, tunWasUp: b.tun == tunUp, ignoreWas: b.allIgnore, leaking: map[netip.Addr]bool{}, exempt: map[netip.Addr]bool{}}
	f.host = Host{Conf: sysctl.Table{}, Dropped: map[netip.Addr]bool{}, Tables: map[Item]string{}, Ports: map[tunnel.Port]string{}, Modules: map[string]bool{"ipip": b.tun >= tunDown}}
	f.host.Links = []sysctl.Interface{{Name: "lo", Index: 1, Up: b.hand != 0, IPv6: true}, {Name: "eth0", Index: 2, Up: true, ARP: true, MAC: 6}}
	for _, i := range []string{"all", "default", "lo", "eth0"} {
		for _, k := range knobs {
			f.host.Conf[sysctl.Key{Iface: i, Knob: k}] = 0
		}
	}
	f.set("all", "arp_ignore", b.allIgnore)
	f.set("eth0", "arp_ignore", b.ethIgnore)
	f.set("all", "arp_announce", b.allAnnounce)
	f.set("eth0", "arp_announce", b.ethAnnounce)
	f.set("all", "rp_filter", b.allRP)
	f.set("default", "rp_filter", b.tunRP)
	if b.tun >= tunDown {
		f.addDevice("tunl0", "ipip")
		f.host.link("tunl0").Up = b.tun == tunUp
	}
	f.addAddr(loopback.Addr{Device: "lo", Prefix: netip.MustParsePrefix("127.0.0.1/8")}, "host")
	f.addAddr(loopback.Addr{Device: "eth0", Prefix: netip.MustParsePrefix("198.51.100.11/24")}, "global")
	if b.hand > 0 {
		f.addAddr(loopback.Addr{Device: "lo", Prefix: netip.PrefixFrom(vipA.Addr, []int{0, 32, 24}[b.hand])}, "global")
	}
	if b.hand == 2 {
		f.addAddr(neighbour, "global")
	}
	f.judge(Change{Item: sysctl.Key{}})
	f.leaks = nil
	return f
}

func (f *fake) set(iface, knob string, v int) { f.host.Conf[sysctl.Key{Iface: iface, Knob: knob}] = v }

// restored says how the host differs from the one it was, VIPs and what may stay left aside: a module,
// its device (down), lo up, a wide VIP gone.
func (f *fake) restored(b base) error {
	was := b.kernel()
	for k, v := range was.host.Conf {
		if f.host.Conf[k] != v {
			return fmt.Errorf("%s is %d, was %d", k, f.host.Conf[k], v)
		}
	}
	for _, l := range f.host.Links {
		old := was.host.link(l.Name)
		switch {
		case old == nil && (l.Up || b.tun == tunNone || l.Args != "" || l.Mode == tunnel.Any):
			return fmt.Errorf("%s is left behind: %+v", l.Name, l)
		case old != nil && l.Name != "lo" && l != *old:
			return fmt.Errorf("%+v, was %+v", l, *old)
		}
	}
	for it, rules := range f.host.Tables {
		if rules != "" {
			return fmt.Errorf("%s is left: %s", it, rules)
		}
	}
	for p := range f.host.Ports {
		return fmt.Errorf("%s is left open", p)
	}
	for a, dropped := range f.host.Dropped {
		if dropped {
			return fmt.Errorf("a blackhole route for %s is left", a)
		}
	}
	have := map[loopback.Addr]bool{}
	for _, a := range f.host.Addrs {
		have[a.Addr] = true
		if isVIP(a.Prefix.Addr()) {
			return fmt.Errorf("%s is still bound", a.Addr)
		}
	}
	for _, a := range was.host.Addrs {
		if !isVIP(a.Prefix.Addr()) && !have[a.Addr] {
			return fmt.Errorf("%s is gone", a.Addr)
		}
	}
	return nil
}

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
	name, err := namespace()
	if err != nil {
		panic(err)
	}
	return filepath.Join(b.dir, name+".json")
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
	a := &Agent{Kernel: b.kernel(), StateDir: b.dir, Blackhole: b.blackhole, moved: b.write, replace: b.replace}
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
