package cases

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"rsagent/scripts/testnet"
)

// silent: the neighbour gets no answer for the addresses, by any of its
// means, while the host's own address answers as ever.
func (s *site) silent(t *testing.T, addrs ...string) {
	t.Helper()
	s.silentOn(t, "eth0", addrs...)
	if !s.answers(t, "eth0", rip) {
		t.Errorf("%s no longer answers for its own %s", s.rs.Name, rip)
	}
}

func (s *site) silentOn(t *testing.T, dev string, addrs ...string) {
	t.Helper()
	for _, addr := range addrs {
		if s.answers(t, dev, addr) {
			t.Errorf("the real server answers ARP for %s on %s", addr, dev)
		}
	}
}

// answers asks arping and the neighbour's own kernel; they must agree.
func (s *site) answers(t *testing.T, dev, addr string) bool {
	t.Helper()
	testnet.Need(t, "arping")
	arping := s.peer.Try("arping", "-i", dev, "-c", "3", "-W", "0.02", addr).Code == 0
	kernel := s.peer.Resolve(t, dev, addr) != ""
	if arping != kernel {
		t.Errorf("asked for %s: arping hears an answer: %v, the kernel: %v", addr, arping, kernel)
	}
	return arping || kernel
}

// unheard asks for the addresses without a pause while f runs, and for the
// real server's own one as a proof that it can be heard.
func (s *site) unheard(t *testing.T, f func(asker *testnet.Asker), addrs ...string) {
	t.Helper()
	control := s.peer.AskARP(t, "eth0", rip, 5*time.Millisecond)
	var askers []*testnet.Asker
	for _, addr := range addrs {
		askers = append(askers, s.peer.AskARP(t, "eth0", addr, time.Millisecond))
	}
	control.Await(t, 1)
	f(askers[0])
	for i, asker := range askers {
		asked, replies := asker.Stop()
		if len(replies) > 0 || asked == 0 {
			t.Errorf("asked %d times for %s, and was answered: %v", asked, addrs[i], replies)
		}
	}
	if asked, replies := control.Stop(); len(replies) != 1 {
		t.Errorf("asked %d times for %s, and was answered by: %v", asked, rip, replies)
	}
}

// serves: what is sent to the address at the real server's MAC, as an LVS
// director does it, is answered from that address.
func (s *site) serves(t *testing.T, addr string) {
	t.Helper()
	s.direct(t, addr)
	for _, network := range []string{"tcp", "udp"} {
		if err := s.peer.Call(network, s.rs.Echo(t, network, addr)); err != nil {
			t.Errorf("the real server does not serve %s: %v", addr, err)
		}
	}
	s.peer.Run(t, "ip", "neigh", "del", addr, "dev", "eth0")
}

// reaches: the real server can talk to its neighbour from its own address.
func (s *site) reaches(t *testing.T) bool {
	t.Helper()
	return s.rs.Call("tcp", s.peer.Echo(t, "tcp", peerIP)) == nil
}

// direct pins the address to the real server's MAC on the neighbour.
func (s *site) direct(t *testing.T, addr string) {
	t.Helper()
	s.peer.Run(t, "ip", "neigh", "replace", addr, "lladdr", s.mac(t), "dev", "eth0", "nud", "permanent")
}

func (s *site) mac(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(s.rs.Run(t, "sh", "-c", `ip -j link show eth0 | sed 's/.*"address":"\([^"]*\)".*/\1/'`))
}

// bound: the host holds the address on exactly these devices.
func (s *site) bound(t *testing.T, addr string, on ...string) {
	t.Helper()
	if got := s.rs.Holds(t, addr); !slices.Equal(got, on) {
		t.Errorf("%s is on %v, want %v", addr, got, on)
	}
}

func (s *site) conf(t *testing.T, iface, knob, want string) {
	t.Helper()
	if got := s.rs.IPv4Conf(t, iface, knob); got != want {
		t.Errorf("%s.%s is %s, want %s", iface, knob, got, want)
	}
}

// traced runs a command under strace and returns what it did to the world:
// every call that opens for writing, alters a file tree, sends a request to
// the kernel that is not a question, or runs another program.
func (s *site) traced(t *testing.T, c testnet.Cmd) (testnet.Result, []string) {
	t.Helper()
	testnet.Need(t, "strace")
	out := t.TempDir() + "/trace"
	c.Args = append([]string{"strace", "-f", "-qq", "-s", "256", "-o", out, "-e",
		"trace=execve,?open,openat,?openat2,?creat,/^mkdir,/^rename,/^unlink,/^link,/^symlink,/chmod,/chown,sendto,sendmsg,?sendmmsg,ioctl"},
		c.Args...)
	r := s.rs.Exec(c)
	var done []string
	for i, line := range strings.Split(s.rs.Run(t, "cat", out), "\n") {
		if i > 0 && isWrite(line) { // the first is the command's own execve
			done = append(done, line)
		}
	}
	return r, done
}

var (
	writes  = regexp.MustCompile(`execve\(|O_WRONLY|O_RDWR|O_CREAT|creat\(|mkdir|rename|unlink|link\(|linkat|chmod|chown|(RTM|NFT_MSG)_(NEW|DEL|SET)|SIOCS`)
	unnamed = regexp.MustCompile(`nlmsg_type=(0x[0-9a-f]+) `)
)

// isWrite judges a line of strace. It does not know the protocol of a netlink
// socket that has not been bound, and shows the number: of rtnetlink's four
// in a row (NEW, DEL, GET, SET) only the third is a question, of nftables' three
// (subsystem 10: NEW, GET, DEL) the second.
func isWrite(line string) bool {
	for _, m := range unnamed.FindAllStringSubmatch(line, -1) {
		if n, err := strconv.ParseUint(m[1], 0, 16); err != nil || n>>8 == 10 && (n&0xff)%3 != 1 || n>>8 != 10 && n%4 != 2 {
			return true
		}
	}
	return writes.MatchString(line)
}
