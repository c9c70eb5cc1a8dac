package startlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// maxRecord is the longest record, in bytes.
const maxRecord = len(timeFormat) + len(" stdout F ") + guestapi.MaxLine + 1

// Query says which lines are wanted.
type Query struct {
	Stream string // guestapi.StreamStdout, StreamStderr or StreamBoth
	Tail   int    // at most so many of those that are there
	Follow bool   // then those to come, until the context ends
}

func (q Query) wants(l guestapi.LogLine) bool {
	return q.Stream == guestapi.StreamBoth || q.Stream == l.Stream
}

// Read passes the lines of the log at path to emit, in their order; flush is
// called when no more are there for now.
func Read(ctx context.Context, path string, q Query, emit func(guestapi.LogLine) error, flush func() error) error {
	r := &reader{path: path, q: q, emit: emit}
	defer r.close()
	if q.Follow {
		// Before the first look: nothing may come in between.
		r.watch = newWatch(path)
		defer r.watch.close()
	}
	if err := r.tail(); err != nil {
		return err
	}
	for {
		if err := flush(); err != nil {
			return err
		}
		if !q.Follow {
			return nil
		}
		if err := r.watch.wait(ctx); err != nil {
			return nil // the caller has seen enough
		}
		if err := r.news(); err != nil {
			return err
		}
	}
}

// reader follows the log from file to file.
type reader struct {
	path  string
	q     Query
	emit  func(guestapi.LogLine) error
	watch *watch

	f    *os.File // the file that is being read; nil: none was there yet
	at   int64    // up to where
	held []byte   // the beginning of a record
	long bool     // what is left of a record that is too long is passed over
	skip int      // so many more wanted lines are not passed on
}

func (r *reader) close() {
	if r.f != nil {
		_ = r.f.Close()
	}
}

// open opens one of the two files; a missing one is nil. The tenant may have put
// anything in its place.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func same(a, b *os.File) bool {
	if a == nil || b == nil {
		return false
	}
	one, err1 := a.Stat()
	two, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// tail passes on the last lines of both files.
func (r *reader) tail() error {
	// In this order: a file that turned the old one meanwhile is then known as
	// the same, and its lines come once.
	current, err := open(r.path)
	if err != nil {
		return err
	}
	old, err := open(r.path + oldSuffix)
	if err != nil {
		_ = current.Close()
		return err
	}
	if same(current, old) {
		_ = old.Close()
		old = nil
	}
	files := slices.DeleteFunc([]*os.File{old, current}, func(f *os.File) bool { return f == nil })
	var ends []int64
	total := 0
	for _, f := range files {
		end, n, e := count(f, r.q)
		ends, total, err = append(ends, end), total+n, errors.Join(err, e)
	}
	r.skip = max(0, total-r.q.Tail)
	for i, f := range files {
		r.turn(f)
		if err == nil {
			err = r.read(ends[i])
		}
	}
	r.skip = 0
	return err
}

// count counts a file's wanted lines up to the last that is whole, and says
// where that ends.
func count(f *os.File, q Query) (end int64, n int, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, st.Size()), maxRecord)
	at := int64(0)
	for {
		raw, err := in.ReadSlice('\n')
		at += int64(len(raw))
		switch {
		case err == nil:
			end = at
			if line, ok := parseRecord(raw[:len(raw)-1]); ok && q.wants(line) {
				n++
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return end, n, nil
		default:
			return 0, 0, err
		}
	}
}

// turn goes on with another file.
func (r *reader) turn(f *os.File) {
	r.close()
	r.f, r.at, r.held, r.long = f, 0, nil, false
}

// read passes on what the file has up to end; a negative end is the file's.
func (r *reader) read(end int64) error {
	if r.f == nil {
		return nil
	}
	buf := make([]byte, 32<<10)
	for end < 0 || r.at < end {
		b := buf
		if end >= 0 {
			b = buf[:min(int64(len(buf)), end-r.at)]
		}
		n, err := r.f.ReadAt(b, r.at)
		r.at += int64(n)
		if e := r.take(b[:n]); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
	}
	return nil
}

func (r *reader) take(data []byte) error {
	for {
		raw, rest, found := bytes.Cut(data, []byte("\n"))
		if len(r.held)+len(raw) > maxRecord {
			r.held, r.long = r.held[:0], true
		} else if !r.long {
			r.held = append(r.held, raw...)
		}
		if !found {
			return nil
		}
		line, ok := parseRecord(r.held)
		if r.long {
			ok = false
		}
		r.held, r.long, data = r.held[:0], false, rest
		if !ok || !r.q.wants(line) {
			continue
		}
		if r.skip > 0 {
			r.skip--
			continue
		}
		if err := r.emit(line); err != nil {
			return err
		}
	}
}

// news passes on what was added since, in this file and in those after it.
func (r *reader) news() error {
	for {
		current, err := open(r.path)
		if err != nil || current == nil {
			if err == nil {
				err = r.rest()
			}
			return err
		}
		if same(current, r.f) {
			_ = current.Close()
			return r.rest()
		}
		// The file was turned over: it will not change any more.
		if err := r.rest(); err != nil {
			_ = current.Close()
			return err
		}
		old, err := open(r.path + oldSuffix)
		if err != nil {
			_ = current.Close()
			return err
		}
		if old != nil && !same(old, r.f) {
			// Twice since the last look: the one in between comes first.
			r.turn(old)
			if err := r.rest(); err != nil {
				_ = current.Close()
				return err
			}
		} else if old != nil {
			_ = old.Close()
		}
		r.turn(current)
	}
}

// rest reads to the end of the file; from its beginning, if it was emptied.
func (r *reader) rest() error {
	if r.f == nil {
		return nil
	}
	if st, err := r.f.Stat(); err == nil && st.Size() < r.at {
		r.at, r.held, r.long = 0, nil, false
	}
	return r.read(-1)
}
