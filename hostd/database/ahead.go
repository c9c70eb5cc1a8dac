package database

import (
	"context"
	"sync"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// aheadBy is how many WAL segments are read before recovery asks for them, and aheadAtOnce
// how many of those a host has for all of its restores: each is in memory whole. A restore
// that finds no room for one reads it when it is asked for.
const (
	aheadBy     = 3
	aheadAtOnce = 16
)

// ahead reads the WAL of an archive, and the next segments in advance.
type ahead struct {
	archive *pgarchive.Archive
	life    context.Context //nolint:containedctx // of what is read in advance
	cancel  context.CancelFunc
	reading sync.WaitGroup
	files   map[string]*aheadFile // used by one goroutine
	turns   chan struct{}         // capacity aheadBy: a guest may ask for anything, in any order
	room    turns                 // of the host
}

type aheadFile struct {
	forget  context.CancelFunc
	done    chan struct{}
	content []byte
	sum     string
	err     error
}

func newAhead(ctx context.Context, archive *pgarchive.Archive, room turns) *ahead {
	h := &ahead{archive: archive, files: map[string]*aheadFile{}, turns: make(chan struct{}, aheadBy), room: room}
	h.life, h.cancel = context.WithCancel(ctx)
	return h
}

func (h *ahead) close() {
	h.cancel()
	h.reading.Wait()
}

// get returns a file and its SHA-256, and begins to read those that will be next.
func (h *ahead) get(ctx context.Context, name string) (content []byte, sum string, err error) {
	f := h.files[name]
	w, err := pgapi.ParseWALName(name)
	if err != nil {
		return nil, "", err
	}
	if w.Kind == pgapi.WALSegment {
		h.prepare(name, w)
	}
	if f != nil {
		defer f.forget()
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
		if f.err == nil {
			return f.content, f.sum, nil
		}
		// The file may have been archived since, or be readable now.
	}
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	return h.archive.WAL(ctx, name)
}

// prepare reads what comes after a segment that is wanted, and forgets everything else.
func (h *ahead) prepare(wanted string, w pgapi.WALName) {
	next := map[string]*aheadFile{}
	for i := range uint64(aheadBy) {
		name := pgapi.SegmentName(w.Timeline, w.Segment+1+i)
		f := h.files[name]
		if f == nil {
			f = h.read(name)
		}
		if f == nil {
			break
		}
		next[name] = f
	}
	for name, f := range h.files {
		if next[name] == nil && name != wanted {
			f.forget()
		}
	}
	h.files = next
}

// read begins to read a file, which has its room until it is forgotten; nil: there is none.
func (h *ahead) read(name string) *aheadFile {
	select {
	case h.room <- struct{}{}:
	default:
		return nil
	}
	life, forget := context.WithCancel(h.life)
	f := &aheadFile{forget: forget, done: make(chan struct{})}
	h.reading.Go(func() {
		defer func() { <-h.room }()
		h.fill(life, f, name)
		<-life.Done()
	})
	return f
}

func (h *ahead) fill(ctx context.Context, f *aheadFile, name string) {
	defer close(f.done)
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	select {
	case h.turns <- struct{}{}:
		defer func() { <-h.turns }()
	case <-ctx.Done():
		f.err = context.Cause(ctx)
		return
	}
	f.content, f.sum, f.err = h.archive.WAL(ctx, name)
}
