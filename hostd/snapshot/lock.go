package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Uploads skip chunks that are in the store, and collections remove chunks that
// no manifest names: neither may happen while the other is under way. Whoever
// begins writes an object below locks/ and then looks for others'. Of two that
// begin at once at least one sees the other, if the store lists what was
// written (S3 does, and so do directories).
//
// A lock is written anew while its owner lives. One that is older than the
// lease is a dead owner's. Ages are told by the store's own clock: that of the
// object that was just written.

// errLockLost ends what was done under a lock that could not be kept.
var errLockLost = errors.New("the lock in the snapshot store could not be kept")

// errBusy: a collection meets an upload, or another collection.
var errBusy = errors.New("uploads to the snapshot store are under way")

const (
	uploadLock  = locksDir + "upload-"
	collectLock = locksDir + "collect-"
	// lockPoll is how often an upload looks whether a collection is over.
	lockPoll = 250 * time.Millisecond
	// A lock is renewed four times a lease, and given up after half of one.
	renewals = 4
	giveUp   = 2
)

type lock struct {
	store *Store
	key   string
	end   context.CancelCauseFunc
	done  sync.WaitGroup

	mu    sync.Mutex
	alive time.Time // when it was last known to be in the store, by the wall clock
}

// lockShared waits until no collection is under way. The context ends when the
// lock is lost or released.
func (s *Store) lockShared(ctx context.Context) (context.Context, *lock, error) {
	for {
		lctx, l, others, err := s.lock(ctx, uploadLock)
		if err != nil {
			return nil, nil, err
		}
		if !hasPrefix(others, collectLock) {
			return lctx, l, nil
		}
		l.release()
		timer := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// lockExclusive waits as long as patience for the uploads that are under way, and
// returns errBusy where some still are, or another collection is. Uploads that
// begin meanwhile wait for it.
func (s *Store) lockExclusive(ctx context.Context, patience time.Duration) (context.Context, *lock, error) {
	lctx, l, others, err := s.lock(ctx, collectLock)
	if err == nil {
		err = l.outlast(lctx, others, patience)
	}
	if err != nil {
		if l != nil {
			l.release()
		}
		return nil, nil, err
	}
	return lctx, l, nil
}

// outlast waits for the end of uploads that were under way when the lock was
// written. One that is not among them found the lock when it began, and waits.
func (l *lock) outlast(ctx context.Context, uploads []string, patience time.Duration) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for len(uploads) > 0 {
		if patience == 0 || hasPrefix(uploads, collectLock) {
			return errBusy
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			return errBusy
		case <-tick.C:
		}
		live, err := l.others(ctx)
		if err != nil {
			return fmt.Errorf("lock the snapshot store: %w", err)
		}
		uploads = slices.DeleteFunc(uploads, func(key string) bool { return !slices.Contains(live, key) })
	}
	return nil
}

// lock writes a lock, begins to renew it, and returns those of others that live.
func (s *Store) lock(ctx context.Context, kind string) (context.Context, *lock, []string, error) {
	l := &lock{store: s, key: kind + randomName(), alive: wallClock()}
	if err := s.put(ctx, l.key, []byte("berth\n")); err != nil {
		return nil, nil, nil, fmt.Errorf("lock the snapshot store: %w", err)
	}
	lctx, end := context.WithCancelCause(ctx)
	l.end = end
	l.done.Go(func() { l.renew(lctx) })
	others, err := l.others(lctx)
	if err != nil {
		l.release()
		return nil, nil, nil, fmt.Errorf("lock the snapshot store: %w", err)
	}
	return lctx, l, others, nil
}

// others lists the locks that live beside this one, and removes dead ones.
func (l *lock) others(ctx context.Context) ([]string, error) {
	var all []object
	var now time.Time
	err := l.store.list(ctx, locksDir, func(o object) error {
		if o.key == l.key {
			now = o.written
		} else {
			all = append(all, o)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if now.IsZero() {
		return nil, fmt.Errorf("%w: it is not listed", errLockLost)
	}
	var live []string
	for _, o := range all {
		if now.Sub(o.written) <= l.store.opt.Lease {
			live = append(live, o.key)
		} else if err := l.store.remove(ctx, o.key); err != nil {
			return nil, err
		}
	}
	return live, nil
}

func (l *lock) renew(ctx context.Context) {
	tick := time.NewTicker(l.store.opt.Lease / renewals)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := l.again(ctx); err != nil {
			l.end(err)
			return
		}
	}
}

// again writes the lock anew. It fails where others may have taken it for a dead
// owner's by now: the store did not answer, or this process was stopped. What they
// did meanwhile, no renewal undoes.
func (l *lock) again(ctx context.Context) error {
	if err := l.check(); err != nil {
		return err
	}
	began := wallClock()
	if err := l.store.put(ctx, l.key, []byte("berth\n")); err != nil {
		return l.check()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive = began
	return nil
}

// check fails if others may take the lock for a dead owner's.
func (l *lock) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wallClock().Sub(l.alive) > l.store.opt.Lease/giveUp {
		return errLockLost
	}
	return nil
}

// release ends the lock, also where its context has ended.
func (l *lock) release() {
	l.end(context.Canceled)
	l.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), l.store.opt.Lease/giveUp)
	defer cancel()
	_ = l.store.remove(ctx, l.key) // else it ends with its lease
}

// wallClock also goes on while the machine sleeps, which Go's monotonic one
// does not.
func wallClock() time.Time { return time.Now().Round(0) }

func hasPrefix(keys []string, prefix string) bool {
	for _, k := range keys {
		if strings.HasPrefix(k, prefix) {
			return true
		}
	}
	return false
}

func randomName() string {
	raw := make([]byte, 8)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return hex.EncodeToString(raw)
}
