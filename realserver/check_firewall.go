package realserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rsagent/arp/nft"
)

// A drop is a rule or policy with what it drops.
type drop struct {
	fate     nft.Fate
	protocol uint8
	port     uint16
}

// firewall finds rules and policies that drop what has to come through.
func (c *checkup) firewall() {
	var first []probe
	count, open := map[drop]int{}, map[netip.Addr]bool{} // open: TCP or UDP comes through to it, whatever the port
	for _, p := range c.probes {
		open[p.vip.Addr] = open[p.vip.Addr] || p.any() && !c.around.Fates[p.packet].Dropped
	}
	for _, p := range c.probes {
		d := drop{c.around.Fates[p.packet], p.packet.Protocol, p.packet.Port}
		if !d.fate.Dropped || p.any() && (p.service.UDP || open[p.vip.Addr]) {
			continue
		}
		if count[d]++; count[d] == 1 {
			first = append(first, p)
		}
	}
	for _, p := range first {
		fate := c.around.Fates[p.packet]
		level, by := c.everywhere(p)
		code, why := "firewall", ""
		if fate.ReversePath {
			code, why = "firewall-reverse-path", ": it asks for a route back by the tunnel, and there is none"
		}
		if n := count[drop{fate, p.packet.Protocol, p.packet.Port}]; n > 1 {
			why += fmt.Sprintf(" (and for %d more VIPs)", n-1)
		} else if p.service.Port != 0 { // the port of its other addresses stays as closed as it is
			p.dst = p.vip.Addr
		}
		c.add(level, code, place(fate), letIn(p, fate), "%s drops %s%s%s", place(fate), p.what, by, why)
	}
}

// any says that a probe is about whatever service there is.
func (p probe) any() bool { return p.packet.Port == 0 && p.allow == "" }

// everywhere is how bad it is: a warning where packets by some other NIC come through, as the director may be there.
func (c *checkup) everywhere(p probe) (level Level, by string) {
	if p.packet.Unwrapped {
		return Error, ", which comes out of " + p.packet.Iface
	}
	first := p.packet.Iface
	for _, nic := range c.nics {
		o := p.packet
		o.Iface, o.Index = nic.Name, nic.Index
		if !c.around.Fates[o].Dropped {
			return Warning, ", which comes in by " + first + " (not by " + nic.Name + ")"
		}
	}
	return Error, ""
}

// place names a rule, or a policy.
func place(f nft.Fate) string {
	where := fmt.Sprintf("%s %s %s", f.Family, f.Table, f.Chain)
	if f.Handle == 0 {
		return "the policy of chain " + where
	}
	return fmt.Sprintf("the rule with handle %d of chain %s", f.Handle, where)
}

// iptables says that iptables wrote the table: nft(8) may add to it, but iptables could not read it any more.
func iptables(f nft.Fate) bool {
	return f.Family != nft.Inet && slices.Contains([]string{"filter", "raw", "mangle", "nat", "security"}, f.Table) && strings.ToUpper(f.Chain) == f.Chain
}

// letIn is the command that has the packets come through, in the words of whoever made the rules.
func letIn(p probe, f nft.Fate) string {
	switch {
	case f.ReversePath && (f.Owned || f.Table == "firewalld"):
		return "set IPv6_rpfilter=no in /etc/firewalld/firewalld.conf: firewall-cmd --reload"
	case (f.Owned || f.Table == "firewalld") && p.allow != "":
		return "firewall-cmd " + p.allow
	}
	if !iptables(f) {
		if p.dst.IsValid() {
			p.match = fmt.Sprintf("%s daddr %s %s", p.packet.Family, p.dst, p.match)
		}
		if p.packet.Unwrapped {
			p.match = "iifname " + quote(p.packet.Iface) + " " + p.match
		}
		return fmt.Sprintf("nft insert rule %s %s %s %s accept", f.Family, quote(f.Table), quote(f.Chain), p.match)
	}
	command := "iptables"
	if f.Family == nft.IP6 {
		command = "ip6tables"
	}
	command += fmt.Sprintf(" -t %s -I %s -p %d", f.Table, quote(f.Chain), p.packet.Protocol)
	if p.packet.Unwrapped {
		command += " -i " + quote(p.packet.Iface)
	}
	if p.dst.IsValid() {
		command += " -d " + p.dst.String()
	}
	if p.packet.Port != 0 {
		command += fmt.Sprintf(" --dport %d", p.packet.Port)
	}
	return command + " -j ACCEPT"
}
