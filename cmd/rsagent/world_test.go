package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"rsagent/loopback"
	"rsagent/realserver"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// A world is all that the command touches: a host that is a value, a folder for its journal, and
// what was written.
type world struct {
	t          *testing.T
	host       realserver.Host
	vars       map[string]string
	folder     string
	config     string
	terminal   bool
	watched    bool
	powerless  bool
	fail       map[string]error                                                    // by the item changed
	clients    func(times int, vips []netip.Addr) ([]realserver.Connection, error) // nil: none
	asked      int                                                                 // how often about them
	ctx        context.Context                                                     // nil: never done
	opened     int                                                                 // how often the kernel was
	changes    int
	in         io.Reader
	out, errs  bytes.Buffer
	into       io.Writer // another than out
	brokenPipe bool
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, vars: map[string]string{}, folder: t.TempDir(), fail: map[string]error{}}
	w.config = filepath.Join(w.folder, "absent.yaml")
	w.host = realserver.Host{
		Links: []sysctl.Interface{{Name: "lo", Index: 1, Up: true}, {Name: "eth0", Index: 2, Up: true, ARP: true, MAC: 6},
			{Name: "tunl0", Index: 3, Kind: "ipip"}, {Name: "dummy0", Index: 4, Kind: "dummy", Up: true}},
		Conf:    sysctl.Table{},
		Modules: map[string]bool{"ipip": true},
	}
	for _, name := range []string{"all", "default", "lo", "eth0", "tunl0", "dummy0"} {
		for _, knob := range []string{sysctl.ARPIgnore, sysctl.ARPAnnounce, sysctl.RPFilter, sysctl.PromoteSecondaries} {
			w.host.Conf[sysctl.Key{Iface: name, Knob: knob}] = 0
		}
	}
	w.hold("eth0", "10.0.0.11/24", "global")
	return w
}

func (w *world) hold(device, prefix, scope string) {
	w.host.Addrs = append(w.host.Addrs, loopback.Held{Addr: loopback.Addr{Device: device, Prefix: netip.MustParsePrefix(prefix)}, Scope: scope})
}

func (w *world) look(realserver.Also) (*realserver.Host, error) {
	h := w.host
	h.Links, h.Conf, h.Addrs = slices.Clone(h.Links), maps.Clone(h.Conf), slices.Clone(h.Addrs)
	return &h, nil
}

func (w *world) do(_ context.Context, _ *realserver.Host, changes []realserver.Change) []error {
	errs := make([]error, len(changes))
	for i, c := range changes {
		w.changes++
		if errs[i] = w.fail[c.Item.String()]; errs[i] != nil {
			continue
		}
		switch it := c.Item.(type) {
		case sysctl.Key:
			w.host.Conf[it], _ = strconv.Atoi(c.To)
		case tunnel.Link:
			for i := range w.host.Links {
				if w.host.Links[i].Name == it.Name {
					w.host.Links[i].Up = c.To == "up"
				}
			}
		case loopback.Addr:
			w.host.Addrs = slices.DeleteFunc(w.host.Addrs, func(h loopback.Held) bool { return h.Addr == it })
			if c.To != "" {
				w.hold(it.Device, it.Prefix.String(), c.To)
			}
		default:
			errs[i] = errors.New("the fake kernel has no " + it.String())
		}
	}
	return errs
}

func (w *world) connections(vips []netip.Addr) ([]realserver.Connection, error) {
	if w.asked++; w.clients == nil {
		return nil, nil
	}
	return w.clients(w.asked, vips)
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// run calls the command as main does.
func (w *world) run(args ...string) int {
	w.out.Reset()
	w.errs.Reset()
	e := env{
		stdin: w.in, stdout: &w.out, stderr: &w.errs, terminal: w.terminal, watched: w.watched, config: w.config,
		lookup: func(name string) (string, bool) {
			if name == "RSAGENT_STATE_DIR" && w.vars[name] == "" {
				return filepath.Join(w.folder, "state"), true
			}
			s, ok := w.vars[name]
			return s, ok
		},
		environ: func() (all []string) {
			for name, value := range w.vars {
				all = append(all, name+"="+value)
			}
			return all
		},
		privileged: func() bool { return !w.powerless },
		kernel: func() (realserver.Kernel, func(), error) {
			w.opened++
			return realserver.Kernel{Look: w.look, Do: w.do, Connections: w.connections}, func() {}, nil
		},
	}
	if w.into != nil {
		e.stdout = w.into
	}
	if w.brokenPipe {
		e.stdout = closedPipe{}
	}
	if w.ctx == nil {
		w.ctx = context.Background()
	}
	return run(w.ctx, e, args)
}

// must runs the command and expects an exit code.
func (w *world) must(code int, args ...string) {
	w.t.Helper()
	if got := w.run(args...); got != code {
		w.t.Fatalf("rsagent %s: exit code %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), got, code, &w.out, &w.errs)
	}
}

// write puts a config file where it is looked for.
func (w *world) write(text string) {
	w.t.Helper()
	w.config = filepath.Join(w.folder, "rsagent.yaml")
	if err := os.WriteFile(w.config, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// managed is the set that the journal holds.
func (w *world) managed() []realserver.VIP {
	w.t.Helper()
	files, _ := filepath.Glob(filepath.Join(w.folder, "state", "*.json"))
	if len(files) == 0 {
		return nil
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		w.t.Fatal(err)
	}
	var j struct{ VIPs []realserver.VIP }
	if err := json.Unmarshal(b, &j); err != nil {
		w.t.Fatal(err)
	}
	return j.VIPs
}

// spoil makes a journal of nonsense.
func (w *world) spoil() {
	w.t.Helper()
	w.must(0, "start", "--vip", "10.0.0.100")
	files, err := filepath.Glob(filepath.Join(w.folder, "state", "*.json"))
	if err != nil || len(files) != 1 {
		w.t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("{"), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// untouched fails where anything was opened, written or changed.
func (w *world) untouched() {
	w.t.Helper()
	if w.opened > 0 || w.changes > 0 {
		w.t.Errorf("the kernel was opened %d times, %d changes made", w.opened, w.changes)
	}
	if _, err := os.Stat(filepath.Join(w.folder, "state")); err == nil {
		w.t.Error("the state directory was made")
	}
}
