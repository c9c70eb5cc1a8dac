// Package snapshot is the store that lets any host start from a snapshot: the
// files of a capture, cut into chunks that are named by their content, in a
// directory or an S3 bucket. DESIGN.md has the format and its reasons.
package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/atomicfile"
)

// Errors that a caller tells apart. Each is wrapped with the object it is about.
var (
	// ErrNotFound: there is no such snapshot. An upload that was cut off is none.
	ErrNotFound = errors.New("no such snapshot in the store")
	// ErrIncomplete: something that the snapshot is made of is not in the store.
	ErrIncomplete = errors.New("snapshot is incomplete")
	// ErrDamaged: something is there and is not what was stored.
	ErrDamaged = errors.New("snapshot is damaged")
	// ErrOtherFormat: it was stored by a Berth that this one cannot read.
	ErrOtherFormat = errors.New("snapshot has another format")
	// ErrOtherEngine: it was made by an engine that is not this host's.
	ErrOtherEngine = errors.New("snapshot was made by another engine")
	// ErrForeign: the store is another cluster's.
	ErrForeign = errors.New("snapshot store belongs to another cluster")
	// ErrInvalid: what is asked for can never be.
	ErrInvalid = errors.New("invalid snapshot")
)

// Layout of the store.
const (
	ownerKey     = "owner"      // of Claim
	manifestsDir = "snapshots/" // <id>: a snapshot's manifest, its last object to be written
	sharedDir    = "shared/"    // <sha256>: of a file that many snapshots have
	chunksDir    = "chunks/"    // <first two digits>/<sha256>: content, compressed
	trashDir     = "trash/"     // <key>: what no manifest named when it was put there
	clockKey     = "clock"      // written as a collection begins: its time is the store's
	probesDir    = "probes/"    // of Check
)

// ChunkSize is how files are cut, in bytes. See DESIGN.md.
const ChunkSize = 1 << 20

// maxStored bounds a stored chunk: zstd adds little to what it cannot compress.
const maxStored = ChunkSize + ChunkSize/64 + 1024

// Options of a Store; each has a default.
type Options struct {
	// Parallel bounds the chunks that are worked on at once. Each takes two
	// chunks of memory.
	Parallel int
	// Grace is how long chunks that no snapshot has are kept, and then again in
	// the trash. All hosts that share a store have the same.
	Grace time.Duration
}

const (
	defaultGrace = 6 * time.Hour
	maxParallel  = 16
	// What part of the grace an upload and a collection may take.
	uploadPart  = 2
	collectPart = 4
)

// Store is one bucket. Hosts share it, each through a Store of its own.
type Store struct {
	bucket bucket
	dir    string // of a file:// store, else empty
	opt    Options
	enc    *zstd.Encoder
	dec    *zstd.Decoder
	bufs   sync.Pool // of *[ChunkSize]byte
}

// Open opens the store of a URL: file:///directory, which is made if it must,
// or s3://bucket with the options region, endpoint, profile and use_path_style.
// Credentials of S3 come from the environment, the profile or the machine's
// role. Nothing is sent yet: Check does.
func Open(ctx context.Context, rawURL string, opt Options) (*Store, error) {
	opt.fill()
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	s := &Store{opt: opt}
	s.bufs.New = func() any { return new([ChunkSize]byte) }
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("snapshot store %s: want file:// and an absolute path, with three slashes", rawURL)
		}
		if u.RawQuery != "" {
			return nil, fmt.Errorf("snapshot store %s: a directory has no options", rawURL)
		}
		s.dir = filepath.Clean(u.Path)
		s.bucket, err = openDirectory(s.dir)
	case "s3":
		s.bucket, err = openS3(ctx, u)
	default:
		return nil, fmt.Errorf("snapshot store %s: want file:///directory or s3://bucket", u.Redacted())
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot store %s: %w", u.Redacted(), err)
	}
	if s.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(opt.Parallel),
		zstd.WithWindowSize(ChunkSize), zstd.WithEncoderCRC(false)); err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	if s.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(opt.Parallel), zstd.WithDecoderMaxMemory(ChunkSize),
		zstd.WithDecoderMaxWindow(ChunkSize)); err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	return s, nil
}

func (o *Options) fill() {
	if o.Parallel <= 0 {
		// Compression wants every processor; a store at a distance wants more
		// than that under way.
		o.Parallel = min(max(4, 2*runtime.NumCPU()), maxParallel)
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
}

// Close gives back what Open took.
func (s *Store) Close() error {
	s.dec.Close()
	return s.enc.Close()
}

// Check writes, reads, lists, copies and removes an object: an operator hears
// what is wrong with a store before a snapshot needs it.
func (s *Store) Check(ctx context.Context) error {
	key := probesDir + randomName()
	content := []byte("berth\n")
	if err := s.put(ctx, key, content); err != nil {
		return fmt.Errorf("snapshot store: write: %w", err)
	}
	got, err := s.get(ctx, key, int64(len(content)))
	if err == nil && !bytes.Equal(got, content) {
		err = errors.New("it is not what was written")
	}
	if err != nil {
		return fmt.Errorf("snapshot store: read what was written: %w", err)
	}
	seen := false
	if err := s.list(ctx, probesDir, func(o object) error {
		seen = seen || o.key == key
		return nil
	}); err != nil {
		return fmt.Errorf("snapshot store: list: %w", err)
	}
	if !seen {
		return errors.New("snapshot store: an object is not listed right after it was written: a store with strong consistency is needed")
	}
	if err := s.copy(ctx, key, key+"-copy"); err != nil {
		return fmt.Errorf("snapshot store: copy: %w", err)
	}
	if err := errors.Join(s.remove(ctx, key), s.remove(ctx, key+"-copy")); err != nil {
		return fmt.Errorf("snapshot store: delete: %w", err)
	}
	return nil
}

// maxOwner is how long an owner's name may be, in bytes.
const maxOwner = 256

// Claim makes the store owner's, if it is nobody's yet. That of another is
// ErrForeign: it may be read and written, and what is in it is not this owner's
// to give up.
func (s *Store) Claim(ctx context.Context, owner string) error {
	if owner == "" || len(owner) > maxOwner {
		return fmt.Errorf("%w: an owner's name has 1 to %d bytes", ErrInvalid, maxOwner)
	}
	got, err := s.get(ctx, ownerKey, maxOwner)
	if errors.Is(err, errNoObject) {
		if err := s.put(ctx, ownerKey, []byte(owner)); err != nil {
			return fmt.Errorf("claim snapshot store: %w", err)
		}
		got, err = s.get(ctx, ownerKey, maxOwner) // two may claim it at once
	}
	switch {
	case err != nil:
		return fmt.Errorf("claim snapshot store: %w", err)
	case string(got) != owner:
		return fmt.Errorf("%w: the object %s says %.80q", ErrForeign, ownerKey, got)
	}
	return nil
}

// Has says whether a snapshot is in the store. It does not look at its chunks.
func (s *Store) Has(ctx context.Context, id string) (bool, error) {
	if err := validID(id); err != nil {
		return false, err
	}
	var there bool
	err := s.retry(ctx, func() error {
		_, err := s.bucket.stat(ctx, manifestsDir+id)
		there = err == nil
		return err
	})
	if err != nil && !isNotFound(err) {
		return false, fmt.Errorf("look for snapshot %s: %w", id, err)
	}
	return there, nil
}

// List visits the id of every snapshot.
func (s *Store) List(ctx context.Context, visit func(id string) error) error {
	return s.list(ctx, manifestsDir, func(o object) error {
		if id, ok := idOf(o); ok {
			return visit(id)
		}
		return nil
	})
}

// Page returns the ids of at most limit snapshots, those that come next after one
// in the order of ids, and whether there are more.
func (s *Store) Page(ctx context.Context, after string, limit int) (ids []string, more bool, err error) {
	if after != "" {
		if err := validID(after); err != nil {
			return nil, false, err
		}
	}
	full := errors.New("there are more")
	err = s.listFrom(ctx, manifestsDir, manifestsDir+after, func(o object) error {
		id, ok := idOf(o)
		switch {
		case !ok:
		case len(ids) == limit:
			return full
		default:
			ids = append(ids, id)
		}
		return nil
	})
	if errors.Is(err, full) {
		return ids, true, nil
	}
	return ids, false, err
}

// idOf is the id of the snapshot whose manifest an object is. Others are not
// ours, or half-written.
func idOf(o object) (string, bool) {
	id := strings.TrimPrefix(o.key, manifestsDir)
	return id, validID(id) == nil
}

// put writes an object, whole or not at all.
func (s *Store) put(ctx context.Context, key string, content []byte) error {
	return s.retry(ctx, func() error { return s.bucket.put(ctx, key, content) })
}

// get reads an object of at most limit bytes; one that is longer comes back
// longer than limit, and not whole.
func (s *Store) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	var content []byte
	err := s.retry(ctx, func() error {
		r, size, err := s.bucket.get(ctx, key)
		if err != nil {
			return err
		}
		defer r.Close()
		content, err = io.ReadAll(io.LimitReader(r, limit+1))
		if err == nil && int64(len(content)) < min(size, limit) {
			err = io.ErrUnexpectedEOF // the connection was cut
		}
		return err
	})
	return content, err
}

// getKept reads an object that a manifest names: one that a collection put into
// the trash as the manifest was written is there until the next puts it back.
func (s *Store) getKept(ctx context.Context, key string, limit int64) ([]byte, error) {
	content, err := s.get(ctx, key, limit)
	if isNotFound(err) {
		content, err = s.get(ctx, trashDir+key, limit)
	}
	return content, err
}

// copy makes an object another's copy, with the time of now. Where there is one
// already, it may only have its time renewed: copies are of the same content.
func (s *Store) copy(ctx context.Context, from, to string) error {
	return s.retry(ctx, func() error { return s.bucket.copy(ctx, from, to) })
}

// remove deletes an object; one that is gone is no error.
func (s *Store) remove(ctx context.Context, key string) error {
	err := s.retry(ctx, func() error { return s.bucket.remove(ctx, key) })
	if isNotFound(err) {
		return nil
	}
	return err
}

// list visits the objects right below a prefix that ends with a slash.
func (s *Store) list(ctx context.Context, prefix string, visit func(object) error) error {
	return s.listFrom(ctx, prefix, "", visit)
}

// listFrom visits only those whose keys come after one.
func (s *Store) listFrom(ctx context.Context, prefix, after string, visit func(object) error) error {
	if err := s.bucket.list(ctx, prefix, after, visit); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

// eachOf runs do for 0 to n-1, opt.Parallel at once, until one fails.
func (s *Store) eachOf(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	return eachOf(ctx, n, s.opt.Parallel, do)
}

func eachOf(ctx context.Context, n, parallel int, do func(ctx context.Context, i int) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range n {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			return do(gctx, i)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// attempts at one object of a store behind a network: one cut connection in a
// thousand chunks must not fail a snapshot. The flow above tries the whole again.
const (
	attempts  = 4
	firstWait = 100 * time.Millisecond
	waitGrows = 4
)

func (s *Store) retry(ctx context.Context, do func() error) error {
	wait := firstWait
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == attempts || ctx.Err() != nil || !s.bucket.passing(err) {
			if err != nil && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		wait *= waitGrows
	}
}

// syncDirs makes the names in directories of a file:// store durable, and the
// directories' own. One that was never made has none: nothing was put there yet.
// The store's own has to be there. An S3 store's are once it has answered.
func (s *Store) syncDirs(dirs ...string) error {
	if s.dir == "" {
		return nil
	}
	done := map[string]bool{}
	for _, name := range dirs {
		for dir := filepath.Join(s.dir, name); !done[dir] && len(dir) >= len(s.dir); dir = filepath.Dir(dir) {
			done[dir] = true
			err := atomicfile.Sync(dir)
			if errors.Is(err, fs.ErrNotExist) && dir != s.dir {
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// errTooLate ends an upload or a collection that took longer than is safe.
var errTooLate = errors.New("the snapshot store was too slow: what it holds may have been collected meanwhile, or be wanted by now")

// within ends the requests of work that took longer than a limit. inTime fails
// from then on, also where the machine slept.
func (s *Store) within(ctx context.Context, limit time.Duration) (_ context.Context, inTime func() error, cancel context.CancelFunc) {
	began := wallClock()
	ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: %s have passed", errTooLate, limit))
	return ctx, func() error {
		if took := wallClock().Sub(began); took > limit {
			return fmt.Errorf("%w: %s have passed, and at most %s may", errTooLate, took.Round(time.Second), limit)
		}
		return nil
	}, cancel
}

// wallClock also goes on while the machine sleeps, which Go's monotonic one
// does not.
func wallClock() time.Time { return time.Now().Round(0) }

func randomName() string {
	raw := make([]byte, 8)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return hex.EncodeToString(raw)
}
