package main

import (
	"context"
	"errors"
	stdflag "flag"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// A written is an option as someone wrote it, and where: "--mode", "RSAGENT_MODE" or
// "/etc/rsagent/rsagent.yaml:7: mode". Every source gives options in this form, so that all are
// judged alike.
type written struct {
	words []string
	where string
}

func (w written) misuse(format string, args ...any) error {
	return misuse(w.where+": "+format, args...)
}

// last is the word of an option that has one.
func (w written) last() string { return w.words[len(w.words)-1] }

// A flag is one flag of a verb, with the words given to it.
type flag struct {
	name, alias, usage string
	list, truth        bool
	words              []string
}

// Set and String make a flag a value of the standard library's flag package.
func (f *flag) Set(s string) error { f.words = append(f.words, s); return nil }

func (f *flag) String() string {
	if f == nil || len(f.words) == 0 {
		return ""
	}
	return f.words[len(f.words)-1]
}

// IsBoolFlag lets a truth stand without a value.
func (f *flag) IsBoolFlag() bool { return f.truth }

func (f *flag) variable() string {
	return "RSAGENT_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
}

func (f *flag) names() []string {
	if f.alias != "" {
		return []string{f.name, f.alias}
	}
	return []string{f.name}
}

func (f *flag) cli() cli.Flag {
	return &shown{cli.GenericFlag{Name: f.name, Usage: f.usage + " [" + f.variable() + "]", Value: f}, f}
}

// shown is a flag as the library takes it. A GenericFlag by itself would look for its names with a regular
// expression, some hundred times a run, and show a truth with a value.
type shown struct {
	cli.GenericFlag
	flag *flag
}

func (s *shown) Names() []string { return s.flag.names() }

func (s *shown) TakesValue() bool { return !s.flag.truth }

func (s *shown) String() string { return cli.FlagStringer(s) }

// Apply makes the flag known to the standard library's parser.
func (s *shown) Apply(set *stdflag.FlagSet) error {
	for _, name := range s.Names() {
		set.Var(s.flag, name, "")
	}
	return nil
}

// read makes words of what was given, checking their form only.
func (f *flag) read(words []string, where string) (written, error) {
	w := written{where: where}
	for _, word := range words {
		parts := []string{word}
		if f.list {
			parts = strings.Split(word, ",")
		}
		for _, p := range parts {
			if p = strings.TrimSpace(p); p == "" {
				return w, w.misuse("is empty")
			}
			if f.truth {
				b, err := strconv.ParseBool(p)
				if err != nil {
					return w, w.misuse("%q is neither true nor false", p)
				}
				p = strconv.FormatBool(b)
			}
			if !slices.Contains(w.words, p) {
				w.words = append(w.words, p)
			}
		}
	}
	if !f.list && len(w.words) > 1 {
		return w, w.misuse("is given twice: %s", strings.Join(w.words, " and "))
	}
	return w, nil
}

// options is one source of options, by name.
type options map[string]written

// A call is a verb with what was asked of it, by flags and by variables.
type call struct {
	ctx         context.Context
	env         env
	verb        string
	flags, vars options
	stateDir    string
	output      string // one of the verb's forms
	dryRun      bool
	verbose     bool
	blackhole   bool
	probe       bool
	drain       time.Duration // 0: not asked for
	force       bool
	timeout     time.Duration
	http        request // of --output http
}

// newCall reads flags and variables. A variable that is set but empty is unset.
func newCall(ctx context.Context, e env, v verb, flags []*flag) (*call, error) {
	c := &call{ctx: ctx, env: e, verb: v.name, flags: options{}, vars: options{},
		stateDir: "/run/rsagent", output: "text", timeout: 30 * time.Second}
	for _, f := range flags {
		if len(f.words) > 0 {
			w, err := f.read(f.words, "--"+f.name)
			if err != nil {
				return nil, err
			}
			c.flags[f.name] = w
		}
		if s, _ := e.lookup(f.variable()); s != "" {
			w, err := f.read([]string{s}, f.variable())
			if err != nil {
				return nil, err
			}
			c.vars[f.name] = w
		}
	}
	if name := e.stranger(); name != "" && v.name != "version" {
		return nil, misuse("unknown variable %s%s", name, meant(name, variables()))
	}
	return c, c.common()
}

// stranger is a variable that is set, has the form of rsagent's, and belongs to no flag of any verb.
func (e env) stranger() string {
	for _, s := range e.environ() {
		name, value, _ := strings.Cut(s, "=")
		if value != "" && strings.HasPrefix(name, "RSAGENT_") && !slices.Contains(variables(), name) {
			return name
		}
	}
	return ""
}

// variables are those of all flags.
func variables() (names []string) {
	for _, v := range verbs {
		for _, f := range flagsOf(v) {
			names = append(names, f.variable())
		}
	}
	return names
}

// meant asks for the word that was meant, where one is near to what was written.
func meant(word string, words []string) string {
	bare := func(w string) string { return strings.TrimPrefix(strings.TrimPrefix(w, "--"), "RSAGENT_") }
	best, near := "", 3
	for _, w := range words {
		d := distance(bare(word), bare(w))
		if len(bare(word)) > 2 && strings.HasPrefix(bare(w), bare(word)) {
			d = min(d, 2)
		} else if d > 1 && len(bare(w)) < 6 {
			continue
		}
		if d < near {
			best, near = w, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is how many letters have to come, go or change, or change places with the next, to make b of a.
func distance(a, b string) int {
	before, last, row := []int(nil), []int(nil), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// get is an option that no config file has.
func (c *call) get(name string) (written, bool) {
	if w, ok := c.flags[name]; ok {
		return w, true
	}
	w, ok := c.vars[name]
	return w, ok
}

func (c *call) truth(name string) bool {
	w, ok := c.get(name)
	return ok && w.last() == "true"
}

// common reads the options that all verbs have.
func (c *call) common() error {
	c.dryRun, c.verbose, c.blackhole, c.probe = c.truth("dry-run"), c.truth("verbose"), c.truth("blackhole"), c.truth("probe")
	if w, ok := c.get("output"); ok {
		if c.output = w.last(); !slices.Contains(forms(c.verb), c.output) {
			return w.misuse("%q is none of %s", c.output, strings.Join(forms(c.verb), ", "))
		}
	}
	if err := errors.Join(c.duration("timeout", &c.timeout), c.duration("drain", &c.drain)); err != nil {
		return err
	}
	if c.force = c.truth("force"); c.force && c.drain == 0 {
		w, _ := c.get("force")
		return w.misuse("makes sense with --drain only")
	}
	if w, ok := c.get("state-dir"); ok {
		c.stateDir = w.last()
	}
	return nil
}

func (c *call) duration(name string, to *time.Duration) (err error) {
	if w, ok := c.get(name); ok {
		if *to, err = time.ParseDuration(w.last()); err != nil || *to <= 0 {
			return w.misuse("%q is no duration above 0, such as 30s", w.last())
		}
	}
	return nil
}

// forms are what --output of a verb may be.
func forms(verb string) []string {
	if verb == "status" {
		return []string{"text", "json", "prometheus", "http"}
	}
	return []string{"text", "json"}
}

// flagsOf makes the flags of a verb, anew for each run.
func flagsOf(v verb) (out []*flag) {
	if v.vips {
		out = append(out, &flag{name: "vip", list: true, usage: "`ADDR` of a VIP; repeatable, or a comma list"})
	}
	if v.options {
		for _, o := range vipOptions {
			out = append(out, o.flag())
		}
	}
	if v.daemon {
		out = append(out, &flag{name: "interval", usage: "look at least each `TIME`, whatever the kernel tells of (default: 5s)"},
			&flag{name: "on-guard-loss", usage: "where silence cannot be kept, `WHAT` becomes of VIPs that rest on it: keep, or withdraw until it can (default: keep)"},
			&flag{name: "state-dir", usage: "keep journal and lock in `DIR` (default: /run/rsagent)"},
			&flag{name: "timeout", usage: "wait for the lock, and mend, no longer than `TIME` (default: 30s)"},
			&flag{name: "verbose", truth: true, usage: "log what is of no consequence too"})
		return out
	}
	if v.name != "version" {
		out = append(out, &flag{name: "config", usage: "read this config `FILE` (default: /etc/rsagent/rsagent.yaml if it exists)"},
			&flag{name: "state-dir", usage: "keep journal and lock in `DIR` (default: /run/rsagent)"})
	}
	if v.name == "stop" {
		out = append(out, &flag{name: "blackhole", truth: true, usage: "leave a route that drops what still comes for the VIP, on a host that forwards"},
			&flag{name: "drain", usage: "wait up to `TIME` until no TCP connection to the VIPs is left; else change nothing (default: do not wait)"},
			&flag{name: "force", truth: true, usage: "with --drain: take the VIPs out when its time is over, whatever is left"})
	}
	if v.name == "check" {
		out = append(out, &flag{name: "port", list: true, usage: "`PORT` that clients call, with /udp behind it if it is UDP's; repeatable, or a comma list"},
			&flag{name: "probe", truth: true, usage: "ask the neighbours too whose the VIPs are, for a second, by two packets a VIP"})
	}
	if v.changes {
		out = append(out, &flag{name: "dry-run", truth: true, usage: "change nothing; print the commands that would do the same"})
	}
	form := "print `FORM` text or json (default: text)"
	if v.name == "status" {
		form = "print `FORM` text, json, prometheus or http, which answers a request on stdin (default: text)"
	}
	return append(out, &flag{name: "output", alias: "o", usage: form},
		&flag{name: "timeout", usage: "wait for the lock, and run, no longer than `TIME` (default: 30s)"},
		&flag{name: "verbose", truth: true, usage: "say on stderr how long it took, and where the journal is"})
}
