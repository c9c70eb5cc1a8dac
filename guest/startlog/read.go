package startlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// pollInterval is how often a follower reads what was added.
const pollInterval = 200 * time.Millisecond

// Query says which lines are wanted.
type Query struct {
	Stream string // guestapi.StreamStdout, StreamStderr or StreamBoth
	Tail   int    // at most so many of those that are there
	Follow bool   // then those to come, until the context ends
}

// Read passes the lines of the log at path to emit, in order; flush is called when
// all present lines were passed. A follower misses lines if the file is rotated
// twice between two reads.
func Read(ctx context.Context, path string, q Query, emit func(guestapi.LogLine) error, flush func() error) error {
	r := &reader{path: path, stream: q.Stream, emit: emit}
	defer func() { _ = r.f.Close() }()
	if err := r.tail(q.Tail); err != nil {
		return err
	}
	for {
		if err := flush(); err != nil || !q.Follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // the caller has seen enough
		case <-time.After(pollInterval):
		}
		if err := r.news(); err != nil {
			return err
		}
	}
}

// reader goes through the log from file to file.
type reader struct {
	path, stream string
	emit         func(guestapi.LogLine) error

	f  *os.File // the file that is being read; nil: none was there yet
	at int64    // up to where
}

// tail passes on the last n lines of both files.
func (r *reader) tail(n int) error {
	// In this order, so that a file that is rotated meanwhile is recognized and its
	// lines come once.
	r.f = openLog(r.path)
	old := openLog(r.path + oldSuffix)
	defer old.Close()
	end, oldEnd := size(r.f), size(old)
	if same(r.f, old) {
		oldEnd = 0
	}
	both := func(each func(guestapi.LogLine) error) error {
		_, err := r.lines(old, 0, oldEnd, each)
		if err == nil {
			r.at, err = r.lines(r.f, 0, end, each)
		}
		return err
	}
	left := 0
	if err := both(func(guestapi.LogLine) error { left++; return nil }); err != nil {
		return err
	}
	return both(func(l guestapi.LogLine) error {
		if left--; left >= n {
			return nil
		}
		return r.emit(l)
	})
}

// news passes on what was added since.
func (r *reader) news() error {
	// Opened before the rest is read: a file that was rotated by then gets no more
	// lines.
	next := openLog(r.path)
	end := size(r.f)
	if end < r.at {
		r.at = 0 // it was emptied
	}
	var err error
	r.at, err = r.lines(r.f, r.at, end, r.emit)
	if err != nil || next == nil || same(next, r.f) {
		_ = next.Close()
		return err
	}
	_ = r.f.Close()
	r.f = next
	r.at, err = r.lines(next, 0, size(next), r.emit)
	return err
}

// lines passes on the wanted lines of f between two offsets, and returns where the
// last whole one ends.
func (r *reader) lines(f *os.File, from, to int64, each func(guestapi.LogLine) error) (int64, error) {
	if from >= to {
		return from, nil
	}
	in := bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), maxRecord)
	for {
		raw, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return from, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // which no record fills
			return from, fmt.Errorf("read the log: %w", err)
		}
		from += int64(len(raw))
		line, ok := parseRecord(raw)
		if !ok || r.stream != guestapi.StreamBoth && r.stream != line.Stream {
			continue
		}
		if err := each(line); err != nil {
			return from, err
		}
	}
}

// openLog opens a file of the log to read it: nil where none is there, or the
// workload has put something else in its place.
func openLog(path string) *os.File {
	f, err := open(path, os.O_RDONLY)
	if err != nil {
		return nil
	}
	return f
}

// same reports whether both are there and are one file.
func same(a, b *os.File) bool {
	one, err1 := a.Stat()
	two, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}
