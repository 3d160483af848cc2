package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"rsagent/realserver"
)

// The exit codes, after LSB's of init scripts.
const (
	exitDone         = 0
	exitFailed       = 1 // status: drifted; check: an error was found
	exitUsage        = 2
	exitDown         = 3 // status only
	exitNotPermitted = 4 // status: cannot tell; check: not all could be seen
	exitUnsupported  = 5
	exitRefused      = 6
)

var (
	errNotConfigured = errors.New("not configured")
	errNotPermitted  = errors.New("needs CAP_NET_ADMIN (run as root, or give the capability: setcap, AmbientCapabilities=)")
)

// exitCode is the one place that makes a code of an error.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, realserver.ErrRefused), errors.Is(err, errNotConfigured):
		return exitRefused
	case errors.Is(err, realserver.ErrUnsupported):
		return exitUnsupported
	case errors.Is(err, fs.ErrPermission), errors.Is(err, errNotPermitted):
		return exitNotPermitted
	}
	return exitFailed
}

// statusCodes are those of status, which has no failure but not to be able to tell.
var statusCodes = map[realserver.State]int{
	realserver.Up: exitDone, realserver.Drifted: exitFailed, realserver.Down: exitDown, realserver.Unknown: exitNotPermitted,
}

// hint adds the cure to an error whose cause a user can mend.
func (c *call) hint(err error) error {
	var path *fs.PathError
	named := errors.As(err, &path)
	below := func(dir string) bool { return named && strings.HasPrefix(path.Path, dir) }
	making := named && path.Op == "mkdir" && strings.HasPrefix(c.stateDir, path.Path) // the folder, or what it is in
	switch {
	case err == nil:
		return nil
	case errors.Is(err, realserver.ErrMayNotLoad), errors.Is(err, realserver.ErrMayNotAsk): // it names the right
		return err
	case errors.Is(err, fs.ErrPermission) && (making || below(c.stateDir)):
		return fmt.Errorf("%w (run as root, or name a folder of your own: --state-dir)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN in this network namespace)", err)
	case errors.Is(err, unix.EROFS) && below("/proc/sys"):
		return fmt.Errorf("%w (/proc/sys is mounted read-only: set the values from outside the container, or under systemd leave out ProtectKernelTunables=)", err)
	}
	return err
}
