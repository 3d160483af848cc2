// Command rsagent prepares a host to be a real server behind an LVS director, and takes all of it
// back. This folder holds what is between the operator and package realserver: flags, the config
// file, output and exit codes.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"rsagent/realserver"
)

// An env is all of the world that the command touches, so that tests run it whole.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (string, bool) // of environment variables
	environ        func() []string                  // all of them, NAME=VALUE
	terminal       bool                             // stdout is one
	watched        bool                             // stderr is a terminal
	config         string                           // read where no other is named, if it exists
	privileged     func() bool
	kernel         func() (k realserver.Kernel, closer func(), err error)
}

func main() {
	runtime.GOMAXPROCS(1)   // one thing is done after the other: a second one would be woken to find nothing to do
	debug.SetGCPercent(400) // a run is short, and 10,000 VIPs need some 20 MB
	ctx := untilSignal()
	os.Exit(run(ctx, host(), os.Args[1:]))
}

func host() env {
	return env{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv, environ: os.Environ, terminal: isTerminal(os.Stdout), watched: isTerminal(os.Stderr),
		config: "/etc/rsagent/rsagent.yaml", privileged: privileged, kernel: realserver.Linux,
	}
}

// untilSignal is a context that the first SIGTERM or SIGINT ends, with its name as the cause; the
// second kills. A reader of stdout that has gone away is an error of writing like any other.
func untilSignal() context.Context {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // not ignored: a modprobe would inherit that
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// privileged says that this process may change the network: CAP_NET_ADMIN is among its effective
// capabilities. Whether it may in this namespace, only the kernel can say.
func privileged() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return true // let the kernel say so
	}
	return data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}
