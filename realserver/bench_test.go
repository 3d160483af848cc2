package realserver

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"rsagent/loopback"
)

// many is n VIPs that the crash model's judge does not look at.
func many(n int) (vips []VIP) {
	for i := range n {
		vips = append(vips, with(New(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})), func(v *VIP) { v.Origin = Config }))
	}
	return vips
}

// BenchmarkConverge is what rsagent itself costs: the kernel is a fake, whose cost grows with n as well.
func BenchmarkConverge(b *testing.B) {
	for _, n := range []int{1, 100, 1000, 10000} {
		vips := many(n)
		for _, verb := range []struct {
			name         string
			before, edit Edit
		}{
			{"start", DropAll, Add(vips...)},
			{"again", Add(vips...), Add(vips...)},
			{"stop", Add(vips...), DropAll},
		} {
			b.Run(fmt.Sprintf("%s-%d", verb.name, n), func(b *testing.B) {
				k := &bulk{}
				a := &Agent{Kernel: k.kernel(), StateDir: b.TempDir()}
				for b.Loop() {
					b.StopTimer()
					if _, err := a.Converge(context.Background(), verb.before); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					if _, err := a.Converge(context.Background(), verb.edit); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// bulk is a kernel for many addresses: a change costs the same however many there are.
type bulk struct {
	*fake
	addrs map[loopback.Addr]loopback.Held
}

func (k *bulk) kernel() Kernel {
	k.fake, k.addrs = base{}.kernel(), map[loopback.Addr]loopback.Held{}
	for _, a := range k.host.Addrs {
		k.addrs[a.Addr] = a
	}
	return Kernel{
		Look: func(Also) (*Host, error) {
			h, err := k.look(Also{})
			h.Addrs = slices.Collect(maps.Values(k.addrs))
			return h, err
		},
		Do: func(_ context.Context, _ *Host, changes []Change) []error {
			for _, c := range changes {
				if a, ok := c.Item.(loopback.Addr); !ok {
					k.apply(c)
				} else if c.To == "" {
					delete(k.addrs, a)
				} else {
					k.addrs[a] = loopback.Held{Addr: a, Scope: c.To}
				}
			}
			return make([]error, len(changes))
		},
	}
}

// TestCosts holds what rsagent asks of the kernel and of the journal to the number of stages, however
// many VIPs there are; a second start writes nothing.
func TestCosts(t *testing.T) {
	type costs struct{ looks, journal, changes int }
	run := func(n int, edits ...Edit) (c costs) {
		k := &bulk{}
		inner := k.kernel()
		a := &Agent{StateDir: t.TempDir()}
		a.Kernel.Look = func(also Also) (*Host, error) { c.looks++; return inner.Look(also) }
		a.Kernel.Do = func(ctx context.Context, h *Host, changes []Change) []error {
			c.changes += len(changes)
			return inner.Do(ctx, h, changes)
		}
		a.moved = func() { c.journal++ }
		for _, e := range edits {
			c = costs{}
			if _, err := a.Converge(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	for _, v := range []struct {
		name  string
		edits func([]VIP) []Edit
		want  costs // looks; steps of journal writes (two each, one for a removal); changes beside the VIPs
		vips  bool
	}{
		{"start", func(v []VIP) []Edit { return []Edit{Add(v...)} }, costs{3, 2, 5}, true},
		{"start again", func(v []VIP) []Edit { return []Edit{Add(v...), Add(v...)} }, costs{1, 0, 0}, false},
		{"stop", func(v []VIP) []Edit { return []Edit{Add(v...), DropAll} }, costs{3, 3, 4}, true},
	} {
		for _, n := range []int{10, 1000} {
			want := v.want
			if v.vips {
				want.changes += n
			}
			if got := run(n, v.edits(many(n))...); got != want {
				t.Errorf("%s of %d VIPs: %+v, want %+v", v.name, n, got, want)
			}
		}
	}
}
