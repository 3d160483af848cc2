package realserver

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rsagent/arp"
	"rsagent/sysctl"
)

// ErrMayNotAsk is that Probe may not send frames of its own making: it needs CAP_NET_RAW.
var ErrMayNotAsk = arp.ErrMayNotAsk

// A Claim is who on an interface's segment says that a VIP is its own. None is that nobody does: the director is down, or
// elsewhere. One is the director, or a real server where the director is down. Of several, all but the director leak.
type Claim struct {
	VIP       netip.Addr `json:"vip"`
	Interface string     `json:"interface"`
	MACs      []string   `json:"macs"` // sorted
}

// Probe asks the neighbours on this host's uplinks for VIPs, for as long as during, by two packets for each VIP and uplink.
// An uplink is an Ethernet interface that is up, speaks ARP, and is in the VIP's subnet or has the IPv4 default route; it
// asks as itself. A VIP for which there is none has no Claim. This host's own answers are not heard. Errors: ErrMayNotAsk;
// those of sockets.
func (h *Host) Probe(vips []netip.Addr, during time.Duration) (claims []Claim, err error) {
	var questions []arp.Question
	set := fromAddrs(vips).sorted()
	for _, v := range set {
		for _, l := range h.Links {
			if from := h.asker(l, v.Addr, set); from.IsValid() {
				questions = append(questions, arp.Question{Interface: l.Index, From: from, Addr: v.Addr})
				claims = append(claims, Claim{VIP: v.Addr, Interface: l.Name, MACs: []string{}})
			}
		}
	}
	macs, err := arp.Ask(questions, during)
	if err != nil {
		return nil, err
	}
	for i := range macs {
		claims[i].MACs = append(claims[i].MACs, macs[i]...)
	}
	return claims, nil
}

// asker is the address by which an interface asks for a VIP: one of the VIP's subnet, or any where it has the default
// route. The zero Addr is that it does not ask.
func (h *Host) asker(l sysctl.Interface, vip netip.Addr, vips Set) (from netip.Addr) {
	if !l.Up || !l.Speaks() || l.MAC != arp.MAC || holds(l) {
		return from
	}
	for _, a := range h.Addrs {
		ip := a.Prefix.Addr()
		switch {
		case a.Device != l.Name || ip.Is4() != vip.Is4() || a.Scope == "host" || vips.has(ip):
		case !a.Bare() && a.Subnet().Contains(vip):
			return ip
		case l.Index == h.Uplink && !from.IsValid():
			from = ip
		}
	}
	return from
}

// patience is how long answers are waited for.
const patience = time.Second

// parseARP reads /proc/net/arp (net/ipv4/arp.c, arp_format_neigh_entry): who of this host's neighbours has which MAC address.
func parseARP(s string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(s) {
		if words := strings.Fields(line); len(words) == 6 && out[words[3]] == "" {
			out[words[3]] = words[0]
		}
	}
	return out
}

// someOwners are as many as are named: who floods the segment with claims fills no log.
const someOwners = 10

// claims finds who answers for each VIP.
func (c *checkup) claims() {
	for _, x := range c.around.Claims {
		level, vip := Warning, x.VIP.String()
		if v := c.set.get(x.VIP); v != nil && v.Mode == TUN { // its director may be anywhere
			level = Info
		}
		var owners []string
		for _, mac := range x.MACs {
			if ip := c.around.Neighbours[mac]; ip != "" && ip != vip {
				mac += " (" + ip + ")"
			}
			owners = append(owners, mac)
		}
		switch len(owners) {
		case 0:
			c.add(level, "claimed-by-nobody", vip, "", "nobody on %s answers for %s: the director is down, or on another segment", x.Interface, vip)
		case 1:
			if mac, err := net.ParseMAC(x.MACs[0]); err == nil && (mac[0]&1 != 0 || !slices.ContainsFunc(mac, func(b byte) bool { return b != 0 })) {
				c.add(level, "claimed", vip, "", "%s on %s answers for %s, which is no address of a NIC's", owners[0], x.Interface, vip)
				continue
			}
			c.add(Info, "claimed", vip, "", "%s on %s answers for %s: this should be the director", owners[0], x.Interface, vip)
		default:
			if n := len(owners) - someOwners; n > 0 {
				owners = append(owners[:someOwners:someOwners], fmt.Sprintf("and %d more", n))
			}
			c.add(Error, "claimed-by-several", vip, "on each but the director: rsagent start --vip "+vip, "%d hosts on %s answer for %s, and all but the director take its clients: %s",
				len(x.MACs), x.Interface, vip, strings.Join(owners, ", "))
		}
	}
}
