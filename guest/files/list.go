package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Bounds of a listing. Only the names are held, to be sorted.
const (
	maxEntries   = 100_000
	maxNameBytes = 8 << 20
	readBatch    = 1024
)

// Stat describes what is at path; a link itself, not what it points to.
func Stat(path string) (guestapi.FileStat, error) {
	st, err := statAt(unix.AT_FDCWD, path)
	st.Path, st.Name = path, filepath.Base(path)
	return st, err
}

func statAt(dir int, name string) (guestapi.FileStat, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return guestapi.FileStat{}, err
	}
	out := guestapi.FileStat{
		Type: "other", SizeBytes: st.Size, Mode: fmt.Sprintf("%04o", st.Mode&0o7777),
		UID: int(st.Uid), GID: int(st.Gid), ModifiedAt: time.Unix(st.Mtim.Unix()).UTC(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		out.Type = "file"
	case unix.S_IFDIR:
		out.Type = "dir"
	case unix.S_IFLNK:
		out.Type = "symlink"
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return guestapi.FileStat{}, err
		}
		out.Target = string(buf[:n])
	}
	return out, nil
}

// Listing is an open directory with its names.
type Listing struct {
	dir   *os.File
	path  string
	names []string
}

// List reads the names in a directory.
func List(path string) (*Listing, error) { return list(path, maxEntries) }

func list(path string, limit int) (*Listing, error) {
	dir, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return nil, err
	}
	l := &Listing{dir: dir, path: path}
	bytes := 0
	for {
		names, err := dir.Readdirnames(readBatch)
		for _, name := range names {
			bytes += len(name)
		}
		l.names = append(l.names, names...)
		if len(l.names) > limit || bytes > maxNameBytes {
			err = errTooLarge
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(l.names)
			return l, nil
		}
		if err != nil {
			l.Close()
			return nil, err
		}
	}
}

// Close closes the directory.
func (l *Listing) Close() { _ = l.dir.Close() }

// Each describes the entries, sorted by name. One that was removed meanwhile is left out.
func (l *Listing) Each(ctx context.Context, visit func(guestapi.FileStat) error) error {
	for _, name := range l.names {
		if err := ctx.Err(); err != nil {
			return err
		}
		st, err := statAt(int(l.dir.Fd()), name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		st.Path, st.Name = filepath.Join(l.path, name), name
		if err := visit(st); err != nil {
			return err
		}
	}
	return nil
}

func openDir(parent int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// MakeDir makes a directory with its parents. One that is there is no error.
func MakeDir(path string) error { return os.MkdirAll(path, 0o755) }
