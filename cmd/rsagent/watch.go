package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"rsagent/realserver"
)

// guardLosses are what --on-guard-loss may be.
var guardLosses = []string{"keep", "withdraw"}

// leastInterval keeps a poll from being all that a host does.
const leastInterval = 100 * time.Millisecond

// watch is the process around a realserver.Watcher: signals, the log, and what systemd is told.
func (c *call) watch() (int, error) {
	w := &realserver.Watcher{Interval: 5 * time.Second, Timeout: c.timeout, Log: slog.New(newLog(c.env.stderr, c.env.lookup, c.verbose))}
	if s, ok := c.get("interval"); ok {
		d, err := time.ParseDuration(s.last())
		if err != nil || d < leastInterval {
			return 0, s.misuse("%q is no duration of %s or more, such as 5s", s.last(), leastInterval)
		}
		w.Interval = d
	}
	if s, ok := c.get("on-guard-loss"); ok {
		if !slices.Contains(guardLosses, s.last()) {
			return 0, s.misuse("%q is none of %s", s.last(), strings.Join(guardLosses, ", "))
		}
		w.Withdraw = s.last() == "withdraw"
	}
	if err := c.keep(w); err != nil {
		c.env.complain(c.hint(err))
		return exitCode(err), nil
	}
	return exitDone, nil
}

// keep runs a watcher until a signal ends it.
func (c *call) keep(w *realserver.Watcher) (err error) {
	if !c.env.privileged() {
		return errNotPermitted
	}
	var closer func()
	if w.Agent, closer, err = c.agent(); err != nil {
		return err
	}
	defer closer()
	debug.SetGCPercent(50) // it is to be small for a long time, not quick once
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGHUP)
	defer signal.Stop(again)
	w.Again = again
	if d, err := daemon.SdWatchdogEnabled(false); err == nil && d > 0 {
		w.Beat = d / 3
	}
	w.Alive = new(herald).tell
	err = w.Run(c.ctx)
	daemon.SdNotify(false, daemon.SdNotifyStopping)
	if err == nil {
		w.Log.Info("ends; all stays as it is", "because", context.Cause(c.ctx))
	}
	return err
}

// A herald tells systemd what a watcher found: that it is ready, that it lives, and its state in words where that changed.
type herald struct{ last string }

func (h *herald) tell(now realserver.Watching) {
	state := daemon.SdNotifyWatchdog
	looked := now.State != realserver.Unknown || now.Error != "" // else it still waits for the lock, to mend what it found
	if looked && h.last == "" {
		state += "\n" + daemon.SdNotifyReady
	}
	if words := inWords(now); looked && words != h.last {
		h.last = words
		state += "\nSTATUS=" + clean(words)
	}
	daemon.SdNotify(false, state) // no systemd, no harm
}

// inWords is how the set fares, and what was done for it.
func inWords(w realserver.Watching) string {
	words := string(w.State)
	if n := w.Total(); n > 0 {
		words += fmt.Sprintf("; %s, the last at %s: %s", count(int(n), "repair"), w.Last.At.Local().Format("2006-01-02 15:04:05 MST"), w.Last.Item)
	}
	if !w.Running {
		return words
	}
	if len(w.Contended) > 0 {
		words += "; something keeps undoing " + brief(strings.Join(w.Contended, ", "))
	}
	if w.Error != "" {
		words += "; " + w.Error
	}
	return words
}

// A logLine is a slog.Handler that writes one line a record: for the journal with its priority before it (sd-daemon(3)),
// for others with the time and the level.
type logLine struct {
	w       io.Writer
	least   slog.Level
	journal bool
	attrs   string
	mu      *sync.Mutex
}

func newLog(w io.Writer, lookup func(string) (string, bool), verbose bool) slog.Handler {
	_, journal := lookup("JOURNAL_STREAM")
	h := logLine{w: w, journal: journal, mu: new(sync.Mutex)}
	if verbose {
		h.least = slog.LevelDebug
	}
	return h
}

func (h logLine) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

// The priorities of syslog(3), by level.
func priority(level slog.Level) int {
	switch {
	case level >= slog.LevelError:
		return 3
	case level >= slog.LevelWarn:
		return 4
	case level >= slog.LevelInfo:
		return 6
	}
	return 7
}

func (h logLine) Handle(_ context.Context, r slog.Record) error {
	head := fmt.Sprintf("<%d>", priority(r.Level))
	if !h.journal {
		head = r.Time.Format("2006-01-02T15:04:05.000Z07:00") + " " + r.Level.String() + " "
	}
	line := head + r.Message + h.attrs
	r.Attrs(func(a slog.Attr) bool { line += attr(a); return true })
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, clean(line)+"\n")
	return err
}

func attr(a slog.Attr) string {
	value := a.Value.Resolve().String()
	if value == "" || strings.ContainsAny(value, " \"=\n\t") {
		value = strconv.Quote(value)
	}
	return " " + a.Key + "=" + value
}

func (h logLine) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += attr(a)
	}
	return h
}

// WithGroup has no meaning here: nothing groups.
func (h logLine) WithGroup(string) slog.Handler { return h }
