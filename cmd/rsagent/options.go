package main

import (
	"errors"
	"net/netip"
	"slices"

	"rsagent/realserver"
)

// A vipOption is an option of a VIP: a flag of start, and a key of the config file.
type vipOption struct {
	name, usage string
	list, truth bool
	set         func(v *realserver.VIP, words []string)
	// An option may make sense under a certain value of another only. Given by a weaker source than
	// that other one, it was meant for other VIPs, and is left out where it makes none.
	under string
	idle  func(v realserver.VIP) bool
}

var vipOptions = []vipOption{
	{name: "mode", usage: "the director forwards by `MODE` dr or tun (default: dr)",
		set: func(v *realserver.VIP, w []string) { v.Mode = realserver.Mode(w[0]) }},
	{name: "device", usage: "bind the VIP on interface `NAME` (default: lo, or the tunnel's)",
		set: func(v *realserver.VIP, w []string) { v.Device = w[0] }},
	{name: "tunnel", usage: "mode tun: the director wraps packets as `KIND` ipip (default: ipip)",
		set:   func(v *realserver.VIP, w []string) { v.Tunnel = w[0] },
		under: "mode", idle: func(v realserver.VIP) bool { return v.Mode == realserver.DR }},
	{name: "scope", usage: "give the address `SCOPE` host or global (default: host)",
		set: func(v *realserver.VIP, w []string) { v.Scope = w[0] }},
	{name: "arp-guard", usage: "silence `WHICH` interfaces: all, interface (those named), nft (all, by nftables) or none (default: all)",
		set: func(v *realserver.VIP, w []string) { v.Guard = w[0] }},
	{name: "interface", list: true, usage: "--arp-guard interface: silence `NAME`; repeatable, or a comma list",
		set:   func(v *realserver.VIP, w []string) { v.Interfaces = slices.Sorted(slices.Values(w)) },
		under: "arp-guard", idle: func(v realserver.VIP) bool { return v.Guard != realserver.GuardInterface }},
	{name: "rp-filter", usage: "mode tun: open the tunnel's reverse path filter, `HOW` loose (default: loose)",
		set:   func(v *realserver.VIP, w []string) { v.RPFilter = w[0] },
		under: "mode", idle: func(v realserver.VIP) bool { return v.Mode == realserver.DR }},
	{name: "allow-director", truth: true, usage: "take a VIP that is this host's own address",
		set: func(v *realserver.VIP, w []string) { v.AllowDirector = w[0] == "true" }},
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
		if o.under != "" && o.idle(v) {
			if _, governor := find(o.under, layers); governor < i {
				continue
			}
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
		if o.name == bad.Option && o.under != "" {
			if w, i := find(o.under, layers); i < len(layers) {
				return w.misuse("%s", bad.Error())
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
		configured, err := f.vips(c.flags, c.vars)
		if len(configured) == 0 && err == nil {
			_, err = build(netip.Addr{}, c.flags, c.vars, f.defaults) // of no effect, but judged
		}
		return configured, err
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
