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

// Snapshot looks at the host with the tools an operator would use. It waits until each IPv6 address has its local route, which the
// kernel adds a moment later, from a work queue; no longer than a second, as on a device that is down none comes.
func (h *Host) Snapshot(t testing.TB) Snapshot {
	t.Helper()
	s := Snapshot{Sysctls: map[string]string{}}
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.Links, s.Addrs = h.linksAndAddrs(t)
		s.Routes, s.Rules = nil, nil
		h.lists(t, "-4", &s)
		if local := h.lists(t, "-6", &s); local >= s.speaking6() || time.Now().After(end) {
			break
		}
	}
	slices.Sort(s.Routes) // the order of a dump means nothing
	slices.Sort(s.Rules)
	h.Do(func() {
		for _, family := range []string{"ipv4", "ipv6"} {
			readTree(filepath.Join("/proc/sys/net", family, "conf"), s.Sysctls)
		}
	})
	if _, err := exec.LookPath("nft"); err == nil {
		s.NFT = h.Run(t, "nft", "--stateless", "list", "ruleset")
	}
	return s
}

// speaking6 counts the IPv6 addresses of links that are up.
func (s *Snapshot) speaking6() (n int) {
	for dev, all := range s.Addrs {
		for _, a := range all {
			if slices.Contains(s.Links[dev].Flags, "UP") && strings.Contains(a.Local, ":") {
				n++
			}
		}
	}
	return n
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
	_, all := h.linksAndAddrs(t)
	return on(all, addr)
}

// Held says it of several, in their order, each as "addr lo".
func (h *Host) Held(t testing.TB, addrs ...string) []string {
	t.Helper()
	held := []string{}
	_, all := h.linksAndAddrs(t)
	for _, addr := range addrs {
		for _, dev := range on(all, addr) {
			held = append(held, addr+" "+dev)
		}
	}
	return held
}

func on(all map[string][]Addr, addr string) (devs []string) {
	for dev, addrs := range all {
		for _, a := range addrs {
			if a.Local == addr {
				devs = append(devs, dev+a.suffix())
			}
		}
	}
	slices.Sort(devs)
	return devs
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

// lists adds the routes and rules of an IP version, by one process, and counts the routes to the host itself.
func (h *Host) lists(t testing.TB, version string, s *Snapshot) (local int) {
	t.Helper()
	r := h.Exec(Cmd{Args: []string{"ip", version, "-j", "-batch", "-"}, Stdin: "route show table all\nrule show\n"})
	if r.Code != 0 {
		t.Fatalf("on %s: ip -batch: exit %d\n%s", h.Name, r.Code, r.Stderr)
	}
	for in := json.NewDecoder(strings.NewReader(r.Stdout)); in.More(); {
		var found []map[string]any
		if err := in.Decode(&found); err != nil {
			t.Fatalf("%v in %s", err, r.Stdout)
		}
		for _, record := range found {
			delete(record, "expires")
			if _, rule := record["priority"]; rule {
				s.Rules = append(s.Rules, jsonText(record))
			} else {
				s.Routes = append(s.Routes, jsonText(record))
			}
			if record["type"] == "local" && record["table"] == "local" {
				local++
			}
		}
	}
	return local
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
