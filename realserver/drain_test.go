package realserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A clients is who is connected to VIPs, as a kernel tells it: at each time it is asked, what then says.
type clients struct {
	asked [][]netip.Addr
	then  func(times int, vips []netip.Addr) ([]Connection, error)
}

func (c *clients) connections(vips []netip.Addr) ([]Connection, error) {
	c.asked = append(c.asked, slices.Clone(vips))
	return c.then(len(c.asked), vips)
}

// to makes connections to an address, from ports that count from 1.
func to(vip netip.Addr, n int) (list []Connection) {
	for i := range n {
		list = append(list, Connection{vip, netip.MustParseAddr("198.51.100.99"), uint16(i + 1)})
	}
	return list
}

func (b *bench) drains(t *testing.T, c *clients, vips ...VIP) *Agent {
	t.Helper()
	b.on(base{tun: tunDown, allRP: 1}.kernel())
	if _, err, _ := b.converge(Add(vips...)); err != nil {
		t.Fatal(err)
	}
	k := b.kernel()
	k.Connections = c.connections
	return &Agent{Kernel: k, StateDir: b.dir, here: testPlace}
}

func silentTold(int) {}

// TestDrain: it waits while there are connections, tells how many, and ends with the first look that finds none. It changes
// nothing, and needs no lock: other verbs run while it waits.
func TestDrain(t *testing.T) {
	b := newBench(t)
	c := &clients{}
	a := b.drains(t, c, vipA, vipB)
	c.then = func(times int, _ []netip.Addr) ([]Connection, error) {
		if times == 1 {
			now, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
			defer cancel()
			unlock, err := a.lock(now)
			if err != nil {
				t.Fatal("the lock is held: ", err)
			}
			unlock()
			if _, err, _ := b.converge(Add(vipC)); err != nil {
				t.Fatal(err)
			}
		}
		return to(vipA.Addr, 3-times), nil
	}
	var told []int
	left, err := a.Drain(context.Background(), DropAll, func(n int) { told = append(told, n) })
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if !slices.Equal(told, []int{2, 1}) {
		t.Errorf("told of %v", told)
	}
	// The VIP that came meanwhile leaves too.
	want := [][]netip.Addr{{vipA.Addr, vipB.Addr}, {vipA.Addr, vipB.Addr, vipC.Addr}, {vipA.Addr, vipB.Addr, vipC.Addr}}
	if fmt.Sprint(c.asked) != fmt.Sprint(want) {
		t.Errorf("asked about %v, want %v", c.asked, want)
	}
	if r, err := a.Look(Keep); err != nil || len(r.VIPs) != 3 || len(r.Pending) > 0 {
		t.Errorf("it changed something: %+v, %v", r, err)
	}
}

// TestDrainWhich: the VIPs that are waited for are those that the verb takes off the host, no others.
func TestDrainWhich(t *testing.T) {
	stranger := netip.MustParseAddr("192.0.2.9")
	for _, test := range []struct {
		name  string
		edit  Edit
		given []netip.Addr
		with  func(*fake)
		want  string
	}{
		{"all", DropAll, nil, nil, "192.0.2.1 192.0.2.2 2001:db8::1"},
		{"one", Drop(vipB.Addr), []netip.Addr{vipB.Addr}, nil, "192.0.2.2"},
		{"those of the config", Replace(Config), nil, nil, "192.0.2.2"},
		{"none", Keep, nil, nil, ""},
		{"one that is not there", Drop(stranger), []netip.Addr{stranger}, nil, ""},
		{"one that someone else bound", Drop(stranger), []netip.Addr{stranger}, func(f *fake) {
			f.addAddr(with(vipA, func(v *VIP) { v.Addr = stranger }).addr(), "host")
		}, "192.0.2.9"},
		{"one that someone else took away", DropAll, nil, unbound, "192.0.2.2 2001:db8::1"},
		{"one that is on a NIC too", Drop(vipA.Addr), []netip.Addr{vipA.Addr}, func(f *fake) {
			f.addAddr(with(vipA, func(v *VIP) { v.Device = "eth0" }).addr(), "global")
		}, "192.0.2.1"},
		{"one that is on a NIC only", Drop(stranger), []netip.Addr{stranger}, func(f *fake) {
			f.addAddr(with(vipA, func(v *VIP) { v.Addr, v.Device = stranger, "eth0" }).addr(), "global")
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			c := &clients{then: func(int, []netip.Addr) ([]Connection, error) { return nil, nil }}
			a := b.drains(t, c, vipA, vipB, vip6)
			if test.with != nil {
				test.with(b.fake)
			}
			if left, err := a.Drain(context.Background(), test.edit, silentTold, test.given...); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			if got := strings.Trim(fmt.Sprint(slices.Concat(c.asked...)), "[]"); got != test.want {
				t.Errorf("asked about %s, want %s", got, test.want)
			}
		})
	}
}

// TestDrainOver: the time is over, or a signal comes: what is left is told, with the cause; after a last look, so that what
// has just ended is not.
func TestDrainOver(t *testing.T) {
	over := errors.New("over")
	for _, last := range []int{4, 0} {
		b := newBench(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		c := &clients{then: func(times int, _ []netip.Addr) ([]Connection, error) {
			if times == 1 {
				return to(vipA.Addr, 5), nil
			}
			return slices.Concat(to(vipB.Addr, min(1, last)), to(vipA.Addr, last)), nil
		}}
		a := b.drains(t, c, vipA, vipB)
		left, err := a.Drain(ctx, DropAll, func(int) { cancel(over) })
		got := fmt.Sprintf("%v %v after %d", Words(left), err, len(c.asked))
		want := " <nil> after 2"
		if last > 0 {
			want = "4 connections to 192.0.2.1 (from 198.51.100.99:1, 198.51.100.99:2, 198.51.100.99:3 and 1 more), 1 connection to 192.0.2.2 (from 198.51.100.99:1) over after 2"
		}
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if r, err := a.Look(Keep); err != nil || len(r.VIPs) != 2 || len(r.Pending) > 0 {
			t.Errorf("it changed something: %+v, %v", r, err)
		}
	}
}

// TestDrainCannotTell: where the connections cannot be listed, that is an error, and not that there are none; what passes is
// asked again.
func TestDrainCannotTell(t *testing.T) {
	for _, test := range []struct {
		fails int
		err   error
		want  error
	}{{1, unix.ENOBUFS, nil}, {1000, unix.EBUSY, unix.EBUSY}, {1, unix.EPERM, fs.ErrPermission}} {
		b := newBench(t)
		c := &clients{then: func(times int, _ []netip.Addr) ([]Connection, error) {
			if times <= test.fails {
				return nil, fmt.Errorf("list connections: %w", test.err)
			}
			return nil, nil
		}}
		a := b.drains(t, c, vipA)
		if left, err := a.Drain(context.Background(), DropAll, silentTold); !errors.Is(err, test.want) || len(left) > 0 {
			t.Errorf("%v: left %v, %v", test.err, left, err)
		}
	}
	b := newBench(t)
	a := b.drains(t, &clients{}, vipA)
	must(t, replaceFile(b.journal(), []byte("{")))
	var unusable *JournalError
	if _, err := a.Drain(context.Background(), DropAll, silentTold); !errors.As(err, &unusable) {
		t.Error(err)
	}
}

func TestDrainWords(t *testing.T) {
	var list []Connection
	for i := range 5 {
		list = append(list, to(netip.AddrFrom4([4]byte{192, 0, 2, byte(9 - i)}), 1)...)
	}
	want := "1 connection to 192.0.2.5 (from 198.51.100.99:1), 1 connection to 192.0.2.6 (from 198.51.100.99:1), " +
		"1 connection to 192.0.2.7 (from 198.51.100.99:1), and those to 2 more VIPs"
	if got := Words(tally(list)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
