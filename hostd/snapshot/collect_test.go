package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
)

// age backdates every object of a store.
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

func collect(t *testing.T, s *Store) Collected {
	t.Helper()
	done, err := s.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func fetched(t *testing.T, s *Store, id string, c capture) {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "x")
	if _, err := s.Fetch(t.Context(), id, dest, FetchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.same(t, dest)
}

func TestCollectTakesWhatIsOldAndUnused(t *testing.T) {
	tier.Slow(t)
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{Grace: time.Hour})
		one, two := newCapture(t, 1), newCapture(t, 2)
		keep(t, s, "snap-1", one)
		keep(t, s, "snap-2", two)
		stray := filepath.Join(dir, chunksDir, "ab/ab12.tmp")
		if err := os.MkdirAll(filepath.Dir(stray), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, stray, []byte("half a write"))
		if done := collect(t, s); done != (Collected{}) {
			t.Errorf("of a young store: %+v", done)
		}
		for range 2 { // again is no error
			if err := s.Delete(t.Context(), "snap-1"); err != nil {
				t.Fatal(err)
			}
		}
		if there, err := s.Has(t.Context(), "snap-1"); err != nil || there {
			t.Errorf("has = %v, %v", there, err)
		}
		before := len(objects(t, dir, chunksDir))
		age(t, dir, 2*time.Hour)
		first := collect(t, s)
		if first.Trashed < 2 || first.Removed != 0 || len(objects(t, dir, chunksDir)) != before-int(first.Trashed) {
			t.Errorf("one of two is gone: %+v of %d", first, before)
		}
		if done := collect(t, s); done != (Collected{}) {
			t.Errorf("at once again: %+v", done)
		}
		age(t, dir, 2*time.Hour)
		if done := collect(t, s); done.Removed != first.Trashed || done.Bytes == 0 || done.Trashed != 0 {
			t.Errorf("after the grace: %+v", done)
		}
		fetched(t, s, "snap-2", two)
		// The shared file's manifest goes first, and then its chunks.
		if err := s.Delete(t.Context(), "snap-2"); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			age(t, dir, 2*time.Hour)
			collect(t, s)
		}
		if left := len(objects(t, dir, chunksDir)) + len(objects(t, dir, sharedDir)) + len(objects(t, dir, trashDir)); left != 0 {
			t.Errorf("%d objects are left", left)
		}
	})
}

// A manifest is written while its chunks are moved to the trash.
func TestWhatIsInTheTrashIsReadAndPutBack(t *testing.T) {
	tier.Slow(t)
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{Grace: time.Hour})
		c := newCapture(t, 1)
		keep(t, s, "snap-1", c)
		manifest, err := s.get(t.Context(), manifestsDir+"snap-1", maxManifest)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), "snap-1"); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the shared file's manifest, and its chunks
			age(t, dir, 2*time.Hour)
			_, err := s.Collect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.put(t.Context(), manifestsDir+"snap-1", manifest); err != nil {
				t.Fatal(err)
			}
			fetched(t, s, "snap-1", c)
			// It does not matter how long it was there.
			age(t, dir, 2*time.Hour)
			if done := collect(t, s); done.Restored == 0 || done.Removed != 0 {
				t.Errorf("collected: %+v", done)
			}
			if done := collect(t, s); done != (Collected{}) {
				t.Errorf("again: %+v", done)
			}
			fetched(t, s, "snap-1", c)
			if err := s.Delete(t.Context(), "snap-1"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestNothingIsCollectedWhileAManifestCannotBeRead(t *testing.T) {
	s, dir := fileStore(t, Options{Grace: time.Hour})
	keep(t, s, "snap-1", newCapture(t, 1))
	keep(t, s, "snap-2", newCapture(t, 2))
	damage(t, filepath.Join(dir, manifestsDir, "snap-1"), func(b []byte) []byte { return b[:len(b)-1] })
	age(t, dir, 2*time.Hour)
	before := len(objects(t, dir, chunksDir))
	if _, err := s.Collect(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("collect = %v", err)
	}
	if err := s.Delete(t.Context(), "snap-2"); err != nil {
		t.Fatal(err)
	}
	if after := len(objects(t, dir, chunksDir)); after != before {
		t.Errorf("%d chunks of %d are left", after, before)
	}
	// Once the damaged snapshot is deleted, collection works again.
	if err := s.Delete(t.Context(), "snap-1"); err != nil {
		t.Fatal(err)
	}
	if done, err := s.Collect(t.Context()); err != nil || done.Trashed == 0 {
		t.Errorf("collect = %+v, %v", done, err)
	}
	t.Run("or a directory", func(t *testing.T) {
		write(t, filepath.Join(dir, "x"), nil)
		if err := os.RemoveAll(filepath.Join(dir, manifestsDir)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "snapshots"), nil)
		if _, err := s.Collect(t.Context()); err == nil {
			t.Error("a directory that cannot be listed was taken for an empty one")
		}
	})
}
