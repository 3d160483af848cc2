package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"rsagent/realserver"
)

// metrics writes a report of status in the text form that Prometheus reads (prometheus.io/docs/instrumenting/exposition_formats),
// its names as prometheus.io/docs/practices/naming has them. What can have one of several values is a series for each
// of them, 0 or 1, so that none comes and goes. The last line says that nothing is missing.
func metrics(w io.Writer, r *report) {
	family := func(name, kind, help string) func(value uint64, labels ...string) {
		name = "rsagent_" + name
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		return func(value uint64, labels ...string) { fmt.Fprintf(w, "%s%s %d\n", name, braced(labels), value) }
	}
	state := family("state", "gauge", "Whether the VIPs as a whole are in this state; unknown is that it cannot be told.")
	for _, s := range []realserver.State{realserver.Up, realserver.Drifted, realserver.Down, realserver.Unknown} {
		state(truth(r.State == s), "state", string(s))
	}
	vips := family("vip_state", "gauge", "Whether the VIP is in this state.")
	for _, v := range r.VIPs {
		for _, s := range []realserver.State{realserver.Up, realserver.Drifted, realserver.Down} {
			vips(truth(v.State == s), "vip", v.Address, "mode", string(v.Mode), "device", v.Device, "state", string(s))
		}
	}
	drift := family("drift_changes", "gauge", "Changes that would mend what drifted, by their stage.")
	for stage := realserver.Withdraw; stage <= realserver.PutBack; stage++ {
		var n uint64
		for _, x := range r.Changes {
			n += truth(x.Stage == stage.String())
		}
		drift(n, "stage", stage.String())
	}
	findings := family("findings", "gauge", "What status warns of, by level.")
	for _, level := range []realserver.Level{realserver.Error, realserver.Warning, realserver.Info} {
		var n uint64
		for _, f := range r.Findings {
			n += truth(f.Level == level)
		}
		findings(n, "level", string(level))
	}
	silent := family("guard_silent", "gauge", "Whether the interface is silent about the VIPs; all is for those still to come.")
	for _, g := range r.Guards {
		silent(truth(g.Good), "interface", g.Interface)
	}
	wanted := family("guard_wanted", "gauge", "Whether a VIP asks for silence of the interface.")
	for _, g := range r.Guards {
		wanted(truth(g.Asked), "interface", g.Interface)
	}
	r.tunnelMetrics(family)
	r.watchMetrics(family)
	fmt.Fprintln(w, "# EOF")
}

// tunnelMetrics leaves out what is not known: the packets of a device that is not up, and segment sizes nobody looked at.
func (r *report) tunnelMetrics(family func(name, kind, help string) func(value uint64, labels ...string)) {
	each := func(name, kind, help string, value func(realserver.Arrival) (n uint64, known bool)) {
		sample := family("tunnel_"+name, kind, help)
		for _, t := range r.Tunnels {
			if n, known := value(t); known {
				sample(n, "device", t.Device)
			}
		}
	}
	up := func(t realserver.Arrival) bool { return t.State == "up" }
	each("up", "gauge", "Whether the tunnel device is up.",
		func(t realserver.Arrival) (uint64, bool) { return truth(up(t)), true })
	each("received_packets_total", "counter", "Packets that came out of the tunnel since its device came.",
		func(t realserver.Arrival) (uint64, bool) { return t.Received, up(t) })
	each("mss_bytes", "gauge", "The largest segment that SYN packets from the tunnel's VIPs name.",
		func(t realserver.Arrival) (uint64, bool) { return uint64(t.MSS), t.MSS > 0 })
	each("mss_fitting_bytes", "gauge", "The largest segment that passes the uplink in the director's wrapping.",
		func(t realserver.Arrival) (uint64, bool) { return uint64(t.Fits), t.Fits > 0 })
}

// watchMetrics leaves out of a host that nobody watches all but that.
func (r *report) watchMetrics(family func(name, kind, help string) func(value uint64, labels ...string)) {
	if r.Watch == nil {
		return
	}
	family("watch_running", "gauge", "Whether a watcher mends what drifts.")(truth(r.Watch.Running))
	if r.Watch.PID == 0 {
		return
	}
	repairs := family("watch_repairs_total", "counter", "How often the watcher mended an item.")
	for _, x := range r.Watch.Repairs {
		repairs(x.Count, "item", x.Item)
	}
	contended := family("watch_contended", "gauge", "An item that something else keeps undoing.")
	for _, item := range r.Watch.Contended {
		contended(truth(r.Watch.Running), "item", item)
	}
	if r.Watch.Last != nil {
		family("watch_last_repair_timestamp_seconds", "gauge", "When the watcher last mended anything.")(uint64(r.Watch.Last.At.Unix()))
	}
	family("watch_failing", "gauge", "Whether the watcher cannot mend something, or cannot see.")(truth(r.Watch.Error != ""))
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// braced makes labels of names and values. A value is UTF-8 in quotes, with backslash and quotes escaped; what cannot be
// in it, in an interface's name, is escaped as Go does, before: two names stay two.
func braced(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(labels); i += 2 {
		plain := strconv.Quote(labels[i+1])
		b.WriteString("," + labels[i] + "=" + strconv.Quote(plain[1:len(plain)-1]))
	}
	return "{" + b.String()[1:] + "}"
}
