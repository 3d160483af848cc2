package realserver

import (
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// reversePath finds reverse path filters that drop the clients' packets, beside those that status finds.
func (c *checkup) reversePath() {
	if c.around.Dropped > 0 {
		c.add(Warning, "rp-filter-drops", "", "nstat -az TcpExtIPReversePathFilter; then sysctl -w net.ipv4.conf.NIC.rp_filter=2, of the interface that it is", "the reverse path filter dropped %d packets while this was looked at", c.around.Dropped)
	}
	done := map[string]bool{}
	for _, v := range c.onHost() {
		if !v.Addr.Is4() {
			continue
		}
		if device := v.kind().Device; v.Mode == TUN && !done[device] {
			done[device] = true
			if c.host.Uplink == 0 && c.host.link(device) != nil && c.host.Conf.Effective(device, sysctl.RPFilter) == 2 && tunnel.RPFilter(true).Good(2) {
				c.add(Warning, "rp-filter-no-route", device, "ip route add default via GATEWAY", "rp_filter of %s is 2, there is no default route, and the packets of clients to whom no other route leads are dropped", device)
			}
		}
		if v.Mode == DR {
			c.otherNIC(v)
		}
	}
}

// otherNIC finds a NIC in whose subnet the VIP is, by which the director so forwards it, and whose strict filter drops
// clients that are reached by another.
func (c *checkup) otherNIC(v VIP) {
	up := c.host.byIndex(c.host.Uplink)
	for _, a := range c.host.Addrs {
		l := c.host.link(a.Device)
		if l == nil || !l.Speaks() || up == nil || l.Index == up.Index || a.Bare() || !a.Subnet().Contains(v.Addr) || c.host.Conf.Effective(l.Name, sysctl.RPFilter) != 1 {
			continue
		}
		key := sysctl.Key{Iface: quote(l.Name), Knob: sysctl.RPFilter}
		c.add(Warning, "rp-filter-nic", l.Name, key.Command("2"), "VIP %s is of the subnet of %s, whose rp_filter is 1: it drops clients who are reached by the default route, by %s", v.Addr, l.Name, up.Name)
	}
}
