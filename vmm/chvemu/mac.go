package chvemu

import (
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreqHW is struct ifreq with a hardware address, which x/sys has no accessor
// for: the name, then a sockaddr.
type ifreqHW struct {
	name   [unix.IFNAMSIZ]byte
	family uint16
	addr   [14]byte
	_      [8]byte
}

func hwIoctl(sock int, req uint, r *ifreqHW) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), uintptr(req), uintptr(unsafe.Pointer(r)))
	if errno != 0 {
		return errno
	}
	return nil
}

func getMAC(sock int, name string) (string, error) {
	var r ifreqHW
	copy(r.name[:unix.IFNAMSIZ-1], name)
	if err := hwIoctl(sock, unix.SIOCGIFHWADDR, &r); err != nil {
		return "", err
	}
	return net.HardwareAddr(r.addr[:6]).String(), nil
}

func setMAC(sock int, name, mac string) error {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	r := ifreqHW{family: unix.ARPHRD_ETHER}
	copy(r.name[:unix.IFNAMSIZ-1], name)
	copy(r.addr[:], hw)
	return hwIoctl(sock, unix.SIOCSIFHWADDR, &r)
}
