package realserver

import (
	"fmt"
	"slices"

	"rsagent/sysctl"
)

// source finds VIPs that the host speaks as.
func (c *checkup) source() {
	for _, v := range c.onHost() {
		if v.Addr != c.host.Source && v.Addr != c.around.Source6 {
			continue
		}
		cure := "ip addr add ADDRESS/64 dev NIC, with a global address of this host's own"
		if v.Addr.Is4() && v.Origin != 0 && v.Scope == "global" {
			w := v
			w.Scope = "host"
			cure = fmt.Sprintf("rsagent stop --vip %s && rsagent start %s", v.Addr, w.flags())
		} else if v.Addr.Is4() {
			cure = "ip route replace default via GATEWAY src ADDRESS, with one of this host's own"
		}
		c.add(Warning, "vip-as-source", v.Addr.String(), cure, "this host itself speaks as VIP %s to anywhere beyond its subnets, and the answers go to the director", v.Addr)
	}
}

// segments finds VIPs whose clients are told of larger segments than fit in the director's wrapping.
func (c *checkup) segments() {
	for _, v := range c.onHost() {
		n, fits := c.host.names(v), c.host.fits(v)
		if v.Mode != TUN || v.MSS != "" || fits == 0 || n <= fits {
			continue
		}
		w := v
		w.MSS = AutoMSS
		c.add(Info, "large-segments", v.Addr.String(), "rsagent start "+w.flags(), "clients of VIP %s are told to send segments of %d bytes; in the director's wrapping %d fit the MTU of %s, %d: a large upload stalls where ICMP does not come through", v.Addr, n, fits, c.host.uplink().Name, c.host.uplink().MTU)
	}
}

// neighbours finds what else on this host has to do with the VIPs.
func (c *checkup) neighbours() {
	bound, holders := c.onHost(), c.host.holders()
	if len(c.set) > 0 && !slices.ContainsFunc(c.host.Links, func(l sysctl.Interface) bool { return l.Up && !holders[l.Name] }) {
		nic := "NIC"
		for _, a := range c.host.Addrs {
			if l := c.host.link(a.Device); l != nil && l.Speaks() && !a.Bare() {
				nic = l.Name
				break
			}
		}
		c.add(Error, "no-nic", "", "ip link set "+nic+" up", "no NIC is up: nothing comes for the VIPs")
	}
	for _, v := range bound {
		if c.around.Directs[v.Addr] && !c.around.BackupOnly {
			c.add(Error, "director-too", v.Addr.String(), "sysctl -w net.ipv4.vs.backup_only=1", "this host has %s in its own IPVS table: as a backup director it would direct what the master sends it, some of it back (that needs the sync daemon too: ipvsadm --start-daemon)", v.Addr)
		}
	}
	if c.host.Forwards && len(bound) > 0 {
		c.add(Info, "forwarding", "", "", "this host forwards (ip_forward is 1): stop its VIPs with --blackhole, or when the director has let go of it")
	}
	if c.around.Martians == 0 || len(bound) == 0 {
		return
	}
	level, whose := Warning, "this host's own addresses"
	if !c.around.Initial {
		level, whose = Info, "the receiver's own addresses, on this machine, which counts for all its network namespaces together"
	}
	cure := "have the director speak from an address of its own"
	if bound[0].Mode == TUN && len(c.nics) > 0 {
		cure += ", or: sysctl -w net.ipv4.conf." + c.nics[0].Name + ".accept_local=1"
	}
	c.add(level, "own-source", "", cure, "%d packets were dropped while this was looked at because they came from %s: a director that speaks from the VIP does that", c.around.Martians, whose)
}
