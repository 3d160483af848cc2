// Package services has those who start rsagent on a real host do so in a VM, from power-on: systemd by the units, the
// init script, the drop-in for the classic script, and dpkg.
//
// The guest is on an Ethernet segment with this process alone, which asks for every VIP by ARP as long as the guest runs,
// through all its boots, and must not be answered.
package services
