package realserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"rsagent/arp"
	"rsagent/arp/nft"
	"rsagent/loopback"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// linux is the kernel of the network namespace in which it was opened.
type linux struct {
	socket *nl.SocketHandle
	conf   sysctl.Tree
}

// netlinkPatience bounds each wait for the kernel, in seconds.
const netlinkPatience = 10

// Linux opens the kernel of the calling thread's network namespace. close gives its socket back.
func Linux() (k Kernel, closer func(), err error) {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_ROUTE)
	if err != nil {
		return Kernel{}, nil, fmt.Errorf("open netlink: %w", err)
	}
	wait := unix.Timeval{Sec: netlinkPatience}
	if err := s.SetReceiveTimeout(&wait); err != nil {
		return Kernel{}, nil, fmt.Errorf("set netlink timeout: %w", err)
	}
	l := linux{&nl.SocketHandle{Socket: s}, sysctl.Tree{Root: "/proc/sys"}}
	return Kernel{Look: l.look, Do: l.do, Around: l.around, Alarm: l.alarm, Connections: connections}, s.Close, nil
}

func (l linux) look(also Also) (*Host, error) {
	links, conf, err := l.conf.Look(l.socket)
	if err != nil {
		return nil, err
	}
	h := &Host{Links: links, Conf: conf, Modules: map[string]bool{}, Received: map[string]uint64{}}
	names := make(map[int]string, len(links))
	for _, i := range links {
		names[i.Index] = i.Name
	}
	if h.Addrs, err = loopback.Observe(l.socket, names); err != nil {
		return nil, err
	}
	route, err := loopback.DefaultRoute(l.socket)
	if err != nil {
		return nil, err
	}
	h.Source, h.Gateway, h.Uplink = route.Source, route.Gateway, route.Index
	if h.Forwards, err = l.conf.Forwards(); err != nil {
		return nil, err
	}
	if also.Routes {
		if h.Dropped, err = loopback.Blackholes(l.socket); err != nil {
			return nil, err
		}
	}
	if also.Tables {
		if err = h.readTables(); err != nil && !errors.Is(err, nft.ErrUnsupported) {
			return nil, err
		}
		h.Directs = directs()
	}
	if also.Found && !also.Tables && nft.There() && h.readTables() != nil {
		h.Tables = nil // it cannot be told
	}
	if also.Proxy {
		if h.Proxied, err = loopback.Proxied(l.socket, names); err != nil {
			return nil, err
		}
	}
	if also.Ports {
		if h.Ports, h.Modules[tunnel.FOU], err = tunnel.Ports(); err != nil {
			return nil, err
		}
	}
	for _, k := range tunnel.Devices() {
		dev := h.link(k.Device)
		if also.Tunnel && !h.Modules[k.Module] {
			h.Modules[k.Module] = dev != nil && dev.Kind == k.Link || tunnel.Loaded(k.Module)
		}
		if dev == nil || !dev.Up {
			continue
		}
		if n, err := tunnel.Received(l.socket, dev.Index); err == nil {
			h.Received[k.Device] = n
		}
	}
	return h, nil
}

// do makes the changes in order; neighbouring addresses travel together.
func (l linux) do(ctx context.Context, h *Host, changes []Change) []error {
	errs := make([]error, len(changes))
	for i := 0; i < len(changes); {
		end := i + 1
		if _, ok := changes[i].Item.(loopback.Addr); ok {
			for end < len(changes) && addrOf(changes[end].Item).IsValid() {
				end++
			}
			copy(errs[i:end], addresses(h, changes[i:end]))
		} else {
			errs[i] = l.set(ctx, h, changes[i])
		}
		if changes[i].Stage != PutBack && !changes[i].unjudged && errors.Join(errs[i:end]...) != nil {
			for i := end; i < len(changes); i++ {
				errs[i] = errSkipped
			}
			break
		}
		i = end
	}
	return errs
}

func addresses(h *Host, changes []Change) []error {
	ops := make([]loopback.Op, len(changes))
	index := map[string]int{}
	for i, c := range changes {
		a := c.Item.(loopback.Addr)
		if _, ok := index[a.Device]; !ok {
			if l := h.link(a.Device); l != nil {
				index[a.Device] = l.Index
			}
		}
		ops[i] = loopback.Op{Index: index[a.Device], Addr: a, Scope: c.To}
	}
	errs, err := loopback.Apply(ops)
	if err != nil { // what became of them is unknown: none counts as done
		err = fmt.Errorf("%s, and %d more: %w", changes[0].Command(), len(changes)-1, err)
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

// set changes one thing that is no address.
func (l linux) set(ctx context.Context, h *Host, c Change) error {
	switch it := c.Item.(type) {
	case sysctl.Key:
		v, err := strconv.Atoi(c.To)
		if err != nil {
			return err
		}
		return l.conf.Set(it, v)
	case tunnel.Link:
		link := h.link(it.Name)
		if link == nil {
			return fmt.Errorf("%s: there is no such interface", it)
		}
		return tunnel.SetUp(l.socket, link.Index, c.To == "up")
	case arp.GuardTable, tunnel.RulesTable:
		err := setTable(it, c.To)
		if errors.Is(err, nft.ErrUnsupported) {
			err = fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		return err
	case loopback.Blackhole:
		return loopback.SetBlackhole(l.socket, it, c.To != "")
	case tunnel.Module:
		device := ""
		if k, ok := tunnel.ByModule(it.Name); ok {
			device = k.Device
		}
		err := tunnel.Load(ctx, l.socket, it.Name, device)
		l.settle(ctx, device)
		return err
	case tunnel.Device:
		if c.To == "" {
			return tunnel.Delete(l.socket, it.Name)
		}
		k, _ := tunnel.ByDevice(it.Name)
		err := tunnel.Create(k, c.To)
		l.settle(ctx, k.Device)
		return err
	case tunnel.Mode:
		return tunnel.SetMode(it, c.To)
	case tunnel.Port:
		err := tunnel.Open(it, c.To != "")
		if errors.Is(err, tunnel.ErrBusy) {
			err = fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return err
	}
	return fmt.Errorf("%s cannot be changed", c.Item)
}

// settle waits for udev, which writes the settings of a device that has just appeared.
func (l linux) settle(ctx context.Context, device string) {
	if device == "" {
		return
	}
	if index, err := tunnel.Index(l.socket, device); err == nil {
		tunnel.Settle(ctx, index)
	}
}
