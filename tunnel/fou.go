package tunnel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrBusy says that a UDP port is in use by something else.
var ErrBusy = errors.New("in use by another program")

// FOU is the module that takes packets out of UDP, whatever the versions.
const FOU = "fou"

// Of include/uapi/linux/fou.h.
const (
	fouAdd, fouDel, fouGet = 1, 2, 3
	fouPort, fouAF, fouTyp = 1, 2, 4
	fouLocal4, fouIfIndex  = 6, 11 // and what lies between: addresses, a port and a device that a port is bound to
	fouGUE                 = 2     // FOU_ENCAP_GUE
)

// Ports lists the UDP ports that are open for FOU and GUE, and as "busy" those in use otherwise. there
// says that the kernel has FOU, loaded or built in.
func Ports() (out map[Port]string, there bool, err error) {
	out = map[Port]string{}
	if err := busy(out); err != nil {
		return nil, false, err
	}
	family, err := netlink.GenlFamilyGet(FOU)
	if errors.Is(err, unix.ENOENT) {
		return out, Loaded(FOU), nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up netlink family fou: %w", err)
	}
	for try := 0; ; try++ {
		msgs, err := fou(family.ID, fouGet, unix.NLM_F_DUMP)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < retries {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("list FOU ports: %w", err)
		}
		for _, m := range msgs {
			if p, value := readPort(m); p.Number != 0 {
				out[p] = value
			}
		}
		return out, true, nil
	}
}

const retries = 10 // a dump is repeated this often while others change what it lists

// readPort takes one answer to FOU_CMD_GET apart.
func readPort(m []byte) (p Port, value string) {
	if len(m) < nl.SizeofGenlmsg {
		return p, ""
	}
	attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
	if err != nil {
		return p, ""
	}
	value = "fou"
	bound := false
	for _, a := range attrs {
		switch {
		case a.Attr.Type >= fouLocal4 && a.Attr.Type <= fouIfIndex:
			bound = bound || strings.Trim(string(a.Value), "\x00") != ""
		case a.Attr.Type == fouPort && len(a.Value) >= 2:
			p.Number = int(binary.BigEndian.Uint16(a.Value))
		case a.Attr.Type == fouAF && len(a.Value) >= 1:
			p.IPv6 = a.Value[0] == unix.AF_INET6
		case a.Attr.Type == fouTyp && len(a.Value) >= 1 && a.Value[0] == fouGUE:
			value = "gue"
		}
	}
	if bound {
		value = "bound"
	}
	return p, value
}

// busy reads which UDP ports sockets of the thread's network namespace have.
func busy(out map[Port]string) error {
	for _, t := range []struct {
		file string
		ipv6 bool
	}{{"/proc/thread-self/net/udp", false}, {"/proc/thread-self/net/udp6", true}} {
		f, err := os.Open(t.file)
		if errors.Is(err, os.ErrNotExist) && t.ipv6 {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			if w := strings.Fields(s.Text()); len(w) > 1 { // sl local_address …, as 0100007F:17C0
				_, port, _ := strings.Cut(w[1], ":")
				if n, err := strconv.ParseUint(port, 16, 16); err == nil {
					out[Port{int(n), t.ipv6}] = "busy"
				}
			}
		}
		f.Close()
	}
	return nil
}

// Open opens a port for GUE, or closes it. That it was so already is no failure. The error wraps
// ErrBusy where the port is something else's, and ErrUnsupported where there is no FOU.
func Open(p Port, on bool) error {
	family, err := netlink.GenlFamilyGet(FOU)
	if errors.Is(err, unix.ENOENT) {
		if !on {
			return nil
		}
		return fmt.Errorf("open %s: %w: no module %s", p, ErrUnsupported, FOU)
	}
	if err != nil {
		return fmt.Errorf("look up netlink family fou: %w", err)
	}
	attrs := []*nl.RtAttr{nl.NewRtAttr(fouPort, binary.BigEndian.AppendUint16(nil, uint16(p.Number))), nl.NewRtAttr(fouAF, []byte{unix.AF_INET})}
	if p.IPv6 {
		attrs[1].Data = []byte{unix.AF_INET6}
	}
	if !on {
		if _, err = fou(family.ID, fouDel, unix.NLM_F_ACK, attrs...); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("close %s: %w", p, err)
	}
	switch _, err = fou(family.ID, fouAdd, unix.NLM_F_ACK, append(attrs, nl.NewRtAttr(fouTyp, []byte{fouGUE}))...); {
	case err == nil, errors.Is(err, unix.EALREADY):
		return nil
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("open %s: %w", p, ErrBusy)
	}
	return fmt.Errorf("open %s: %w", p, err)
}

// fou sends one request. The library's own FouAdd sends an attribute that recent kernels refuse.
func fou(family uint16, command uint8, flags int, attrs ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(int(family), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	for _, a := range attrs {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_GENERIC, 0)
}
