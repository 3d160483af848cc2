package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"rsagent/sysctl"
)

// unseen is the code of what could not be looked at.
const unseen = "unseen"

// Check is Status, and what surrounds the set: why its VIPs would be served by this host, or would not, and what would come
// to harm. services are what clients call at the VIPs; none is whatever listens. A VIP given that is neither managed nor
// on the host is judged as if it were to be started. It changes nothing, and takes about a tenth of a second; with Probe, a second more.
//
// An error is what Status could not tell; the result has then what could be told without. Its State is Unknown.
func (a *Agent) Check(services []Service, given ...netip.Addr) (*Status, error) {
	s, err := a.Status(given...)
	if err != nil {
		host, failed := a.Kernel.look(Also{})
		if failed != nil {
			return nil, err
		}
		s.host = host
		managed, _ := a.Managed()
		for _, v := range managed {
			if len(given) == 0 || slices.Contains(given, v.Addr) {
				s.VIPs = append(s.VIPs, VIPState{v, Unknown})
			}
		}
	}
	c := &checkup{Status: s, host: s.host, services: services, around: &Surroundings{}}
	for _, v := range s.VIPs {
		c.set = append(c.set, v.VIP)
	}
	c.set = c.set.sorted()
	ask := c.ask()
	for _, v := range c.set {
		if a.Probe {
			ask.VIPs = append(ask.VIPs, v.Addr)
		}
	}
	if a.Kernel.Around != nil {
		c.around = a.Kernel.Around(c.host, ask)
	}
	c.all()
	sort.SliceStable(s.Findings, func(i, j int) bool { return rank[s.Findings[i].Level] < rank[s.Findings[j].Level] })
	return s, err
}

var rank = map[Level]int{Error: 0, Warning: 1, Info: 2}

// Blind says that not all could be seen.
func (s *Status) Blind() bool {
	return slices.ContainsFunc(s.Findings, func(f Finding) bool { return f.Code == unseen })
}

// A checkup is one check: the set, the host, its surroundings, and what was found so far.
type checkup struct {
	*Status
	set      Set
	host     *Host
	around   *Surroundings
	services []Service
	probes   []probe
	nics     []NIC
}

// ask is what the surroundings are to be asked.
func (c *checkup) ask() Around {
	c.nics = c.ways()
	c.probes = c.needed()
	a := Around{NICs: c.nics}
	for _, p := range c.probes {
		a.Packets = append(a.Packets, p.packet)
	}
	return a
}

// add finds something.
func (c *checkup) add(level Level, code, subject, cure, format string, args ...any) {
	c.Findings = append(c.Findings, Finding{Level: level, Code: code, Subject: subject, Message: fmt.Sprintf(format, args...), Cure: cure})
}

// all has each group look.
func (c *checkup) all() {
	for _, u := range c.around.Unseen {
		c.add(Warning, "unseen", u.What, u.Cure, "%s could not be seen: %s", u.What, u.Why)
	}
	c.state()
	c.guard()
	c.service()
	c.firewall()
	c.tunnels()
	c.reversePath()
	c.source()
	c.segments()
	c.neighbours()
	c.persistence()
	c.claims()
}

// state makes findings of what status tells otherwise.
func (c *checkup) state() {
	if len(c.VIPs) == 0 && c.Status.State != Unknown {
		c.add(Info, "nothing-managed", "", "rsagent start --vip VIP", "nothing is managed here: what follows is about a VIP to come")
	}
	for _, v := range c.VIPs {
		switch {
		case v.Withheld:
			c.add(Error, "not-bound", v.Addr.String(), "rsagent restart", "VIP %s is not on this host: it is withheld", v.Addr)
		case v.State == Down:
			cure, why := "rsagent start "+v.flags(), ""
			if own := ownAddresses(Set{v.VIP}, c.host); len(own) > 0 { // start would refuse it
				cure, why = "", ", and cannot be: "+own[0].Message
			}
			c.add(Error, "not-bound", v.Addr.String(), cure, "VIP %s is not on this host%s", v.Addr, why)
		}
	}
	if c.Watching.Running {
		for _, item := range c.Watching.Contended {
			c.add(Warning, "contended", item, "end what undoes it; then: systemctl reload rsagent-watch", "something keeps undoing %s, and the watcher mends it less and less often, so that it is wrong most of the time", item)
		}
	}
	leaks := false
	for _, g := range c.Guards {
		if !g.Good && g.Asked && g.Rules == "" && g.Interface != sysctl.All && c.holdsIPv4() {
			leaks = true
			c.add(Error, "answers-arp", g.Interface, c.mend(), "%s %s", g.Interface, (&policy{set: c.set, host: c.host}).leaking(g.Interface, "the VIPs"))
		}
	}
	for _, d := range c.Drift {
		if k, ok := d.Item.(sysctl.Key); ok && leaks && (k.Knob == sysctl.ARPIgnore || k.Knob == sysctl.ARPAnnounce) {
			continue // that is how
		}
		c.add(Error, "drift", d.Item.String(), c.mend(), "%s is %s, should be %s: %s", d.Item, orAbsent(d.From), orAbsent(d.To), d.Why)
	}
}

// mend is the command that brings back what the set asks for.
func (c *checkup) mend() string {
	for _, v := range c.set {
		if v.Origin == 0 {
			v.AllowDirector = false // it is asked for again
			return "rsagent start " + v.flags()
		}
	}
	return "rsagent restart"
}

// onHost are the VIPs of the set that are bound.
func (c *checkup) onHost() (out Set) {
	for i, there := range onHost(c.set, c.host) {
		if there {
			out = append(out, c.set[i])
		}
	}
	return out
}

func (c *checkup) holdsIPv4() bool {
	return slices.ContainsFunc(c.onHost(), func(v VIP) bool { return v.Addr.Is4() })
}

// flags are the words by which start would be asked for the VIP, as it is.
func (v VIP) flags() string {
	var b strings.Builder
	say := func(name, value, usual string) {
		if value != usual {
			fmt.Fprintf(&b, " --%s %s", name, quote(value))
		}
	}
	b.WriteString("--vip " + v.Addr.String())
	say("mode", string(v.Mode), string(DR))
	say("device", v.Device, "")
	say("tunnel", v.Tunnel, "")
	say("outer", v.Outer, "")
	if v.GUEPort != 0 {
		say("gue-port", fmt.Sprint(v.GUEPort), "")
	}
	if v.CSum {
		b.WriteString(" --csum")
	}
	say("scope", v.Scope, "host")
	say("arp-guard", v.Guard, GuardAll)
	say("interface", strings.Join(v.Interfaces, ","), "")
	say("rp-filter", v.RPFilter, "")
	say("mss", v.MSS, "")
	say("director", strings.Join(v.Directors, ","), "")
	if v.AllowDirector {
		b.WriteString(" --allow-director")
	}
	return b.String()
}
