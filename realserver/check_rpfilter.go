package realserver

import (
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// reversePath finds reverse path filters that drop the clients' packets, beside those that status finds.
func (c *checkup) reversePath() {
	if c.around.Dropped > 0 {
		c.add(Warning, "rp-filter-drops", "", "nstat -az TcpExtIPReversePathFilter; then sysctl -w net.ipv4.conf.NIC.rp_filter=2, of the interface that it is", "the reverse path filter dropped %d packets while this was looked at", c.around.Dropped)
	}
	done, strict := map[string]bool{}, c.strict()
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
		for _, a := range strict {
			if v.Mode == DR && a.Subnet().Contains(v.Addr) {
				key := sysctl.Key{Iface: quote(a.Device), Knob: sysctl.RPFilter}
				c.add(Warning, "rp-filter-nic", a.Device, key.Command("2"), "VIP %s is of the subnet of %s, by which the director so reaches this host, and whose rp_filter is 1: it drops clients who are reached by the default route, by %s", v.Addr, a.Device, c.host.uplink().Name)
			}
		}
	}
}

// strict are the addresses with a subnet on NICs that are not the default route's, and filter strictly.
func (c *checkup) strict() (out []loopback.Held) {
	up := c.host.byIndex(c.host.Uplink)
	for _, a := range c.host.Addrs {
		if up == nil || a.Bare() || a.Device == up.Name {
			continue
		}
		if l := c.host.link(a.Device); l != nil && l.Speaks() && c.host.Conf.Effective(l.Name, sysctl.RPFilter) == 1 {
			out = append(out, a)
		}
	}
	return out
}
