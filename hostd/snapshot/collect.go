package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Collected tells what a collection did.
type Collected struct {
	Trashed  int64 // chunks and manifests of shared files that were put into the trash
	Restored int64 // that were put back: a manifest names them by now
	Removed  int64 // that were removed from the trash
	Bytes    int64 // of those, as they were stored
}

// Delete removes a snapshot: its manifest. What no other names is left to
// Collect. A snapshot that is gone is no error.
func (s *Store) Delete(ctx context.Context, id string) error {
	if err := validID(id); err != nil {
		return err
	}
	err := s.remove(ctx, manifestsDir+id)
	if err == nil {
		err = s.syncDirs(manifestsDir)
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	return nil
}

// Collect puts what no manifest names into the trash, once it is older than
// Options.Grace, and removes what has been there for as long. Uploads, other
// collections and its own death at any point are harmless: DESIGN.md says why.
func (s *Store) Collect(ctx context.Context) (Collected, error) {
	ctx, inTime, cancel := s.within(ctx, s.opt.Grace/collectPart)
	defer cancel()
	c := collection{Store: s, inTime: inTime}
	var err error
	if c.began, err = s.clock(ctx); err == nil {
		c.named, err = s.references(ctx)
	}
	if err == nil {
		err = s.eachOf(ctx, 1+256, func(ctx context.Context, i int) error {
			if i == 256 {
				return c.directory(ctx, sharedDir)
			}
			return c.directory(ctx, fmt.Sprintf("%s%02x/", chunksDir, i))
		})
	}
	if err != nil {
		err = fmt.Errorf("collect the snapshot store: %w", err)
	}
	return Collected{Trashed: c.trashed.Load(), Restored: c.restored.Load(), Removed: c.removed.Load(), Bytes: c.bytes.Load()}, err
}

type collection struct {
	*Store
	began                             time.Time // by the store's clock
	named                             map[string]bool
	inTime                            func() error
	trashed, restored, removed, bytes atomic.Int64
}

// directory collects what is right below a prefix. The proof in DESIGN.md needs
// the order: objects are listed before the trash, copied before they are removed,
// and what is put back stays in the trash as well.
func (c *collection) directory(ctx context.Context, dir string) error {
	there := map[string]bool{}
	var unnamed, lost []string
	var gone []object
	old := func(o object) bool { return c.began.Sub(o.written) > c.opt.Grace }
	err := c.list(ctx, dir, func(o object) error {
		there[o.key] = true
		if !c.named[o.key] && old(o) { // or a write that was cut off
			unnamed = append(unnamed, o.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.list(ctx, trashDir+dir, func(o object) error {
		key := strings.TrimPrefix(o.key, trashDir)
		switch {
		case there[key]:
		case c.named[key]:
			lost = append(lost, key)
		case old(o):
			gone = append(gone, o)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := c.copyAll(ctx, lost, trashDir, "", &c.restored); err != nil {
		return err
	}
	copied, err := c.copyAll(ctx, unnamed, "", trashDir, &c.trashed)
	if err != nil {
		return err
	}
	if len(copied) > 0 {
		if err := c.syncDirs(trashDir + dir); err != nil {
			return err
		}
	}
	for _, key := range copied {
		if err := c.removeInTime(ctx, key); err != nil {
			return err
		}
	}
	for _, o := range gone {
		if err := c.removeInTime(ctx, o.key); err != nil {
			return err
		}
		c.removed.Add(1)
		c.bytes.Add(o.size)
	}
	return nil
}

// copyAll copies objects from below one prefix to below another, and returns the
// keys of those that were still there.
func (c *collection) copyAll(ctx context.Context, keys []string, from, to string, count *atomic.Int64) (copied []string, err error) {
	for _, key := range keys {
		err := c.copy(ctx, from+key, to+key)
		if isNotFound(err) {
			continue // another collection was faster
		}
		if err != nil {
			return nil, err
		}
		copied = append(copied, key)
		count.Add(1)
	}
	return copied, nil
}

func (c *collection) removeInTime(ctx context.Context, key string) error {
	if err := c.inTime(); err != nil {
		return err
	}
	return c.remove(ctx, key)
}

// clock is the store's: the one that objects' times are told by.
func (s *Store) clock(ctx context.Context) (time.Time, error) {
	if err := s.put(ctx, clockKey, []byte("berth\n")); err != nil {
		return time.Time{}, err
	}
	o, err := s.bucket.stat(ctx, clockKey)
	return o.written, err
}

// references returns the keys of all objects that a manifest names. A manifest
// that cannot be read ends it: what it names is not known. Those of shared files
// count whether or not a snapshot names them, in the trash as well.
func (s *Store) references(ctx context.Context) (map[string]bool, error) {
	named := map[string]bool{}
	var mu sync.Mutex
	add := func(chunks []Chunk) {
		for _, c := range chunks {
			named[chunkKey(c.SHA256)] = true
		}
	}
	var ids []string
	if err := s.List(ctx, func(id string) error { ids = append(ids, id); return nil }); err != nil {
		return nil, err
	}
	err := s.eachOf(ctx, len(ids), func(ctx context.Context, i int) error {
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
			add(f.Chunks)
		}
		for _, f := range m.Shared {
			named[sharedDir+f.SHA256] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	// One that moves meanwhile, either way, is met in one of three lists.
	for _, dir := range []string{sharedDir, trashDir + sharedDir, sharedDir} {
		err := s.list(ctx, dir, func(o object) error {
			if sha := strings.TrimPrefix(o.key, dir); isDigest(sha) {
				found[sha] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	shas := slices.Collect(maps.Keys(found))
	err = s.eachOf(ctx, len(shas), func(ctx context.Context, i int) error {
		m, err := s.shared(ctx, shas[i], s.getKept)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		add(m.Chunks)
		return nil
	})
	return named, err
}
