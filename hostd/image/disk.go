package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// CloneOverlay makes dst a copy of the sparse file src that shares its blocks
// where the file system can, and else copies the extents that hold data. dst
// must not exist.
func CloneOverlay(src, dst string) (err error) {
	from, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("clone disk: %w", err)
	}
	defer func() {
		if e := to.Close(); err == nil {
			err = e
		}
		if err != nil {
			_ = os.Remove(dst)
			err = fmt.Errorf("clone disk %s to %s: %w", src, dst, err)
		}
	}()
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(st.Size()); err != nil {
		return err
	}
	return eachExtent(from, st.Size(), func(at, size int64) error {
		return copyRange(to, from, at, size)
	})
}

// SharesBlocks reports whether a clone of a file in dir shares its blocks.
func SharesBlocks(src, dir string) bool {
	from, err := os.Open(src)
	if err != nil {
		return false
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, ".clone-*")
	if err != nil {
		return false
	}
	defer to.Close()
	defer os.Remove(to.Name())
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
}

// eachExtent visits the ranges of a sparse file that hold data. On a file system
// that knows no holes that is the whole file.
func eachExtent(f *os.File, size int64, visit func(at, size int64) error) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			return nil
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		if err := visit(data, hole-data); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

func copyRange(to, from *os.File, at, size int64) error {
	for size > 0 {
		in, out := at, at
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, int(size), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			_, err := io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, size))
			return err
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		at += int64(n)
		size -= int64(n)
	}
	return nil
}

// page is the granularity of holes: the block size of the file systems in use.
const page = 4096

// punchZeros turns the pages of a file that hold only zeros into holes.
func punchZeros(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	buf := make([]byte, 256*page)
	err = eachExtent(f, st.Size(), func(at, size int64) error {
		for end := at + size; at < end; {
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if n == 0 {
				return nil
			}
			if err := punch(f, buf[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system without holes keeps the zeros
	}
	return err
}

// punch makes holes of the runs of zero pages in buf, which stands at the offset.
func punch(f *os.File, buf []byte, at int64) error {
	from := -1
	for i := 0; i <= len(buf); i += page {
		zero := i+page <= len(buf) && isZero(buf[i:i+page])
		switch {
		case zero && from < 0:
			from = i
		case !zero && from >= 0:
			err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at+int64(from), int64(i-from))
			if err != nil {
				return fmt.Errorf("punch hole: %w", err)
			}
			from = -1
		}
	}
	return nil
}

var zeroPage [page]byte

func isZero(b []byte) bool { return string(b) == string(zeroPage[:len(b)]) }

// journalMB is the journal of a writable disk. The default of mke2fs, 64, would
// sooner or later all be data that a fork has to copy.
const journalMB = 16

// makeOverlay makes an empty writable disk: a sparse file with an ext4 whose
// tables are holes, too.
func makeOverlay(ctx context.Context, path string, sizeMB int) error {
	if err := sparse(path, int64(sizeMB)<<20); err != nil {
		return err
	}
	return mke2fs(ctx, "-m", "0", "-J", fmt.Sprintf("size=%d", journalMB), "-O", "^resize_inode",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", path)
}

func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

func mke2fs(ctx context.Context, args ...string) error {
	return command(ctx, nil, "mke2fs", append([]string{"-q", "-F", "-t", "ext4"}, args...)...)
}

// command runs a program of the host. Its error holds the end of the output.
func command(ctx context.Context, stdin io.Reader, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	// Debian keeps these where an unprivileged PATH does not look.
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w: %s", name, err, tail(string(out)))
}

const tailBytes = 2 << 10

// tail is the end of a program's output, where the error stands.
func tail(out string) string {
	out = strings.TrimSpace(out)
	if len(out) > tailBytes {
		out = "…" + out[len(out)-tailBytes:]
	}
	return out
}
