// Package arp is the policy that makes a real server silent about its VIPs.
//
// The ARP problem. In DR, and in TUN where director and real server share a segment, the VIP is
// configured on the director and on every real server at once. Linux answers ARP for any address
// the host owns, on whichever interface the question comes in. So when a router asks who has the
// VIP, a real server may answer before the director does; the router caches that answer, and from
// then on one machine takes the whole service. The same happens when a real server asks: an ARP
// request carries its sender's address, and one sent with the VIP as sender rewrites every
// neighbour's cache.
//
// Moving the VIP to lo, giving it scope host, deprecating it, or putting it on a device without ARP
// changes none of this: the kernel looks at the address asked for and at the interface the question
// came in on. What does help are two settings of that interface:
//
//   - arp_ignore: which requests are answered.
//   - arp_announce: which of the host's addresses a request of its own may carry.
//
// The kernel acts on the larger of conf/all and conf/INTERFACE, and the values are not ordered by
// strictness: 3 answers for more than 1 does. So each effective value is judged, not only what was
// written. The values of conf/lo, which the classic recipe writes, have no effect at all: no ARP
// arrives on lo.
package arp

import "rsagent/sysctl"

const source = "Documentation/networking/ip-sysctl.rst"

// Rules is the whole policy. scopeHost says that each VIP has address scope host: then arp_ignore 3
// is silent too, which answers for no address of that scope.
//
// arp_ignore: 1 and 2 answer only for addresses of the interface asked on; 8 answers for none, the
// host's own included; 0 answers for all, and so do 4 to 7 and 9 and up, which the kernel does not
// define. arp_announce: 2 picks a sender from the subnet of the target; 0 and 1 may send the VIP;
// 3 and up act like 0.
func Rules(scopeHost bool) []sysctl.Rule {
	ignore := sysctl.Rule{
		Knob: sysctl.ARPIgnore, Good: sysctl.OneOf(1, 2, 8), Want: 1, Source: source,
		Why: "answer ARP only for addresses of the interface it came in on, so never for the VIP",
	}
	if scopeHost {
		ignore.Good = sysctl.OneOf(1, 2, 3, 8)
	}
	return []sysctl.Rule{ignore, {
		Knob: sysctl.ARPAnnounce, Good: sysctl.OneOf(2), Want: 2, Source: source,
		Why: "never send an ARP request with the VIP as its sender",
	}}
}
