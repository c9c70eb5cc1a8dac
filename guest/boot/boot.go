// Package boot is guestd as the initramfs's /init: it loads the kernel modules
// that the initramfs brought, joins the read-only image and the writable
// overlay, and hands process 1 over to the joined root.
package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// diskWait bounds the wait for a disk that its driver has yet to announce.
const diskWait = 10 * time.Second

// DiskFD is the descriptor of the overlay's own file system, handed down from
// the initramfs to `guestd init` and to the agent. It is the only way to that
// file system: its mount is hidden below the root, where no workload can change
// a layer under a mounted overlay.
const DiskFD = 3

// newRoot and the layers' mount points exist in the initramfs only.
const (
	newRoot  = "/newroot"
	layerDir = "/layers"
	upperDir = "upper" // of a writable disk: what its guest changed
)

// Run does the work and does not return unless it fails.
func Run() error {
	for _, m := range []struct{ source, target, fstype string }{
		{"devtmpfs", "/dev", "devtmpfs"}, {"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"},
	} {
		if err := mount(m.source, m.target, m.fstype, unix.MS_NOSUID, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	p, err := parseCmdline(string(line))
	if err != nil {
		return err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	// A module of another build of the kernel is refused by the kernel. The
	// boot goes on: the disks below name what is missing.
	moduleErr := loadModules(filepath.Join("/lib/modules", release), finitModule)
	diskFD, err := mountRoot(p)
	if err != nil {
		return errors.Join(err, moduleErr)
	}
	if err := moveIntoRoot(); err != nil {
		return err
	}
	return switchRoot(diskFD)
}

// mountRoot mounts the layers and joins them at newRoot. It returns a
// descriptor of the overlay's file system.
func mountRoot(p params) (int, error) {
	var lower []string
	for i := range p.lower {
		dir := filepath.Join(layerDir, strconv.Itoa(i))
		if err := mountDisk(disk(i), dir, unix.MS_RDONLY|unix.MS_NOATIME, "", "ext4", "erofs"); err != nil {
			return -1, err
		}
		if i > 0 {
			// The disk of a guest that made this layer: see below where its files are.
			dir = filepath.Join(dir, upperDir)
		}
		// The first disk is the lowest layer, and overlayfs wants the highest first.
		lower = append([]string{dir}, lower...)
	}
	rw := filepath.Join(layerDir, "rw")
	// noinit_itable: the inode tables of a fresh overlay are holes, and filling
	// them with zeros in the background would make each sandbox's file grow.
	if err := mountDisk(disk(p.lower), rw, unix.MS_NOATIME, "discard,noinit_itable", "ext4"); err != nil {
		return -1, err
	}
	upper, work := filepath.Join(rw, upperDir), filepath.Join(rw, "work")
	for _, dir := range []string{upper, work, newRoot} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return -1, err
		}
	}
	options := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + upper + ",workdir=" + work
	if err := mount("overlay", newRoot, "overlay", unix.MS_NOATIME, options+",redirect_dir=on"); err != nil {
		if errors.Is(err, unix.ENODEV) {
			return -1, fmt.Errorf("the kernel has no overlayfs, built in or as a module: %w", err)
		}
		return -1, err
	}
	fd, err := unix.Open(rw, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", rw, err)
	}
	return fd, nil
}

// mountDisk mounts a disk with the first of the file systems that takes it.
func mountDisk(device, dir string, flags uintptr, options string, fstypes ...string) error {
	if err := awaitDevice(device); err != nil {
		return err
	}
	var err error
	for _, fstype := range fstypes {
		if err = mount(device, dir, fstype, flags, options); err == nil {
			return nil
		}
	}
	return err
}

// awaitDevice waits for a device node. Drivers announce disks while their module
// loads, so it is nearly always there at once.
func awaitDevice(device string) error {
	deadline := time.Now().Add(diskWait)
	for {
		_, err := os.Stat(device)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no block device %s after %s: the VM lacks the disk, or the kernel has no virtio_blk, built in or as a module", device, diskWait)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// moveIntoRoot moves into the new root what is needed after the initramfs.
func moveIntoRoot() error {
	if err := mount("tmpfs", newRoot+"/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot+guestapi.RunDir, 0o755); err != nil {
		return err
	}
	if err := copyFile("/init", newRoot+guestapi.ProgramPath, 0o755); err != nil {
		return fmt.Errorf("move guestd: %w", err)
	}
	err := copyFile(guestapi.BootSpecPath, newRoot+guestapi.RunBootSpecPath, 0o600)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("move the boot specification: %w", err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := os.MkdirAll(newRoot+dir, 0o755); err != nil {
			return err
		}
		if err := mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return err
		}
	}
	return nil
}

// switchRoot frees the initramfs, makes newRoot the root and runs guestd init.
func switchRoot(diskFD int) error {
	// The files of the initramfs hold RAM for as long as they have a name.
	for _, path := range []string{"/lib", "/init", guestapi.BootSpecPath} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("free the initramfs: %w", err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if diskFD != DiskFD {
		if err := unix.Dup2(diskFD, DiskFD); err != nil {
			return fmt.Errorf("hand down the overlay: %w", err)
		}
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return fmt.Errorf("run %s: %w", guestapi.ProgramPath, unix.Exec(guestapi.ProgramPath, []string{"guestd", "init"}, env))
}

func mount(source, target, fstype string, flags uintptr, options string) error {
	if flags&unix.MS_MOVE == 0 {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(source, target, fstype, flags, options); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", source, fstype, target, err)
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := dst.ReadFrom(src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
