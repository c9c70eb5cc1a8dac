package wal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Errors of a fetch.
var (
	ErrNoRestore = errors.New("no restore is under way")
	ErrNotAsked  = errors.New("no such file is asked for")
	ErrTooLarge  = errors.New("larger than a WAL segment")
)

// Fetch asks the host for files of the archive, one recovery long. It keeps account
// of what came, because PostgreSQL takes WAL that it cannot read for the end of all
// WAL, and goes on from there.
type Fetch struct {
	mu      sync.Mutex
	asked   []*request // oldest first
	changed chan struct{}
	err     error // the restore cannot go on

	given   uint64          // the highest segment that came
	last    string          // its name
	count   int             // of segments that came
	missing map[uint64]bool // segments that the archive does not have
	end     uint64          // no segment after it is asked for; 0: any is
	ended   bool
}

type request struct {
	name  string
	done  chan struct{}
	bytes []byte // nil: it does not exist
	err   error
}

// NewFetch returns the account of a recovery that begins.
func NewFetch() *Fetch {
	return &Fetch{changed: make(chan struct{}), missing: map[uint64]bool{}}
}

// Again returns the account of a recovery of the same WAL: an archive that has grown since
// ends for it where it ended for this one.
func (f *Fetch) Again() *Fetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := NewFetch()
	again.end = f.given
	return again
}

// Need returns a file of the archive, or false if there is none of that name.
func (f *Fetch) Need(ctx context.Context, name string) ([]byte, bool, error) {
	w, err := pgapi.ParseWALName(name)
	if err != nil {
		return nil, false, err
	}
	r := &request{name: name, done: make(chan struct{})}
	f.mu.Lock()
	if err := f.over(); err != nil {
		f.mu.Unlock()
		return nil, false, err
	}
	if f.end > 0 && w.Kind == pgapi.WALSegment && w.Segment > f.end {
		f.missing[w.Segment] = true
		f.mu.Unlock()
		return nil, false, nil
	}
	f.asked = append(f.asked, r)
	f.notify()
	f.mu.Unlock()
	select {
	case <-r.done:
		return r.bytes, r.bytes != nil, r.err
	case <-ctx.Done():
		f.answer(name, func(*request) error { return nil }) //nolint:errcheck // it may have been answered just now
		return nil, false, context.Cause(ctx)
	}
}

func (f *Fetch) over() error {
	if f.err != nil {
		return f.err
	}
	if f.ended {
		return ErrNoRestore
	}
	return nil
}

// Next returns the file that the host is to bring next, and waits for one.
func (f *Fetch) Next(ctx context.Context) (pgapi.FetchRequest, bool) {
	for {
		f.mu.Lock()
		changed, ended := f.changed, f.over() != nil
		if len(f.asked) > 0 {
			name := f.asked[0].name
			f.mu.Unlock()
			return pgapi.FetchRequest{Name: name}, true
		}
		f.mu.Unlock()
		if ended {
			return pgapi.FetchRequest{}, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return pgapi.FetchRequest{}, false
		}
	}
}

// Provide brings a file with these bytes.
func (f *Fetch) Provide(name string, bytes []byte, sha string) error {
	if len(bytes) > pgapi.SegmentBytes {
		return ErrTooLarge
	}
	w, err := pgapi.ParseWALName(name)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(bytes)
	if hex.EncodeToString(sum[:]) != sha {
		return ErrOtherBytes
	}
	if w.Kind == pgapi.WALSegment && len(bytes) != pgapi.SegmentBytes {
		return f.Fail(name, fmt.Errorf("%s has %d bytes: want %d", name, len(bytes), pgapi.SegmentBytes))
	}
	return f.answer(name, func(r *request) error {
		if r.bytes = bytes; bytes == nil {
			r.bytes = []byte{}
		}
		if w.Kind == pgapi.WALSegment {
			f.count++
			if w.Segment >= f.given {
				f.given, f.last = w.Segment, name
			}
		}
		return nil
	})
}

// Missing says that the archive has no such file.
func (f *Fetch) Missing(name string) error {
	w, err := pgapi.ParseWALName(name)
	if err != nil {
		return err
	}
	return f.answer(name, func(*request) error {
		if w.Kind == pgapi.WALSegment {
			f.missing[w.Segment] = true
		}
		return nil
	})
}

// Fail ends the restore: the archive should have a file and cannot give it.
func (f *Fetch) Fail(name string, cause error) error {
	return f.answer(name, func(r *request) error {
		f.err = fmt.Errorf("WAL file %s cannot be had: %w", name, cause)
		r.err = f.err
		return nil
	})
}

// End lets nobody ask or wait any more.
func (f *Fetch) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, r := range f.asked {
		r.err = ErrNoRestore
		close(r.done)
	}
	f.asked = nil
	f.notify()
}

func (f *Fetch) answer(name string, give func(*request) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.asked {
		if r.name != name {
			continue
		}
		if err := give(r); err != nil {
			return err
		}
		f.asked = append(f.asked[:i], f.asked[i+1:]...)
		close(r.done)
		f.notify()
		return nil
	}
	return ErrNotAsked
}

// Err is why the restore cannot go on, if it cannot.
func (f *Fetch) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Ended says whether recovery came to the end of the archive: after the last segment
// it asked for the next, and there was none. If it ended before, it met WAL that it
// could not read, and the error names the segment.
func (f *Fetch) Ended() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.err != nil:
		return f.err
	case f.count == 0 && len(f.missing) == 0:
		return errors.New("recovery asked for no WAL")
	case f.count == 0 || f.missing[f.given+1]:
		return nil
	}
	return fmt.Errorf("WAL segment %s is damaged: recovery ended in it, and did not ask for the next", f.last)
}

// Progress is how far the restore is.
func (f *Fetch) Progress(into *pgapi.RestoreStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	into.LastWAL, into.WALFiles = f.last, f.count
	if len(f.asked) > 0 {
		into.Waiting = f.asked[0].name
	}
}

func (f *Fetch) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}
