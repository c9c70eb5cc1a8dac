package chvemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
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
		return errors.New("the file is already locked")
	}
	return err
}

// openDisk opens a disk's image (open_disk in block/src/factory.rs).
func openDisk(d *vmm.DiskConfig) (*os.File, error) {
	flags := os.O_RDWR
	if d.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(d.Path, flags, 0)
	if err == nil {
		if err = checkImage(f); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open disk path: %w", err)
	}
	return f, nil
}

// checkImage reads the start and the end of an image: Cloud Hypervisor looks for the
// type there even when it is given, and refuses one that contradicts
// (detect_image_type, DiskImageTypeMismatch).
func checkImage(f *os.File) error {
	var head [512]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return fmt.Errorf("detect image type: %w", err)
	}
	for magic, kind := range map[string]string{"QFI\xfb": "qcow2", "vhdxfile": "vhdx"} {
		if strings.HasPrefix(string(head[:]), magic) {
			return errImageType(kind)
		}
	}
	vhd, err := isFixedVHD(f)
	if err == nil && vhd {
		err = errImageType("vhd")
	}
	return err
}

func errImageType(detected string) error {
	return fmt.Errorf("disk image type does not match expected type: specified = raw, detected = %s", detected)
}

// isFixedVHD looks for the footer in the last sector of a fixed VHD image (is_fixed_vhd in
// block/src/formats/vhd/footer.rs).
func isFixedVHD(f *os.File) (bool, error) {
	const sector = 512
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	var foot [sector]byte
	if _, err := f.ReadAt(foot[:], st.Size()-sector); err != nil {
		return false, fmt.Errorf("detect image type: %w", err)
	}
	const fixed = 2
	return strings.HasPrefix(string(foot[:]), "conectix") && binary.BigEndian.Uint32(foot[12:]) == 1<<16 &&
		binary.BigEndian.Uint64(foot[16:]) == math.MaxUint64 && binary.BigEndian.Uint32(foot[60:]) == fixed, nil
}

// lockDisk locks the bytes of an image for a device that runs (try_lock_image in
// virtio-devices/src/block.rs).
func lockDisk(f *os.File, d *vmm.DiskConfig) error {
	st, err := f.Stat()
	if err == nil {
		err = lockFile(f, !d.ReadOnly, st.Size())
	}
	if err != nil {
		return fmt.Errorf("cannot lock images of all block devices: %s: %w", d.Path, err)
	}
	return nil
}
