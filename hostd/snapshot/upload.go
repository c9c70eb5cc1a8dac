package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Source describes an upload. The files must not change meanwhile.
type Source struct {
	Files  []LocalFile
	Shared []LocalShared
	Meta   Meta
	// Distrust compares an existing snapshot with the same id with these files, and
	// replaces it if it differs. Without it, an existing snapshot is left unchanged,
	// for ids that are digests of the content.
	Distrust bool
}

// LocalFile is a file that only this snapshot has.
type LocalFile struct {
	Name string // in the snapshot
	Path string // on this host
}

// LocalShared is a file that the store keeps once for all snapshots that have it.
type LocalShared struct {
	SharedFile
	Path string
}

// Stats are the statistics of an upload.
type Stats struct {
	Chunks    int64 // in all files
	NewChunks int64 // those that the store did not have
	NewBytes  int64 // of the new chunks, as stored
	Took      time.Duration
}

// Upload stores a snapshot and returns its manifest. If it fails, it has not created
// a snapshot with this id, and the next Upload continues with the chunks that are
// stored. It may take half of Options.Grace. There is one exception: if that time
// ends while the manifest is being written, the manifest exists, and some of its
// chunks may be missing until the next Upload.
func (s *Store) Upload(ctx context.Context, id string, src Source) (m Manifest, stats Stats, err error) {
	began := time.Now()
	defer func() {
		stats.Took = time.Since(began)
		if err != nil {
			err = fmt.Errorf("upload snapshot %s: %w", id, err)
		}
	}()
	names := make([]string, 0, len(src.Files)+len(src.Shared))
	for _, f := range src.Files {
		names = append(names, f.Name)
	}
	for _, f := range src.Shared {
		names = append(names, f.Name)
		if !isDigest(f.SHA256) {
			return m, stats, fmt.Errorf("%w: shared file %s has no digest", ErrInvalid, f.Name)
		}
	}
	if err := errors.Join(validID(id), checkNames(names)); err != nil {
		return m, stats, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	there, err := s.Manifest(ctx, id)
	switch {
	case err == nil && !src.Distrust:
		return there, stats, nil
	case err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDamaged):
		return m, stats, err
	}

	ctx, inTime, cancel := s.within(ctx, s.opt.Grace/uploadPart)
	defer cancel()
	up := &upload{Store: s, inTime: inTime, parallel: s.opt.Parallel, rest: func(context.Context, time.Duration) {}}
	m = Manifest{ID: id, CreatedAt: began.UTC(), Meta: src.Meta, ChunkSize: ChunkSize}
	for _, f := range src.Shared {
		if err := up.share(ctx, f); err != nil {
			return m, stats, fmt.Errorf("%s: %w", f.Name, err)
		}
		m.Shared = append(m.Shared, f.SharedFile)
	}
	for _, f := range src.Files {
		c, err := up.file(ctx, f.Path)
		if err != nil {
			return m, stats, fmt.Errorf("%s: %w", f.Name, err)
		}
		m.Files = append(m.Files, File{Name: f.Name, Content: c})
	}
	sortFiles(&m)
	stats.Chunks, stats.NewChunks, stats.NewBytes = up.chunks.Load(), up.newChunks.Load(), up.newBytes.Load()
	if there.isOf(&m) {
		return there, stats, nil
	}
	raw, err := encode(manifestMagic, m)
	if err == nil {
		m.Digest = digest(raw)
		err = up.publish(ctx, manifestsDir+id, raw)
	}
	return m, stats, err
}

// isOf reports whether two manifests describe the same snapshot with the same files.
func (m *Manifest) isOf(o *Manifest) bool {
	a, b := *m, *o
	a.CreatedAt, a.Digest, b.CreatedAt, b.Digest = time.Time{}, "", time.Time{}, ""
	return reflect.DeepEqual(a, b)
}

// Share stores files before the snapshots that will contain them, one chunk at a
// time. If no snapshot has them after Options.Grace, they are collected, and the next
// upload stores them again.
func (s *Store) Share(ctx context.Context, files []LocalShared) (Stats, error) {
	return s.share(ctx, files, func(context.Context, time.Duration) {})
}

// ShareGently is Share for when nobody waits for it: it rests for most of the time, so
// that guests and requests have the processors.
func (s *Store) ShareGently(ctx context.Context, files []LocalShared) (Stats, error) {
	return s.share(ctx, files, rest)
}

// A rest takes rests times as long as the chunk before it.
const rests = 3

// rest pauses after a chunk that took a time.
func rest(ctx context.Context, took time.Duration) {
	select {
	case <-time.After(rests * took):
	case <-ctx.Done():
	}
}

func (s *Store) share(ctx context.Context, files []LocalShared, rest func(context.Context, time.Duration)) (stats Stats, err error) {
	began := time.Now()
	defer func() { stats.Took = time.Since(began) }()
	ctx, inTime, cancel := s.within(ctx, s.opt.Grace/uploadPart)
	defer cancel()
	up := &upload{Store: s, inTime: inTime, parallel: 1, rest: rest}
	for _, f := range files {
		if !isDigest(f.SHA256) {
			return stats, fmt.Errorf("%w: shared file %s has no digest", ErrInvalid, f.Name)
		}
		if err := up.share(ctx, f); err != nil {
			return stats, fmt.Errorf("store %s: %w", f.Name, err)
		}
	}
	stats.Chunks, stats.NewChunks, stats.NewBytes = up.chunks.Load(), up.newChunks.Load(), up.newBytes.Load()
	return stats, nil
}

// upload is the state of one Upload or Share.
type upload struct {
	*Store
	inTime                      func() error
	parallel                    int                                           // chunks processed at once
	rest                        func(ctx context.Context, took time.Duration) // after a chunk
	chunks, newChunks, newBytes atomic.Int64
	touched                     [256]atomic.Bool // directories of chunks with new objects
}

// publish writes a manifest after what it names is durable.
func (u *upload) publish(ctx context.Context, key string, raw []byte) error {
	if len(raw) > maxManifest {
		return fmt.Errorf("%w: its manifest has %d bytes", ErrInvalid, len(raw))
	}
	var names []string
	for i := range u.touched {
		if u.touched[i].Load() {
			names = append(names, fmt.Sprintf("%s%02x/", chunksDir, i))
		}
	}
	if err := u.bucket.Sync(names...); err != nil {
		return err
	}
	// After this time, a collection may have removed chunks that were skipped.
	if err := u.inTime(); err != nil {
		return err
	}
	if err := u.put(ctx, key, raw); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := u.bucket.Sync(key[:strings.LastIndexByte(key, '/')+1]); err != nil {
		return err
	}
	return u.inTime() // the process may have been suspended between the two
}

// share stores a shared file unless the store has it.
func (u *upload) share(ctx context.Context, f LocalShared) error {
	have, err := u.shared(ctx, f.SHA256, u.get) // not one in the trash
	switch {
	case err == nil && have.Size == f.Size:
		return nil
	case err == nil:
		return fmt.Errorf("%w: the store has another file of that digest, of %d bytes", ErrInvalid, have.Size)
	case !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrDamaged):
		return err
	}
	c, err := u.file(ctx, f.Path)
	if err != nil {
		return err
	}
	if c.Size != f.Size {
		return fmt.Errorf("%w: it has %d bytes, not %d", ErrInvalid, c.Size, f.Size)
	}
	raw, err := encode(sharedMagic, sharedManifest{SHA256: f.SHA256, ChunkSize: ChunkSize, Content: c})
	if err != nil {
		return err
	}
	return u.publish(ctx, sharedDir+f.SHA256, raw)
}

// file stores the chunks of a file.
func (u *upload) file(ctx context.Context, path string) (Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return Content{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Content{}, err
	}
	if !st.Mode().IsRegular() {
		return Content{}, fmt.Errorf("%w: %s is no regular file", ErrInvalid, path)
	}
	list, err := dataChunks(f, st.Size())
	if err != nil {
		return Content{}, err
	}
	all := make([]Chunk, len(list))
	err = eachOf(ctx, len(list), u.parallel, func(ctx context.Context, i int) error {
		began := time.Now()
		sha, stored, err := u.putChunk(ctx, f, st.Size(), list[i])
		if err != nil {
			return err
		}
		u.rest(ctx, time.Since(began))
		all[i] = Chunk{Index: list[i], SHA256: sha}
		if stored > 0 {
			u.touched[hexByte(sha)].Store(true)
			u.newChunks.Add(1)
			u.newBytes.Add(int64(stored))
		}
		return nil
	})
	if err != nil {
		return Content{}, err
	}
	c := Content{Size: st.Size(), Chunks: make([]Chunk, 0, len(all))}
	for _, k := range all {
		if k.SHA256 != "" {
			c.Chunks = append(c.Chunks, k)
		}
	}
	u.chunks.Add(int64(len(c.Chunks)))
	return c, nil
}

// hexByte returns the first byte of a digest.
func hexByte(sha string) uint8 {
	n, _ := strconv.ParseUint(sha[:2], 16, 8)
	return uint8(n)
}
