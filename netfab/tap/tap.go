// Package tap makes the persistent tap device of a network slot. Everything
// in it acts on the network namespace of the calling thread, so callers stand
// on a locked thread that has entered the slot's namespace.
package tap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const device = "/dev/net/tun"

// Flags a VMM opens the tap with: Cloud Hypervisor v53 (net_util/src/tap.rs)
// and QEMU both want whole Ethernet frames with a virtio-net header and, for
// one queue pair, no IFF_MULTI_QUEUE, which the kernel refuses to mix.
const flags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// ErrBusy is returned where another process has the tap open: its guest lives.
var ErrBusy = errors.New("tap is in use")

// Create makes the tap persistent and owned by uid, so that an unprivileged
// VMM may open it. A tap of that name is kept and given the owner.
func Create(name string, uid int) error {
	f, err := Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, uid); err != nil {
		return fmt.Errorf("set owner of tap %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make tap %s persistent: %w", name, err)
	}
	return nil
}

// Open attaches to the tap as a VMM does, creating it if it is not there. It
// returns ErrBusy where another descriptor is attached.
func Open(name string) (*os.File, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("tap name %q: %w", name, err)
	}
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EBUSY) {
			err = ErrBusy
		}
		return nil, fmt.Errorf("attach to tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}
