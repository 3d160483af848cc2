package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"rsagent/realserver"
)

// A report is what a verb tells, in the form that JSON output has.
type report struct {
	Version  int                  `json:"version"`
	Verb     string               `json:"verb"`
	State    realserver.State     `json:"state"`
	Changed  bool                 `json:"changed"`
	VIPs     []vip                `json:"vips"`
	Changes  []change             `json:"changes"`
	Guards   []realserver.Silence `json:"guards,omitzero"`  // status only
	Tunnels  []realserver.Arrival `json:"tunnels,omitzero"` // status only
	Watch    *realserver.Watching `json:"watch,omitempty"`  // status only
	Findings []realserver.Finding `json:"findings"`
	Error    *failure             `json:"error"`

	code int
	err  error
}

type vip struct {
	Address string           `json:"address"`
	Mode    realserver.Mode  `json:"mode"`
	Device  string           `json:"device"`
	State   realserver.State `json:"state"`

	// status only
	Origin []string `json:"origin,omitzero"` // who asked for it: config, flag; none where it is not managed
	Guard  string   `json:"arp-guard,omitempty"`
	Scope  string   `json:"scope,omitempty"`
}

type change struct {
	Stage   string `json:"stage"`
	Item    string `json:"item"`
	From    string `json:"from"` // "" is absent, as in To
	To      string `json:"to"`
	Why     string `json:"why"`
	Outcome string `json:"outcome"` // done, failed, would

	of *realserver.Change
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (c *call) report(err error) *report {
	return &report{Version: 1, Verb: c.verb, State: realserver.Unknown,
		VIPs: []vip{}, Changes: []change{}, Findings: []realserver.Finding{}, err: c.hint(err), code: exitCode(err)}
}

// reportChange tells what a verb did, or with --dry-run would do.
func (c *call) reportChange(r *outcome, err error) *report {
	out := c.report(err)
	if r == nil {
		return out
	}
	out.State = r.state
	out.vips(r.vips)
	out.Findings = append(out.Findings, r.Findings...)
	done := r.Changes
	if c.dryRun {
		done = r.Pending
	}
	out.changes(done, c.dryRun)
	for _, x := range out.Changes {
		out.Changed = out.Changed || x.Outcome != "failed"
	}
	return out
}

func (c *call) reportStatus(s *realserver.Status, err error) *report {
	out := c.report(err)
	out.Guards, out.Tunnels, out.Watch = []realserver.Silence{}, []realserver.Arrival{}, &realserver.Watching{}
	if s != nil {
		out.State, out.Guards, out.Tunnels, out.Watch = s.State, s.Guards, s.Tunnels, &s.Watching
		out.vips(s.VIPs)
		names := map[realserver.Origin][]string{0: {}}
		for i, v := range s.VIPs {
			if names[v.Origin] == nil {
				names[v.Origin] = strings.Split(v.Origin.String(), ",")
			}
			out.VIPs[i].Origin, out.VIPs[i].Guard, out.VIPs[i].Scope = names[v.Origin], v.Guard, v.Scope
		}
		out.changes(s.Drift, true)
		out.Findings = append(out.Findings, s.Findings...)
	}
	out.code = statusCodes[out.State]
	return out
}

// reportCheck is reportStatus, but for the exit code: what keeps a VIP from being served is worse than what could not be seen.
func (c *call) reportCheck(s *realserver.Status, err error) *report {
	out := c.reportStatus(s, err)
	out.code = exitDone
	if s == nil || s.Blind() || err != nil {
		out.code = exitNotPermitted
	}
	if slices.ContainsFunc(out.Findings, func(f realserver.Finding) bool { return f.Level == realserver.Error }) {
		out.code = exitFailed
	}
	return out
}

func (r *report) vips(states []realserver.VIPState) {
	r.VIPs = slices.Grow(r.VIPs, len(states))
	for _, v := range states {
		r.VIPs = append(r.VIPs, vip{Address: v.Addr.String(), Mode: v.Mode, Device: v.On(), State: v.State})
	}
}

// changes leaves out what was not tried, because something before it failed.
func (r *report) changes(list []realserver.Change, would bool) {
	r.Changes = slices.Grow(r.Changes, len(list))
	for i, x := range list {
		if would {
			x.Outcome = "would"
		}
		if x.Outcome != "skipped" {
			r.Changes = append(r.Changes, change{x.Stage.String(), x.Item.String(), x.From, x.To, x.Why, x.Outcome, &list[i]})
		}
	}
}

// deliver writes a report, the error on stderr too, and returns the exit code.
func (c *call) deliver(r *report, began time.Time) int {
	if r.err != nil {
		r.Error = &failure{r.code, oneLine(r.err)}
	}
	var b bytes.Buffer
	switch c.output {
	case "text":
		c.text(&b, r)
	case "prometheus":
		metrics(&b, r)
	default:
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(r); err != nil {
			c.env.complain(err)
			return exitFailed
		}
	}
	// What was done, or found, is as it is whether anyone can read of it or not: so is the exit code.
	if c.output == "http" {
		c.answer(c.http.about(r.code), b.Bytes())
	} else if err := c.env.print(b.Bytes()); err != nil && r.err == nil {
		c.env.complain(err)
	}
	if r.err != nil {
		c.env.complain(r.err)
	}
	if c.verbose {
		agent := realserver.Agent{StateDir: c.stateDir}
		if path, err := agent.JournalPath(); err == nil {
			fmt.Fprintf(c.env.stderr, "rsagent: %s took %s; journal %s\n", c.verb, time.Since(began).Round(10*time.Microsecond), path)
		}
	}
	return r.code
}
