package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"rsagent/realserver"
)

// A verb is one row of the command's table. run returns the exit code; an error of it is misuse.
type verb struct {
	name, usage, more string
	vips              bool // takes --vip
	options           bool // takes the options of a VIP
	changes           bool // changes the host
	daemon            bool // runs on, and has no output but its log
	run               func(*call) (int, error)
}

// The table is filled in by init: help, which its verbs can fail with, lists it.
var verbs []verb

func init() {
	verbs = []verb{
		{name: "start", usage: "add VIPs, silence ARP for them, and bind them", vips: true, options: true, changes: true, run: (*call).start,
			more: "Adds the VIPs given, else those of the config file; all or nothing.\nA VIP that is managed already takes all its options anew."},
		{name: "stop", usage: "take VIPs out, and put back what start changed", vips: true, changes: true, run: (*call).stop,
			more: "Takes out the VIPs given, managed or not; with --config those that came from a config file or stand in\nthis one; with neither all that are managed. One that was asked for by hand and does not stand in FILE stays, and is named.\nWith --drain it first waits for the connections to them to end; that no new ones come is for the director to see to."},
		{name: "restart", usage: "mend what is managed; start if nothing is", vips: true, options: true, changes: true, run: (*call).restart,
			more: "VIPs and options given count only where nothing is managed."},
		{name: "reload", usage: "take over the config file; start if nothing is managed", vips: true, options: true, changes: true, run: (*call).reload,
			more: "Makes the VIPs that came from the config file equal to it; others stay,\nand so does one that was asked for by hand too, which is named. VIPs given count only where nothing is managed."},
		{name: "status", usage: "compare the host with what is managed; changes nothing", vips: true, run: (*call).status,
			more: "Exit code 0: up. 1: drifted. 3: down. 4: cannot tell.\nFor monitors: --output prometheus, and --output http, which answers one HTTP request on stdin."},
		{name: "check", usage: "say why the VIPs would be served by this host, or would not; changes nothing", vips: true, run: (*call).check,
			more: "Looks at the whole surroundings too, and gives for each finding the reason and the cure.\nExit code 0: nothing that keeps a VIP from being served, or harms others. 1: something does. 4: none was found, but not all could be seen."},
		{name: "watch", usage: "keep what is managed true, until a signal ends it", daemon: true, run: (*call).watch,
			more: "Mends what drifts of the managed set as it happens. It reads no config, takes nothing off the host when it ends (SIGTERM,\nSIGINT), and looks at once at SIGHUP. start, stop and reload go on beside it. One runs in a network namespace."},
		{name: "version", usage: "show version, commit and Go version", run: (*call).version},
	}
}

func (c *call) start() (int, error) {
	_, vips, err := c.read()
	if err != nil {
		return 0, err
	}
	return c.change(startEdit(vips), c.lives(vips, vips)), nil
}

// read is the config file, and the VIPs that a start is about.
func (c *call) read() (*file, []realserver.VIP, error) {
	f, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	vips, err := c.asked(f)
	return f, vips, err
}

func startEdit(vips []realserver.VIP) realserver.Edit {
	if len(vips) == 0 {
		return realserver.Keep
	}
	return realserver.Add(vips...)
}

// restart mends what is managed, which needs no file: a typing error in it must not keep a host from being silent.
func (c *call) restart() (int, error) {
	_, named := c.flags["config"]
	set, err := (&realserver.Agent{StateDir: c.stateDir}).Managed()
	var vips []realserver.VIP
	if named || err == nil && len(set) == 0 {
		_, vips, err = c.read()
	} else {
		vips, err = c.asked(&file{}) // what is given is judged all the same
	}
	if err != nil {
		return 0, err
	}
	return c.change(realserver.Or(realserver.Release, startEdit(vips)), c.lives(vips, nil)), nil
}

func (c *call) reload() (int, error) {
	f, vips, err := c.read()
	if err != nil {
		return 0, err
	}
	configured, err := f.vips(c.flags, c.vars)
	if err != nil {
		return 0, err
	}
	if f.exists {
		return c.change(realserver.Or(realserver.Replace(realserver.Config, configured...), startEdit(vips)), func(r *realserver.Result) error {
			return errors.Join(stays(realserver.Config)(r), c.lives(vips, nil)(r))
		}), nil
	}
	return c.change(realserver.Or(realserver.Keep, startEdit(vips)), func(r *realserver.Result) error {
		for _, v := range r.VIPs {
			if v.Origin&realserver.Config != 0 { // a file that has gone must not end the service
				return fmt.Errorf("%w: there is no %s to reload; what came from it stays (rsagent stop takes it out)", errNotConfigured, f.path)
			}
		}
		return c.lives(vips, nil)(r)
	}), nil
}

// lives is the check of a verb that was given no VIPs, and so lives on what is managed; and that the
// VIPs it is about, or else all of the set, are such as this host can serve.
func (c *call) lives(given, about []realserver.VIP) check {
	return func(r *realserver.Result) error {
		if _, some := c.get("vip"); some && len(about) == 0 && len(r.Before) > 0 {
			r.Findings = append(r.Findings, realserver.Finding{Level: realserver.Warning, Code: "ignored", Subject: "--vip",
				Message: c.verb + " takes the VIPs given only where nothing is managed", Cure: "rsagent start --vip VIP"})
		}
		if c.verb == "restart" && len(r.Before) > 0 {
			r.Findings = append(r.Findings, c.ignored()...)
		}
		if len(given) > 0 || len(r.Before) > 0 {
			return r.Unserved(about...)
		}
		return fmt.Errorf("%w: no --vip, no VIP in %s, and nothing is managed", errNotConfigured, c.configPath())
	}
}

// ignored tells of the flags that a restart pays no heed to where something is managed. Variables are meant for other verbs too.
func (c *call) ignored() (finds []realserver.Finding) {
	ignore := func(flag, what, cure string) {
		finds = append(finds, realserver.Finding{Level: realserver.Warning, Code: "ignored", Subject: flag,
			Message: "restart takes " + what + " only where nothing is managed", Cure: cure})
	}
	for _, o := range vipOptions {
		if w, ok := c.flags[o.name]; ok {
			ignore(w.where, w.where, "rsagent start --vip VIP, with all its options")
		}
	}
	if w, ok := c.flags["config"]; ok {
		ignore(w.where, "a config file", "rsagent reload --config "+w.last())
	}
	return finds
}

// A check finds fault with what a verb could not do although nothing failed.
type check func(*realserver.Result) error

func content(*realserver.Result) error { return nil }

// stays is the check of a verb that took out what came from a config: it tells of the VIPs with these origins before
// that stay, as they were asked for by hand.
func stays(were realserver.Origin) check {
	return func(r *realserver.Result) error {
		left := make(map[netip.Addr]bool, len(r.Before))
		for _, v := range r.Before {
			left[v.Addr] = v.Origin&were == were
		}
		for _, v := range r.VIPs {
			if left[v.Addr] && v.Origin&realserver.Config == 0 {
				r.Findings = append(r.Findings, realserver.Finding{Level: realserver.Info, Code: "stays", Subject: v.Addr.String(),
					Message: "VIP " + v.Addr.String() + " stays: it was asked for by hand, or by an instance of rsagent@", Cure: "rsagent stop --vip " + v.Addr.String()})
			}
		}
		return nil
	}
}

func (c *call) stop() (int, error) {
	_, vipFlag := c.flags["vip"]
	_, configFlag := c.flags["config"]
	if vipFlag && configFlag {
		return 0, misuse("stop takes --vip or --config, not both")
	}
	addrs, err := c.addresses()
	if err != nil {
		return 0, err
	}
	if _, named := c.get("config"); named && (len(addrs) == 0 || configFlag) {
		f, err := c.config()
		if err == nil {
			_, err = f.vips()
		}
		if err != nil {
			return 0, err
		}
		var given []netip.Addr
		for _, e := range f.entries {
			given = append(given, e.addr)
		}
		drop, release := realserver.Drop(given...), realserver.Replace(realserver.Config)
		return c.change(func(s realserver.Set) realserver.Set { return release(drop(s)) }, stays(0), given...), nil
	}
	if len(addrs) == 0 {
		return c.change(realserver.DropAll, content), nil
	}
	return c.change(realserver.Drop(addrs...), content, addrs...), nil
}

// change carries a verb out, or says what it would do.
func (c *call) change(edit realserver.Edit, ok check, given ...netip.Addr) int {
	began := time.Now()
	out, err := c.carryOut(edit, given)
	if errors.Is(err, realserver.ErrMisuse) && (out == nil || len(out.Changes) == 0) {
		c.env.complain(err)
		return exitUsage
	}
	if err == nil {
		err = ok(out.Result)
	}
	return c.deliver(c.reportChange(out, err), began)
}

// An outcome is what a verb did, or would do, and how the VIPs fare now.
type outcome struct {
	*realserver.Result
	state realserver.State
	vips  []realserver.VIPState
}

// carryOut returns no outcome where it could not look at the host.
func (c *call) carryOut(edit realserver.Edit, given []netip.Addr) (*outcome, error) {
	if !c.dryRun && !c.env.privileged() {
		return nil, errNotPermitted
	}
	agent, closer, err := c.agent()
	if err != nil {
		return nil, err
	}
	defer closer()
	if c.dryRun {
		out, err := foretell(agent, edit, given)
		if err == nil && c.drain > 0 {
			out.Findings = append(out.Findings, c.awaits(agent, edit, given)...)
		}
		return out, err
	}
	var cut []realserver.Finding
	if c.drain > 0 {
		if cut, err = c.wait(agent, edit, given); err != nil {
			return asFound(agent), err
		}
	}
	ctx, cancel := context.WithTimeoutCause(c.ctx, c.timeout, fmt.Errorf("not done within %s (--timeout)", c.timeout))
	defer cancel()
	r, err := agent.Converge(ctx, edit, given...)
	if r == nil || r.Host == nil {
		return nil, err
	}
	if err == nil {
		r.Findings = append(r.Findings, cut...)
	}
	return asIs(r), err
}

// asIs is what a verb did, and how the VIPs fare after it.
func asIs(r *realserver.Result) *outcome {
	vips, state := r.States()
	return &outcome{r, state, vips}
}

// foretell is what a verb would do. The states are those of now.
func foretell(agent *realserver.Agent, edit realserver.Edit, given []netip.Addr) (*outcome, error) {
	now, err := agent.Status()
	if err != nil {
		return nil, err
	}
	r, err := agent.Look(edit, given...)
	if r == nil {
		return nil, err
	}
	if errors.Is(err, realserver.ErrRefused) { // it would do nothing
		r.VIPs, r.Pending = r.Before, nil
	}
	states := make(map[netip.Addr]realserver.State, len(now.VIPs))
	for _, v := range now.VIPs {
		states[v.Addr] = v.State
	}
	vips, _ := r.States()
	out := &outcome{r, now.State, vips}
	for i, v := range out.vips {
		if s, ok := states[v.Addr]; ok {
			out.vips[i].State = s
		}
	}
	return out, err
}

func (c *call) agent() (*realserver.Agent, func(), error) {
	k, closer, err := c.env.kernel()
	if err != nil {
		return nil, nil, err
	}
	return &realserver.Agent{Kernel: k, StateDir: c.stateDir, Blackhole: c.blackhole, Probe: c.probe}, closer, nil
}

func (c *call) status() (int, error) {
	return c.tell(c.reportStatus, func(a *realserver.Agent, addrs []netip.Addr) (*realserver.Status, error) { return a.Status(addrs...) })
}

func (c *call) check() (int, error) {
	var services []realserver.Service
	if w, ok := c.get("port"); ok {
		for _, word := range w.words {
			s, err := realserver.ParseService(word)
			if err != nil {
				return 0, w.misuse("%w", err)
			}
			services = append(services, s)
		}
	}
	return c.tell(c.reportCheck, func(a *realserver.Agent, addrs []netip.Addr) (*realserver.Status, error) {
		return a.Check(services, addrs...)
	})
}

// tell is a verb that only looks.
func (c *call) tell(report func(*realserver.Status, error) *report, look func(*realserver.Agent, []netip.Addr) (*realserver.Status, error)) (int, error) {
	began := time.Now()
	addrs, err := c.addresses()
	if err != nil {
		return 0, err
	}
	var configured []realserver.VIP
	_, named := c.flags["config"]
	if named {
		f, err := c.config()
		if err == nil {
			configured, err = f.vips(c.flags, c.vars)
		}
		if err != nil {
			return 0, err
		}
	}
	if c.output == "http" {
		if c.http = c.hear(); c.http.status != 0 {
			c.answer(c.http, nil)
			return exitNotPermitted, nil
		}
		if c.http.vip.IsValid() {
			addrs = []netip.Addr{c.http.vip}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	s, err := c.look(addrs, look)
	if named && err == nil && len(addrs) == 0 {
		s.Findings = append(s.Findings, c.differs(configured, s.VIPs)...)
	}
	return c.deliver(report(s, err), began), nil
}

// differs tells of VIPs that a reload of the config would change.
func (c *call) differs(configured []realserver.VIP, managed []realserver.VIPState) []realserver.Finding {
	want, differ := make(map[netip.Addr]realserver.VIP, len(configured)), []string(nil)
	for _, v := range configured {
		want[v.Addr] = v
	}
	for _, m := range managed {
		if m.Origin&realserver.Config == 0 {
			continue
		}
		v, ok := want[m.Addr]
		delete(want, m.Addr)
		if m.Origin, m.IfIndexes, m.Withheld, v.Origin = 0, nil, false, 0; !ok || !reflect.DeepEqual(m.VIP, v) {
			differ = append(differ, m.Addr.String())
		}
	}
	for _, v := range configured {
		if _, ok := want[v.Addr]; ok {
			differ = append(differ, v.Addr.String())
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return []realserver.Finding{{Level: realserver.Info, Code: "config", Subject: c.configPath(),
		Message: c.configPath() + " is not what is managed: " + brief(strings.Join(differ, ", ")), Cure: "rsagent reload --config " + c.configPath()}}
}

func (c *call) look(addrs []netip.Addr, look func(*realserver.Agent, []netip.Addr) (*realserver.Status, error)) (*realserver.Status, error) {
	agent, closer, err := c.agent()
	if err != nil {
		return nil, err
	}
	defer closer()
	return look(agent, addrs)
}
