package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// onOpen are calls that change the file that their first argument has open, onPath the one that their second names.
var (
	onOpen = map[uint64]string{unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev",
		unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHOWN: "fchown"}
	onPath = map[uint64]string{unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat",
		unix.SYS_RENAMEAT2: "renameat2", unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_MKNODAT: "mknodat",
		unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWNAT: "fchownat"}
)

// matters describes a call at which the process is to be stopped.
func (tr *tracer) matters(tid int, c syscallInfo) string {
	if !tr.answers {
		return tr.writes(tid, c)
	}
	if c.nr == unix.SYS_RECVFROM || c.nr == unix.SYS_RECVMSG {
		if protocol, ok := tr.netlink(int(c.args[0])); ok {
			return fmt.Sprintf("answer of netlink %d", protocol)
		}
	}
	return ""
}

// writes describes a call that may change anything, and is "" for every other. What the Go runtime does with memory,
// threads and pipes is no matter, nor is what is printed.
func (tr *tracer) writes(tid int, c syscallInfo) string {
	if name, ok := onPath[c.nr]; ok {
		return name + " " + text(tid, c.args[1])
	}
	if name, ok := onOpen[c.nr]; ok {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, c.args[0]))
		if strings.HasPrefix(path, "/proc/sys/") || strings.HasPrefix(path, tr.dir+"/") {
			return name + " " + path
		}
		return ""
	}
	switch c.nr {
	case unix.SYS_OPENAT:
		if c.args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 {
			return "openat " + text(tid, c.args[1])
		}
	case unix.SYS_SENDTO:
		return tr.message(tid, c.args[0], c.args[1])
	case unix.SYS_SENDMSG, unix.SYS_SENDMMSG: // struct msghdr: its first vector is at 16, and begins with an address
		vector := word(tid, c.args[1]+16)
		return tr.message(tid, c.args[0], word(tid, vector))
	case unix.SYS_IOCTL:
		if c.args[1]>>8 == 0x89 { // of sockets; to ask for a device's flags loads a module
			return fmt.Sprintf("ioctl %#x", c.args[1])
		}
	case unix.SYS_CLONE:
		if c.args[0]&unix.CLONE_VFORK != 0 {
			return "runs a program"
		}
	}
	return ""
}

// message describes a netlink request, but for questions. Of rtnetlink's types, four for each kind of object (new, del,
// get, set), the third is one; another protocol's are all taken for changes.
func (tr *tracer) message(tid int, fd, at uint64) string {
	protocol, ok := tr.netlink(int(fd))
	if !ok {
		return ""
	}
	head := memory(tid, at, unix.SizeofNlMsghdr)
	if len(head) < unix.SizeofNlMsghdr {
		return "netlink, unread"
	}
	typ := binary.NativeEndian.Uint16(head[4:])
	if protocol == unix.NETLINK_ROUTE && (typ < unix.RTM_BASE || typ%4 == 2) {
		return ""
	}
	return fmt.Sprintf("netlink %d type %d", protocol, typ)
}

// netlink is the protocol of the process's socket fd, if it is one of netlink.
func (tr *tracer) netlink(fd int) (protocol int, ok bool) {
	p, err := unix.PidfdOpen(tr.pid, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(p)
	own, err := unix.PidfdGetfd(p, fd, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(own)
	domain, err := unix.GetsockoptInt(own, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_NETLINK {
		return 0, false
	}
	protocol, err = unix.GetsockoptInt(own, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return protocol, err == nil
}

// memory reads n bytes of the process, or as many as there are.
func memory(tid int, at uint64, n int) []byte {
	buf := make([]byte, n)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: n}}, 0)
	if err != nil {
		return nil
	}
	return buf[:got]
}

func word(tid int, at uint64) uint64 {
	if b := memory(tid, at, 8); len(b) == 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// text is a path of the process; it ends in the page in which it begins.
func text(tid int, at uint64) string {
	b, _, _ := bytes.Cut(memory(tid, at, min(256, 4096-int(at%4096))), []byte{0})
	return string(b)
}
