// Package snapshot is the store from which any host can start a snapshot. It divides
// the files of a capture into chunks that are named by their content, in a directory
// or an S3 bucket. DESIGN.md describes the format and its reasons.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/hostd/bucket"
)

// Errors that callers distinguish. Each is wrapped with the object that it is about.
var (
	// ErrNotFound: the snapshot does not exist, or its upload was interrupted.
	ErrNotFound = errors.New("no such snapshot in the store")
	// ErrIncomplete: a part of the snapshot is missing in the store.
	ErrIncomplete = errors.New("snapshot is incomplete")
	// ErrDamaged: an object is not what was stored.
	ErrDamaged = errors.New("snapshot is damaged")
	// ErrOtherFormat: another version stored it in a format that this one cannot
	// read.
	ErrOtherFormat = errors.New("snapshot has another format")
	// ErrOtherEngine: an engine made it that is not this host's.
	ErrOtherEngine = errors.New("snapshot was made by another engine")
	// ErrForeign: the store belongs to another cluster.
	ErrForeign = errors.New("snapshot store belongs to another cluster")
	// ErrInvalid: the request is invalid whatever the store contains.
	ErrInvalid = errors.New("invalid snapshot")
)

// Layout of the store.
const (
	ownerKey     = "owner"      // see Claim
	manifestsDir = "snapshots/" // <id>: a snapshot's manifest, written last
	sharedDir    = "shared/"    // <sha256>: manifest of a file that several snapshots have
	chunksDir    = "chunks/"    // <first two digits>/<sha256>: content, compressed
	trashDir     = "trash/"     // <key>: objects that no manifest named when they were moved there
	clockKey     = "clock"      // written when a collection begins; its time is the store's time
	probesDir    = "probes/"    // see Check
)

// ChunkSize is the size of a chunk, in bytes. DESIGN.md explains it.
const ChunkSize = 1 << 20

// maxStored limits a stored chunk: zstd adds little to what it cannot compress.
const maxStored = ChunkSize + ChunkSize/64 + 1024

// Options configure a Store; each has a default.
type Options struct {
	// Parallel limits how many chunks are processed at once. Each takes the memory
	// of two chunks.
	Parallel int
	// Grace is how long chunks that no snapshot has are kept, and again how long
	// they stay in the trash. All hosts that share a store need the same value.
	Grace time.Duration
}

const (
	defaultGrace = 6 * time.Hour
	maxParallel  = 16
	// An upload may take Grace/uploadPart, a collection Grace/collectPart.
	uploadPart  = 2
	collectPart = 4
)

// Store is one bucket. Hosts share it; each has its own Store.
type Store struct {
	bucket bucket.Bucket
	opt    Options
	enc    *zstd.Encoder
	dec    *zstd.Decoder
	bufs   sync.Pool // of *[ChunkSize]byte
}

// Open opens the store at a URL: file:///directory, which is created if necessary,
// or s3://bucket with the options region, endpoint, profile and use_path_style. S3's
// credentials come from the environment, the profile or the machine's role. It sends
// no request; Check does.
func Open(ctx context.Context, rawURL string, opt Options) (*Store, error) {
	opt.fill()
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	s := &Store{opt: opt}
	s.bufs.New = func() any { return new([ChunkSize]byte) }
	if s.bucket, err = bucket.Open(ctx, u); err != nil {
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
		// Compression can use every processor, and a distant store needs more
		// requests in progress than that.
		o.Parallel = min(max(4, 2*runtime.NumCPU()), maxParallel)
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
}

// Close releases what Open acquired.
func (s *Store) Close() error {
	s.dec.Close()
	return s.enc.Close()
}

// Check writes, reads, lists, copies and removes an object, so that an operator
// learns of problems with a store before a snapshot needs it.
func (s *Store) Check(ctx context.Context) error {
	if err := bucket.Check(ctx, s.bucket, probesDir); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	return nil
}

// maxOwner limits an owner's name, in bytes.
const maxOwner = 256

// Claim makes owner the store's owner if it has none. If another cluster owns it,
// the error is ErrForeign: owner may read and write the store, but must not remove
// what it finds there.
func (s *Store) Claim(ctx context.Context, owner string) error {
	if owner == "" || len(owner) > maxOwner {
		return fmt.Errorf("%w: an owner's name has 1 to %d bytes", ErrInvalid, maxOwner)
	}
	got, err := s.get(ctx, ownerKey, maxOwner)
	if errors.Is(err, bucket.ErrNotFound) {
		if err := s.put(ctx, ownerKey, []byte(owner)); err != nil {
			return fmt.Errorf("claim snapshot store: %w", err)
		}
		got, err = s.get(ctx, ownerKey, maxOwner) // two may claim it at the same time
	}
	switch {
	case err != nil:
		return fmt.Errorf("claim snapshot store: %w", err)
	case string(got) != owner:
		return fmt.Errorf("%w: the object %s says %.80q", ErrForeign, ownerKey, got)
	}
	return nil
}

// Has reports whether a snapshot is in the store. It does not check its chunks.
func (s *Store) Has(ctx context.Context, id string) (bool, error) {
	if err := validID(id); err != nil {
		return false, err
	}
	var there bool
	err := s.retry(ctx, func() error {
		_, err := s.bucket.Stat(ctx, manifestsDir+id)
		there = err == nil
		return err
	})
	if err != nil && !isNotFound(err) {
		return false, fmt.Errorf("look for snapshot %s: %w", id, err)
	}
	return there, nil
}

// List calls visit with the id of every snapshot.
func (s *Store) List(ctx context.Context, visit func(id string) error) error {
	return s.list(ctx, manifestsDir, func(o bucket.Object) error {
		if id, ok := idOf(o); ok {
			return visit(id)
		}
		return nil
	})
}

// Page returns the ids of up to limit snapshots that follow after in the order of
// ids, and whether there are more.
func (s *Store) Page(ctx context.Context, after string, limit int) (ids []string, more bool, err error) {
	if after != "" {
		if err := validID(after); err != nil {
			return nil, false, err
		}
	}
	full := errors.New("there are more")
	err = s.listFrom(ctx, manifestsDir, manifestsDir+after, func(o bucket.Object) error {
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

// idOf returns the id of the snapshot whose manifest the object is. Other objects
// are foreign or incomplete.
func idOf(o bucket.Object) (string, bool) {
	id := strings.TrimPrefix(o.Key, manifestsDir)
	return id, validID(id) == nil
}

// put writes an object, completely or not at all.
func (s *Store) put(ctx context.Context, key string, content []byte) error {
	return s.retry(ctx, func() error { return s.bucket.Put(ctx, key, content) })
}

// get reads an object of up to limit bytes. Of a longer one, it returns more than
// limit bytes, but not all.
func (s *Store) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	return bucket.Read(ctx, s.bucket, key, limit)
}

// getKept reads an object that a manifest names. If a collection moved it to the
// trash while the manifest was written, it is there until the next collection moves
// it back.
func (s *Store) getKept(ctx context.Context, key string, limit int64) ([]byte, error) {
	content, err := s.get(ctx, key, limit)
	if isNotFound(err) {
		content, err = s.get(ctx, trashDir+key, limit)
	}
	return content, err
}

// copy copies an object and gives the copy the current time. If the copy exists,
// only its time may be renewed, because copies have the same content.
func (s *Store) copy(ctx context.Context, from, to string) error {
	return s.retry(ctx, func() error { return s.bucket.Copy(ctx, from, to) })
}

// remove deletes an object. It is not an error if the object does not exist.
func (s *Store) remove(ctx context.Context, key string) error {
	err := s.retry(ctx, func() error { return s.bucket.Remove(ctx, key) })
	if isNotFound(err) {
		return nil
	}
	return err
}

// list visits the objects directly below a prefix, which ends with a slash.
func (s *Store) list(ctx context.Context, prefix string, visit func(bucket.Object) error) error {
	return s.listFrom(ctx, prefix, "", visit)
}

// listFrom is list, but only for keys that follow after.
func (s *Store) listFrom(ctx context.Context, prefix, after string, visit func(bucket.Object) error) error {
	if err := s.bucket.List(ctx, prefix, after, visit); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

// eachOf calls do for 0 to n-1, opt.Parallel at a time, until one fails.
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

func (s *Store) retry(ctx context.Context, do func() error) error {
	return bucket.Retry(ctx, s.bucket, do)
}

// errTooLate ends an upload or a collection that has taken longer than is safe.
var errTooLate = errors.New("the snapshot store was too slow: what it holds may have been collected meanwhile, or be wanted by now")

// within returns a context that ends after limit. inTime fails from then on, even if
// the machine was suspended.
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

// wallClock includes the time while the machine is suspended, which Go's monotonic
// clock does not.
func wallClock() time.Time { return time.Now().Round(0) }

func isNotFound(err error) bool { return errors.Is(err, bucket.ErrNotFound) }
