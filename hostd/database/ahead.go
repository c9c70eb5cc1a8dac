package database

import (
	"context"
	"sync"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// aheadBy is how many WAL segments are read before recovery asks for them.
const aheadBy = 3

// ahead reads the WAL of an archive, and the next segments in advance.
type ahead struct {
	archive *pgarchive.Archive
	life    context.Context //nolint:containedctx // of what is read in advance
	cancel  context.CancelFunc
	reading sync.WaitGroup
	files   map[string]*aheadFile // used by one goroutine
	turns   chan struct{}         // capacity aheadBy: a guest may ask for anything, in any order
}

type aheadFile struct {
	forget  context.CancelFunc
	done    chan struct{}
	content []byte
	sum     string
	err     error
}

func newAhead(ctx context.Context, archive *pgarchive.Archive) *ahead {
	h := &ahead{archive: archive, files: map[string]*aheadFile{}, turns: make(chan struct{}, aheadBy)}
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
		next[name] = f
	}
	for name, f := range h.files {
		if next[name] == nil && name != wanted {
			f.forget()
		}
	}
	h.files = next
}

func (h *ahead) read(name string) *aheadFile {
	ctx, cancel := context.WithTimeout(h.life, fetchLimit)
	f := &aheadFile{forget: cancel, done: make(chan struct{})}
	h.reading.Go(func() {
		defer close(f.done)
		defer cancel()
		select {
		case h.turns <- struct{}{}:
			defer func() { <-h.turns }()
		case <-ctx.Done():
			f.err = context.Cause(ctx)
			return
		}
		f.content, f.sum, f.err = h.archive.WAL(ctx, name)
	})
	return f
}
