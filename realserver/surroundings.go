package realserver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rsagent/arp/nft"
	"rsagent/loopback"
)

// Surroundings are what lies around the managed set on a host, and is none of rsagent's: one look, for Check. Plain data.
type Surroundings struct {
	Unseen     []Unseen
	Sockets    []Socket
	Fates      map[nft.Packet]nft.Fate // what the rules of nftables make of the packets asked about
	Directs    map[netip.Addr]bool     // addresses in this host's own IPVS table
	BackupOnly bool                    // net.ipv4.vs.backup_only: as backup it directs nothing
	Source6    netip.Addr              // what the kernel picks as source for IPv6's default route
	Borrowers  map[string]bool         // interfaces without an IPv4 address by which routes lead, unless they are ARP proxies
	Dropped    uint64                  // packets that the reverse path filter dropped during the look
	Martians   uint64                  // packets with one of the machine's own addresses as source, likewise
	Initial    bool                    // this is the machine's first network namespace, and all is its own
	Inherited  bool                    // network namespaces to come start with its settings, and there are some already
	Files      []File
	Claims     []Claim           // who answers for the VIPs, where the neighbours were asked
	Neighbours map[string]string // by MAC address: an IPv4 address of that neighbour's
	Systemd    bool              // systemd runs here, and has rsagent's unit
	Enabled    bool              // and starts it
}

// Unseen is something that could not be looked at.
type Unseen struct{ What, Why, Cure string }

// A File is one that may have settings changed, or addresses taken away, later.
type File struct{ Kind, Path, Text string }

// The kinds of files.
const (
	sysctlFile   = "sysctl"   // of sysctl.d, and sysctl.conf, in the order in which they are applied; and of tuned
	networkFile  = "network"  // of systemd-networkd, where it runs
	nmFile       = "nm"       // of NetworkManager, where it runs
	nftablesFile = "nftables" // which nftables.service loads
)

// Around is what is to be asked beside what is always looked at.
type Around struct {
	Packets []nft.Packet
	NICs    []NIC        // where a packet is dropped, it is judged as if it came by these too
	VIPs    []netip.Addr // whose they are, the neighbours are asked
}

// A NIC is an interface by which packets may come.
type NIC struct {
	Name  string
	Index int
}

// beat is how long counters are watched.
const beat = 100 * time.Millisecond

// around looks. What cannot be seen is named, and is no failure.
func (l linux) around(h *Host, ask Around) *Surroundings {
	began, dropped, martians := time.Now(), reversePathDrops(), martianSources()
	s := &Surroundings{Directs: directs(), Initial: initial()}
	s.Inherited = s.Initial && inherited("/")
	s.BackupOnly = readInt("/proc/sys/net/ipv4/vs/backup_only") != 0
	fail := func(what string, err error) {
		if err != nil {
			u := Unseen{What: what, Why: strings.ReplaceAll(err.Error(), "\n", "; ")}
			if errors.Is(err, ErrMayNotAsk) {
				u.Cure = "run it as root, or with CAP_NET_RAW"
			} else if errors.Is(err, fs.ErrPermission) {
				u.Cure = "run it as root, or with CAP_NET_ADMIN"
			}
			s.Unseen = append(s.Unseen, u)
		}
	}
	var err error
	s.Sockets, err = sockets()
	fail("sockets", err)
	s.Fates, err = fates(ask)
	fail("nftables", err)
	for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
		if b, err := os.ReadFile("/proc/thread-self/net/" + name); errors.Is(err, fs.ErrPermission) {
			fail("iptables-legacy", err)
		} else if tables := strings.Join(strings.Fields(string(b)), ", "); tables != "" {
			s.Unseen = append(s.Unseen, Unseen{"iptables-legacy", "there are tables of the old kind (" + tables + "), which rsagent does not read", "look yourself: iptables-legacy-save, ip6tables-legacy-save"})
		}
	}
	route, err := loopback.DefaultRoute6(l.socket)
	s.Source6 = route.Source
	fail("the IPv6 default route", err)
	s.Borrowers, err = l.borrowers(h)
	fail("routes", err)
	s.Files, s.Systemd, s.Enabled, err = configs("/")
	fail("configuration files", err)
	s.Claims, err = h.Probe(ask.VIPs, patience)
	fail("who else claims the VIPs", err)
	if b, err := os.ReadFile("/proc/thread-self/net/arp"); err == nil && len(s.Claims) > 0 {
		s.Neighbours = parseARP(string(b))
	}
	time.Sleep(beat - time.Since(began))
	s.Dropped, s.Martians = reversePathDrops()-dropped, martianSources()-martians
	return s
}

// fates judges packets by all rules of nftables, where the kernel has it.
func fates(ask Around) (map[nft.Packet]nft.Fate, error) {
	out := map[nft.Packet]nft.Fate{}
	if !nft.There() || len(ask.Packets) == 0 {
		return out, nil
	}
	c, err := nft.Open()
	if errors.Is(err, nft.ErrUnsupported) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer c.Close()
	rules, err := c.Ruleset()
	if err != nil || rules.Empty() {
		return out, err
	}
	for _, p := range ask.Packets {
		fate, failed := rules.Judge(p)
		out[p], err = fate, errors.Join(err, failed)
		if !fate.Dropped || p.Unwrapped {
			continue
		}
		for _, nic := range ask.NICs {
			p.Iface, p.Index = nic.Name, nic.Index
			out[p], failed = rules.Judge(p)
			err = errors.Join(err, failed)
		}
	}
	return out, err
}

// borrowers are the interfaces that have no IPv4 address and take part in IPv4 all the same: the kernel asks and answers
// there with an address of another interface.
func (l linux) borrowers(h *Host) (map[string]bool, error) {
	has, out := map[string]bool{}, map[string]bool{}
	for _, a := range h.Addrs {
		has[a.Device] = has[a.Device] || a.Prefix.Addr().Is4()
	}
	var bare []int
	for _, i := range h.Links {
		if i.Speaks() && i.Up && !has[i.Name] && readInt("/proc/sys/net/ipv4/conf/"+i.Name+"/proxy_arp") == 0 {
			bare = append(bare, i.Index)
		}
	}
	if len(bare) == 0 {
		return out, nil
	}
	routed, err := loopback.Routed(l.socket)
	for _, index := range bare {
		if routed[index] {
			out[h.byIndex(index).Name] = true
		}
	}
	return out, err
}

func readInt(path string) int {
	b, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// initial says that this is the network namespace of process 1.
func initial() bool {
	own, err := os.Stat("/proc/thread-self/ns/net")
	first, failed := os.Stat("/proc/1/ns/net")
	return err == nil && failed == nil && os.SameFile(own, first)
}

// inherited says that network namespaces take their settings from the first one, as net.core.devconf_inherit_init_net has it
// (Documentation/admin-guide/sysctl/net.rst: 0 and 1; 3 is from the one that makes them), and that this host has others.
func inherited(root string) bool {
	for _, dir := range []string{"run/netns", "run/docker/netns"} {
		if found, _ := os.ReadDir(filepath.Join(root, dir)); len(found) > 0 {
			return readInt(filepath.Join(root, "proc/sys/net/core/devconf_inherit_init_net")) != 2
		}
	}
	return false
}

// reversePathDrops reads TcpExt IPReversePathFilter of this network namespace.
func reversePathDrops() uint64 {
	b, _ := os.ReadFile("/proc/thread-self/net/netstat")
	return parseNetstat(string(b), "TcpExt:", "IPReversePathFilter")
}

// parseNetstat reads a counter of /proc/net/netstat, where a line of names is followed by one of values.
func parseNetstat(text, group, name string) uint64 {
	var names []string
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) == 0 || w[0] != group {
			continue
		}
		if names == nil {
			names = w
		} else if i := slices.Index(names, name); i > 0 && i < len(w) {
			n, _ := strconv.ParseUint(w[i], 10, 64)
			return n
		}
	}
	return 0
}

// martianSources reads how many packets the machine dropped for their source, in all its network namespaces: the file has
// a line for each processor.
func martianSources() (sum uint64) {
	b, _ := os.ReadFile("/proc/net/stat/rt_cache")
	lines := strings.Split(string(b), "\n")
	i := slices.Index(strings.Fields(lines[0]), "in_martian_src")
	for _, line := range lines[1:] {
		if w := strings.Fields(line); i >= 0 && i < len(w) {
			n, _ := strconv.ParseUint(w[i], 16, 64)
			sum += n
		}
	}
	return sum
}

// maxConfig is as much as is read of one file: no program has a larger one.
const maxConfig = 1 << 20

// readConfig reads a file that whoever may write to a folder of configuration has put there. A folder, what is not there, and
// /dev/null, by which a file of /etc masks another (sysctl.d(5)), have nothing to say.
func readConfig(path string) (text string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.IsDir() {
		return "", err
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(st, null) {
		return "", nil
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if len(b) > maxConfig {
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxConfig)
	}
	return string(b), err
}

// configs reads the files below root that may undo a guard, or take an address away; and whether systemd starts rsagent. An error
// is about those that could not be read.
func configs(root string) (files []File, systemd, enabled bool, err error) {
	there := func(patterns ...string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			found, _ := filepath.Glob(filepath.Join(root, p))
			return len(found) > 0
		})
	}
	text := func(path string) string {
		text, failed := readConfig(filepath.Join(root, path))
		err = errors.Join(err, failed)
		return text
	}
	read := func(kind, path string) {
		if text := text(path); text != "" {
			path = filepath.Join(root, path)
			if _, err := os.Readlink(path); err == nil { // what is to be edited is where it leads
				path, _ = filepath.EvalSymlinks(path)
			}
			files = append(files, File{kind, path, text})
		}
	}
	for _, path := range dropIns(root, "sysctl.d", "conf") {
		read(sysctlFile, path)
	}
	read(sysctlFile, "etc/sysctl.conf")
	if there("run/tuned") {
		for _, profile := range strings.Fields(text("etc/tuned/active_profile")) {
			for _, dir := range []string{"etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles"} {
				read(sysctlFile, filepath.Join(dir, filepath.Base(profile), "tuned.conf"))
			}
		}
	}
	if there("run/systemd/netif/state") {
		for _, path := range dropIns(root, "systemd/network", "network") {
			read(networkFile, path)
		}
	}
	if there("run/NetworkManager") {
		for _, dir := range []string{"etc", "run", "usr/lib"} {
			for _, pattern := range []string{"system-connections/*.nmconnection", "NetworkManager.conf", "conf.d/*.conf"} {
				found, _ := filepath.Glob(filepath.Join(root, dir, "NetworkManager", pattern))
				for _, path := range found {
					read(nmFile, strings.TrimPrefix(path, root))
				}
			}
		}
	}
	for _, path := range []string{"etc/nftables.conf", "etc/sysconfig/nftables.conf"} {
		read(nftablesFile, path)
	}
	systemd = there("run/systemd/system") && there("etc/systemd/system/rsagent.service", "usr/lib/systemd/system/rsagent.service", "lib/systemd/system/rsagent.service")
	return files, systemd, systemd && there("etc/systemd/system/*.wants/rsagent*.service"), err
}

// dropIns lists the files of a kind of folder, in the order in which they hold: one in /etc stands for one of the same
// name elsewhere (sysctl.d(5), systemd.network(5)).
func dropIns(root, folder, ext string) (paths []string) {
	names := map[string]string{}
	for _, dir := range []string{"usr/lib", "usr/local/lib", "run", "etc"} { // the last wins
		found, _ := filepath.Glob(filepath.Join(root, dir, folder, "*."+ext))
		for _, path := range found {
			if _, known := names[filepath.Base(path)]; !known {
				paths = append(paths, filepath.Base(path))
			}
			names[filepath.Base(path)] = filepath.Join(dir, folder, filepath.Base(path))
		}
	}
	slices.Sort(paths)
	for i, name := range paths {
		paths[i] = names[name]
	}
	return paths
}
