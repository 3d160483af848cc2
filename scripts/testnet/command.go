package testnet

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hung bounds every command and every wait. It is no part of any verdict:
// what reaches it is a hang, not a slow host.
const hung = 10 * time.Minute

// Cmd is a command to run on a host.
type Cmd struct {
	Args  []string
	Env   []string // beside the environment of the test
	Stdin string
}

// Result is what a command said. Code is -1 if it could not be started or
// died of a signal.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Environ is the environment without the variables that the tests themselves go by: rsagent refuses those it does not know.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "RSAGENT_BIN=") || strings.HasPrefix(s, "RSAGENT_SKIPS=") ||
			strings.HasPrefix(s, "RSAGENT_TEST_") || strings.HasPrefix(s, "RSAGENT_LAB_")
	})
}

// Exec runs a command on the host and waits for it.
func (h *Host) Exec(c Cmd) Result {
	ctx, cancel := context.WithTimeout(context.Background(), hung)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = append(Environ(), c.Env...)
	cmd.Stdin = strings.NewReader(c.Stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	var err error
	h.Do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	return result(err, stdout.String(), stderr.String())
}

func result(err error, stdout, stderr string) Result {
	r := Result{Stdout: stdout, Stderr: stderr}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		r.Code = -1
		r.Stderr += err.Error()
	}
	return r
}

// Try runs a command whose failure is of interest.
func (h *Host) Try(args ...string) Result {
	return h.Exec(Cmd{Args: args})
}

// Run runs a command that must succeed, and returns its standard output.
func (h *Host) Run(t testing.TB, args ...string) string {
	t.Helper()
	r := h.Try(args...)
	if r.Code != 0 {
		t.Fatalf("on %s: %s: exit %d\n%s%s", h.Name, strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Process is a command that runs beside the test: tcpdump, ip monitor, a
// daemon. It ends with the test at the latest.
type Process struct {
	cmd    *exec.Cmd
	name   string
	output lockedBuffer // both streams, in order
	done   chan struct{}
	err    error
}

// Start starts a command beside the test.
func (h *Host) Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return h.start(t, nil, nil, args)
}

// start has standard error go to the end of a terminal, where there is one, whose screen is read too.
func (h *Host) start(t testing.TB, screen, end *os.File, args []string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(args[0], args[1:]...), name: args[0], done: make(chan struct{})}
	p.cmd.Env = Environ()
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if end != nil {
		p.cmd.Stderr = end
	}
	var err error
	h.Do(func() { err = p.cmd.Start() })
	if end != nil {
		end.Close()
	}
	if err != nil {
		t.Fatalf("on %s: %v", h.Name, err)
	}
	go func() {
		if screen != nil {
			<-p.show(screen)
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.Signal(unix.SIGKILL); <-p.done })
	return p
}

// Output is what the process has said so far, on both streams.
func (p *Process) Output() string { return p.output.String() }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal; to a process that has ended it does nothing.
func (p *Process) Signal(sig unix.Signal) { _ = p.cmd.Process.Signal(sig) }

// Await waits until the process has said text.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	Eventually(t, p.name+" to say "+text, func() bool {
		return strings.Contains(p.Output(), text) || p.ended()
	})
	if !strings.Contains(p.Output(), text) {
		t.Fatalf("%s ended without saying %q:\n%s", p.name, text, p.Output())
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits for the process to end by itself.
func (p *Process) Wait() Result {
	<-p.done
	return result(p.err, p.Output(), "")
}

// Stop interrupts the process, waits for it and returns what it said.
func (p *Process) Stop() string {
	p.Signal(unix.SIGINT)
	<-p.done
	return p.Output()
}

// Eventually polls until is true; that it never becomes true is a failure.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(hung); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
