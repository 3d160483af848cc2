package main

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"

	"rsagent/realserver"
)

// A vipOption is an option of a VIP: a flag of start, and a key of the config file.
type vipOption struct {
	name, usage string
	list, truth bool
	number      bool // a file may have it without quotes
	set         func(v *realserver.VIP, words []string)
	// An option may make sense under certain values of others only. Given by a weaker source than one of
	// them, it was meant for other VIPs, and is left out where it makes none.
	under []string
	idle  func(v realserver.VIP) bool
}

var vipOptions = []vipOption{
	{name: "mode", usage: "the director forwards by `MODE` dr or tun (default: dr)",
		set: func(v *realserver.VIP, w []string) { v.Mode = realserver.Mode(w[0]) }},
	{name: "device", usage: "bind the VIP on interface `NAME` (default: lo, or the tunnel's)",
		set: func(v *realserver.VIP, w []string) { v.Device = w[0] }},
	{name: "tunnel", usage: "mode tun: the director wraps packets as `KIND` ipip, gre or gue (default: ipip)",
		set:   func(v *realserver.VIP, w []string) { v.Tunnel = w[0] },
		under: []string{"mode"}, idle: isDR},
	{name: "outer", number: true, usage: "mode tun: the director reaches this host by IP `VERSION` 4 or 6 (default: the VIP's)",
		set:   func(v *realserver.VIP, w []string) { v.Outer = w[0] },
		under: []string{"mode"}, idle: isDR},
	{name: "gue-port", number: true, usage: "tunnel gue: the director sends to UDP port `N`, tun-port in its ipvsadm (default: 6080)",
		set:   func(v *realserver.VIP, w []string) { v.GUEPort = number(w[0]) },
		under: []string{"mode", "tunnel"}, idle: func(v realserver.VIP) bool { return isDR(v) || v.Tunnel != "gue" }},
	{name: "csum", truth: true, usage: "tunnel gre: the director adds checksums, tun-csum in its ipvsadm",
		set:   func(v *realserver.VIP, w []string) { v.CSum = w[0] == "true" },
		under: []string{"mode", "tunnel"}, idle: func(v realserver.VIP) bool { return isDR(v) || v.Tunnel != "gre" }},
	{name: "scope", usage: "give the address `SCOPE` host or global (default: host)",
		set: func(v *realserver.VIP, w []string) { v.Scope = w[0] }},
	{name: "arp-guard", usage: "silence `WHICH` interfaces: all, interface (those named), nft (all, by nftables) or none (default: all)",
		set: func(v *realserver.VIP, w []string) { v.Guard = w[0] }},
	{name: "interface", list: true, usage: "--arp-guard interface: silence `NAME`; repeatable, or a comma list",
		set:   func(v *realserver.VIP, w []string) { v.Interfaces = slices.Sorted(slices.Values(w)) },
		under: []string{"arp-guard"}, idle: func(v realserver.VIP) bool { return v.Guard != realserver.GuardInterface }},
	{name: "rp-filter", usage: "mode tun: open the tunnel's reverse path filter, `HOW` loose or off (default: loose)",
		set:   func(v *realserver.VIP, w []string) { v.RPFilter = w[0] },
		under: []string{"mode"}, idle: isDR},
	{name: "mss", number: true, usage: "mode tun: have SYN packets from the VIP name no larger segment size than `N`, or what auto finds to fit (default: left)",
		set:   func(v *realserver.VIP, w []string) { v.MSS = w[0] },
		under: []string{"mode"}, idle: isDR},
	{name: "director", list: true, usage: "mode tun: take the director's packets from `ADDR` only, or a prefix; repeatable, or a comma list (default: anyone)",
		set:   func(v *realserver.VIP, w []string) { v.Directors = slices.Sorted(slices.Values(w)) },
		under: []string{"mode"}, idle: isDR},
	{name: "allow-director", truth: true, usage: "take a VIP that is this host's own address",
		set: func(v *realserver.VIP, w []string) { v.AllowDirector = w[0] == "true" }},
}

func isDR(v realserver.VIP) bool { return v.Mode == realserver.DR }

// number reads what is to be one; what is none is out of every range.
func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return -1
	}
	return int(n)
}

func (o vipOption) flag() *flag {
	return &flag{name: o.name, usage: o.usage, list: o.list, truth: o.truth}
}

// find is the option in the first layer that has it. Where none has, the index is behind the last.
func find(name string, layers []options) (w written, index int) {
	for i, l := range layers {
		if w, ok := l[name]; ok {
			return w, i
		}
	}
	return written{}, len(layers)
}

// build makes a VIP of layers of options, the strongest first. Each option is taken by itself.
func build(addr netip.Addr, layers ...options) (realserver.VIP, error) {
	v := realserver.New(addr)
	for _, o := range vipOptions {
		w, i := find(o.name, layers)
		if i == len(layers) {
			continue
		}
		stronger := func(governor string) bool { _, at := find(governor, layers); return at < i }
		if o.idle != nil && o.idle(v) && slices.ContainsFunc(o.under, stronger) {
			continue
		}
		o.set(&v, w.words)
	}
	var bad *realserver.OptionError
	switch err := v.Check(); {
	case errors.As(err, &bad):
		return v, located(bad, layers)
	case err != nil:
		return v, usageError{err}
	}
	return v, nil
}

// located says where the option stands that cannot be; where one is missing, the option that asks
// for it.
func located(bad *realserver.OptionError, layers []options) error {
	if w, i := find(bad.Option, layers); i < len(layers) {
		return w.misuse("%s", bad.Reason)
	}
	for _, o := range vipOptions {
		if o.name != bad.Option {
			continue
		}
		for _, governor := range o.under {
			if w, i := find(governor, layers); i < len(layers) {
				return w.misuse("%s", bad.Reason)
			}
		}
	}
	return usageError{bad}
}

// addresses reads those given by flag, else by variable.
func (c *call) addresses() (out []netip.Addr, err error) {
	w, _ := c.get("vip")
	for _, word := range w.words {
		a, err := realserver.ParseAddr(word)
		if err != nil {
			return nil, w.misuse("%w", err)
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// asked makes VIPs: those given, else those of the config file. An entry of the file for a VIP that
// is given tells its options too.
func (c *call) asked(f *file) ([]realserver.VIP, error) {
	addrs, err := c.addresses()
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return f.vips(c.flags, c.vars)
	}
	if _, err := f.vips(); err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]options, len(f.entries))
	for _, e := range f.entries {
		own[e.addr] = e.options
	}
	vips := make([]realserver.VIP, 0, len(addrs))
	for _, a := range addrs {
		v, err := build(a, c.flags, c.vars, own[a], f.defaults)
		if err != nil {
			return nil, err
		}
		v.Origin = realserver.Flag
		vips = append(vips, v)
	}
	return vips, nil
}
