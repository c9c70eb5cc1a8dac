package box

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// clone makes dst a copy of src, at once or not at all: by sharing blocks
// where the file system can (FICLONE on XFS and btrfs), else by copying the
// extents that hold data.
func clone(src, dst string) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("clone overlay: %w", err)
	}
	defer in.Close()
	tmp := dst + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("clone overlay: %w", err)
	}
	err = unix.IoctlFileClone(int(out.Fd()), int(in.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		err = copyExtents(in, out)
	}
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(tmp, dst)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("clone overlay: %w", err)
	}
	return nil
}

// copyExtents copies a sparse file and leaves its holes out.
func copyExtents(in, out *os.File) error {
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	size := fi.Size()
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		for from := data; from < hole; {
			to := from
			n, err := unix.CopyFileRange(int(in.Fd()), &from, int(out.Fd()), &to, int(hole-from), 0)
			if err != nil {
				return fmt.Errorf("copy: %w", err)
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
		}
		at = hole
	}
	return nil
}
