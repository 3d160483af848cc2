package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// A usageError is what someone wrote and cannot be. Where there is one, nothing was touched.
type usageError struct{ error }

func misuse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run is the whole command. The exit code is the verb's, but for 2: what was asked was not
// understood, which one line on stderr says, and stdout stays empty.
func run(ctx context.Context, e env, args []string) int {
	switch {
	case len(args) > 0 && args[0] == "help":
		args = append(slices.Clone(args[1:]), "--help")
	case len(args) > 0 && args[0] == "--version":
		args = append([]string{"version"}, args[1:]...)
	}
	var help bytes.Buffer
	code := exitDone
	app := &cli.App{
		Name: "rsagent", HelpName: "rsagent", Usage: "prepare a host to be a real server behind an LVS director",
		UsageText: "rsagent VERB [flags]", Writer: &help, ErrWriter: &help,
		HideVersion: true, HideHelpCommand: true,
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   onUsageErrorBefore,
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return misuse("no verb given; it is one of %s", verbNames())
			}
			return misuse("unknown verb %q; it is one of %s%s", c.Args().First(), verbNames(), meant(c.Args().First(), strings.Split(verbNames(), ", ")))
		},
	}
	for _, v := range verbs {
		if !known(args) || v.name == args[0] { // the rest would be made for nothing
			app.Commands = append(app.Commands, v.command(e, &code))
		}
	}
	if err := app.RunContext(ctx, append([]string{"rsagent"}, args...)); err != nil {
		e.complain(err)
		return exitUsage
	}
	if help.Len() == 0 {
		return code
	}
	return e.show(help.Bytes())
}

// onUsageError says what is wrong with a verb's flag. The library's words have one dash for any flag.
func (v verb) onUsageError(_ *cli.Context, err error, _ bool) error {
	var flags []string
	for _, f := range flagsOf(v) {
		flags = append(flags, "--"+f.name)
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		return misuse("unknown flag %s%s", dashed(name), meant(dashed(name), flags))
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return misuse("%s needs a value", dashed(name))
	}
	return misuse("%w", err)
}

// onUsageErrorBefore is that of what stands before the verb, where no flag may.
func onUsageErrorBefore(_ *cli.Context, err error, _ bool) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return misuse("%w", err)
	}
	for _, v := range verbs {
		if slices.ContainsFunc(flagsOf(v), func(f *flag) bool { return slices.Contains(f.names(), name) }) {
			return misuse("%s stands before the verb; flags come after it: rsagent %s %s", dashed(name), v.name, dashed(name))
		}
	}
	return misuse("unknown flag %s", dashed(name))
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// print writes to stdout, all at once.
func (e env) print(b []byte) error {
	if _, err := e.stdout.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// show is for what does nothing but print.
func (e env) show(b []byte) int {
	if err := e.print(b); err != nil {
		e.complain(err)
		return exitFailed
	}
	return exitDone
}

// complain writes an error as one line.
func (e env) complain(err error) {
	line := clean(oneLine(err))
	if len(line) > longest { // it quotes what someone wrote
		line = strings.ToValidUTF8(line[:longest], "") + " …"
	}
	fmt.Fprintf(e.stderr, "rsagent: %s\n", line)
}

const longest = 4000 // bytes of an error

// oneLine joins the lines of an error, each once.
func oneLine(err error) string {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// command is a verb as the library knows it. What the action returns is misuse; all else is the code.
func (v verb) command(e env, code *int) *cli.Command {
	flags := flagsOf(v)
	c := &cli.Command{
		Name: v.name, Usage: v.usage, Description: v.more, UsageText: "rsagent " + v.name + " [flags]",
		HideHelpCommand: true, OnUsageError: v.onUsageError,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				word, hint := c.Args().First(), "flags begin with --"
				if _, err := netip.ParseAddr(word); err == nil && slices.ContainsFunc(flags, func(f *flag) bool { return f.name == "vip" }) {
					hint = "--vip " + word
				}
				return misuse("%s takes no arguments, and %q is one (%s)", v.name, word, hint)
			}
			call, err := newCall(c.Context, e, v, flags)
			if err != nil {
				return err
			}
			*code, err = v.run(call)
			return err
		},
	}
	for _, f := range flags {
		c.Flags = append(c.Flags, f.cli())
	}
	return c
}

// known says that the first argument is a verb.
func known(args []string) bool {
	return len(args) > 0 && slices.ContainsFunc(verbs, func(v verb) bool { return v.name == args[0] })
}

func verbNames() string {
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}
