package chvemu

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openTap opens the tap of a network device and prepares it the way
// open_tap_rx_q_0 in net_util/src/open_tap.rs does, in the same order, so that
// what an unprivileged process may not do fails here as well.
func openTap(n *netConfig) (*os.File, *fault) {
	name := *n.Tap
	f, err := attachTap(name)
	if err != nil {
		return nil, fail(err, "Open tap device failed")
	}
	if err := configureTap(n, name); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func attachTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fail(err, "Couldn't open /dev/net/tun")
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fail(err, "Unable to configure tap interface")
	}
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}

func configureTap(n *netConfig, name string) *fault {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err, "Failed to create a socket")
	}
	defer unix.Close(sock)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return fail(err, "Interface name is invalid")
	}
	if n.HostMAC != nil {
		if err := setMAC(sock, name, *n.HostMAC); err != nil {
			return fail(err, "Setting MAC address failed")
		}
	} else {
		mac, err := getMAC(sock, name)
		if err != nil {
			return fail(err, "Getting MAC address failed")
		}
		n.HostMAC = &mac
	}
	if n.MTU != nil {
		req.SetUint32(uint32(*n.MTU))
		if err := unix.IoctlIfreq(sock, unix.SIOCSIFMTU, req); err != nil {
			return fail(err, "Setting MTU failed")
		}
	}
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFFLAGS, req); err != nil {
		return fail(err, "Enabling tap interface failed")
	}
	if req.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, req); err != nil {
		return fail(err, "Enabling tap interface failed")
	}
	return nil
}

// linkCounters reads the traffic of an interface in this process's network
// namespace. What a tap receives is what the guest sends.
func linkCounters(name string) (guestSent, guestReceived linkCount, err error) {
	f, err := os.Open("/proc/thread-self/net/dev")
	if err != nil {
		return linkCount{}, linkCount{}, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		link, rest, ok := strings.Cut(sc.Text(), ":")
		if !ok || strings.TrimSpace(link) != name {
			continue
		}
		v := strings.Fields(rest)
		if len(v) < 10 {
			break
		}
		num := func(i int) uint64 { n, _ := strconv.ParseUint(v[i], 10, 64); return n }
		return linkCount{num(0), num(1)}, linkCount{num(8), num(9)}, nil
	}
	return linkCount{}, linkCount{}, errors.Join(sc.Err(), os.ErrNotExist)
}

type linkCount struct{ bytes, frames uint64 }
