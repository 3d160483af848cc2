package main

import (
	goflag "flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rsagent/realserver"
	"rsagent/scripts/testnet"
)

var update = goflag.Bool("update", false, "write anew what man page and completions take from the program's tables")

// The parts of man page and completions that lie between BEGIN and END are made from the tables of
// verbs and flags. After a change there: go test ./cmd/rsagent -run TestDocs -update
func TestDocs(t *testing.T) {
	d := docs{t, valuesOf(t)}
	for path, parts := range map[string]map[string]string{
		"../../scripts/man/rsagent.8":    {"synopsis": d.manSynopsis(), "verbs": d.manVerbs(), "options": d.manOptions(), "findings": d.manFindings()},
		"../../scripts/completions/bash": {"tables": d.bash()},
		"../../scripts/completions/zsh":  {"tables": d.zsh()},
		"../../scripts/completions/fish": {"tables": d.fish()},
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for name, want := range parts {
			begin := regexp.MustCompile(`(?ms)^(\S+ BEGIN ` + name + `$\n)(.*?)^(\S+ END$)`)
			m := begin.FindStringSubmatchIndex(text)
			if m == nil {
				t.Fatalf("%s: no part %s", path, name)
			}
			if got := text[m[4]:m[5]]; got != want && !*update {
				t.Errorf("%s: %s is not what the program says (-update mends it):\n%s\nwant:\n%s", path, name, got, want)
			}
			text = text[:m[4]] + want + text[m[5]:]
		}
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The prose of the man page has no verb, flag, variable or exit code that is not there, and all that are.
func TestDocsNames(t *testing.T) {
	b, err := os.ReadFile("../../scripts/man/rsagent.8")
	if err != nil {
		t.Fatal(err)
	}
	man := strings.ReplaceAll(string(b), `\-`, "-")
	flags, vars := []string{"--help", "--version"}, []string{}
	for _, f := range allFlags() {
		flags, vars = append(flags, "--"+f.name), append(vars, f.variable())
	}
	same(t, "flags", regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(man, -1), flags)
	same(t, "variables", regexp.MustCompile(`RSAGENT_[A-Z_]*[A-Z]`).FindAllString(man, -1), vars)
	_, status, _ := strings.Cut(man, ".SH EXIT STATUS\n")
	status, _, _ = strings.Cut(status, ".SH ")
	codes := []string{}
	for _, code := range []int{exitDone, exitFailed, exitUsage, exitDown, exitNotPermitted, exitUnsupported, exitRefused} {
		codes = append(codes, fmt.Sprintf("\n.B %d\n", code))
	}
	same(t, "exit codes", regexp.MustCompile(`\n\.B \d+\n`).FindAllString(status, -1), codes)
}

// The example config has no VIPs, and all that is a comment in it can be taken into use.
func TestExampleConfig(t *testing.T) {
	b, err := os.ReadFile("../../scripts/rsagent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inUse := regexp.MustCompile(`(?m)^#([a-z]|  )`).ReplaceAllString(string(b), "$1")
	for text, want := range map[string]string{
		string(b): "",
		strings.Replace(inUse, "vips: []\n", "", 1): "192.0.2.100 dr, 192.0.2.101 tun, ",
	} {
		f, err := parseFile("rsagent.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		vips, err := f.vips()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, v := range vips {
			got += fmt.Sprintf("%s %s, ", v.Addr, v.Mode)
		}
		if got != want {
			t.Errorf("VIPs: %q, want %q in\n%s", got, want, text)
		}
	}
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, list := range []*[]string{&got, &want} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// bash and fish themselves offer, after each verb, exactly the flags that it takes, and the values
// that a flag takes; zsh at least can read its file.
func TestCompletions(t *testing.T) {
	ask := map[string]func(line ...string) []string{
		"bash": func(line ...string) []string {
			return shell(t, "bash", `. ../../scripts/completions/bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rsagent; printf '%s\n' "${COMPREPLY[@]}"`, line...)
		},
		"fish": func(line ...string) []string {
			out := shell(t, "fish", `source ../../scripts/completions/fish; complete -C "$argv"`, line...)
			for i, s := range out {
				out[i], _, _ = strings.Cut(s, "\t")
			}
			return out
		},
	}
	for name, ask := range ask {
		t.Run(name, func(t *testing.T) {
			testnet.Need(t, name)
			same(t, "verbs", ask("rsagent", ""), names())
			for _, v := range verbs {
				want := []string{"--help"}
				for _, f := range flagsOf(v) {
					want = append(want, "--"+f.name)
				}
				same(t, v.name, ask("rsagent", v.name, "--"), want)
			}
			values := valuesOf(t)
			for _, f := range allFlags() {
				if want := values[f.usage]; want != nil {
					same(t, f.verbs[0]+" --"+f.name, ask("rsagent", f.verbs[0], "--"+f.name, ""), want)
				}
			}
			if got := ask("rsagent", "start", "--interface", "l"); !slices.Contains(got, "lo") {
				t.Errorf("--interface: %q, want lo among them", got)
			}
		})
	}
	t.Run("zsh", func(t *testing.T) {
		testnet.Need(t, "zsh")
		shell(t, "zsh", "zsh -n ../../scripts/completions/zsh")
	})
}

func shell(t *testing.T, name, script string, args ...string) []string {
	t.Helper()
	args = append([]string{"-c", script}, args...)
	if name == "bash" {
		args = slices.Insert(args, 2, "bash") // its $0
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func names() (out []string) {
	for _, v := range verbs {
		out = append(out, v.name)
	}
	return out
}

func allFlags() (out []*flagRow) {
	for _, v := range verbs {
		for _, f := range flagsOf(v) {
			i := slices.IndexFunc(out, func(r *flagRow) bool { return r.name == f.name && r.usage == f.usage })
			if i < 0 {
				out, i = append(out, &flagRow{flag: f}), len(out)
			}
			out[i].verbs = append(out[i].verbs, v.name)
		}
	}
	return out
}

// A flagRow is a flag with the verbs that take it.
type flagRow struct {
	*flag
	verbs []string
}

// valuesOf asks the program itself which values a flag takes, by one that none does; by what its usage says, as a verb may
// have another flag of that name.
func valuesOf(t *testing.T) map[string][]string {
	values := map[string][]string{}
	for _, f := range allFlags() {
		if f.truth {
			continue
		}
		w := newWorld(t)
		args := []string{f.verbs[0], "--vip", "10.0.0.1", "--" + f.name, "-"}
		if f.verbs[0] == "start" {
			args = append(args, "--dry-run")
		}
		if f.verbs[0] == "start" && f.name != "mode" {
			args = append(args, "--mode", "tun")
		}
		w.run(args...)
		_, list, found := strings.Cut(strings.TrimSpace(w.errs.String()), " is none of ")
		if !found {
			continue
		}
		for word := range strings.SplitSeq(list, ", ") {
			if word != "" {
				values[f.usage] = append(values[f.usage], word)
			}
		}
	}
	return values
}

// ofVerbs are patterns for the verbs that take the flag, where a flag of another has its name.
func (f *flagRow) ofVerbs() []string {
	for _, o := range allFlags() {
		if o.name == f.name && o.usage != f.usage {
			return f.verbs
		}
	}
	return []string{"*"}
}

// docs makes the parts.
type docs struct {
	t      *testing.T
	values map[string][]string
}

// split takes the name of the value out of a flag's text.
func (f *flagRow) split() (usage, arg string) {
	if f.truth {
		return f.usage, ""
	}
	before, rest, _ := strings.Cut(f.usage, "`")
	arg, after, _ := strings.Cut(rest, "`")
	return before + arg + after, arg
}

func roff(s string) string { return strings.ReplaceAll(s, "-", `\-`) }

func (d docs) manSynopsis() string {
	var b strings.Builder
	for _, v := range verbs {
		fmt.Fprintf(&b, ".B rsagent %s\n", v.name)
		for _, f := range flagsOf(v) {
			_, arg := (&flagRow{flag: f}).split()
			if arg != "" {
				arg = ` \fI` + arg + `\fR`
			}
			fmt.Fprintf(&b, "[\\fB%s\\fR%s]\n", roff("--"+f.name), arg)
		}
		b.WriteString(".br\n")
	}
	return b.String()
}

func (d docs) manVerbs() string {
	var b strings.Builder
	for _, v := range verbs {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s.\n", v.name, roff(strings.ToUpper(v.usage[:1])+v.usage[1:]))
		if v.more != "" {
			b.WriteString(roff(v.more) + "\n")
		}
	}
	return b.String()
}

func (d docs) manOptions() string {
	var b strings.Builder
	for _, f := range allFlags() {
		usage, arg := f.split()
		head := `\fB` + roff("--"+f.name) + `\fR`
		if f.alias != "" {
			head += `, \fB` + roff("-"+f.alias) + `\fR`
		}
		if arg != "" {
			head += ` \fI` + arg + `\fR`
		}
		fmt.Fprintf(&b, ".TP\n%s\n%s.\nVerbs: %s.\nVariable: \\fB%s\\fR.\n", head,
			roff(strings.ToUpper(usage[:1])+usage[1:]), strings.Join(f.verbs, ", "), f.variable())
	}
	return b.String()
}

func (d docs) manFindings() string {
	var b strings.Builder
	for _, c := range realserver.Codes {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s.\n", roff(c.Code), roff(strings.ToUpper(c.Meaning[:1])+c.Meaning[1:]))
	}
	return b.String()
}

func (d docs) bash() string {
	var b strings.Builder
	fmt.Fprintf(&b, "_rsagent_verbs='%s'\n_rsagent_flags() {\n\tcase $1 in\n", strings.Join(names(), " "))
	for _, v := range verbs {
		fmt.Fprintf(&b, "\t%s) echo '", v.name)
		for _, f := range flagsOf(v) {
			b.WriteString("--" + f.name + " ")
		}
		b.WriteString("--help' ;;\n")
	}
	b.WriteString("\tesac\n}\n_rsagent_values() {\n\tcase $1:$2 in\n")
	for _, f := range allFlags() {
		values, heads := d.values[f.usage], []string{}
		for _, verb := range f.ofVerbs() {
			heads = append(heads, verb+":--"+f.name)
			if f.alias != "" {
				heads = append(heads, verb+":-"+f.alias)
			}
		}
		if values != nil {
			fmt.Fprintf(&b, "\t%s) echo '%s' ;;\n", strings.Join(heads, " | "), strings.Join(values, " "))
		}
	}
	b.WriteString("\tesac\n}\n")
	return b.String()
}

func (d docs) zsh() string {
	var b strings.Builder
	quote := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`)
	b.WriteString("verbs=(\n")
	for _, v := range verbs {
		fmt.Fprintf(&b, "\t'%s:%s'\n", v.name, strings.ReplaceAll(v.usage, "'", `'\''`))
	}
	b.WriteString(")\ntypeset -A flags\n")
	for i, f := range allFlags() {
		usage, arg := f.split()
		spec := fmt.Sprintf("--%s[%s]", f.name, quote.Replace(usage))
		if arg != "" {
			spec = fmt.Sprintf("--%s=[%s]:%s:%s", f.name, quote.Replace(usage), arg, d.zshAction(f))
		}
		if f.list {
			spec = "*" + spec
		}
		fmt.Fprintf(&b, "flags[%02d.%s]='%s'\n", i, strings.Join(f.verbs, "."), spec)
	}
	return b.String()
}

func (d docs) zshAction(f *flagRow) string {
	switch {
	case d.values[f.usage] != nil:
		return "(" + strings.Join(d.values[f.usage], " ") + ")"
	case f.name == "interface" || f.name == "device":
		return "_net_interfaces"
	case f.name == "config":
		return "_files"
	case f.name == "state-dir":
		return "_files -/"
	}
	return ""
}

func (d docs) fish() string {
	var b strings.Builder
	quote := strings.NewReplacer(`\`, `\\`, "'", `\'`)
	for _, v := range verbs {
		fmt.Fprintf(&b, "complete -c rsagent -n __fish_use_subcommand -a %s -d '%s'\n", v.name, quote.Replace(v.usage))
	}
	for _, f := range allFlags() {
		usage, arg := f.split()
		fmt.Fprintf(&b, "complete -c rsagent -n '__fish_seen_subcommand_from %s' -l %s", strings.Join(f.verbs, " "), f.name)
		if f.alias != "" {
			b.WriteString(" -s " + f.alias)
		}
		switch {
		case arg == "":
		case d.values[f.usage] != nil:
			fmt.Fprintf(&b, " -x -a '%s'", strings.Join(d.values[f.usage], " "))
		case f.name == "interface" || f.name == "device":
			b.WriteString(" -x -a '(command ls /sys/class/net)'")
		case f.name == "config":
			b.WriteString(" -rF")
		case f.name == "state-dir":
			b.WriteString(" -x -a '(__fish_complete_directories)'")
		default:
			b.WriteString(" -x")
		}
		fmt.Fprintf(&b, " -d '%s'\n", quote.Replace(usage))
	}
	return b.String()
}
