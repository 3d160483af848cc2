package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// service finds what listens for what clients send to the VIPs. A port that others' rules redirect needs no listener.
func (c *checkup) service() {
	if slices.ContainsFunc(c.around.Unseen, func(u Unseen) bool { return u.What == "sockets" }) {
		return
	}
	type call struct {
		vip netip.Addr
		Service
	}
	handed := map[call]bool{}
	for _, p := range c.probes {
		handed[call{p.vip.Addr, p.service}] = c.around.Fates[p.packet].Redirected
	}
	for _, v := range c.set {
		for _, s := range c.services {
			c.served(v, s, handed[call{v.Addr, s}])
		}
	}
	if len(c.services) == 0 && len(c.set) > 0 && c.around.Sockets != nil {
		c.listeners()
	}
}

// served judges one service of a VIP. handed is that rules hand it on.
func (c *checkup) served(v VIP, s Service, handed bool) {
	if handed { // to whom, the rules know
		c.add(Info, "redirected", v.Addr.String(), "", "%s of VIP %s is handed on by rules of nftables, whatever listens there", s, v.Addr)
		return
	}
	var others []string
	for _, x := range c.around.Sockets {
		if x.Service != s {
			continue
		}
		if x.hears(v, c.host) {
			return
		}
		others = append(others, x.at(c.host))
	}
	anywhere := "0.0.0.0"
	if v.Addr.Is6() {
		anywhere = "::"
	}
	where := ""
	if len(others) > 0 {
		slices.Sort(others)
		where = ", only on " + strings.Join(slices.Compact(others), ", ")
	}
	c.add(Error, "no-listener", v.Addr.String(), fmt.Sprintf("have the service listen on %s, or on %s", v.Addr, anywhere), "nothing listens on %s of VIP %s%s", s, v.Addr, where)
}

// listeners tells which services would be given what comes for the VIPs, and which would not.
func (c *checkup) listeners() {
	would, told := map[Service]bool{}, map[string]bool{}
	sockets := slices.Clone(c.around.Sockets)
	sort.Slice(sockets, func(i, j int) bool {
		return sockets[i].Port < sockets[j].Port || sockets[i].Port == sockets[j].Port && !sockets[i].UDP && sockets[j].UDP
	})
	var yes, no []string
	for _, s := range sockets {
		heard := 0
		for _, v := range c.set {
			if s.hears(v, c.host) {
				heard++
			}
		}
		switch {
		case heard > 0 && !would[s.Service]:
			would[s.Service] = true
			yes = append(yes, s.Service.String())
		case heard == 0 && !s.Addr.IsLoopback() && !told[s.String()+s.at(c.host)]:
			told[s.String()+s.at(c.host)] = true
			no = append(no, s.Service.String()+" on "+s.at(c.host))
		}
	}
	no = slices.DeleteFunc(no, func(s string) bool { p, _, _ := strings.Cut(s, " "); return slices.Contains(yes, p) })
	c.add(Info, "listeners", "", "", "listening for the VIPs: %s; not for them: %s", orNothing(yes), orNothing(no))
}

func orNothing(words []string) string {
	const most = 20
	switch {
	case len(words) == 0:
		return "nothing"
	case len(words) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}
