//go:build bench

package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

type command []string

// A side is one way to do a job: what is measured is do, a process, or call, a function in this one. What is before and after it is not.
type side struct {
	prepare, do, undo command
	call              func() error
}

// A figure is the median of what the runs of one side took.
type figure struct {
	wall, user float64 // milliseconds
}

// turns lets two sides, or one, take turns, so that a noisy machine hits both alike.
func (b *bench) turns(t *testing.T, reps int, sides ...side) (mine, rival figure) {
	t.Helper()
	runs := make([][]figure, 2)
	for n := range reps + 1 {
		for i, s := range sides {
			if s.prepare != nil {
				b.run(t, s.prepare)
			}
			var f figure
			if s.call != nil {
				f = b.call(t, s.call)
			} else {
				f = b.run(t, s.do)
			}
			if n > 0 { // the first warms up
				runs[i] = append(runs[i], f)
			}
			if s.undo != nil {
				b.run(t, s.undo)
			}
		}
	}
	return median(runs[0]), median(runs[1])
}

func median(runs []figure) (m figure) {
	if len(runs) == 0 {
		return m
	}
	of := func(get func(figure) float64) float64 {
		var all []float64
		for _, f := range runs {
			all = append(all, get(f))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return figure{of(func(f figure) float64 { return f.wall }), of(func(f figure) float64 { return f.user })}
}

// run runs a whole process on the host.
func (b *bench) run(t *testing.T, c command) (f figure) {
	t.Helper()
	b.Do(func() {
		cmd := exec.Command(c[0], c[1:]...)
		var out strings.Builder
		cmd.Env = testnet.Environ()
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		err := cmd.Run()
		f.wall = ms(time.Since(began))
		if err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(c, " "), err, out.String())
		}
		f.user = ms(cmd.ProcessState.UserTime())
	})
	return f
}

// peak is the most memory that a process held, in kB, the median of five. The kernel counts what it held before it became the
// program, which is all that its parent has: so that is time(1).
func (b *bench) peak(t *testing.T, do, undo command) float64 {
	t.Helper()
	var all []float64
	for range 5 {
		out := filepath.Join(b.dir, "peak")
		b.run(t, append(command{"time", "-f", "%M", "-o", out}, do...))
		b.run(t, undo)
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		kB, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, kB)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func (b *bench) call(t *testing.T, f func() error) figure {
	t.Helper()
	var took time.Duration
	b.Do(func() {
		began := time.Now()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		took = time.Since(began)
	})
	return figure{wall: ms(took)}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
