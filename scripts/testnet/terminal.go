package testnet

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// StartWatched is Start with a terminal for standard error, as where a person looks on.
func (h *Host) StartWatched(t testing.TB, args ...string) *Process {
	t.Helper()
	screen, end, err := terminal()
	if err != nil {
		t.Fatalf("make a terminal: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	return h.start(t, screen, end, args)
}

// terminal is what a program writes to, and the screen on which that appears.
func terminal() (screen, end *os.File, err error) {
	if screen, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(screen.Fd())
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	if err == nil {
		var n uint32
		if n, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN); err == nil {
			end, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_WRONLY|unix.O_NOCTTY, 0)
		}
	}
	if err != nil {
		screen.Close()
	}
	return screen, end, err
}

// show reads a screen until nobody can write to it any more.
func (p *Process) show(screen io.Reader) <-chan struct{} {
	shown := make(chan struct{})
	go func() {
		_, _ = io.Copy(&p.output, screen) // the end of a terminal is an error
		close(shown)
	}()
	return shown
}
