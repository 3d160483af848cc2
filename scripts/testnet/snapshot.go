package testnet

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Snapshot is everything about a host that rsagent could have touched, less
// what the kernel changes by itself.
type Snapshot struct {
	Sysctls map[string]string // all of ipv4/conf and ipv6/conf
	Links   map[string]Link
	Addrs   map[string][]Addr
	Routes  []string // of all tables, both families
	Rules   []string
	NFT     string // empty where there is no nft
}

// Link is what `ip link` says of a device.
type Link struct {
	Flags  []string
	MTU    int
	Master string
}

// Addr is an address as `ip -j addr` shows it.
type Addr struct {
	Local      string
	PrefixLen  int
	Scope      string
	Label      string
	Secondary  bool
	Deprecated bool
}

// Diff says how b differs from a; empty if it does not.
func Diff(a, b Snapshot) string { return cmp.Diff(a, b) }

// settleIPv6 waits until each IPv6 address has its local route: the kernel adds
// that a moment after the address, from a work queue. It waits no longer than
// a second, as on a device that is down none comes.
func (h *Host) settleIPv6(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		addrs := strings.Count(h.Run(t, "ip", "-6", "-o", "addr", "show", "up"), " inet6 ")
		local := strings.Count("\n"+h.Run(t, "ip", "-6", "route", "show", "table", "local", "type", "local"), "\nlocal ")
		if local >= addrs {
			return
		}
	}
}

// Snapshot looks at the host with the tools an operator would use.
func (h *Host) Snapshot(t testing.TB) Snapshot {
	t.Helper()
	h.settleIPv6(t)
	s := Snapshot{Sysctls: map[string]string{}}
	h.Do(func() {
		for _, family := range []string{"ipv4", "ipv6"} {
			readTree(filepath.Join("/proc/sys/net", family, "conf"), s.Sysctls)
		}
	})
	s.Links, s.Addrs = h.linksAndAddrs(t)
	s.Routes = h.records(t, "ip -4 -j route show table all", "ip -6 -j route show table all")
	s.Rules = h.records(t, "ip -4 -j rule show", "ip -6 -j rule show")
	if _, err := exec.LookPath("nft"); err == nil {
		s.NFT = h.Run(t, "nft", "--stateless", "list", "ruleset")
	}
	return s
}

// readTree reads every file below root. One that cannot be read
// (stable_secret, where there is none) stands with its error.
func readTree(root string, into map[string]string) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		into[path] = strings.TrimSpace(string(text))
		if err != nil {
			into[path] = err.Error()
		}
		return nil
	})
}

// Addrs lists the addresses of a device, in the order of the kernel.
func (h *Host) Addrs(t testing.TB, dev string) []Addr {
	t.Helper()
	_, addrs := h.linksAndAddrs(t)
	return addrs[dev]
}

// Links lists the devices by name.
func (h *Host) Links(t testing.TB) map[string]Link {
	t.Helper()
	links, _ := h.linksAndAddrs(t)
	return links
}

// Holds says on which devices the host holds an address, as dev, or dev and
// prefix length for one that is not bare: "lo", "eth0/24".
func (h *Host) Holds(t testing.TB, addr string) []string {
	t.Helper()
	var on []string
	_, all := h.linksAndAddrs(t)
	for dev, addrs := range all {
		for _, a := range addrs {
			if a.Local == addr {
				on = append(on, dev+a.suffix())
			}
		}
	}
	slices.Sort(on)
	return on
}

func (a Addr) suffix() string {
	if a.PrefixLen == 32 && !strings.Contains(a.Local, ":") || a.PrefixLen == 128 {
		return ""
	}
	return "/" + jsonText(a.PrefixLen)
}

func (h *Host) linksAndAddrs(t testing.TB) (map[string]Link, map[string][]Addr) {
	t.Helper()
	var found []struct {
		Ifname, Master string
		Flags          []string
		MTU            int
		Info           []Addr `json:"addr_info"`
	}
	decode(t, h.Run(t, "ip", "-j", "addr", "show"), &found)
	links, addrs := map[string]Link{}, map[string][]Addr{}
	for _, d := range found {
		links[d.Ifname] = Link{Flags: slices.DeleteFunc(d.Flags, isCarrier), MTU: d.MTU, Master: d.Master}
		addrs[d.Ifname] = d.Info
	}
	return links, addrs
}

// isCarrier: flags that tell of the other end of the cable.
func isCarrier(flag string) bool {
	return flag == "LOWER_UP" || flag == "NO-CARRIER" || flag == "M-DOWN"
}

// records runs commands that answer with a JSON list and returns the sorted
// elements of all. The order of routes in a dump means nothing.
func (h *Host) records(t testing.TB, commands ...string) []string {
	t.Helper()
	var lines []string
	for _, command := range commands {
		var found []map[string]any
		decode(t, h.Run(t, strings.Fields(command)...), &found)
		for _, record := range found {
			delete(record, "expires")
			lines = append(lines, jsonText(record))
		}
	}
	slices.Sort(lines)
	return lines
}

// decode takes the empty answer of old versions of ip for an empty list.
func decode(t testing.TB, text string, into any) {
	t.Helper()
	if strings.TrimSpace(text) == "" {
		return
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func jsonText(v any) string {
	text, _ := json.Marshal(v) // what came out of JSON goes back in
	return string(text)
}
