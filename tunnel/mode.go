package tunnel

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/if_tunnel.h.
const (
	getTunnel    = unix.SIOCDEVPRIVATE     // SIOCGETTUNNEL
	changeTunnel = unix.SIOCDEVPRIVATE + 3 // SIOCCHGTUNNEL
)

// Of struct ip6_tnl_parm, include/uapi/linux/ip6_tunnel.h: name 16, link 4, proto 1, and more.
const (
	parmLen   = 64
	parmProto = 20
)

var protos = map[string]byte{"ip6ip6": unix.IPPROTO_IPV6, "ipip6": unix.IPPROTO_IPIP, Any: 0}

// SetMode sets what an ip6tnl device lets out, and nothing else of it. By ioctl: through netlink the
// kernel refuses every change of the fallback device. Any socket serves; the units allow this family.
func SetMode(m Mode, value string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", m, value, err)
	}
	defer unix.Close(fd)
	var parm [parmLen]byte
	if err = tunnelIoctl(fd, getTunnel, m.Device, &parm); err == nil {
		parm[parmProto] = protos[value]
		err = tunnelIoctl(fd, changeTunnel, m.Device, &parm)
	}
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", m, value, err)
	}
	return nil
}

// tunnelIoctl is a struct ifreq that points to the parameters.
func tunnelIoctl(fd int, request uintptr, device string, parm *[parmLen]byte) error {
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(parm)}
	copy(req.name[:unix.IFNAMSIZ-1], device)
	if _, _, code := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&req))); code != 0 {
		return code
	}
	return nil
}
