package startlog

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxFile is how large the file gets, in bytes, before it becomes the old one.
// There are two, so at most twice as much is kept.
const maxFile = 4 << 20

// oldSuffix is that of the file before.
const oldSuffix = ".1"

// file is the log as its writer has it.
type file struct {
	path string
	max  int64
	f    *os.File // nil until it is needed
	torn bool     // it may end in half a record
}

// append writes records. What the disk has no room for is lost, and so is
// nothing else: the command must not wait for it.
func (l *file) append(records []byte) error {
	if len(records) == 0 {
		return nil
	}
	if err := l.ready(int64(len(records))); err != nil {
		return err
	}
	if l.torn {
		records = append([]byte("\n"), records...)
	}
	n, err := l.f.Write(records)
	l.torn = err != nil && (n > 0 || l.torn)
	return err
}

// ready opens the file, where it is not open or was deleted, and turns it over
// where it is full.
func (l *file) ready(more int64) error {
	for range 2 {
		if l.f != nil {
			var st unix.Stat_t
			err := unix.Fstat(int(l.f.Fd()), &st)
			if err == nil && st.Nlink > 0 && (st.Size == 0 || st.Size+more <= l.max) {
				return nil
			}
			_ = l.f.Close()
			l.f = nil
			if err == nil && st.Nlink > 0 {
				if err := os.Rename(l.path, l.path+oldSuffix); err != nil {
					return err
				}
			}
		}
		if err := l.open(); err != nil {
			return err
		}
	}
	return nil
}

func (l *file) open() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	l.f = f
	return nil
}

func (l *file) close() {
	if l.f != nil {
		_ = l.f.Close()
	}
}
