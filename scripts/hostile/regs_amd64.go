package hostile

import "golang.org/x/sys/unix"

// canFail says that a call can be made to fail here.
const canFail = true

// skip has the kernel not make the call at whose entry the thread is.
func skip(tid int) error {
	return withRegs(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// result sets what a call returns at whose exit the thread is.
func result(tid int, errno unix.Errno) error {
	return withRegs(tid, func(r *unix.PtraceRegs) { r.Rax = -uint64(errno) })
}

func withRegs(tid int, change func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	change(&r)
	return unix.PtraceSetRegs(tid, &r)
}
