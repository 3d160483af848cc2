package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrUnsupported says that the kernel lacks what a mode needs.
var ErrUnsupported = errors.New("not supported by this kernel")

// ErrMayNotLoad says that a module is there, and that only one who has the right can load it.
var ErrMayNotLoad = fmt.Errorf("the kernel does not load it by itself, and modprobe needs CAP_SYS_MODULE: %w", fs.ErrPermission)

// Loaded says that the kernel has module name, loaded or built in.
func Loaded(name string) bool {
	_, err := os.Stat("/sys/module/" + name)
	return err == nil
}

// modprobes are the places where modprobe is looked for; PATH is the caller's and is not trusted.
var modprobes = []string{"/sbin/modprobe", "/usr/sbin/modprobe", "/bin/modprobe", "/usr/bin/modprobe"}

// Load makes the kernel load a module, whose device, "" for none, shows that it is there. An exit
// status of 0 from modprobe proves nothing (a module built in, an `install` line that runs /bin/true),
// so the device, or else the module's entry below /sys, decides. The error names what is missing and
// why; it wraps ErrUnsupported, or ErrMayNotLoad.
func Load(ctx context.Context, s *nl.SocketHandle, module, device string) error {
	there := func() bool {
		if Loaded(module) || device == "" {
			return Loaded(module)
		}
		_, err := look(s, 0, device)
		return err == nil
	}
	if there() {
		return nil
	}
	if device != "" {
		autoload(device)
	}
	if there() {
		return nil
	}
	why, barred := modprobe(ctx, module)
	if there() {
		return nil
	}
	if barred {
		return fmt.Errorf("load module %s: %w", module, ErrMayNotLoad)
	}
	return fmt.Errorf("load module %s: %w: %s; it comes with the distribution's kernel package "+
		"(Debian linux-image-*, Ubuntu linux-modules-extra-*, Red Hat kernel-modules)", module, ErrUnsupported, why)
}

// autoload asks for a device by name: the kernel then runs modprobe itself for the alias
// netdev-NAME, for which CAP_NET_ADMIN is enough (net/core/dev_ioctl.c, dev_load).
func autoload(device string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if ifr, err := unix.NewIfreq(device); err == nil {
		_ = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr) // the answer does not matter, the asking does
	}
}

// modprobe loads a module by the distribution's own program, which honours modprobe.d. It returns
// what came of it, in words, and whether it could have been loaded by one who may.
func modprobe(ctx context.Context, module string) (why string, barred bool) {
	for _, path := range modprobes {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		run := func(args ...string) (string, error) {
			c := exec.CommandContext(ctx, path, args...)
			c.Env = []string{}
			out, err := c.CombinedOutput()
			said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
			return said, err
		}
		said, err := run(module)
		if err == nil {
			return "modprobe says it is loaded, and it is not (an install line in modprobe.d?)", false
		}
		if !mayLoad() {
			_, lacking := run("--dry-run", module)
			barred = lacking == nil
		}
		if said == "" {
			said = "modprobe: " + err.Error()
		}
		return said, barred
	}
	return "the kernel does not load it by itself, and there is no modprobe", false
}

// mayLoad says that this process has CAP_SYS_MODULE, and the host's own and not a container's.
func mayLoad() bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	ids, _ := os.ReadFile("/proc/self/uid_map")
	w := strings.Fields(string(ids))
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_MODULE) != 0 && (len(w) != 3 || w[2] == "4294967295")
}

// Of include/uapi/linux/if_tunnel.h.
const (
	greIFlags = 2 // IFLA_GRE_IFLAGS
	greLocal  = 6 // IFLA_GRE_LOCAL
	greCSum   = 0x8000
)

// Create makes a kind's device with a value of its where the namespace has none. To be told that it
// exists is no failure: loading the module may have brought it. Nothing is said that is not asked:
// then the kernel makes what its own fallback device is, but for ip6tnl, which takes any version.
func Create(k Kind, value string) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(k.Device)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(k.Link))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	if local := k.Local(value); local.IsValid() {
		data.AddRtAttr(greLocal, local.AsSlice())
		data.AddRtAttr(greIFlags, binary.BigEndian.AppendUint16(nil, greCSum))
	}
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create %s: %w: no link kind %s", k.Device, ErrUnsupported, k.Link)
	}
	return fmt.Errorf("create %s: %w", k.Device, err)
}

// ErrFallback says that a device is the module's own: it cannot be deleted.
var ErrFallback = errors.New("the module's own device, which cannot be deleted")

// Delete removes a device that was created. The kernel ignores the deletion of a module's fallback
// device without a word; the error wraps ErrFallback then.
func Delete(s *nl.SocketHandle, name string) error {
	index, err := Index(s, name)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err == nil {
		req := request(s, unix.RTM_DELLINK, unix.NLM_F_ACK)
		req.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(index)}})
		_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	if again, err := Index(s, name); err == nil && again == index {
		return fmt.Errorf("delete %s: %w", name, ErrFallback)
	}
	return nil
}

// SetUp brings the link with this ifindex up or down. A link that has gone is down.
func SetUp(s *nl.SocketHandle, index int, up bool) error {
	req, msg := request(s, unix.RTM_NEWLINK, unix.NLM_F_ACK), nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Change = int32(index), unix.IFF_UP
	if up {
		msg.Flags = unix.IFF_UP
	}
	req.AddData(msg)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && (up || !errors.Is(err, unix.ENODEV)) {
		return fmt.Errorf("set link %d up=%t: %w", index, up, err)
	}
	return nil
}

// Received is how many packets a device has taken since it came to be.
func Received(s *nl.SocketHandle, index int) (n uint64, err error) {
	const stats64 = 23 // IFLA_STATS64: struct rtnl_link_stats64, which begins with rx_packets
	m, err := look(s, index, "")
	if err != nil {
		return 0, fmt.Errorf("read the counters of link %d: %w", index, err)
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	for _, a := range attrs {
		if a.Attr.Type == stats64 && len(a.Value) >= 8 {
			n = binary.NativeEndian.Uint64(a.Value)
		}
	}
	return n, err
}

// Index is the ifindex of the link with this name. The error wraps unix.ENODEV where there is none.
func Index(s *nl.SocketHandle, name string) (int, error) {
	m, err := look(s, 0, name)
	if err != nil {
		return 0, fmt.Errorf("look up %s: %w", name, err)
	}
	return int(int32(binary.NativeEndian.Uint32(m[4:]))), nil
}

// look asks for one link, by ifindex or by name.
func look(s *nl.SocketHandle, index int, name string) ([]byte, error) {
	req := request(s, unix.RTM_GETLINK, 0)
	req.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(index)}})
	if name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	}
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err == nil && (len(msgs) != 1 || len(msgs[0]) < unix.SizeofIfInfomsg) {
		err = unix.ENODEV
	}
	if err != nil {
		return nil, err
	}
	return msgs[0], nil
}

func request(s *nl.SocketHandle, typ, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(typ, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
	return req
}

const (
	settleFor  = 3 * time.Second // udev took 40 to 220 ms where it was measured
	settleStep = 5 * time.Millisecond
)

// Settle waits, for three seconds at the most, until udev is done with a device. On systemd hosts a
// udev rule has systemd-sysctl write the settings of each interface that appears, rp_filter among
// them, some tens or hundreds of milliseconds late; a value read or written before that is lost.
// Done is: /run/udev/data/n<ifindex> is there and /run/udev/queue is not. Neither alone is enough.
// udevd serves the init network namespace only; elsewhere, and without udevd, Settle returns at once.
func Settle(ctx context.Context, index int) {
	if !served() {
		return
	}
	data := fmt.Sprintf("/run/udev/data/n%d", index)
	for end := time.Now().Add(settleFor); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(settleStep) {
		if exists(data) && !exists("/run/udev/queue") {
			return
		}
	}
}

// served says that udevd runs and this is the namespace it serves.
func served() bool {
	if !exists("/run/udev/control") {
		return false
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false
	}
	first, err := os.Stat("/proc/1/ns/net")
	return err != nil || os.SameFile(own, first) // not to be seen: better to wait in vain
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
