package bucket

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// attempts at one object of a store behind a network: one cut connection in a
// thousand objects must not fail what is made of them. Whoever asked for that tries
// the whole again.
const (
	attempts  = 4
	firstWait = 100 * time.Millisecond
	waitGrows = 4
)

// Retry does something with a bucket again while it fails and that may pass.
func Retry(ctx context.Context, b Bucket, do func() error) error {
	wait := firstWait
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == attempts || ctx.Err() != nil || !b.Passing(err) {
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

// Read reads an object of at most limit bytes; one that is longer comes back longer
// than limit, and not whole.
func Read(ctx context.Context, b Bucket, key string, limit int64) ([]byte, error) {
	var content []byte
	err := Retry(ctx, b, func() error {
		r, size, err := b.Get(ctx, key)
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

// parallel is how many objects are removed at once.
const parallel = 16

// RemoveEach removes objects, in about this order. One that is gone is no error.
func RemoveEach(ctx context.Context, b Bucket, keys []string) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, key := range keys {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			err := Retry(gctx, b, func() error { return b.Remove(gctx, key) })
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil || ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}
