package chvemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes an open file description lock, shared or exclusive, on length
// bytes from the start, or on the whole file when length is zero
// (try_acquire_lock in block/src/io/fcntl.rs). It lasts as long as any
// descriptor of the description is open, in whichever process.
func lockFile(f *os.File, exclusive bool, length int64) error {
	lk := unix.Flock_t{Type: unix.F_RDLCK, Len: length}
	if exclusive {
		lk.Type = unix.F_WRLCK
	}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return failf("The file is already locked")
	}
	if err != nil {
		return fail(err, "The lock state could not be checked or set")
	}
	return nil
}

// openDisk opens a disk's image (open_disk in block/src/factory.rs).
func openDisk(d *diskConfig) (*os.File, *fault) {
	if d.Path == nil {
		return nil, failf("No disk path was specified when one was expected")
	}
	flags := unix.O_RDWR
	if d.ReadOnly {
		flags = unix.O_RDONLY
	}
	if d.Direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(*d.Path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fail(err, "Cannot open disk path", fmt.Sprintf("I/O error: open %s", quoted(*d.Path)))
	}
	if bad := checkImage(f, *d.Path); bad != nil {
		f.Close()
		return nil, bad
	}
	return f, nil
}

// checkImage reads the start of an image: Cloud Hypervisor looks for the type
// there even when it is given, and refuses one that contradicts
// (detect_image_type, DiskImageTypeMismatch).
func checkImage(f *os.File, path string) *fault {
	st, err := f.Stat()
	if err != nil {
		return fail(err, "Cannot open disk path")
	}
	if st.IsDir() {
		return fail(unix.EISDIR, "Cannot open disk path", fmt.Sprintf("I/O error: open %s", quoted(path)))
	}
	// A second descriptor: the first may be for direct access, which wants an
	// aligned buffer.
	r, err := os.Open(path)
	if err != nil {
		return fail(err, "Cannot open disk path")
	}
	defer r.Close()
	var head [512]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return fail(failf("failed to fill whole buffer"), "Cannot open disk path", "I/O error: detect image type")
	}
	detected := "raw"
	switch {
	case string(head[:4]) == "QFI\xfb":
		detected = "qcow2"
	case string(head[:8]) == "vhdxfile":
		detected = "vhdx"
	}
	if detected != "raw" {
		return failf("Disk image type mismatch: specified raw, detected %s", detected)
	}
	return nil
}

// lockDisk locks an image for a device that runs (try_lock_image in
// virtio-devices/src/block.rs).
func lockDisk(f *os.File, d *diskConfig) *fault {
	var length int64
	if d.LockGranularity == "ByteRange" {
		st, err := f.Stat()
		if err != nil {
			return fail(err, "Cannot lock images of all block devices")
		}
		length = st.Size()
	}
	if err := lockFile(f, !d.ReadOnly, length); err != nil {
		kind := "Write"
		if d.ReadOnly {
			kind = "Read"
		}
		return fail(err, "Cannot lock images of all block devices",
			fmt.Sprintf("Failed to get %s lock for disk image: %s", kind, *d.Path))
	}
	return nil
}
