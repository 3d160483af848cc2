package services

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	guestMAC = "52:54:00:0a:09:0b"
	loud     = "10.9.0.109" // bound by those who do not silence the host first
)

// rip is the guest's own address, another one in each boot, so that each is seen to have been asked.
func rip(boot int) string { return fmt.Sprintf("10.9.0.%d", 10+boot) }

// vips are the addresses that nobody may ever hear the guest claim.
var vips = []string{"10.9.0.100", "10.9.0.101", "10.9.0.102", "10.9.0.103", "10.9.0.104", "10.9.0.105", "10.9.0.106", "10.9.0.107"}

// lan is the other end of the guest's cable: each datagram is a frame.
type lan struct {
	conn  *net.UnixConn
	guest *net.UnixAddr

	mu           sync.Mutex
	asked, heard map[string]int
}

// newLAN plugs in, asks until ctx ends, and returns the arguments that give qemu the other end.
func newLAN(ctx context.Context, dir string) (*lan, []string, error) {
	here, there := filepath.Join(dir, "lan"), filepath.Join(dir, "nic")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: here, Net: "unixgram"})
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	l := &lan{conn: conn, guest: &net.UnixAddr{Name: there, Net: "unixgram"}, asked: map[string]int{}, heard: map[string]int{}}
	go l.ask(ctx)
	go l.listen()
	return l, []string{
		"-netdev", "dgram,id=lan,local.type=unix,local.path=" + there + ",remote.type=unix,remote.path=" + here,
		"-device", "virtio-net-pci,netdev=lan,mac=" + guestMAC,
	}, nil
}

// ask asks for one address after the other, each some sixty times a second; and a tenth as often from a minute on after the last
// boot has its address: the tests that then run have other things to do.
func (l *lan) ask(ctx context.Context) {
	targets := append(slices.Clone(vips), loud, rip(1), rip(2), rip(3))
	often := time.Second / 60 / time.Duration(len(targets))
	tick := time.NewTicker(often)
	defer tick.Stop()
	rests := false
	for i := 0; ctx.Err() == nil; i++ {
		target := targets[i%len(targets)]
		if l.send(whoHas(target)) == nil {
			l.mu.Lock()
			l.asked[target]++
			if !rests && l.heard[rip(3)] > 0 {
				rests = true
				time.AfterFunc(time.Minute, func() { tick.Reset(10 * often) })
			}
			l.mu.Unlock()
		} else {
			time.Sleep(10 * time.Millisecond) // there is no guest yet, or it takes nothing in
		}
		<-tick.C
	}
}

// send does not wait for a guest that takes nothing in: the poller would spin.
func (l *lan) send(frame []byte) error {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), frame, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: l.guest.Name})
		return true
	})
	return errors.Join(err, sent)
}

func whoHas(target string) []byte {
	ip := netip.MustParseAddr(target).As4()
	me, all := []byte{2, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{0xff}, 6)
	return slices.Concat(all, me, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, me, []byte{10, 9, 0, 1}, make([]byte, 6), ip[:],
		make([]byte, 18)) // up to Ethernet's least
}

// listen counts the ARP packets in which the guest says that an address is its own: replies, and questions that carry it
// as the sender.
func (l *lan) listen() {
	frame := make([]byte, 2048)
	for {
		n, _, err := l.conn.ReadFromUnix(frame)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n >= 42 && binary.BigEndian.Uint16(frame[12:]) == 0x0806 {
			sender := netip.AddrFrom4([4]byte(frame[28:])).String()
			l.mu.Lock()
			l.heard[sender]++
			l.mu.Unlock()
		}
	}
}

// judge: no VIP was claimed; what must be heard was, if all tests ran, so that silence means something.
func (l *lan) judge(all bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var asked int
	for _, n := range l.asked {
		asked += n
	}
	fmt.Printf("asked by ARP from outside %d times, through all boots; the guest claimed", asked)
	for _, addr := range slices.Sorted(maps.Keys(l.heard)) {
		fmt.Printf(" %s %d times", addr, l.heard[addr])
	}
	fmt.Println()
	var err error
	for _, addr := range vips {
		if l.heard[addr] > 0 {
			err = errors.Join(err, fmt.Errorf("the VIP %s was claimed %d times", addr, l.heard[addr]))
		}
		if all && l.asked[addr] == 0 {
			err = errors.Join(err, fmt.Errorf("nobody asked for %s", addr))
		}
	}
	for _, addr := range []string{loud, rip(1), rip(2), rip(3)} {
		if all && l.heard[addr] == 0 {
			err = errors.Join(err, fmt.Errorf("%s, which must answer, was not heard", addr))
		}
	}
	return err
}

func run(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return nil
}
