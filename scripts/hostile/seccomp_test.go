package hostile

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusing replaces this process by a command for which seccomp refuses some system calls with EPERM: those that load
// modules, or sockets of netlink.
func refusing(what string, command []string) error {
	runtime.LockOSThread()
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	refuse, allow := ret(0x00050000|uint32(unix.EPERM)), ret(0x7fff0000) // SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
	// struct seccomp_data: the number at 0, the first argument at 16.
	filters := map[string][]unix.SockFilter{
		"modules": {load(0), equal(unix.SYS_INIT_MODULE, 1, 0), equal(unix.SYS_FINIT_MODULE, 0, 1), refuse, allow},
		"netlink": {load(0), equal(unix.SYS_SOCKET, 0, 3), load(16), equal(unix.AF_NETLINK, 0, 1), refuse, allow},
	}
	f, ok := filters[what]
	if !ok {
		return fmt.Errorf("no filter %q", what)
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return err
	}
	return unix.Exec(command[0], command, os.Environ())
}
