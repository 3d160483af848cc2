package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rsagent/loopback"
	"rsagent/realserver"
)

// connected has each VIP have n connections at the k-th time that the kernel is asked.
func connected(n func(k int) int) func(int, []netip.Addr) ([]realserver.Connection, error) {
	return func(k int, vips []netip.Addr) (list []realserver.Connection, err error) {
		for _, v := range vips {
			for i := range n(k) {
				list = append(list, realserver.Connection{VIP: v, Peer: netip.MustParseAddr("10.0.0.1"), Port: uint16(4001 + i)})
			}
		}
		return list, nil
	}
}

func always(n int) func(int) int { return func(int) int { return n } }

// until has the connections end one by one: with the k-th time there is none.
func until(k int) func(int) int { return func(now int) int { return max(0, k-now) } }

func (w *world) bound(addr string) bool {
	return slices.ContainsFunc(w.host.Addrs, func(a loopback.Held) bool { return a.Prefix.Addr().String() == addr })
}

// Stop waits until no connection is left, then takes the VIPs out; at once where there is none, or none is waited for. How long
// it may take without the waiting is another thing.
func TestDrain(t *testing.T) {
	for _, test := range []struct {
		flags string
		vars  string
		n     func(int) int
		asked int
	}{
		{"--drain 10m", "", until(2), 2},
		{"--drain 10m", "", always(0), 1},
		{"--drain 10m --force --timeout 1s", "", until(7), 7},
		{"", "10m", until(2), 2},
		{"--drain 10m", "1ns", until(2), 2},
		{"", "", always(1), 0},
	} {
		w := newWorld(t)
		w.must(0, "start", "--vip", "10.0.0.100,10.0.0.101")
		w.vars["RSAGENT_DRAIN"], w.clients = test.vars, connected(test.n)
		w.must(0, append([]string{"stop", "--vip", "10.0.0.100"}, strings.Fields(test.flags)...)...)
		if w.asked != test.asked || w.bound("10.0.0.100") || !w.bound("10.0.0.101") || w.errs.Len() > 0 {
			t.Errorf("%q: asked %d times, want %d: %s%s", test.flags, w.asked, test.asked, &w.out, &w.errs)
		}
		if want := "withdraw  10.0.0.100/32 dev lo  host -> absent  no longer served here\nup: 1 VIP, 1 change\n"; w.out.String() != want {
			t.Errorf("%q: %s, want %s", test.flags, &w.out, want)
		}
	}
}

// When the time is over and connections are left, nothing is touched: the report is of the host as it is, and the error says who
// is left. With --force the VIPs go, and a finding tells.
func TestDrainOver(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100,10.0.0.101")
	w.clients = connected(always(5))
	before := w.changes
	w.must(1, "stop", "--vip", "10.0.0.101", "--drain", "10ms")
	left := "5 connections to 10.0.0.101 (from 10.0.0.1:4001, 10.0.0.1:4002, 10.0.0.1:4003 and 2 more)"
	said := "not done within 10ms (--drain); nothing was touched; left: " + left + " (--force takes the VIPs out all the same)"
	if w.errs.String() != "rsagent: "+said+"\n" || w.out.Len() > 0 {
		t.Errorf("%s%s", &w.errs, &w.out)
	}
	w.must(1, "stop", "--vip", "10.0.0.101", "--drain", "10ms", "-o", "json")
	vips := `{"address":"10.0.0.100","mode":"dr","device":"lo","state":"up"}`
	want := fmt.Sprintf(`{"version":1,"verb":"stop","state":"up","changed":false,"vips":[%s,%s],"changes":[],"findings":[],"error":{"code":1,"message":"%s"}}`,
		vips, strings.Replace(vips, "100", "101", 1), said)
	if got := strings.TrimSpace(w.out.String()); got != want || w.errs.String() != "rsagent: "+said+"\n" {
		t.Errorf("%s\nwant %s\n%s", got, want, &w.errs)
	}
	if w.changes != before || len(w.managed()) != 2 {
		t.Errorf("%d changes, managed %v", w.changes-before, w.managed())
	}

	w.must(0, "stop", "--drain", "10ms", "--force", "-o", "json")
	if w.bound("10.0.0.100") || w.bound("10.0.0.101") || w.errs.Len() > 0 {
		t.Errorf("bound still, or said: %s", &w.errs)
	}
	var r report
	if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	finds := []realserver.Finding{
		{Level: "warning", Code: "cut", Subject: "10.0.0.100", Message: strings.Replace(left, "0.101", "0.100", 1) + ": left after 10ms of --drain, and --force took the VIP out"},
		{Level: "warning", Code: "cut", Subject: "10.0.0.101", Message: left + ": left after 10ms of --drain, and --force took the VIP out"},
	}
	if diff := cmp.Diff(finds, r.Findings, cmp.AllowUnexported(realserver.Finding{})); diff != "" || r.State != "down" || !r.Changed {
		t.Errorf("%s%s", diff, &w.out)
	}
}

// With --force nothing is said to be cut where the VIP could not be taken out.
func TestDrainForceFails(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100")
	w.clients, w.fail["10.0.0.100/32 dev lo"] = connected(always(1)), syscall.EIO
	w.must(1, "stop", "--drain", "10ms", "--force", "-o", "json")
	if s := w.out.String(); strings.Contains(s, `"cut"`) || !strings.Contains(s, `"outcome":"failed"`) {
		t.Error(s)
	}
}

// A signal ends the waiting, and nothing is touched, with --force neither. One that comes with the last connection's end is a
// signal still.
func TestDrainInterrupted(t *testing.T) {
	for _, test := range []struct {
		n    func(int) int
		want string
	}{
		{always(1), "rsagent: interrupted: terminated signal received; nothing was touched; left: 1 connection to 10.0.0.100 (from 10.0.0.1:4001)\n"},
		{until(2), "rsagent: interrupted: terminated signal received; nothing was touched\n"},
	} {
		w := newWorld(t)
		w.must(0, "start", "--vip", "10.0.0.100")
		before := w.changes
		ctx, cancel := context.WithCancelCause(context.Background())
		n := connected(test.n)
		w.ctx, w.clients = ctx, func(k int, vips []netip.Addr) ([]realserver.Connection, error) {
			cancel(errors.New("terminated signal received"))
			return n(k, vips)
		}
		w.must(1, "stop", "--drain", "10m", "--force")
		if w.errs.String() != test.want || w.out.Len() > 0 || w.changes != before || len(w.managed()) != 1 {
			t.Errorf("%d changes: %s%s", w.changes-before, &w.errs, &w.out)
		}
	}
}

// What cannot be told is no reason to go on.
func TestDrainCannotTell(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100")
	for _, test := range []struct {
		err  error
		code int
		want string
	}{
		{fmt.Errorf("list connections: %w", syscall.EPERM), 4, "list connections: operation not permitted (needs CAP_NET_ADMIN in this network namespace)"},
		{fmt.Errorf("list connections: %w: it has no tcp_diag", realserver.ErrUnsupported), 5, "list connections: not supported by this kernel: it has no tcp_diag"},
		{fmt.Errorf("list connections: %w", syscall.EIO), 1, "list connections: input/output error"},
	} {
		w.clients = func(int, []netip.Addr) ([]realserver.Connection, error) { return nil, test.err }
		w.must(test.code, "stop", "--drain", "10m", "--force")
		if w.errs.String() != "rsagent: "+test.want+"\n" || !w.bound("10.0.0.100") {
			t.Errorf("%s%s", &w.errs, &w.out)
		}
		w.must(0, "stop", "--drain", "10m", "--dry-run")
		if s := w.out.String(); !strings.Contains(s, "# warning: the connections that stop would wait for cannot be told: "+test.want+"\n") {
			t.Error(s)
		}
	}
}

// A dry run waits for nothing, and says for what a stop would.
func TestDrainDryRun(t *testing.T) {
	w := newWorld(t)
	w.must(0, "start", "--vip", "10.0.0.100")
	w.clients = connected(always(2))
	w.must(0, "stop", "--drain", "10m", "--dry-run")
	want := "ip addr del 10.0.0.100/32 dev lo "
	note := "\n# info: 2 connections to 10.0.0.100 (from 10.0.0.1:4001, 10.0.0.1:4002): stop would wait up to 10m0s for their end\n"
	if s := w.out.String(); !strings.HasPrefix(s, want) || !strings.HasSuffix(s, note) || w.asked != 1 {
		t.Errorf("asked %d times: %s", w.asked, s)
	}
	w.clients = nil
	w.must(0, "stop", "--drain", "10m", "--dry-run")
	if s := w.out.String(); strings.Contains(s, "#  info") || strings.Contains(s, "connection") {
		t.Error(s)
	}
	w.must(0, "stop", "--dry-run")
	if w.asked != 2 {
		t.Error("a stop that waits for none asks about them")
	}
}

// On a terminal one line tells how many are left, written over itself, and is gone in the end. Elsewhere nothing does.
func TestDrainProgress(t *testing.T) {
	for _, watched := range []bool{true, false} {
		w := newWorld(t)
		w.must(0, "start", "--vip", "10.0.0.100")
		w.watched, w.clients = watched, connected(until(5))
		w.must(0, "stop", "--drain", "100h")
		lines := strings.Split(w.errs.String(), "\r")
		if !watched {
			if w.errs.Len() > 0 {
				t.Errorf("%q", &w.errs)
			}
			continue
		}
		last := len(lines) - 1
		if n := strings.Count(w.errs.String(), "waiting for "); lines[0] != "" || lines[1] != "waiting for 4 connections to end, at most 100h0m0s" || n < 2 || n > 4 ||
			strings.Trim(lines[last-1], " ") != "" || len(lines[last-1]) < len(lines[last-2]) || lines[last] != "" || strings.Contains(w.errs.String(), "\n") {
			t.Errorf("%q", lines)
		}
	}
}

// The line is not written more often than twice a second, and what was longer is covered.
func TestProgress(t *testing.T) {
	var b strings.Builder
	p := &progress{w: &b, until: time.Now().Add(100 * time.Hour)}
	for range 1000 {
		p.show(1000)
	}
	p.last = time.Time{}
	p.show(1)
	p.clear()
	want := "\rwaiting for 1000 connections to end, at most 100h0m0s\rwaiting for 1 connection to end, at most 100h0m0s    \r" + strings.Repeat(" ", 49) + "\r"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
