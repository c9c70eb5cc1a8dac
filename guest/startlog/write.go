package startlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxFile is the size, in bytes, at which the file is rotated. With the old one, at
// most twice as much is kept.
const maxFile = 4 << 20

// oldSuffix is that of the rotated file.
const oldSuffix = ".1"

// Writer writes the output that comes by pipes to the log.
type Writer struct {
	path string
	max  int64
	now  func() time.Time

	mu   sync.Mutex
	torn bool // the file may end in half a record
}

// NewWriter returns a writer of the file at path.
func NewWriter(path string) *Writer { return &Writer{path: path, max: maxFile, now: time.Now} }

// Pipe returns the file that a command writes a stream to. The caller closes it once
// the command has been started; it is read until every process has closed it.
func (w *Writer) Pipe(stream string) (*os.File, error) {
	// Not os.Pipe: the command's end has to be a blocking one.
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe for %s: %w", stream, err)
	}
	from := os.NewFile(uintptr(p[0]), stream)
	go func() {
		defer from.Close()
		toRecords(from, stream, w.now, w.append)
	}()
	return os.NewFile(uintptr(p[1]), stream), nil
}

// append writes records. If the disk is full, or the workload has replaced the
// file, they are lost: the command must not wait.
func (w *Writer) append(records []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := w.open(int64(len(records)))
	if err != nil {
		return
	}
	defer f.Close()
	if w.torn {
		records = append([]byte("\n"), records...)
	}
	n, err := f.Write(records)
	w.torn = err != nil && (n > 0 || w.torn)
}

// open opens the file, anew for each write: the workload may have deleted or
// replaced it. A file without room for so many bytes is rotated.
func (w *Writer) open(more int64) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(w.path), 0o755); err != nil {
		return nil, err
	}
	const flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	f, err := open(w.path, flags)
	if err != nil {
		return nil, err
	}
	if at := size(f); at == 0 || at+more <= w.max {
		return f, nil
	}
	_ = f.Close()
	if err := os.Rename(w.path, w.path+oldSuffix); err != nil {
		return nil, err
	}
	return open(w.path, flags)
}

// open opens a regular file. It does not block, whatever is at the path.
func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	return f, nil
}

// size is 0 of what is not there.
func size(f *os.File) int64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}
