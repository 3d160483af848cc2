package realserver

import (
	"fmt"
	"slices"
	"strings"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// tunnels finds who else takes, drops or sends what the director wraps.
func (c *checkup) tunnels() {
	done := map[string]bool{}
	for _, v := range c.onHost() {
		if v.Mode != TUN || done[v.arrival()+v.kind().Device] {
			continue
		}
		done[v.arrival()+v.kind().Device] = true
		c.rivals(v)
		c.received(v)
		if len(v.Directors) == 0 {
			w := v
			w.Directors = []string{"DIRECTOR"}
			c.add(Info, "open-tunnel", v.kind().Device, "rsagent start "+w.flags(), "%s unwraps packets from anyone, who can so send into this network under any source", v.kind().Device)
		}
		if v.kind().Device == "tunl0" && slices.ContainsFunc(c.host.Links, func(l sysctl.Interface) bool { return strings.HasPrefix(l.Name, "cali") }) {
			c.add(Warning, "calico", "tunl0", "take --tunnel gre or gue (the director's --tun-type), or put the director into FelixConfiguration's externalNodesList and the VIP on lo (--device lo --rp-filter off)",
				"Calico runs here: it takes addresses that are not its own off tunl0, and drops protocol 4 from hosts that it does not know")
		}
	}
}

// owners are who makes tunnels whose names begin so.
var owners = []struct{ prefix, name string }{{"cilium", "Cilium"}, {"flannel", "flannel"}, {"cali", "Calico"}, {"kube-", "kube-router"}, {"tun-", "kube-router"}}

// rivals finds devices of the same kind that the kernel hands the director's packets to before the fallback device: one
// with this host's address as its local end, or one that is external (net/ipv4/ip_tunnel.c, ip_tunnel_lookup).
func (c *checkup) rivals(v VIP) {
	k := v.kind()
	for _, l := range c.host.Links {
		if l.Kind != k.Link || l.Name == k.Device || !l.Up || !c.takes(l, v) {
			continue
		}
		owner := ""
		for _, o := range owners {
			if strings.HasPrefix(l.Name, o.prefix) {
				owner = " (" + o.name + "'s)"
				break
			}
		}
		level, does := Warning, "takes"
		has := slices.ContainsFunc(c.nicAddrs(l.Name), func(string) bool { return true })
		if rule := tunnel.RPFilter(has); v.Addr.Is4() && !rule.Good(c.host.Conf.Effective(l.Name, sysctl.RPFilter)) {
			level, does = Error, "takes and, by its rp_filter, drops"
		}
		c.add(level, "rival-tunnel", l.Name, tunnel.Link{Name: quote(l.Name)}.Command("down"), "%s%s, of type %s, %s the packets that are meant for %s", l.Name, owner, strings.TrimSpace(l.Kind+" "+l.Args), does, k.Device)
	}
}

// takes says that a device is asked before the fallback device.
func (c *checkup) takes(l sysctl.Interface, v VIP) bool {
	w := strings.Fields(l.Args)
	for i := 0; i+1 < len(w); i += 2 {
		switch {
		case w[i] == "remote" && !slices.Contains(v.Directors, w[i+1]):
			return false
		case w[i] == "local" && !slices.ContainsFunc(c.host.Addrs, func(a loopback.Held) bool { return a.Prefix.Addr().String() == w[i+1] }):
			return false
		}
	}
	return l.Args != "" && !(strings.Contains(l.Args, "icsum") && !v.CSum)
}

// nicAddrs are the IPv4 addresses on an interface.
func (c *checkup) nicAddrs(name string) (out []string) {
	for _, a := range c.host.Addrs {
		if a.Device == name && a.Prefix.Addr().Is4() {
			out = append(out, a.Prefix.String())
		}
	}
	return out
}

// received finds a tunnel by which nothing came.
func (c *checkup) received(v VIP) {
	l := c.host.link(v.kind().Device)
	if l == nil || !l.Up || c.host.Received[l.Name] > 0 {
		return
	}
	look := "--tun-type " + v.encapsulation()
	if p, ok := v.port(); ok {
		look += fmt.Sprintf(" --tun-port %d", p.Number)
	}
	sums := ""
	if v.encapsulation() == "gre" && !v.CSum {
		sums = ", without --tun-csum"
	}
	c.add(Warning, "received-nothing", l.Name, "on the director, of its real server: -i "+look+sums+"; on the way: a firewall that drops "+v.arrival(),
		"nothing has come out of %s since it is there: the director sends nothing yet, wraps it otherwise (here it is %s over IPv%d), or it is dropped on the way", l.Name, v.arrival(), v.outer())
}
