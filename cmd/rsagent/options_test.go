package main

import (
	"encoding/json"
	"strings"
	"testing"

	"rsagent/realserver"
)

// Each option by itself is taken from the strongest source that has it.
func TestPrecedence(t *testing.T) {
	for _, test := range []struct {
		name, file, vars, args string
		want                   []string // the VIPs managed then, but for options at their default
	}{
		{"default", "", "", "start --vip 10.0.0.1", []string{"10.0.0.1 dr host all flag"}},
		{"file", "vips: [10.0.0.1]", "", "start", []string{"10.0.0.1 dr host all config"}},
		{"file's defaults for its VIPs", "mode: tun\nvips: [10.0.0.1, {address: 10.0.0.2, mode: dr}]", "", "start",
			[]string{"10.0.0.1 tun host all config", "10.0.0.2 dr host all config"}},
		{"file's defaults for VIPs given", "scope: global\nvips: [10.0.0.1]", "", "start --vip 10.0.0.9", []string{"10.0.0.9 dr global all flag"}},
		{"file's entry for a VIP given", "vips: [{address: 10.0.0.9, scope: global}]", "", "start --vip 10.0.0.9", []string{"10.0.0.9 dr global all flag"}},
		{"flag over file, for all VIPs", "mode: tun\nvips: [10.0.0.1, {address: 10.0.0.2, scope: global}]", "", "start --scope host --mode dr",
			[]string{"10.0.0.1 dr host all config", "10.0.0.2 dr host all config"}},
		{"variable over file", "vips: [{address: 10.0.0.2, scope: global}]", "RSAGENT_SCOPE=host", "start", []string{"10.0.0.2 dr host all config"}},
		{"flag over variable", "", "RSAGENT_SCOPE=global RSAGENT_MODE=tun", "start --vip 10.0.0.1 --scope host", []string{"10.0.0.1 tun host all flag"}},
		{"empty variable", "", "RSAGENT_SCOPE= RSAGENT_VIP=", "start --vip 10.0.0.1", []string{"10.0.0.1 dr host all flag"}},
		{"VIPs of a variable", "vips: [10.0.0.9]", "RSAGENT_VIP=10.0.0.2,10.0.0.1", "start", []string{"10.0.0.1 dr host all flag", "10.0.0.2 dr host all flag"}},
		{"VIPs of a flag over a variable's", "", "RSAGENT_VIP=10.0.0.2", "start --vip 10.0.0.1", []string{"10.0.0.1 dr host all flag"}},
		{"one VIP twice", "", "", "start --vip 10.0.0.1,10.0.0.1/32 --vip 10.0.0.1", []string{"10.0.0.1 dr host all flag"}},
		{"one entry twice", "vips: [10.0.0.1, {address: 10.0.0.1, mode: dr}]", "", "start", []string{"10.0.0.1 dr host all config"}},
		{"file's tunnel, meant for mode tun", "mode: tun\ntunnel: ipip\nrp-filter: loose\nvips: [10.0.0.1, {address: 10.0.0.2, mode: dr}]", "", "start",
			[]string{"10.0.0.1 tun ipip host all loose config", "10.0.0.2 dr host all config"}},
		{"file's GUE, meant for mode tun", "mode: tun\ntunnel: gue\ngue-port: 6081\nmss: 1400\nouter: 4\nvips: [{address: 10.0.0.2, mode: dr}]", "", "start",
			[]string{"10.0.0.2 dr host all config"}},
		{"file's port, meant for GUE", "mode: tun\ntunnel: gue\ngue-port: '6081'\nvips: [{address: 10.0.0.2, tunnel: ipip}]", "", "start",
			[]string{"10.0.0.2 tun ipip host all config"}},
		{"file's interface, meant for its guard", "arp-guard: interface\ninterface: [eth0]\nvips: [10.0.0.1]", "", "start --arp-guard all",
			[]string{"10.0.0.1 dr host all config"}},
		{"interfaces", "", "", "start --vip 10.0.0.1 --arp-guard interface --interface eth0,eth0 --interface eth0",
			[]string{"10.0.0.1 dr host interface [eth0] flag"}},
		{"all options", "", "RSAGENT_ALLOW_DIRECTOR=1", "start --vip 10.0.0.1 --mode tun --tunnel ipip --device tunl0 --scope global --arp-guard none --rp-filter loose",
			[]string{"10.0.0.1 tun tunl0 ipip global none loose director flag"}},
		{"truth denied", "allow-director: true", "", "start --vip 10.0.0.1 --allow-director=false", []string{"10.0.0.1 dr host all flag"}},
		{"truth of a file", "allow-director: true", "", "start --vip 10.0.0.11", []string{"10.0.0.11 dr host all director flag"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			if test.file != "" {
				w.write(test.file)
			}
			for _, s := range strings.Fields(test.vars) {
				name, value, _ := strings.Cut(s, "=")
				w.vars[name] = value
			}
			w.must(0, strings.Fields(test.args)...)
			if got, want := strings.Join(w.set(), "\n"), strings.Join(test.want, "\n"); got != want {
				t.Errorf("managed:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// set is the managed set in short.
func (w *world) set() (out []string) {
	for _, v := range w.managed() {
		words := []string{v.Addr.String(), string(v.Mode), v.Device, v.Tunnel, v.Scope, v.Guard}
		if len(v.Interfaces) > 0 {
			words = append(words, "["+strings.Join(v.Interfaces, " ")+"]")
		}
		if words = append(words, v.RPFilter); v.AllowDirector {
			words = append(words, "director")
		}
		out = append(out, strings.Join(strings.Fields(strings.Join(append(words, v.Origin.String()), " ")), " "))
	}
	return out
}

// Verbs edit the managed set. Each step is a call, its exit code, and the addresses managed then.
func TestVerbs(t *testing.T) {
	type step struct {
		args string
		code int
		want string
	}
	const file = "vips: [10.0.0.1, 10.0.0.2]"
	for _, test := range []struct {
		name, file string
		steps      []step
	}{
		{"nothing is configured", "", []step{{"start", 6, ""}, {"restart", 6, ""}, {"reload", 6, ""}, {"stop", 0, ""}, {"status", 3, ""}, {"start --dry-run", 6, ""}}},
		{"defaults alone configure nothing", "mode: dr", []step{{"start", 6, ""}}},
		{"start adds", file, []step{{"start --vip 10.0.0.9", 0, "9f"}, {"start", 0, "1c 2c 9f"}, {"start --vip 10.0.0.1", 0, "1cf 2c 9f"}}},
		{"start given nothing keeps", "", []step{{"start --vip 10.0.0.9", 0, "9f"}, {"start", 0, "9f"}}},
		{"stop VIP", file, []step{{"start", 0, "1c 2c"}, {"stop --vip 10.0.0.1", 0, "2c"}, {"stop", 0, ""}, {"stop --vip 10.0.0.7", 0, ""}}},
		{"stop config", file, []step{{"start", 0, "1c 2c"}, {"start --vip 10.0.0.9,10.0.0.2", 0, "1c 2cf 9f"}, {"stop --config FILE", 0, "9f"}, {"stop", 0, ""}}},
		{"stop what came from any config", file, []step{{"start", 0, "1c 2c"}, {"start --vip 10.0.0.9,10.0.0.2", 0, "1c 2cf 9f"}, {"stop --config /dev/null", 0, "2f 9f"}}},
		{"restart keeps", file, []step{{"restart", 0, "1c 2c"}, {"stop --vip 10.0.0.1", 0, "2c"}, {"restart", 0, "2c"}, {"restart --vip 10.0.0.9", 0, "2c"}}},
		{"restart needs no file", file, []step{{"restart", 0, "1c 2c"}, {"FILE vips: x", 0, ""}, {"restart", 0, "1c 2c"}, {"restart --dry-run", 0, "1c 2c"},
			{"restart --config FILE", 2, "1c 2c"}, {"restart --mode nat", 2, "1c 2c"}, {"reload", 2, "1c 2c"}, {"stop", 0, ""}, {"restart", 2, ""}}},
		{"restart starts", file, []step{{"restart --vip 10.0.0.9", 0, "9f"}, {"stop", 0, ""}, {"restart", 0, "1c 2c"}}},
		{"reload takes over", file, []step{{"reload", 0, "1c 2c"}, {"start --vip 10.0.0.2,10.0.0.9", 0, "1c 2cf 9f"}, {"FILE vips: [10.0.0.3]", 0, ""}, {"reload", 0, "2f 3c 9f"}, {"FILE vips: []", 0, ""}, {"reload", 0, "2f 9f"}}},
		{"reload without its file", file, []step{{"reload", 0, "1c 2c"}, {"FILE", 0, ""}, {"reload", 6, "1c 2c"}, {"restart", 0, "1c 2c"}}},
		{"reload without a file", "", []step{{"start --vip 10.0.0.9", 0, "9f"}, {"reload", 0, "9f"}}},
		{"own address", "", []step{{"start --vip 10.0.0.11", 6, ""}, {"start --vip 10.0.0.11 --allow-director", 0, "11f"}}},
		{"dry run", file, []step{{"start --dry-run", 0, ""}, {"start", 0, "1c 2c"}, {"stop --dry-run", 0, "1c 2c"}}},
		{"status", file, []step{{"start", 0, "1c 2c"}, {"status", 0, "1c 2c"}, {"status --vip 10.0.0.1", 0, "1c 2c"}, {"status --vip 10.0.0.9", 3, "1c 2c"},
			{"status --vip 10.0.0.1,10.0.0.9", 1, "1c 2c"}, {"stop", 0, ""}, {"status --vip 10.0.0.1", 3, ""}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			if test.file != "" {
				w.write(test.file)
			}
			for _, s := range test.steps {
				if text, ok := strings.CutPrefix(s.args, "FILE"); ok {
					if w.write(text); text == "" {
						w.config += ".absent"
					}
					continue
				}
				w.must(s.code, strings.Fields(strings.ReplaceAll(s.args, "FILE", w.config))...)
				var got []string
				for _, v := range w.managed() {
					who := map[string]string{"config": "c", "flag": "f", "config,flag": "cf"}[v.Origin.String()]
					got = append(got, strings.TrimPrefix(v.Addr.String(), "10.0.0.")+who)
				}
				if strings.Join(got, " ") != s.want {
					t.Fatalf("after %s: managed %q, want %q", s.args, got, s.want)
				}
			}
		})
	}
}

// A host's interfaces are a set: their order makes no other option.
func TestInterfacesAreASet(t *testing.T) {
	f, err := parseFile("F", []byte("arp-guard: interface\nvips:\n - {address: 10.0.0.1, interface: [eth1, eth0]}\n - {address: 10.0.0.1, interface: 'eth0, eth1,eth1'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	vips, err := f.vips()
	if err != nil || len(vips) != 1 || strings.Join(vips[0].Interfaces, " ") != "eth0 eth1" {
		t.Errorf("%+v, %v", vips, err)
	}
}

// Stop takes VIPs out that rsagent did not bind, where it is told which.
func TestStopOfStrangers(t *testing.T) {
	for _, test := range []struct{ args, vars, want string }{
		{"stop", "", "10.0.0.11 10.0.0.8 10.0.0.9"},
		{"stop --vip 10.0.0.9", "", "10.0.0.11 10.0.0.8 10.0.0.2 10.0.0.1"},
		{"stop", "RSAGENT_VIP=10.0.0.8", "10.0.0.11 10.0.0.9 10.0.0.2 10.0.0.1"},
		{"stop --config FILE", "", "10.0.0.11 10.0.0.9"},
		{"stop", "RSAGENT_CONFIG=FILE", "10.0.0.11 10.0.0.9"},
		{"stop --vip 10.0.0.9", "RSAGENT_CONFIG=FILE", "10.0.0.11 10.0.0.8 10.0.0.2 10.0.0.1"},
		{"stop --config FILE", "RSAGENT_VIP=10.0.0.9", "10.0.0.11 10.0.0.9"},
		{"stop", "RSAGENT_CONFIG=FILE RSAGENT_VIP=10.0.0.9", "10.0.0.11 10.0.0.8 10.0.0.2 10.0.0.1"},
	} {
		t.Run(test.args+" "+test.vars, func(t *testing.T) {
			w := newWorld(t)
			w.hold("lo", "10.0.0.8/32", "host")
			w.hold("lo", "10.0.0.9/32", "host")
			w.write("vips: [10.0.0.2]")
			w.must(0, "start")
			w.must(0, "start", "--vip", "10.0.0.1")
			w.write("vips: [10.0.0.1, 10.0.0.8]") // 10.0.0.1 was asked for by hand
			for _, s := range strings.Fields(strings.ReplaceAll(test.vars, "FILE", w.config)) {
				name, value, _ := strings.Cut(s, "=")
				w.vars[name] = value
			}
			w.must(0, strings.Fields(strings.ReplaceAll(test.args, "FILE", w.config))...)
			var left []string
			for _, a := range w.host.Addrs {
				left = append(left, a.Prefix.Addr().String())
			}
			if got := strings.Join(left, " "); got != test.want {
				t.Errorf("left %s, want %s", got, test.want)
			}
		})
	}
}

// What a stop or reload of the config leaves, because it was asked for by hand as well, is said.
func TestStays(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"stop --config /dev/null", "10.0.0.2 10.0.0.9"},
		{"stop --config FILE", "10.0.0.2 10.0.0.9"},
		{"stop --config FILE --dry-run", "10.0.0.2 10.0.0.9"},
		{"reload", "10.0.0.2"},
		{"stop", ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			w := newWorld(t)
			w.write("vips: [10.0.0.1, 10.0.0.2]")
			w.must(0, "start")
			w.must(0, "start", "--vip", "10.0.0.2,10.0.0.9")
			w.write("vips: [10.0.0.1]")
			w.must(0, append(strings.Fields(strings.ReplaceAll(test.args, "FILE", w.config)), "-o", "json")...)
			var r report
			if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range r.Findings {
				if f.Code == "stays" && f.Level == realserver.Info && f.Cure == "rsagent stop --vip "+f.Subject {
					got = append(got, f.Subject)
				}
			}
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("said to stay: %q, want %q\n%s", s, test.want, &w.out)
			}
		})
	}
}

// Status tells who asked for a VIP.
func TestOrigin(t *testing.T) {
	w := newWorld(t)
	w.write("vips: [10.0.0.1, {address: 10.0.0.2, scope: global, arp-guard: none}]")
	w.must(0, "start")
	w.must(0, "start", "--vip", "10.0.0.1,10.0.0.9")
	w.must(3, "status", "--vip", "10.0.0.3", "-o", "json")
	if want := `{"address":"10.0.0.3","mode":"dr","device":"lo","state":"down","origin":[],"arp-guard":"all","scope":"host"}`; !strings.Contains(w.out.String(), want) {
		t.Errorf("want %s in %s", want, &w.out)
	}
	w.must(0, "status", "-o", "json")
	for _, want := range []string{`"10.0.0.1","mode":"dr","device":"lo","state":"up","origin":["config","flag"],"arp-guard":"all","scope":"host"}`,
		`"origin":["config"],"arp-guard":"none","scope":"global"}`, `"origin":["flag"],"arp-guard":"all"`} {
		if !strings.Contains(w.out.String(), want) {
			t.Errorf("want %s in %s", want, &w.out)
		}
	}
	w.must(0, "status")
	for _, want := range []string{"up  config and by hand\n", "up  config\n", "up  by hand\n"} {
		if !strings.Contains(w.out.String(), want) {
			t.Errorf("want %s in %s", want, &w.out)
		}
	}
}

// A restart says which flags it pays no heed to.
func TestIgnored(t *testing.T) {
	for args, want := range map[string]string{
		"restart": "", "restart --vip 10.0.0.9": "--vip", "restart --mode tun --arp-guard none": "--mode --arp-guard", "restart --config FILE": "--config",
		"start --vip 10.0.0.1 --scope host": "", "reload --mode dr": "",
	} {
		w := newWorld(t)
		w.write("vips: [10.0.0.1]")
		w.must(0, "start")
		w.must(0, append(strings.Fields(strings.ReplaceAll(args, "FILE", w.config)), "-o", "json")...)
		var r report
		if err := json.Unmarshal(w.out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.Findings {
			if f.Code == "ignored" {
				got = append(got, f.Subject)
			}
		}
		if s := strings.Join(got, " "); s != want || r.Changed {
			t.Errorf("%s: %q is said to be ignored, want %q\n%s", args, s, want, &w.out)
		}
	}
}
