package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"rsagent/realserver"
)

// series are all that Prometheus' own parser, which is node_exporter's, finds in a text, as "name{label=value} value"; its
// linter finds no fault with their names.
func series(t *testing.T, text string) (out []string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v in\n%s", problems, err, text)
	}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				value = m.GetCounter().GetValue()
			}
			out = append(out, fmt.Sprintf("%s{%s} %g", name, strings.Join(labels, ","), value))
		}
	}
	slices.Sort(out)
	if twice := slices.Compact(slices.Clone(out)); len(twice) != len(out) {
		t.Errorf("one comes twice: %q", out)
	}
	return out
}

// Each thing that can be told is told by a series that is there whatever its value.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	said := func(code int) []string {
		t.Helper()
		w.must(code, "status", "-o", "prometheus")
		if !strings.HasSuffix(w.out.String(), "\n# EOF\n") {
			t.Errorf("it does not say that this is all:\n%s", &w.out)
		}
		return series(t, w.out.String())
	}
	host := []string{
		"rsagent_drift_changes{stage=bind} 0", "rsagent_drift_changes{stage=create} 0", "rsagent_drift_changes{stage=guard} 0",
		"rsagent_drift_changes{stage=put back} 0", "rsagent_drift_changes{stage=withdraw} 0",
		"rsagent_findings{level=error} 0", "rsagent_findings{level=info} 0", "rsagent_findings{level=warning} 0",
		"rsagent_guard_silent{interface=all} 0", "rsagent_guard_silent{interface=eth0} 0",
		"rsagent_guard_wanted{interface=all} 0", "rsagent_guard_wanted{interface=eth0} 0",
		"rsagent_state{state=down} 1", "rsagent_state{state=drifted} 0", "rsagent_state{state=unknown} 0", "rsagent_state{state=up} 0",
		"rsagent_tunnel_up{device=tunl0} 0", "rsagent_watch_running{} 0",
	}
	now := func(changed ...string) []string { // the series that are now, each with the value given last
		values := map[string]string{}
		for _, s := range append(slices.Clone(host), changed...) {
			i := strings.LastIndex(s, " ")
			values[s[:i]] = s[i:]
		}
		host = nil
		for name, value := range values {
			host = append(host, name+value)
		}
		slices.Sort(host)
		return host
	}
	vip := func(addr, rest, state string) (out []string) {
		for _, s := range []string{"down", "drifted", "up"} {
			out = append(out, fmt.Sprintf("rsagent_vip_state{vip=%s,%s,state=%s} %d", addr, rest, s, truth(s == state)))
		}
		return out
	}
	expect := func(what string, got, want []string) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	expect("nothing managed", said(3), now())

	w.must(0, "start", "--vip", "10.0.0.100")
	w.must(0, "start", "--vip", "10.0.0.101", "--mode", "tun")
	w.host.Received = map[string]uint64{"tunl0": 1 << 40}
	expect("up", said(0), now(slices.Concat(vip("10.0.0.100", "mode=dr,device=lo", "up"), vip("10.0.0.101", "mode=tun,device=tunl0", "up"), []string{
		"rsagent_guard_silent{interface=all} 1", "rsagent_guard_silent{interface=eth0} 1",
		"rsagent_guard_wanted{interface=all} 1", "rsagent_guard_wanted{interface=eth0} 1",
		"rsagent_state{state=down} 0", "rsagent_state{state=up} 1",
		"rsagent_tunnel_received_packets_total{device=tunl0} 1.099511627776e+12", "rsagent_tunnel_up{device=tunl0} 1",
	})...))

	w.set1("all", "arp_ignore", 0)
	expect("drifted", said(1), now(slices.Concat(vip("10.0.0.100", "mode=dr,device=lo", "drifted"), vip("10.0.0.101", "mode=tun,device=tunl0", "drifted"), []string{
		"rsagent_drift_changes{stage=guard} 1", "rsagent_findings{level=warning} 2",
		"rsagent_guard_silent{interface=all} 0", "rsagent_guard_silent{interface=eth0} 0",
		"rsagent_state{state=drifted} 1", "rsagent_state{state=up} 0",
	})...))

	// One that cannot be told has none of what was not looked at, and all else is false.
	w.spoil()
	expect("unknown", said(4), []string{
		"rsagent_drift_changes{stage=bind} 0", "rsagent_drift_changes{stage=create} 0", "rsagent_drift_changes{stage=guard} 0",
		"rsagent_drift_changes{stage=put back} 0", "rsagent_drift_changes{stage=withdraw} 0",
		"rsagent_findings{level=error} 0", "rsagent_findings{level=info} 0", "rsagent_findings{level=warning} 0",
		"rsagent_state{state=down} 0", "rsagent_state{state=drifted} 0", "rsagent_state{state=unknown} 1", "rsagent_state{state=up} 0",
		"rsagent_watch_running{} 0",
	})
}

// Segment sizes are told where they are known.
func TestMetricsOfTunnels(t *testing.T) {
	var b strings.Builder
	metrics(&b, &report{Tunnels: []realserver.Arrival{{Device: "tunl0", State: "up", MSS: 1460, Fits: 1440}, {Device: "gre0", State: "absent"}}})
	got := slices.DeleteFunc(series(t, b.String()), func(s string) bool { return !strings.HasPrefix(s, "rsagent_tunnel") })
	want := []string{"rsagent_tunnel_mss_bytes{device=tunl0} 1460", "rsagent_tunnel_mss_fitting_bytes{device=tunl0} 1440",
		"rsagent_tunnel_received_packets_total{device=tunl0} 0", "rsagent_tunnel_up{device=gre0} 0", "rsagent_tunnel_up{device=tunl0} 1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// What a watcher fought with when it was killed, it fights with no more.
func TestMetricsOfAWatcherKilled(t *testing.T) {
	for running, want := range map[bool]string{true: "rsagent_watch_contended{item=x} 1", false: "rsagent_watch_contended{item=x} 0"} {
		var b strings.Builder
		metrics(&b, &report{Watch: &realserver.Watching{PID: 7, Running: running, Contended: []string{"x"}}})
		if got := series(t, b.String()); !slices.Contains(got, want) {
			t.Errorf("running %t: no %s in %q", running, want, got)
		}
	}
}

// The kernel takes nearly any byte in an interface's name; two names are two series all the same.
func TestMetricsOfAnyName(t *testing.T) {
	names := []string{"eth0", `a"b`, `a\b`, `a\"b`, "a\xff", "a\xfe", `a\xff`, "a\x01", "a}b", "a,b=\"c", "ä", "\u202e", "\n"}
	var r report
	for _, n := range names {
		r.Guards = append(r.Guards, realserver.Silence{Interface: n})
	}
	var b strings.Builder
	metrics(&b, &r)
	silent := slices.DeleteFunc(series(t, b.String()), func(s string) bool { return !strings.HasPrefix(s, "rsagent_guard_silent") })
	if len(silent) != len(names) {
		t.Errorf("%d series of %d names: %q", len(silent), len(names), silent)
	}
	for _, want := range []string{"eth0", "ä", "a}b"} {
		if !slices.Contains(silent, "rsagent_guard_silent{interface="+want+"} 0") {
			t.Errorf("no series of %s: %q", want, silent)
		}
	}
}
