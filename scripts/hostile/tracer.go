package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rsagent/scripts/testnet"
)

// An Action is what a tracer does to the process at a call: it sends a signal, or has the call fail without being made,
// which can be done at its entry only. A signal that can be heard goes to the process while the call waits, so that it is
// heard first.
type Action struct {
	Signal unix.Signal
	Errno  unix.Errno
}

// GoOn does nothing.
var GoOn = Action{}

// A Call is a system call that writes, at its entry (After is false) or at its exit.
type Call struct {
	Number int // from 1, over all threads, in the order of the entries
	After  bool
	Text   string
}

// An End is what became of a traced process.
type End struct {
	Calls          []string // that write, in order
	Code           int      // -1 where a signal killed it
	Stdout, Stderr string
}

// Trace runs a command on the host, follows all its threads, and stops it at the entry and at the exit of each system
// call that writes, to the kernel's settings, its network, or anything below dir. Programs that the command runs are
// not followed; that it runs one is a call too.
func Trace(h *testnet.Host, dir string, args []string, at func(Call) Action) (End, error) {
	return (&tracer{dir: dir, at: at}).trace(h, args)
}

// TraceAnswers stops it where it receives answers from netlink instead.
func TraceAnswers(h *testnet.Host, args []string, at func(Call) Action) (End, error) {
	return (&tracer{answers: true, at: at}).trace(h, args)
}

func (tr *tracer) trace(h *testnet.Host, args []string) (end End, err error) {
	h.Do(func() {
		runtime.LockOSThread() // a traced process answers to one thread only
		defer runtime.UnlockOSThread()
		tr.seen, tr.open, tr.fail = map[int]bool{}, map[int]Call{}, map[int]unix.Errno{}
		err = tr.run(args)
		end = tr.end
	})
	return end, err
}

type tracer struct {
	dir     string
	answers bool
	at      func(Call) Action

	pid  int
	seen map[int]bool // threads that have had their first stop
	open map[int]Call // calls that write, entered and not left, by thread
	fail map[int]unix.Errno
	held int // a thread that waits for a signal to be heard
	till time.Time
	end  End
	err  error
}

// options: a thread begins traced; a tracer that dies takes the process along; a stop at a call can be told from a trap.
const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD

func (tr *tracer) run(args []string) error {
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outR.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		outW.Close()
		return err
	}
	defer errR.Close()
	// A process group of its own: so waiting for it takes no other child of this process away from whoever waits for that.
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: []*os.File{nil, outW, errW}, Env: testnet.Environ(),
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true}})
	outW.Close()
	errW.Close()
	if err != nil {
		return err
	}
	defer p.Release()
	tr.pid = p.Pid
	var said sync.WaitGroup
	var out, errs bytes.Buffer
	said.Go(func() { io.Copy(&out, outR) })
	said.Go(func() { io.Copy(&errs, errR) })
	err = tr.follow()
	said.Wait()
	tr.end.Stdout, tr.end.Stderr = out.String(), errs.String()
	return err
}

func (tr *tracer) follow() error {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tr.pid, &ws, 0, nil); err != nil || !ws.Stopped() {
		return fmt.Errorf("wait for the first stop: %v, %v", ws, err)
	}
	tr.seen[tr.pid] = true
	if err := unix.PtraceSetOptions(tr.pid, options); err != nil {
		unix.Kill(tr.pid, unix.SIGKILL)
		return fmt.Errorf("set options: %w", err)
	}
	tr.resume(tr.pid, 0)
	for {
		tid, err := tr.wait(&ws)
		switch {
		case errors.Is(err, unix.ECHILD):
			return tr.err
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case tid == 0: // quiet for long enough
			tr.resume(tr.held, 0)
			tr.held = 0
		case ws.Stopped():
			tr.stopped(tid, ws)
		case tid == tr.pid && ws.Exited():
			tr.end.Code = ws.ExitStatus()
		case tid == tr.pid:
			tr.end.Code = -1
		}
	}
}

// patience is how long a thread is held after a signal was sent. Nothing depends on it but whether the verb hears the
// signal before its next write, or only at the one after that.
const patience = 10 * time.Millisecond

// wait returns 0 where a thread has been held long enough.
func (tr *tracer) wait(ws *unix.WaitStatus) (int, error) {
	for {
		flags := unix.WALL | unix.WNOTHREAD
		if tr.held != 0 {
			flags |= unix.WNOHANG
		}
		tid, err := unix.Wait4(-tr.pid, ws, flags, nil)
		switch {
		case err == unix.EINTR:
		case err != nil || tid != 0:
			return tid, err
		case time.Now().After(tr.till):
			return 0, nil
		default:
			time.Sleep(patience / 50)
		}
	}
}

func (tr *tracer) stopped(tid int, ws unix.WaitStatus) {
	sig := ws.StopSignal()
	switch {
	case sig == unix.SIGTRAP|0x80:
		if !tr.call(tid) {
			return // it is held, or dead
		}
		sig = 0
	case sig == unix.SIGTRAP, sig == unix.SIGSTOP && !tr.seen[tid]: // a thread was made, and is here
		sig = 0
	}
	tr.seen[tid] = true
	tr.resume(tid, int(sig))
}

// resume may find that the thread has been killed: the next wait tells.
func (tr *tracer) resume(tid, sig int) { _ = unix.PtraceSyscall(tid, sig) }

// call is a stop at the entry or the exit of a system call. It returns false where the thread is not to go on.
func (tr *tracer) call(tid int) bool {
	info, err := callInfo(tid)
	if err != nil {
		return true
	}
	c, ok := tr.open[tid]
	switch info.op {
	case opEntry:
		text := tr.matters(tid, info)
		if text == "" {
			return true
		}
		tr.end.Calls = append(tr.end.Calls, text)
		c = Call{Number: len(tr.end.Calls), Text: text}
		tr.open[tid] = c
	case opExit:
		if !ok {
			return true
		}
		delete(tr.open, tid)
		if errno, ok := tr.fail[tid]; ok {
			delete(tr.fail, tid)
			tr.check(result(tid, errno))
		}
		c.After = true
	default:
		return true
	}
	return tr.act(tid, tr.at(c))
}

// act: a process that is killed at the entry of a call does not make it (kernel/entry/common.c: a fatal signal at that
// stop skips the call).
func (tr *tracer) act(tid int, a Action) bool {
	switch {
	case a.Errno != 0:
		tr.fail[tid] = a.Errno
		tr.check(skip(tid))
		return true
	case a.Signal == 0:
		return true
	}
	tr.check(unix.Kill(tr.pid, a.Signal))
	if a.Signal != unix.SIGKILL {
		tr.held, tr.till = tid, time.Now().Add(patience)
	}
	return false
}

// check keeps the first error of what the tracer itself did.
func (tr *tracer) check(err error) {
	if tr.err == nil {
		tr.err = err
	}
}

const (
	opEntry = 1 // PTRACE_SYSCALL_INFO_ENTRY
	opExit  = 2 // PTRACE_SYSCALL_INFO_EXIT
)

// syscallInfo is struct ptrace_syscall_info of include/uapi/linux/ptrace.h, as at an entry.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	_    uint32 // arch
	_, _ uint64 // instruction and stack pointer
	nr   uint64
	args [6]uint64
}

func callInfo(tid int) (info syscallInfo, err error) {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return info, errno
	}
	return info, nil
}
