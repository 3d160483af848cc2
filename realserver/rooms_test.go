package realserver

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rooms is the import table: which packages of this module, and which of others, each room may
// import. What a real server is (realserver) is known to nothing below it.
var rooms = map[string][]string{
	"sysctl":      {"go-sysctl", "netlink"},
	"arp":         {"rsagent/sysctl", "rsagent/arp/nft"},
	"loopback":    {"netlink"},
	"tunnel":      {"rsagent/sysctl", "rsagent/arp/nft", "netlink"},
	"realserver":  {"rsagent/sysctl", "rsagent/arp", "rsagent/arp/nft", "rsagent/loopback", "rsagent/tunnel", "netlink"},
	"cmd/rsagent": {"rsagent/realserver", "urfave/cli", "go-systemd/v22/daemon", "yaml"},
}

// onlyIn holds what a single room may do: run programs, and do netlink through other packages.
var onlyIn = map[string][]string{
	"os/exec": {"tunnel"},
	"unsafe":  {"tunnel"}, // an ioctl whose argument holds a pointer
	"C":       {},
}

func TestRooms(t *testing.T) {
	for room, may := range rooms {
		files := 0
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, i := range f.Imports {
				name, _ := strconv.Unquote(i.Path.Value)
				if !allowed(room, name, may) {
					t.Errorf("%s imports %s", path, name)
				}
			}
			return nil
		})
		if err != nil || files == 0 {
			t.Errorf("%s: %d files, %v", room, files, err)
		}
	}
}

func allowed(room, name string, may []string) bool {
	if where, ok := onlyIn[name]; ok {
		return slices.Contains(where, room)
	}
	if !strings.HasPrefix(name, "rsagent/") && (!strings.Contains(name, ".") || name == "golang.org/x/sys/unix") {
		return true // the standard library, and system calls
	}
	return slices.ContainsFunc(may, func(m string) bool {
		return name == m || !strings.HasPrefix(m, "rsagent/") && strings.Contains(name, m)
	})
}
