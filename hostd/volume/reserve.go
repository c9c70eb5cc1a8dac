package volume

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reserve has the file system reserve the whole of an image, so that a disk
// that others fill is not full for its guest. A file system that cannot reserve
// is no error: admission counts what is missing.
func reserve(image string, size int64) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// takenBytes is what an image has of the disk, reserved or written.
func takenBytes(image string) int64 {
	var st syscall.Stat_t
	if err := syscall.Stat(image, &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// usedBytes is what has been written to an image.
func usedBytes(image string) int64 {
	f, err := os.Open(image)
	if err != nil {
		return 0
	}
	defer f.Close()
	used := int64(0)
	for at := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			return used // there is no more
		}
		if at, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE); err != nil {
			return used
		}
		used += at - data
	}
}
