package chvemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// cloneSparse makes dst the same as the first size bytes of src, sharing the
// blocks where the file system can and copying only data where it cannot. What
// was in dst is lost; its size stays.
func cloneSparse(dst, src *os.File, size int64) error {
	err := unix.IoctlFileCloneRange(int(dst.Fd()), &unix.FileCloneRange{Src_fd: int64(src.Fd()), Src_length: uint64(size)})
	if err == nil {
		return nil
	}
	// Not this file system, or not these two files: any reason leads to a copy.
	if err := punch(dst, 0, size); err != nil {
		return err
	}
	for off := int64(0); off < size; {
		data, hole, err := nextData(src, off, size)
		if err != nil || data == size {
			return err
		}
		for in, out := data, data; in < hole; {
			n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(hole-in), 0)
			if err != nil {
				return fmt.Errorf("copy %s: %w", src.Name(), err)
			}
			if n == 0 {
				return fmt.Errorf("copy %s: it became shorter", src.Name())
			}
		}
		off = hole
	}
	return nil
}

// nextData returns the next stretch of data in a file, cut at size, or size
// twice when there is none.
func nextData(f *os.File, off, size int64) (data, hole int64, err error) {
	data, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find data in %s: %w", f.Name(), err)
	}
	hole, err = unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("find hole in %s: %w", f.Name(), err)
	}
	return min(data, size), min(hole, size), nil
}

// punch makes a hole in a file and leaves its size.
func punch(f *os.File, off, length int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	if err != nil {
		return fmt.Errorf("punch hole in %s: %w", f.Name(), err)
	}
	return nil
}
