package chvemu

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
)

// openTap opens the tap of a network device, which is there and up. It fills in
// the tap's address, as open_tap_rx_q_0 in net_util/src/open_tap.rs does.
func openTap(n *vmm.NetConfig) (*os.File, error) {
	f, err := attachTap(n.Tap)
	if err != nil {
		return nil, fmt.Errorf("cannot create virtio-net device: open tap %s: %w", n.Tap, err)
	}
	link, err := net.InterfaceByName(n.Tap)
	if err == nil && n.HostMAC != "" && n.HostMAC != link.HardwareAddr.String() {
		err = unsupported("setting a tap's MAC address")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot create virtio-net device: %w", err)
	}
	n.HostMAC = link.HardwareAddr.String()
	return f, nil
}

func attachTap(name string) (*os.File, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}
