// Package blob keeps what the control plane hands to a host and wants back later: the
// uploaded source of an app, the log of a deployment. A blob is in the bucket that hosts
// share, or where there is none, in this host's data directory.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

const (
	// Prefix is where blobs are in the bucket.
	Prefix = "blobs/"
	// halfTime is how long a blob may be half-written before its writer is taken for
	// dead. An upload takes minutes, and the copy to the bucket less.
	halfTime = 24 * time.Hour
	// roomStep is after how many bytes the room on the disk is looked at again.
	roomStep = 16 << 20
)

// Config is what a Store works with.
type Config struct {
	Bucket bucket.Bucket
	// Local says that Bucket is on this host's disk, and no other host has it.
	Local bool
	// Spool is a directory of the store's own, on this host's disk, which it empties.
	Spool string
	// Room is how many bytes the disk of Spool may still take.
	Room func() (int64, error)
	// Limit is the size of the largest blob in bytes; default hostapi.MaxBlob.
	Limit int64
}

// Store keeps blobs. It is safe for concurrent use.
type Store struct{ cfg Config }

// Open returns the blobs of a bucket, and removes what an earlier store spooled.
func Open(cfg Config) (*Store, error) {
	if cfg.Limit == 0 {
		cfg.Limit = hostapi.MaxBlob
	}
	if err := os.RemoveAll(cfg.Spool); err != nil {
		return nil, fmt.Errorf("empty the spool of blobs: %w", err)
	}
	if err := os.MkdirAll(cfg.Spool, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool of blobs: %w", err)
	}
	return &Store{cfg: cfg}, nil
}

// Sweep removes what writers that died left half-written in the bucket.
func (s *Store) Sweep(ctx context.Context, now time.Time) error {
	if err := s.cfg.Bucket.Sweep(ctx, Prefix, now.Add(-halfTime)); err != nil {
		return fmt.Errorf("sweep blobs: %w", err)
	}
	return nil
}

// Put keeps a blob in place of the one of its name. It is complete on this host's disk
// before any of it comes into the bucket: a caller that is cut off changes nothing
// there. The length is that which the caller announced, or -1.
func (s *Store) Put(ctx context.Context, name string, length int64, r io.Reader) (_ hostapi.BlobInfo, err error) {
	if length > s.cfg.Limit {
		return hostapi.BlobInfo{}, s.tooLarge()
	}
	if err := s.fits(max(length, 0)); err != nil {
		return hostapi.BlobInfo{}, err
	}
	f, err := os.CreateTemp(s.cfg.Spool, "blob-*")
	if err != nil {
		return hostapi.BlobInfo{}, hosterr.AsNoDisk(fmt.Errorf("spool blob: %w", err))
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	info, err := s.spool(f, r)
	if err != nil {
		return hostapi.BlobInfo{}, err
	}
	err = bucket.Retry(ctx, s.cfg.Bucket, func() error { return s.cfg.Bucket.PutFrom(ctx, Prefix+name, f, info.SizeBytes) })
	if err == nil {
		err = s.cfg.Bucket.Sync(Prefix)
	}
	if err != nil {
		return hostapi.BlobInfo{}, hosterr.AsNoDisk(fmt.Errorf("keep blob: %w", err))
	}
	return info, nil
}

// Get returns a blob and its size in bytes, or hosterr.ErrNotFound.
func (s *Store) Get(ctx context.Context, name string) (body io.ReadCloser, size int64, err error) {
	err = bucket.Retry(ctx, s.cfg.Bucket, func() error {
		body, size, err = s.cfg.Bucket.Get(ctx, Prefix+name)
		return err
	})
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return nil, 0, fmt.Errorf("%w: blob %s", hosterr.ErrNotFound, name)
	case err != nil:
		return nil, 0, fmt.Errorf("read blob: %w", err)
	}
	return body, size, nil
}

// Delete removes a blob. One that is gone is no error.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := bucket.RemoveEach(ctx, s.cfg.Bucket, []string{Prefix + name}); err != nil {
		return fmt.Errorf("delete blob: %w", err)
	}
	return nil
}

// spool writes what is read to a file, at most as much as a blob may have.
func (s *Store) spool(f *os.File, r io.Reader) (hostapi.BlobInfo, error) {
	sum := sha256.New()
	var size int64
	for {
		n, err := io.Copy(spooled{io.MultiWriter(f, sum)}, io.LimitReader(r, min(roomStep, s.cfg.Limit+1-size)))
		size += n
		var disk *os.PathError
		switch {
		case errors.As(err, &disk) && disk.Path == f.Name():
			return hostapi.BlobInfo{}, hosterr.AsNoDisk(fmt.Errorf("spool blob: %w", err))
		case err != nil:
			return hostapi.BlobInfo{}, hosterr.Invalid("the blob was cut off after %d bytes: %v", size, err)
		case size > s.cfg.Limit:
			return hostapi.BlobInfo{}, s.tooLarge()
		case n < roomStep:
			return hostapi.BlobInfo{SizeBytes: size, SHA256: hex.EncodeToString(sum.Sum(nil)), Local: s.cfg.Local}, nil
		}
		if err := s.fits(0); err != nil {
			return hostapi.BlobInfo{}, err
		}
	}
}

// spooled hides what else a writer can do: a file would have its own copy.
type spooled struct{ io.Writer }

// fits reports whether the disk takes so many bytes more.
func (s *Store) fits(more int64) error {
	room, err := s.cfg.Room()
	if err != nil {
		return fmt.Errorf("look at the room on the disk: %w", err)
	}
	if room <= more {
		return fmt.Errorf("%w: the blob takes %d MB, and there is room for %d", hosterr.ErrNoDisk, more>>20, max(room, 0)>>20)
	}
	return nil
}

func (s *Store) tooLarge() error {
	return &hostapi.Error{
		Code: hostapi.CodeTooLarge, Message: "blob is too large", Detail: fmt.Sprintf("over %d bytes", s.cfg.Limit),
		HTTPStatus: http.StatusRequestEntityTooLarge,
	}
}
