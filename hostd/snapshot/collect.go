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

	"github.com/berth-cloud/berth/hostd/bucket"
)

// Collected reports what a collection did.
type Collected struct {
	Trashed  int64 // chunks and manifests of shared files that were moved to the trash
	Restored int64 // those that were moved back, because a manifest names them now
	Removed  int64 // those that were removed from the trash
	Bytes    int64 // of the removed ones, as stored
}

// Delete deletes a snapshot's manifest. Collect removes what no other manifest
// names. It is not an error if the snapshot does not exist.
func (s *Store) Delete(ctx context.Context, id string) error {
	if err := validID(id); err != nil {
		return err
	}
	err := s.remove(ctx, manifestsDir+id)
	if err == nil {
		err = s.bucket.Sync(manifestsDir)
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	return nil
}

// Collect moves objects that no manifest names to the trash once they are older than
// Options.Grace, and deletes them after the same time there. Uploads and other
// collections may run at the same time, and it may be interrupted at any point:
// DESIGN.md explains why.
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

// directory collects the objects directly below a prefix. The proof in DESIGN.md
// needs this order: objects are listed before the trash, and copied before they are
// removed; what is restored stays in the trash too.
func (c *collection) directory(ctx context.Context, dir string) error {
	there := map[string]bool{}
	var unnamed, lost []string
	var gone []bucket.Object
	old := func(o bucket.Object) bool { return c.began.Sub(o.Written) > c.opt.Grace }
	err := c.list(ctx, dir, func(o bucket.Object) error {
		there[o.Key] = true
		if !c.named[o.Key] && old(o) { // the newer ones may belong to an upload in progress
			unnamed = append(unnamed, o.Key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.list(ctx, trashDir+dir, func(o bucket.Object) error {
		key := strings.TrimPrefix(o.Key, trashDir)
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
		if err := c.bucket.Sync(trashDir + dir); err != nil {
			return err
		}
	}
	for _, key := range copied {
		if err := c.removeInTime(ctx, key); err != nil {
			return err
		}
	}
	for _, o := range gone {
		if err := c.removeInTime(ctx, o.Key); err != nil {
			return err
		}
		c.removed.Add(1)
		c.bytes.Add(o.Size)
	}
	return nil
}

// copyAll copies objects from one prefix to another, and returns the keys of those
// that still existed.
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

// clock returns the time by the store's clock, which also sets the times of objects.
func (s *Store) clock(ctx context.Context) (time.Time, error) {
	if err := s.put(ctx, clockKey, []byte("berth\n")); err != nil {
		return time.Time{}, err
	}
	o, err := s.bucket.Stat(ctx, clockKey)
	return o.Written, err
}

// references returns the keys of all objects that manifests name. It fails if a
// manifest cannot be read, because what that names is unknown. Manifests of shared
// files count even if no snapshot names them, and even in the trash.
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
	// A manifest that is moved meanwhile, in either direction, is in one of three
	// lists.
	for _, dir := range []string{sharedDir, trashDir + sharedDir, sharedDir} {
		err := s.list(ctx, dir, func(o bucket.Object) error {
			if sha := strings.TrimPrefix(o.Key, dir); isDigest(sha) {
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
