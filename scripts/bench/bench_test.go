//go:build bench

package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"rsagent/loopback"
	"rsagent/scripts/testnet"
)

var (
	report  = flag.String("table", "", "write the table to this file too, as JSON")
	machine = flag.String("machine", runtime.GOARCH, "what the machine is called in the file")
)

func TestMain(m *testing.M) { os.Exit(testnet.Main(m)) }

// A table is printed line by line as it is measured.
type table struct{ rows []Row }

func (t *table) add(r Row) {
	if r.Rival != 0 {
		r.Ratio = r.Mine / r.Rival
		r.Met = r.Ratio <= r.Goal
	} else { // of nothing, at the most nothing
		r.Met = r.Mine == 0
	}
	if len(t.rows) == 0 {
		fmt.Printf("%-24s %6s %12s %12s %7s %6s\n", "median", "VIPs", "rsagent", "rival", "ratio", "goal")
	}
	t.rows = append(t.rows, r)
	verdict := "missed"
	if r.Met {
		verdict = "met"
	}
	fmt.Printf("%-24s %6d %12s %12s %7.2f %6.2f %-6s %s\n", r.What, r.VIPs, r.value(r.Mine), r.value(r.Rival), r.Ratio, r.Goal, verdict, r.Than)
}

// TestBench prints the table. It fails where something could not be measured, never for a figure.
func TestBench(t *testing.T) {
	b := newBench(t)
	var out table
	b.single(t, &out)
	for _, n := range []int{64, 1000, 10000} {
		b.many(t, &out, n)
	}
	b.status(t, &out)
	b.size(t, &out)
	for _, n := range []int{1, 64} {
		leak(t, &out, n)
	}
	if *report == "" {
		return
	}
	text, err := json.MarshalIndent(Table{*machine, out.rows}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*report, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A bench is the host that is measured on, and what is run there.
type bench struct {
	*testnet.Host
	dir, bin, state string
}

func newBench(t *testing.T) *bench {
	dir, err := os.MkdirTemp("/dev/shm", "rsagent-bench-") // in memory, as /run is on a real server
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	rs, peer := testnet.NewHost(t, "rs"), testnet.NewHost(t, "peer")
	testnet.Wire(t, rs, "eth0", "192.0.2.11/24", peer, "eth0", "192.0.2.1/24")
	return &bench{rs, dir, testnet.Rsagent(t), filepath.Join(dir, "state")}
}

func (b *bench) agent(args ...string) command {
	return command(append([]string{b.bin}, append(args, "--state-dir", b.state)...))
}

// vip is the n-th of the addresses that are used.
func vip(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}) }

// single is what one VIP costs.
func (b *bench) single(t *testing.T, out *table) {
	one := vip(1).String()
	start, stop := b.agent("start", "--vip", one), b.agent("stop")
	type rival struct {
		name, path string
	}
	for _, r := range []rival{
		{"the classic script, ifconfig", "../lab/testdata/lvs_real.sh"},
		{"the classic script, ip", b.script(t)},
	} {
		for _, shell := range []string{"bash", "dash"} { // it is a bash script wherever it is found; dash would be faster
			script := func(verb string) command { return command{shell, r.path, verb, one, "dr"} }
			than := r.name + ", by " + shell
			mine, theirs := b.turns(t, 40, side{do: start, undo: stop}, side{do: script("start"), undo: script("stop")})
			out.add(Row{What: "start, cold", VIPs: 1, Unit: "ms", Mine: mine.wall, Rival: theirs.wall, Than: than, Goal: 0.9})
			mine, theirs = b.turns(t, 40, side{prepare: start, do: start, undo: stop},
				side{prepare: script("start"), do: script("start"), undo: script("stop")})
			out.add(Row{What: "start again", VIPs: 1, Unit: "ms", Mine: mine.wall, Rival: theirs.wall, Than: than, Goal: 0.75})
		}
	}
	out.add(Row{What: "peak RSS of a start", VIPs: 1, Unit: "kB", Mine: b.peak(t, start, stop), Rival: 8000, Than: "the goal", Goal: 1})
}

// script writes the classic script in its other form, with ip(8).
func (b *bench) script(t *testing.T) string {
	t.Helper()
	path := filepath.Join(b.dir, "lvs_real_ip.sh")
	text := `case $1 in
start) ip addr add "$2/32" dev lo label lo:0; values="1 2" ;;
stop) ip addr del "$2/32" dev lo; values="0 0" ;;
esac
set -- $values
for i in lo all; do
	echo $1 >/proc/sys/net/ipv4/conf/$i/arp_ignore
	echo $2 >/proc/sys/net/ipv4/conf/$i/arp_announce
done
`
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// many is what n VIPs cost.
func (b *bench) many(t *testing.T, out *table, n int) {
	conf, add, del := b.files(t, n)
	start, stop := b.agent("start", "--config", conf), b.agent("stop")
	batch := func(file string, ignore, announce int) command {
		return command{"sh", "-c", fmt.Sprintf("echo %d >/proc/sys/net/ipv4/conf/all/arp_ignore; echo %d >/proc/sys/net/ipv4/conf/all/arp_announce; ip -batch %s", ignore, announce, file)}
	}
	bind, unbind := batch(add, 1, 2), batch(del, 0, 0)
	reps := 30
	if n > 1000 { // a second and more each
		reps = 5
	}
	cold, theirs := b.turns(t, reps, side{do: start, undo: stop}, side{do: bind, undo: unbind})
	than := "ip -batch and echo"
	out.add(Row{What: "start, cold", VIPs: n, Unit: "ms", Mine: cold.wall, Rival: theirs.wall, Than: than, Goal: map[int]float64{64: 0.9, 1000: 0.75, 10000: 0.83}[n]})
	if n == 64 {
		loop := command{"sh", "-c", fmt.Sprintf("for i in $(seq %d); do bash %s start 198.18.0.$i; done", n, b.script(t))}
		cold, theirs := b.turns(t, 10, side{do: start, undo: stop}, side{do: loop, undo: unbind})
		out.add(Row{What: "start, cold", VIPs: n, Unit: "ms", Mine: cold.wall, Rival: theirs.wall, Than: "a loop of the classic script, ip", Goal: 0.05})
		return
	}
	cold, kernel := b.turns(t, reps, side{do: start, undo: stop}, side{call: pipelined(n, "host"), undo: unbind})
	out.add(Row{What: "start, cold", VIPs: n, Unit: "ms", Mine: cold.wall, Rival: kernel.wall, Than: "the netlink messages alone", Goal: map[int]float64{1000: 1.5, 10000: 1.1}[n]})
	again, cold := b.turns(t, reps, side{prepare: start, do: start, undo: stop}, side{do: start, undo: stop})
	out.add(Row{What: "start again", VIPs: n, Unit: "ms", Mine: again.wall, Rival: cold.wall, Than: "its cold start", Goal: map[int]float64{1000: 0.4, 10000: 0.05}[n]})
	gone, theirs := b.turns(t, reps, side{prepare: start, do: stop}, side{prepare: bind, do: unbind})
	out.add(Row{What: "stop", VIPs: n, Unit: "ms", Mine: gone.wall, Rival: theirs.wall, Than: than, Goal: map[int]float64{1000: 0.7, 10000: 0.82}[n]})
	if n == 10000 {
		out.add(Row{What: "peak RSS of a start", VIPs: n, Unit: "kB", Mine: b.peak(t, start, stop), Rival: 32000, Than: "the goal", Goal: 1})
		small, _, _ := b.files(t, 100)
		few, _ := b.turns(t, 20, side{do: b.agent("start", "--config", small), undo: stop})
		one, _ := b.turns(t, 20, side{do: b.agent("start", "--vip", vip(1).String()), undo: stop})
		out.add(Row{What: "user CPU a VIP", VIPs: n, Unit: "ns", Mine: 1e6 * (cold.user - one.user) / float64(n), Rival: 1e6 * (few.user - one.user) / 100, Than: "a VIP of 100", Goal: 1})
	}
}

// files writes a config of n VIPs, and the same for ip -batch.
func (b *bench) files(t *testing.T, n int) (conf, add, del string) {
	t.Helper()
	var c, a, d bytes.Buffer
	c.WriteString("vips:\n")
	for i := range n {
		fmt.Fprintf(&c, "  - %s\n", vip(i+1))
		fmt.Fprintf(&a, "addr add %s/32 dev lo scope host\n", vip(i+1))
		fmt.Fprintf(&d, "addr del %s/32 dev lo\n", vip(i+1))
	}
	write := func(name string, text []byte) string {
		path := filepath.Join(b.dir, fmt.Sprintf("%s-%d", name, n))
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("rsagent.yaml", c.Bytes()), write("add", a.Bytes()), write("del", d.Bytes())
}

// pipelined sends the messages that add n VIPs on lo, and does nothing else.
func pipelined(n int, scope string) func() error {
	ops := make([]loopback.Op, n)
	for i := range ops {
		ops[i] = loopback.Op{Index: 1, Addr: loopback.Addr{Device: "lo", Prefix: netip.PrefixFrom(vip(i+1), 32)}, Scope: scope}
	}
	return func() error {
		_, err := loopback.Apply(ops)
		return err
	}
}

// status is what it costs to be asked.
func (b *bench) status(t *testing.T, out *table) {
	start, status, stop := b.agent("start", "--vip", vip(1).String()), b.agent("status"), b.agent("stop")
	for i := range 500 {
		b.Run(t, "ip", "link", "add", fmt.Sprintf("br%d", i), "type", "bridge")
	}
	mine, _ := b.turns(t, 40, side{prepare: start, do: status, undo: stop})
	out.add(Row{What: "status, 500 links", VIPs: 1, Unit: "ms", Mine: mine.wall, Rival: 10, Than: "the goal", Goal: 1})
	for i := range 500 {
		b.Run(t, "ip", "link", "del", fmt.Sprintf("br%d", i))
	}
	conf, _, _ := b.files(t, 10000)
	start = b.agent("start", "--config", conf)
	asked, cold := b.turns(t, 5, side{prepare: start, do: status, undo: stop}, side{do: start, undo: stop})
	out.add(Row{What: "status", VIPs: 10000, Unit: "ms", Mine: asked.wall, Rival: cold.wall, Than: "its cold start", Goal: 0.05})
}

// size is that of the binary.
func (b *bench) size(t *testing.T, out *table) {
	st, err := os.Stat(b.bin)
	if err != nil {
		t.Fatal(err)
	}
	out.add(Row{What: "binary", Unit: "bytes", Mine: float64(st.Size()), Rival: 6e6, Than: "the goal", Goal: 1})
}

// leak counts the ARP replies for a VIP while it is asked for without pause.
func leak(t *testing.T, out *table, n int) {
	const cycles = 200
	count := func(start, stop command) int {
		b := newBench(t)
		peer := testnet.NewHost(t, "asker")
		testnet.Wire(t, b.Host, "eth1", "192.0.3.11/24", peer, "eth0", "192.0.3.1/24")
		ask := peer.AskARP(t, "eth0", vip(n).String(), 200*time.Microsecond)
		for range cycles {
			b.run(t, start)
			b.run(t, stop)
		}
		asked, replies := ask.Stop()
		if asked < 2*cycles {
			t.Fatalf("%d requests only, in %d cycles", asked, cycles)
		}
		sum := 0
		for _, r := range replies {
			sum += r
		}
		return sum
	}
	b := newBench(t)
	conf, add, del := b.files(t, n)
	classic := func(file string, ignore, announce int) command {
		return command{"sh", "-c", fmt.Sprintf("ip -batch %s; cd /proc/sys/net/ipv4/conf/all; echo %d >arp_ignore; echo %d >arp_announce", file, ignore, announce)}
	}
	mine := count(b.agent("start", "--config", conf), b.agent("stop"))
	theirs := count(classic(add, 1, 2), classic(del, 0, 0))
	out.add(Row{What: fmt.Sprintf("ARP replies, %d cycles", cycles), VIPs: n, Unit: "", Mine: float64(mine), Rival: float64(theirs), Than: "the classic order", Goal: 0})
}
