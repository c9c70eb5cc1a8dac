package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Collected tells what a collection removed.
type Collected struct {
	Chunks, Shared int64
	Bytes          int64 // as they were stored
	Busy           bool  // uploads were under way, or another collection: nothing was looked at
}

// Delete removes a snapshot: its manifest, and then the chunks that no other
// one has. Where uploads are under way, or another manifest cannot be read, the
// chunks are left to Collect. A snapshot that is gone is no error.
func (s *Store) Delete(ctx context.Context, id string) error {
	m, err := s.Manifest(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case errors.Is(err, ErrInvalid):
		return err
	case err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrOtherFormat):
		return err
	}
	if err := s.remove(ctx, manifestsDir+id); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	if err := s.syncDirs(manifestsDir); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	// From here the snapshot is gone, whatever becomes of the chunks.
	if err := s.removeChunksOf(ctx, &m); err != nil && !errors.Is(err, errBusy) && !isUnreadable(err) {
		return fmt.Errorf("delete chunks of snapshot %s: %w", id, err)
	}
	return nil
}

// isUnreadable: what a manifest names is not known, so no chunk can be told to
// be unused.
func isUnreadable(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, ErrOtherFormat) || errors.Is(err, ErrIncomplete)
}

func (s *Store) removeChunksOf(ctx context.Context, m *Manifest) error {
	ctx, hold, err := s.lockExclusive(ctx, 0)
	if err != nil {
		return err
	}
	defer hold.release()
	used, err := s.references(ctx)
	if err != nil {
		return err
	}
	var unused []string
	for _, f := range m.Files {
		for _, c := range f.Chunks {
			if !used.chunks[c.SHA256] {
				used.chunks[c.SHA256] = true // once
				unused = append(unused, chunkKey(c.SHA256))
			}
		}
	}
	return s.removeAll(ctx, unused, hold)
}

// Collect removes what no snapshot has: chunks, and manifests of shared files,
// that are older than Options.Grace. It waits as long as patience for uploads that
// are under way, and lets no other begin meanwhile; where some are left it does
// nothing. One host at a time collects.
func (s *Store) Collect(ctx context.Context, patience time.Duration) (done Collected, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("collect the snapshot store: %w", err)
		}
	}()
	ctx, hold, err := s.lockExclusive(ctx, patience)
	if errors.Is(err, errBusy) {
		return Collected{Busy: true}, nil
	}
	if err != nil {
		return done, err
	}
	defer hold.release()
	now, err := s.clock(ctx, hold)
	if err != nil {
		return done, err
	}
	used, err := s.references(ctx)
	if err != nil {
		return done, err
	}
	var unused []string
	for sha, modTime := range used.shared {
		if !used.sharedBy[sha] && now.Sub(modTime) > s.opt.Grace {
			unused = append(unused, sharedDir+sha)
		}
	}
	done.Shared = int64(len(unused))
	// Their chunks go with the next collection: used still counts them.
	if err := s.removeAll(ctx, unused, hold); err != nil {
		return done, err
	}
	var chunks, bytes atomic.Int64
	err = s.eachOf(ctx, 256, func(ctx context.Context, i int) error {
		var old []string
		prefix := fmt.Sprintf("%s%02x/", chunksDir, i)
		err := s.list(ctx, prefix, func(o object) error {
			// What is no chunk's name is a write that was cut off.
			if now.Sub(o.written) > s.opt.Grace && !used.chunks[strings.TrimPrefix(o.key, prefix)] {
				old = append(old, o.key)
				bytes.Add(o.size)
			}
			return nil
		})
		if err != nil {
			return err
		}
		chunks.Add(int64(len(old)))
		for _, key := range old {
			if err := errors.Join(hold.check(), s.remove(ctx, key)); err != nil {
				return err
			}
		}
		return nil
	})
	done.Chunks, done.Bytes = chunks.Load(), bytes.Load()
	return done, err
}

func (s *Store) removeAll(ctx context.Context, keys []string, hold *lock) error {
	return s.eachOf(ctx, len(keys), func(ctx context.Context, i int) error {
		if err := hold.check(); err != nil {
			return err
		}
		return s.remove(ctx, keys[i])
	})
}

// clock is the store's: the one that objects' times are told by.
func (s *Store) clock(ctx context.Context, hold *lock) (time.Time, error) {
	o, err := s.bucket.stat(ctx, hold.key)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", errLockLost, err)
	}
	return o.written, nil
}

// references is what manifests name.
type references struct {
	chunks   map[string]bool      // by digest
	shared   map[string]time.Time // shared files that are there, with their age
	sharedBy map[string]bool      // shared files that a snapshot has
}

// references reads every manifest. One that cannot be read ends it.
func (s *Store) references(ctx context.Context) (references, error) {
	r := references{chunks: map[string]bool{}, shared: map[string]time.Time{}, sharedBy: map[string]bool{}}
	var ids, shas []string
	if err := s.List(ctx, func(id string) error { ids = append(ids, id); return nil }); err != nil {
		return r, err
	}
	err := s.list(ctx, sharedDir, func(o object) error {
		if sha := strings.TrimPrefix(o.key, sharedDir); isDigest(sha) {
			r.shared[sha] = o.written
			shas = append(shas, sha)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	var mu sync.Mutex
	err = s.eachOf(ctx, len(ids), func(ctx context.Context, i int) error {
		m, err := s.Manifest(ctx, ids[i])
		if errors.Is(err, ErrNotFound) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, f := range m.Files {
			r.add(f.Chunks)
		}
		for _, f := range m.Shared {
			r.sharedBy[f.SHA256] = true
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	err = s.eachOf(ctx, len(shas), func(ctx context.Context, i int) error {
		m, err := s.shared(ctx, shas[i])
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		r.add(m.Chunks)
		return nil
	})
	return r, err
}

func (r *references) add(chunks []Chunk) {
	for _, c := range chunks {
		r.chunks[c.SHA256] = true
	}
}
