package realserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Left is a VIP to which there are connections, how many, and who has some of them.
type Left struct {
	VIP   netip.Addr
	Count int
	Peers []string // address and port
}

// somePeers are as many as are named.
const somePeers = 3

func (l Left) String() string {
	what, from := "connections", strings.Join(l.Peers, ", ")
	if l.Count == 1 {
		what = "connection"
	}
	if n := l.Count - len(l.Peers); n > 0 {
		from += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%d %s to %s (from %s)", l.Count, what, l.VIP, from)
}

// Left lists the VIPs that edit, and given as in Look, would take off this host, and that have connections. One that is on a NIC
// too counts like any other: by that copy its connections live on, but only until keepalived takes it away.
// It takes no lock and changes nothing. Errors: *JournalError, ErrUnsupported, and what the kernel says, fs.ErrPermission among
// it.
func (a *Agent) Left(edit Edit, given ...netip.Addr) ([]Left, error) {
	_, j, _, err := a.openStore()
	if err != nil {
		return nil, err
	}
	j.edit(edit, a.Blackhole, given...)
	h, err := a.Kernel.look(Also{})
	if err != nil {
		return nil, err
	}
	var vips []netip.Addr
	for i, found := range onHost(fromAddrs(j.Leaving), h) {
		if found {
			vips = append(vips, j.Leaving[i])
		}
	}
	if len(vips) == 0 {
		return nil, nil
	}
	list, err := again(func() ([]Connection, error) { return a.Kernel.Connections(vips) })
	return tally(list), err
}

// tally counts connections by VIP, in the order of addresses.
func tally(list []Connection) (out []Left) {
	index, order := map[netip.Addr]Left{}, []netip.Addr(nil)
	for _, c := range list {
		l := index[c.VIP]
		if l.Count == 0 {
			l.VIP, order = c.VIP, append(order, c.VIP)
		}
		if l.Count++; l.Count <= somePeers {
			l.Peers = append(l.Peers, netip.AddrPortFrom(c.Peer, c.Port).String())
		}
		index[c.VIP] = l
	}
	slices.SortFunc(order, netip.Addr.Compare)
	for _, vip := range order {
		out = append(out, index[vip])
	}
	return out
}

// Drain waits until Left finds nothing, and looks again and again: other verbs go on meanwhile, so that what leaves may change.
// told hears each time how many connections there are. When ctx is done, Drain returns its cause, and what is left. The errors
// are else those of Left.
func (a *Agent) Drain(ctx context.Context, edit Edit, told func(connections int), given ...netip.Addr) ([]Left, error) {
	for {
		over, began := ctx.Err() != nil, time.Now()
		left, err := a.Left(edit, given...)
		switch {
		case err != nil || len(left) == 0:
			return nil, err
		case over:
			return left, context.Cause(ctx)
		}
		n := 0
		for _, l := range left {
			n += l.Count
		}
		told(n)
		select {
		case <-ctx.Done():
		case <-time.After(max(nextLook, 5*time.Since(began))): // however much there is to list, it takes a sixth of one CPU
		}
	}
}

// nextLook is between two looks at the connections.
const nextLook = 200 * time.Millisecond

// Words are some of a list in one line, and how many more there are.
func Words(left []Left) string {
	const most = 3
	var words []string
	for _, l := range left[:min(most, len(left))] {
		words = append(words, l.String())
	}
	if n := len(left) - most; n > 0 {
		words = append(words, fmt.Sprintf("and those to %d more VIPs", n))
	}
	return strings.Join(words, ", ")
}
