package cases

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// eyes look at the real server's kernel, and a hand writes to it, without running a program: a repair is over before one has
// started.
type eyes struct {
	t     testing.TB
	host  *testnet.Host
	nl    *netlink.Handle
	nft   int // a socket
	lo    netlink.Link
	files map[string]*os.File
}

func (s *site) eyes(t testing.TB) *eyes {
	t.Helper()
	e := &eyes{t: t, host: s.rs, files: map[string]*os.File{}}
	var errs [3]error
	s.rs.Do(func() {
		if e.nl, errs[0] = netlink.NewHandle(unix.NETLINK_ROUTE); errs[0] == nil {
			e.lo, errs[1] = e.nl.LinkByName("lo")
		}
		e.nft, errs[2] = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	})
	for _, err := range errs {
		e.must(err)
	}
	t.Cleanup(func() {
		e.nl.Close()
		unix.Close(e.nft)
		for _, f := range e.files {
			f.Close()
		}
	})
	return e
}

func (e *eyes) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// onLo are the addresses on lo, with their prefixes.
func (e *eyes) onLo() (addrs []string) {
	e.t.Helper()
	for {
		found, err := e.nl.AddrList(e.lo, netlink.FAMILY_V4)
		if err == netlink.ErrDumpInterrupted {
			continue
		}
		e.must(err)
		for _, a := range found {
			addrs = append(addrs, a.IPNet.String())
		}
		return addrs
	}
}

func (e *eyes) bound(addr string) bool { return slices.Contains(e.onLo(), addr+"/32") }

// unbind deletes an address from lo; that it is not there is no failure.
func (e *eyes) unbind(cidr string) {
	e.t.Helper()
	if a := e.addr(cidr); e.nl.AddrDel(e.lo, a) != nil && slices.Contains(e.onLo(), cidr) {
		e.t.Fatalf("%s cannot be deleted", cidr)
	}
}

func (e *eyes) bind(cidr string) {
	e.t.Helper()
	e.must(e.nl.AddrReplace(e.lo, e.addr(cidr)))
}

func (e *eyes) addr(cidr string) *netlink.Addr {
	e.t.Helper()
	a, err := netlink.ParseAddr(cidr)
	e.must(err)
	return a
}

// file is a setting's, held open.
func (e *eyes) file(iface, knob string) *os.File {
	e.t.Helper()
	path := fmt.Sprintf("/proc/sys/net/ipv4/conf/%s/%s", iface, knob)
	if e.files[path] == nil {
		var err error
		e.host.Do(func() { e.files[path], err = os.OpenFile(path, os.O_RDWR, 0) })
		e.must(err)
	}
	return e.files[path]
}

// forget closes the settings of an interface that is to go.
func (e *eyes) forget(iface string) {
	for path, f := range e.files {
		if strings.Contains(path, "/"+iface+"/") {
			f.Close()
			delete(e.files, path)
		}
	}
}

func (e *eyes) get(iface, knob string) int {
	e.t.Helper()
	var b [16]byte
	n, _ := e.file(iface, knob).ReadAt(b[:], 0)
	v, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	e.must(err)
	return v
}

func (e *eyes) set(iface, knob string, v int) {
	e.t.Helper()
	_, err := e.file(iface, knob).WriteAt([]byte(strconv.Itoa(v)), 0)
	e.must(err)
}

// Of nfnetlink (include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h).
const (
	batchBegin, batchEnd  = 0x10, 0x11
	tables                = 10 << 8 // NFNL_SUBSYS_NFTABLES
	tableGet, tableDelete = tables + 1, tables + 2
	tableName             = 1
)

// message is one of nfnetlink, with one attribute at the most.
func message(kind, flags uint16, family byte, subsystem uint16, attr []byte) (b []byte) {
	if len(attr) > 0 {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(attr)))
		b = append(binary.NativeEndian.AppendUint16(b, tableName), attr...)
		b = append(b, make([]byte, -len(b)&3)...)
	}
	head := binary.NativeEndian.AppendUint32(nil, uint32(20+len(b)))
	head = binary.NativeEndian.AppendUint16(head, kind)
	head = binary.NativeEndian.AppendUint16(head, unix.NLM_F_REQUEST|flags)
	head = append(head, 0, 0, 0, 0, 0, 0, 0, 0, family, 0)
	return append(binary.BigEndian.AppendUint16(head, subsystem), b...)
}

// ask sends messages, and returns the number of the error that comes back, or 0.
func (e *eyes) ask(messages ...[]byte) (errno unix.Errno) {
	e.t.Helper()
	e.must(unix.Sendto(e.nft, slices.Concat(messages...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	b := make([]byte, 8192)
	n, _, err := unix.Recvfrom(e.nft, b, 0)
	e.must(err)
	if n >= 20 && binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
		errno = unix.Errno(-int32(binary.NativeEndian.Uint32(b[16:])))
	}
	return errno
}

// ruled: rsagent's rules are there. They come with their table, and with it they go.
func (e *eyes) ruled() bool {
	e.t.Helper()
	switch errno := e.ask(message(tableGet, 0, unix.NFPROTO_ARP, 0, []byte("rsagent\x00"))); errno {
	case 0:
		return true
	case unix.ENOENT:
		return false
	default:
		e.t.Fatal(errno)
		return false
	}
}

// flush is nft flush ruleset.
func (e *eyes) flush() {
	e.t.Helper()
	errno := e.ask(message(batchBegin, 0, 0, tables>>8, nil), message(tableDelete, unix.NLM_F_ACK, 0, 0, nil), message(batchEnd, 0, 0, tables>>8, nil))
	if errno != 0 {
		e.t.Fatal(errno)
	}
}

// silent: no NIC of these answers for what is on lo with scope host, or asks in its name.
func (e *eyes) silent(nics ...string) bool {
	e.t.Helper()
	ignore, announce := e.get("all", "arp_ignore"), e.get("all", "arp_announce")
	for _, nic := range nics {
		if !slices.Contains([]int{1, 2, 3, 8}, max(ignore, e.get(nic, "arp_ignore"))) || max(announce, e.get(nic, "arp_announce")) != 2 {
			return false
		}
	}
	return true
}

// vips names n addresses that may be VIPs.
func vips(n int) string {
	var all []string
	for a := netip.MustParseAddr("192.0.2.1"); n > 0; n, a = n-1, a.Next() {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}
