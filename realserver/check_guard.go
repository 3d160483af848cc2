package realserver

import (
	"slices"
	"strings"

	"rsagent/arp"
	"rsagent/sysctl"
)

// guard finds what was meant to silence the host and does not, and what the guard does to others.
func (c *checkup) guard() {
	for _, v := range c.onHost() {
		if v.Addr.Is4() && v.Origin == 0 { // what rsagent set is where it has effect
			c.misplaced()
			break
		}
	}
	c.borrowing()
	c.inherited()
	if slices.ContainsFunc(c.set, VIP.hushed) && !c.Watching.Running {
		c.add(Info, "nft-unwatched", "arp rsagent", "systemctl enable --now rsagent-watch", "whatever flushes the rules of nftables has this host answer ARP for the VIPs until rsagent runs again, and no watcher does")
	}
	if slices.ContainsFunc(c.set, VIP.hushed) && c.around.Systemd && !c.around.Enabled {
		for _, f := range c.around.Files {
			if f.Kind == nftablesFile && strings.Contains(f.Text, "flush ruleset") {
				c.add(Warning, "nft-flush", f.Path, "systemctl enable rsagent", "a reload of %s takes table %s away, and nothing is there that puts it back", f.Path, "arp rsagent")
			}
		}
	}
}

// inherited finds that the network namespaces to come, of containers, start with what silences this one: there, too, a host
// then answers for the addresses of an interface on that interface only (net/ipv4/devinet.c, devinet_init_net).
func (c *checkup) inherited() {
	key := sysctl.Key{Iface: sysctl.All, Knob: sysctl.ARPIgnore}
	if v := c.host.Conf[key]; v != 0 && c.around.Inherited && slices.ContainsFunc(c.set, func(v VIP) bool { return v.Addr.Is4() && v.Guard == GuardAll }) {
		c.add(Info, "inherited", key.String(), "sysctl -w net.core.devconf_inherit_init_net=2", "network namespaces that are made from now on start with %s %d of this one", key, v)
	}
}

// misplaced finds settings that would silence, were they not where no ARP arrives.
func (c *checkup) misplaced() {
	ignore := arp.Rules(true)[0]
	own := func(name string) bool { return ignore.Good(c.host.Conf.Own(name, ignore.Knob)) }
	for _, name := range c.host.speakers() {
		if ignore.Good(c.host.Conf.Effective(name, ignore.Knob)) {
			continue
		}
		if own("lo") {
			c.add(Error, "guard-on-lo", "lo", c.mend(), "arp_ignore is set on lo, where no ARP arrives: on %s, where it does, %d is in effect", name, c.host.Conf.Effective(name, ignore.Knob))
		}
		for _, l := range c.host.Links {
			if master := c.host.byIndex(l.Master); l.ARP && !l.Speaks() && master != nil && master.Name == name && own(l.Name) {
				c.add(Error, "guard-on-port", l.Name, c.mend(), "arp_ignore is set on %s, which hands its frames to %s, its %s: there %d is in effect", l.Name, name, l.Port, c.host.Conf.Effective(name, ignore.Knob))
			}
		}
		return
	}
}

// borrowing finds interfaces that have no address of their own: the host asks and answers there with one of another
// interface, and arp_ignore 1 has it answer for none (Documentation/networking/ip-sysctl.rst).
func (c *checkup) borrowing() {
	var all Set
	for _, v := range c.set {
		if v.Addr.Is4() && v.Guard == GuardAll {
			all = append(all, v)
		}
	}
	if len(c.set) > 0 && len(all) == 0 || len(c.around.Borrowers) == 0 {
		return
	}
	var numbered []string
	for _, l := range c.host.Links {
		if l.Speaks() && !c.around.Borrowers[l.Name] && slices.ContainsFunc(c.nics, func(n NIC) bool { return n.Name == l.Name }) {
			numbered = append(numbered, l.Name)
		}
	}
	for _, name := range c.host.speakers() {
		if !c.around.Borrowers[name] {
			continue
		}
		would := "will answer none there"
		if sysctl.OneOf(1, 2, 8)(c.host.Conf.Effective(name, sysctl.ARPIgnore)) {
			would = "answers none there"
		}
		words := "--vip VIP --arp-guard interface --interface " + strings.Join(numbered, ",")
		if len(all) > 0 {
			v := all[0]
			v.Guard, v.Interfaces = GuardInterface, numbered
			words = v.flags()
		}
		c.add(Warning, "borrowed", name, "rsagent start "+words, "%s has no IPv4 address, so its neighbours ask by ARP for one of another interface; with --arp-guard all this host %s", name, would)
	}
}
