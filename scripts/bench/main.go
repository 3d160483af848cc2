// Command bench measures rsagent beside the script it replaces and beside the fastest script that one
// can write (ip -batch, and echo into /proc), as whole processes, in a network namespace of its own.
// The sides take turns, so that a noisy machine hits both alike; what counts is the ratio of medians.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var (
	rsagent = flag.String("rsagent", "build/rsagent", "the binary to measure")
	classic = flag.String("classic", "scripts/lab/testdata/lvs_real.sh", "the script to measure it beside")
	reps    = flag.Int("reps", 30, "repetitions of the short comparisons; the long ones take a tenth")
)

// A side is one way to do a job, and how to undo it, which is not measured unless it is a job itself.
type side struct {
	name     string
	do, undo []string
}

// A job is done by rsagent and by a rival.
type job struct {
	name        string
	reps        int
	mine, rival side
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	flag.Parse()
	dir, err := os.MkdirTemp("/dev/shm", "rsagent-bench-") // in memory, as /run is on a real server
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	runtime.LockOSThread() // what this thread starts is in its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		log.Fatalf("make a network namespace: %v (run it as root)", err)
	}
	run([]string{"ip", "link", "set", "lo", "up"})
	run([]string{"ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"})
	fmt.Printf("%-32s %12s %12s %7s\n", "whole process, median", "rsagent", "rival", "ratio")
	for _, j := range jobs(dir) {
		mine, rival := j.measure()
		fmt.Printf("%-32s %12v %12v %7.2f  beside %s\n", j.name, mine.Round(10*time.Microsecond), rival.Round(10*time.Microsecond),
			float64(mine)/float64(rival), j.rival.name)
	}
}

func jobs(dir string) []job {
	bin, err := filepath.Abs(*rsagent)
	if err != nil {
		log.Fatal(err)
	}
	agent := func(args ...string) []string {
		return append([]string{bin}, append(args, "--state-dir", filepath.Join(dir, "state"))...)
	}
	one := "198.18.0.1"
	start, stop := agent("start", "--vip", one), agent("stop")
	var out []job
	for _, shell := range []string{"bash", "dash"} { // it is a bash script wherever it is found; dash would be faster
		script := func(verb string) []string { return []string{shell, *classic, verb, one, "dr"} }
		out = append(out, job{"start, 1 VIP", *reps, side{"rsagent", start, stop}, side{"the classic script, by " + shell, script("start"), script("stop")}})
	}
	for _, n := range []int{64, 1000} {
		conf, add, del := files(dir, n)
		batch := func(file string, values ...string) []string {
			return []string{"sh", "-c", fmt.Sprintf("echo %s >/proc/sys/net/ipv4/conf/all/arp_ignore; echo %s >/proc/sys/net/ipv4/conf/all/arp_announce; ip -batch %s", values[0], values[1], file)}
		}
		startN, stopN := agent("start", "--config", conf), agent("stop")
		bind, unbind := batch(add, "1", "2"), batch(del, "0", "0")
		out = append(out,
			job{fmt.Sprintf("start, %d VIPs", n), max(3, *reps/3), side{"rsagent", startN, stopN}, side{"ip -batch and echo", bind, unbind}},
			job{fmt.Sprintf("stop, %d VIPs", n), max(3, *reps/3), side{"rsagent", stopN, startN}, side{"ip -batch and echo", unbind, bind}})
	}
	return out
}

// files writes a config of n VIPs, and the same for ip -batch.
func files(dir string, n int) (conf, add, del string) {
	var c, a, d bytes.Buffer
	c.WriteString("vips:\n")
	for i := range n {
		ip := netip.AddrFrom4([4]byte{198, 18, byte((i + 1) >> 8), byte(i + 1)})
		fmt.Fprintf(&c, "  - %s\n", ip)
		fmt.Fprintf(&a, "addr add %s/32 dev lo scope host\n", ip)
		fmt.Fprintf(&d, "addr del %s/32 dev lo\n", ip)
	}
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, fmt.Sprintf("%s-%d", name, n))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			log.Fatal(err)
		}
		return path
	}
	return write("rsagent.yaml", c.Bytes()), write("add", a.Bytes()), write("del", d.Bytes())
}

// measure lets the two sides take turns. A stop is measured on a host that was started.
func (j job) measure() (mine, rival time.Duration) {
	var times [2][]time.Duration
	for range j.reps + 1 {
		for i, s := range []side{j.mine, j.rival} {
			stop := strings.HasPrefix(j.name, "stop")
			if stop {
				run(s.undo)
			}
			began := time.Now()
			run(s.do)
			times[i] = append(times[i], time.Since(began))
			if !stop {
				run(s.undo)
			}
		}
	}
	return median(times[0][1:]), median(times[1][1:])
}

func median(t []time.Duration) time.Duration {
	slices.Sort(t)
	return t[len(t)/2]
}

func run(args []string) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		log.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}
