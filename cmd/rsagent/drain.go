package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"rsagent/realserver"
)

// wait has the connections end that a stop would cut. Where some are left, it fails, and nothing is to be touched; with --force it
// tells of them.
func (c *call) wait(agent *realserver.Agent, edit realserver.Edit, given []netip.Addr) (cut []realserver.Finding, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.drain)
	defer cancel()
	line := &progress{}
	if until, _ := ctx.Deadline(); c.env.watched {
		line = &progress{w: c.env.stderr, until: until}
	}
	left, err := agent.Drain(ctx, edit, line.show, given...)
	line.clear()
	rest := ""
	if len(left) > 0 {
		rest = "; left: " + realserver.Words(left)
	}
	switch {
	case err != nil && rest == "":
		return nil, err
	case c.ctx.Err() != nil: // also where none is left: once it has begun, a stop goes on to its end
		return nil, fmt.Errorf("%w: %w; nothing was touched%s", realserver.ErrInterrupted, context.Cause(c.ctx), rest)
	case err != nil && !c.force:
		return nil, fmt.Errorf("not done within %s (--drain); nothing was touched%s (--force takes the VIPs out all the same)", c.drain, rest)
	}
	for _, l := range left {
		cut = append(cut, realserver.Finding{Level: realserver.Warning, Code: "cut", Subject: l.VIP.String(),
			Message: fmt.Sprintf("%s: left after %s of --drain, and --force took the VIP out", l, c.drain)})
	}
	return cut, nil
}

// awaits tells of the connections that a stop would wait for now.
func (c *call) awaits(agent *realserver.Agent, edit realserver.Edit, given []netip.Addr) (finds []realserver.Finding) {
	left, err := agent.Left(edit, given...)
	if err != nil {
		return []realserver.Finding{{Level: realserver.Warning, Code: "drain", Subject: "--drain",
			Message: "the connections that stop would wait for cannot be told: " + oneLine(c.hint(err))}}
	}
	for _, l := range left {
		finds = append(finds, realserver.Finding{Level: realserver.Info, Code: "drain", Subject: l.VIP.String(),
			Message: fmt.Sprintf("%s: stop would wait up to %s for their end", l, c.drain)})
	}
	return finds
}

// asFound is an outcome in which nothing was done; nil where the host cannot be looked at.
func asFound(agent *realserver.Agent) *outcome {
	r, _ := agent.Look(realserver.Keep)
	if r == nil {
		return nil
	}
	return asIs(r)
}

// A progress is one line on a terminal, written over itself at most twice a second.
type progress struct {
	w     io.Writer // nil: nobody looks
	until time.Time
	last  time.Time // it was written
	width int       // of the line that stands there
}

func (p *progress) show(connections int) {
	now := time.Now()
	if p.w == nil || now.Sub(p.last) < time.Second/2 {
		return
	}
	p.last = now
	p.write(fmt.Sprintf("waiting for %s to end, at most %s", count(connections, "connection"), p.until.Sub(now).Round(time.Second)))
}

// clear leaves an empty line.
func (p *progress) clear() {
	if p.width > 0 {
		p.write("")
		fmt.Fprint(p.w, "\r")
	}
}

func (p *progress) write(line string) {
	fmt.Fprintf(p.w, "\r%-*s", p.width, line)
	p.width = len(line)
}
