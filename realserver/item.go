package realserver

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// An Item is one thing in the kernel that rsagent changes: a sysctl.Key, a loopback.Addr or
// Blackhole, an arp.GuardTable, a tunnel.RulesTable,
// Module, Device, Mode, Port or Link. Items are comparable; their values are strings, "" is
// absent.
type Item interface {
	String() string
	Command(value string) string // what an operator would type to give the item this value
}

// Command is what an operator would type to make the change, safe to paste: the kernel takes nearly
// any byte in an interface's name.
func (c Change) Command() string {
	it := c.Item
	if name := ifName(it); name != "" {
		it = renamed(it, quote(name))
	}
	return it.Command(c.To)
}

const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@%+=,/:"

// quote makes one word of s for a POSIX shell.
func quote(s string) string {
	if !strings.HasPrefix(s, "-") && strings.Trim(s, plain) == "" {
		return s
	}
	if strings.ContainsFunc(s, unicode.IsControl) { // which may not be seen as what they are: printf(1) makes them
		var b strings.Builder
		for _, c := range []byte(s) {
			fmt.Fprintf(&b, `\0%03o`, c)
		}
		return `"$(printf %b '` + b.String() + `')"`
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ifName is the interface an item belongs to; "" is none.
func ifName(it Item) string {
	switch it := it.(type) {
	case sysctl.Key:
		return it.Iface
	case loopback.Addr:
		return it.Device
	case tunnel.Device:
		return it.Name
	case tunnel.Link:
		return it.Name
	case tunnel.Mode:
		return it.Device
	}
	return ""
}

// renamed is the same item of an interface that has another name.
func renamed(it Item, name string) Item {
	switch it := it.(type) {
	case sysctl.Key:
		it.Iface = name
		return it
	case loopback.Addr:
		it.Device = name
		return it
	case tunnel.Device:
		return tunnel.Device{Name: name}
	case tunnel.Link:
		return tunnel.Link{Name: name}
	case tunnel.Mode:
		return tunnel.Mode{Device: name}
	}
	return it
}

// addrOf is the address an item is about; the zero Addr where it is about none.
func addrOf(it Item) netip.Addr {
	if a, ok := it.(loopback.Addr); ok {
		return a.Prefix.Addr()
	}
	return netip.Addr{}
}
