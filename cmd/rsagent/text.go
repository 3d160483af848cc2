package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"rsagent/realserver"
)

// clean makes what came from elsewhere, an interface's name, say, unable to steer a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // control characters, and such as change the direction of text
			return '?'
		}
		return r
	}, s)
}

// A page is text for people, in columns.
type page struct {
	tabs   *tabwriter.Writer
	colour bool
}

func (p *page) row(cells ...string) {
	for i, c := range cells {
		cells[i] = clean(c)
	}
	io.WriteString(p.tabs, strings.TrimRight(strings.Join(cells, "\t"), "\t")+"\n")
}

// line ends a run of columns.
func (p *page) line(colour, head, rest string) {
	p.tabs.Flush()
	head, rest = clean(head), clean(rest)
	if p.colour {
		head = colour + head + "\x1b[0m"
	}
	fmt.Fprintln(p.tabs, head+rest)
	p.tabs.Flush()
}

const green, yellow, red = "\x1b[32m", "\x1b[33m", "\x1b[31m"

var stateColours = map[realserver.State]string{
	realserver.Up: green, realserver.Drifted: red, realserver.Down: yellow, realserver.Unknown: red,
}

// text writes a report for people: nothing about what is as it was.
func (c *call) text(w io.Writer, r *report) {
	p := &page{tabs: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), colour: c.env.terminal}
	no, _ := c.env.lookup("NO_COLOR")
	term, _ := c.env.lookup("TERM")
	p.colour = p.colour && no == "" && term != "dumb"
	switch {
	case c.verb == "status":
		_, some := c.get("vip")
		p.status(r, some)
	case c.verb == "check":
		p.check(r)
	case c.dryRun:
		c.commands(w, r)
		return
	default:
		for _, x := range r.Changes {
			stage := x.Stage
			if x.Stage == "guard" && strings.HasPrefix(x.Item, "link ") {
				stage = "raise"
			}
			if x.Outcome == "failed" {
				stage = "FAILED " + stage
			}
			p.row(stage, x.Item, absent(x.From)+" -> "+absent(x.To), x.Why)
		}
		p.findings(r)
		if r.err == nil {
			rest := ": " + summary(r)
			if w, ok := c.get("vip"); ok && c.verb == "stop" && !r.Changed && len(r.VIPs) > 0 {
				rest += ", not here: " + brief(strings.Join(w.words, ", "))
			}
			p.line(stateColours[r.State], string(r.State), rest)
		}
	}
	p.tabs.Flush()
}

// say is a value for people: of a VIP, whether it is bound.
func (x change) say(value string) string {
	if value != "" && (x.Stage == "bind" || x.Stage == "withdraw") && strings.Contains(x.Item, " dev ") {
		return "bound"
	}
	return absent(value)
}

func absent(s string) string {
	if s == "" {
		return "absent"
	}
	return brief(s)
}

// brief cuts a value that names many VIPs; JSON has all of it.
func brief(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return s[:most] + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

func summary(r *report) string {
	if !r.Changed {
		return "nothing to do"
	}
	changes := count(len(r.Changes), "change")
	if len(r.VIPs) == 0 {
		return changes
	}
	return count(len(r.VIPs), "VIP") + ", " + changes
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func (p *page) findings(r *report) {
	for _, f := range few(r.Findings) {
		if f.Level == realserver.Error && r.err != nil {
			continue // it is the error, which stderr has
		}
		rest := ": " + f.Message
		if f.Cure != "" {
			rest += " (cure: " + f.Cure + ")"
		}
		p.line(levelColours[f.Level], string(f.Level), rest)
	}
}

// check tells how many findings there are of each level, of the VIPs, and of each finding.
func (p *page) check(r *report) {
	n := map[realserver.Level]int{}
	for _, f := range r.Findings {
		n[f.Level]++
	}
	word, colour := "good", green
	switch {
	case n[realserver.Error] > 0:
		word, colour = "bad", red
	case r.code != exitDone:
		word, colour = "not all could be seen", red
	case n[realserver.Warning] > 0:
		colour = yellow
	}
	p.line(colour, word, fmt.Sprintf(": %s, %s, %s", count(n[realserver.Error], "error"), count(n[realserver.Warning], "warning"), count(n[realserver.Info], "note")))
	for _, v := range r.VIPs {
		p.row("VIP", v.Address, string(v.Mode)+" on "+v.Device, string(v.State), v.asked())
	}
	p.tabs.Flush()
	for _, f := range few(r.Findings) {
		p.line(levelColours[f.Level], string(f.Level)+" "+f.Code, ": "+f.Message)
		if f.Cure != "" {
			p.line("", "  cure", ": "+f.Cure)
		}
	}
}

var levelColours = map[realserver.Level]string{realserver.Error: red, realserver.Warning: yellow}

// few leaves five findings of a kind, and says how many there are. JSON has all.
func few(finds []realserver.Finding) (out []realserver.Finding) {
	const most = 5
	count, last := map[string]int{}, map[string]int{}
	for _, f := range finds {
		if count[f.Code]++; count[f.Code] > most {
			more := realserver.Finding{Level: f.Level, Code: f.Code, Message: fmt.Sprintf("and %d more of this kind (--output json has all)", count[f.Code]-most)}
			if i, ok := last[f.Code]; ok {
				out[i] = more
			} else {
				out, last[f.Code] = append(out, more), len(out)
			}
			continue
		}
		out = append(out, f)
	}
	return out
}

// status tells of the VIPs, of what they rest on, and of what is not as it should be.
func (p *page) status(r *report, some bool) {
	if r.State == realserver.Unknown {
		p.line(red, string(r.State), "")
		return
	}
	what := ""
	if len(r.VIPs) == 0 {
		what = ": nothing is managed"
	}
	p.line(stateColours[r.State], string(r.State), what)
	for _, v := range r.VIPs {
		p.row("VIP", v.Address, string(v.Mode)+" on "+v.Device, string(v.State), v.asked())
	}
	if len(r.VIPs) > 0 {
		ruled := slices.ContainsFunc(r.Guards, func(g realserver.Silence) bool { return g.Rules != "" })
		for _, g := range r.Guards {
			verdict := "silent"
			if !g.Good {
				verdict = "not silent"
			}
			if g.ByRules {
				verdict = "silent by nftables"
			}
			if !g.Good && !g.Asked && !ruled {
				verdict = "not silent, and no VIP asks for it"
			}
			if len(g.Holds) > 0 && verdict == "silent" && g.ARPIgnore != 8 { // which has it answer for no address
				verdict += fmt.Sprintf(", but for %s, which it holds", brief(strings.Trim(fmt.Sprint(g.Holds), "[]")))
			}
			if g.Rules != "" {
				p.row("guard", g.Interface, brief(g.Rules), verdict)
				continue
			}
			p.row("guard", g.Interface, fmt.Sprintf("arp_ignore %d, arp_announce %d", g.ARPIgnore, g.ARPAnnounce), verdict)
		}
	}
	for _, t := range r.Tunnels {
		segments := ""
		if t.Fits > 0 {
			segments = fmt.Sprintf("mss %d, %d fit", t.MSS, t.Fits)
		}
		p.row("tunnel", t.Device, fmt.Sprintf("%s, rp_filter %d", t.Tunnel, t.RPFilter), fmt.Sprintf("%s, %s received", t.State, count(int(t.Received), "packet")), segments)
	}
	if w := r.Watch; w.Running {
		p.row("watch", "running", inWords(*w))
	} else if w.PID != 0 {
		p.row("watch", "killed", "it said last: "+inWords(*w))
	}
	p.tabs.Flush()
	for _, x := range r.Changes {
		p.line(red, "drift", fmt.Sprintf(": %s is %s, should be %s: %s", x.Item, x.say(x.From), x.say(x.To), x.Why))
	}
	if len(r.Changes) > 0 && !some { // one that is not managed is not mended by a restart
		p.line("", "mend", ": rsagent restart")
	}
	p.findings(r)
}

// asked says who asked for a VIP, in words.
func (v vip) asked() string {
	return strings.ReplaceAll(strings.Join(v.Origin, " and "), "flag", "by hand")
}

// commands shows what a verb would do as a script: findings are comments in it.
func (c *call) commands(w io.Writer, r *report) {
	width, lines := 0, make([]string, len(r.Changes))
	for i, x := range r.Changes {
		lines[i] = clean(x.of.Command())
		if len(lines[i]) <= 80 { // a longer one has its reason behind it
			width = max(width, len(lines[i]))
		}
	}
	var b bytes.Buffer
	for i, x := range r.Changes {
		fmt.Fprintf(&b, "%-*s  # %s\n", width, lines[i], clean(x.Why))
	}
	for _, f := range few(r.Findings) {
		fmt.Fprintf(&b, "# %s: %s\n", f.Level, clean(f.Message))
	}
	if len(r.Changes) == 0 && r.err == nil {
		fmt.Fprintf(&b, "# %s: nothing to do\n", r.State)
	}
	w.Write(b.Bytes())
}
