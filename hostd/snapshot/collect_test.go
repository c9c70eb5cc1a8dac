package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// age makes every object of a store older.
func age(t *testing.T, dir string, by time.Duration) {
	t.Helper()
	for _, path := range objects(t, dir, "") {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		at := st.ModTime().Add(-by)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeleteTakesWhatNoOtherSnapshotHas(t *testing.T) {
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{})
		one, two := newCapture(t, 1), newCapture(t, 2)
		keep(t, s, "snap-1", one)
		keep(t, s, "snap-2", two)
		before := len(objects(t, dir, chunksDir))
		for range 2 { // again is no error
			if err := s.Delete(t.Context(), "snap-1"); err != nil {
				t.Fatal(err)
			}
		}
		if there, err := s.Has(t.Context(), "snap-1"); err != nil || there {
			t.Errorf("has = %v, %v", there, err)
		}
		if after := len(objects(t, dir, chunksDir)); after >= before {
			t.Errorf("%d chunks of %d are left", after, before)
		}
		dest := filepath.Join(t.TempDir(), "x")
		if _, err := s.Fetch(t.Context(), "snap-2", dest, FetchOptions{}); err != nil {
			t.Fatal(err)
		}
		two.same(t, dest)
		if err := s.Delete(t.Context(), "snap-2"); err != nil {
			t.Fatal(err)
		}
		// Only the image, which is shared, stays, for a collection.
		if m := objects(t, dir, manifestsDir); len(m) > 0 {
			t.Errorf("manifests are left: %v", m)
		}
		if c := objects(t, dir, chunksDir); len(c) != 4 {
			t.Errorf("%d chunks are left", len(c))
		}
	})
}

func TestCollectTakesWhatIsOldAndUnused(t *testing.T) {
	s, dir := fileStore(t, Options{Grace: time.Hour})
	c := newCapture(t, 1)
	keep(t, s, "snap-1", c)
	stray := filepath.Join(dir, chunksDir, "ab/ab12.tmp")
	if err := os.MkdirAll(filepath.Dir(stray), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, stray, []byte("half a write"))
	total := len(objects(t, dir, chunksDir))
	collect := func() Collected {
		t.Helper()
		done, err := s.Collect(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if done := collect(); done.Chunks != 0 {
		t.Errorf("of a young store: %+v", done)
	}
	age(t, dir, 2*time.Hour)
	if done := collect(); done.Chunks != 1 || done.Busy {
		t.Errorf("of a store with a stray object: %+v", done)
	}
	// As if the daemon had died after the manifest was removed.
	if err := s.remove(t.Context(), manifestsDir+"snap-1"); err != nil {
		t.Fatal(err)
	}
	done := collect()
	if done.Shared != 1 || done.Chunks != int64(total-1-4) || done.Bytes == 0 {
		t.Errorf("of a store with a snapshot that is gone: %+v of %d", done, total)
	}
	if done := collect(); done.Chunks != 4 || len(objects(t, dir, "")) != 0 {
		t.Errorf("and once more: %+v, %v are left", done, objects(t, dir, ""))
	}
}

func TestNothingIsCollectedWhileAManifestCannotBeRead(t *testing.T) {
	s, dir := fileStore(t, Options{Grace: time.Hour})
	keep(t, s, "snap-1", newCapture(t, 1))
	keep(t, s, "snap-2", newCapture(t, 2))
	damage(t, filepath.Join(dir, manifestsDir, "snap-1"), func(b []byte) []byte { return b[:len(b)-1] })
	age(t, dir, 2*time.Hour)
	before := len(objects(t, dir, chunksDir))
	if _, err := s.Collect(t.Context(), 0); !errors.Is(err, ErrDamaged) {
		t.Errorf("collect = %v", err)
	}
	if err := s.Delete(t.Context(), "snap-2"); err != nil {
		t.Fatal(err)
	}
	if after := len(objects(t, dir, chunksDir)); after != before {
		t.Errorf("%d chunks of %d are left", after, before)
	}
	// The damaged one can be deleted, and then it goes on.
	if err := s.Delete(t.Context(), "snap-1"); err != nil {
		t.Fatal(err)
	}
	if done, err := s.Collect(t.Context(), 0); err != nil || done.Chunks == 0 {
		t.Errorf("collect = %+v, %v", done, err)
	}
	t.Run("or a directory", func(t *testing.T) {
		write(t, filepath.Join(dir, "x"), nil)
		if err := os.RemoveAll(filepath.Join(dir, manifestsDir)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "snapshots"), nil)
		if _, err := s.Collect(t.Context(), 0); err == nil {
			t.Error("a directory that cannot be listed was taken for an empty one")
		}
	})
}

func TestUploadsAndCollectionsKeepOutOfEachOthersWay(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	keep(t, s, "snap-1", c)

	// An upload is under way: nothing is collected, and a delete leaves chunks.
	_, hold, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if done, err := s.Collect(t.Context(), 0); err != nil || !done.Busy {
		t.Errorf("collect = %+v, %v", done, err)
	}
	before := len(objects(t, dir, chunksDir))
	if err := s.Delete(t.Context(), "snap-1"); err != nil {
		t.Fatal(err)
	}
	if after := len(objects(t, dir, chunksDir)); after != before {
		t.Errorf("%d chunks of %d are left", after, before)
	}
	hold.release()
	second.release()

	// A collection is under way: an upload waits for its end.
	_, exclusive, err := s.lockExclusive(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if done, err := s.Collect(t.Context(), 0); err != nil || !done.Busy {
		t.Errorf("two collections: %+v, %v", done, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPoll)
	defer cancel()
	if _, _, err := s.Upload(ctx, "snap-2", c.Source); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("upload = %v", err)
	}
	result := make(chan error, 1)
	go func() {
		_, _, err := s.Upload(context.WithoutCancel(ctx), "snap-2", c.Source)
		result <- err
	}()
	exclusive.release()
	if err := <-result; err != nil {
		t.Errorf("upload = %v", err)
	}
	if left := objects(t, dir, locksDir); len(left) > 0 {
		t.Errorf("locks are left: %v", left)
	}
}

func TestADeadOwnersLockEndsWithItsLease(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	for _, key := range []string{uploadLock + "dead", collectLock + "dead"} {
		if err := s.put(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	age(t, dir, s.opt.Lease+time.Second)
	keep(t, s, "snap-1", c)
	if done, err := s.Collect(t.Context(), 0); err != nil || done.Busy {
		t.Errorf("collect = %+v, %v", done, err)
	}
	if left := objects(t, dir, locksDir); len(left) > 0 {
		t.Errorf("locks are left: %v", left)
	}
}

func TestAnUploadThatLostItsLockWritesNoManifest(t *testing.T) {
	s, dir := fileStore(t, Options{Lease: 400 * time.Millisecond})
	ctx, hold, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// It is renewed beyond its lease.
	first := hold.seen()
	for hold.seen().Sub(first) < 2*s.opt.Lease {
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		<-time.After(10 * time.Millisecond)
	}
	// Until the store cannot be written to.
	if err := os.RemoveAll(filepath.Join(dir, locksDir)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "locks"), nil)
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errLockLost) {
		t.Errorf("cause = %v", context.Cause(ctx))
	}
	up := &upload{Store: s, hold: hold}
	if err := up.publish(t.Context(), manifestsDir+"snap-1", []byte("x")); !errors.Is(err, errLockLost) {
		t.Errorf("publish = %v", err)
	}
	if m := objects(t, dir, manifestsDir); len(m) > 0 {
		t.Errorf("manifests are there: %v", m)
	}
	hold.release()
}

// stop does to the owner of a lock what a stop of its process for a lease does.
func (l *lock) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive = wallClock().Add(-l.store.opt.Lease)
}

// Others have taken the lock for a dead owner's: a collection may have removed
// what an upload found in the store, or an upload have skipped what a collection
// is about to remove.
func TestALockIsNotRenewedAfterItsTime(t *testing.T) {
	s, _ := fileStore(t, Options{})
	_, hold, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.release()
	if err := hold.again(t.Context()); err != nil {
		t.Errorf("in time: %v", err)
	}
	hold.stop()
	for range 2 {
		if err := hold.again(t.Context()); !errors.Is(err, errLockLost) {
			t.Errorf("too late: %v", err)
		}
	}
}

// atPut is a bucket that calls a function before each write of a key.
type atPut struct {
	bucket
	key string
	do  func()
}

func (b atPut) put(ctx context.Context, key string, content []byte) error {
	if key == b.key {
		b.do()
	}
	return b.bucket.put(ctx, key, content)
}

// What a manifest names that was written then may be gone, until the next upload.
func TestAnUploadFailsWhoseLockIsLostAtItsEnd(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	c.Distrust = true
	keep(t, s, "snap-1", c)
	_, hold, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, manifestsDir, "snap-1"))
	if err != nil {
		t.Fatal(err)
	}
	plain := s.bucket
	s.bucket = atPut{plain, manifestsDir + "snap-1", hold.stop}
	up := &upload{Store: s, hold: hold}
	if err := up.publish(t.Context(), manifestsDir+"snap-1", raw); !errors.Is(err, errLockLost) {
		t.Errorf("publish = %v", err)
	}
	s.bucket = plain
	hold.release()
	if err := os.Remove(objects(t, dir, chunksDir)[0]); err != nil {
		t.Fatal(err)
	}
	keep(t, s, "snap-1", c)
	dest := filepath.Join(t.TempDir(), "x")
	if _, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.same(t, dest)
}

func (l *lock) seen() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alive
}

// Where uploads follow one another without a gap, a collection that waits gets
// its turn: those that begin after it wait for it.
func TestACollectionGetsItsTurn(t *testing.T) {
	s, _ := fileStore(t, Options{})
	_, first, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	collected := make(chan error, 1)
	go func() {
		done, err := s.Collect(t.Context(), time.Minute)
		if err == nil && done.Busy {
			err = errors.New("it gave up")
		}
		collected <- err
	}()
	// The next upload begins before the first has ended, and not before the
	// collection.
	for waits := false; !waits; {
		err := s.list(t.Context(), locksDir, func(o object) error {
			waits = waits || strings.HasPrefix(o.key, collectLock)
			return t.Context().Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	next := make(chan error, 1)
	go func() {
		_, hold, err := s.lockShared(t.Context())
		if err == nil {
			hold.release()
		}
		next <- err
	}()
	first.release()
	if err := <-next; err != nil {
		t.Errorf("the next upload: %v", err)
	}
	if err := <-collected; err != nil {
		t.Errorf("the collection: %v", err)
	}
}

// A collection does not wait for an upload for ever.
func TestACollectionLosesPatience(t *testing.T) {
	s, _ := fileStore(t, Options{})
	_, upload, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer upload.release()
	if done, err := s.Collect(t.Context(), time.Millisecond); err != nil || !done.Busy {
		t.Errorf("collected %+v, %v", done, err)
	}
	_, next, err := s.lockShared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next.release()
}
