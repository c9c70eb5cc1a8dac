package chvemu

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

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

// tapCounters reads the traffic of a tap, as the guest sees it: what a tap
// receives is what the guest sends.
func tapCounters(name string) (map[string]uint64, error) {
	f, err := os.Open("/proc/thread-self/net/dev")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		link, rest, ok := strings.Cut(sc.Text(), ":")
		v := strings.Fields(rest)
		if !ok || strings.TrimSpace(link) != name || len(v) < 10 {
			continue
		}
		num := func(i int) uint64 { n, _ := strconv.ParseUint(v[i], 10, 64); return n }
		return map[string]uint64{"tx_bytes": num(0), "tx_frames": num(1), "rx_bytes": num(8), "rx_frames": num(9)}, nil
	}
	return nil, errors.Join(sc.Err(), os.ErrNotExist)
}
