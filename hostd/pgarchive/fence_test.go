package pgarchive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestNothingIsWrittenToAFencedArchive(t *testing.T) {
	each(t, func(t *testing.T, s *Store, _ string) {
		a := open(t, s, first, key)
		putWAL(t, a, seg(1), segment(1))
		if fenced, err := a.Fenced(t.Context()); err != nil || fenced {
			t.Fatal(fenced, err)
		}
		for range 2 {
			if err := open(t, s, first, key).Fence(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if fenced, err := a.Fenced(t.Context()); err != nil || !fenced {
			t.Error(fenced, err)
		}
		for n := range uint64(2) {
			if _, err := a.PutWAL(t.Context(), walFile(seg(n+1), segment(1)), bytes.NewReader(segment(1))); !errors.Is(err, ErrFenced) {
				t.Errorf("%d: %v", n, err)
			}
		}
		called := false
		if _, err := a.PutBackup(t.Context(), "x", time.Now(), func(io.Writer) (pgapi.BackupInfo, error) { called = true; return info(), nil }); !errors.Is(err, ErrFenced) || called {
			t.Errorf("a base backup: %v, %t", err, called)
		}
		if _, _, err := a.WAL(t.Context(), seg(1)); err != nil {
			t.Error(err)
		}
		if got, err := a.Info(t.Context()); err != nil || !got.Fenced || got.LastLSN != "0/2000000" {
			t.Errorf("%+v, %v", got, err)
		}
		putWAL(t, open(t, s, second, otherKey), seg(1), segment(2)) // the next incarnation writes
	})
}

// during is a bucket in which something happens right before an object is created.
type during struct {
	bucket.Bucket
	do func()
}

func (b *during) Create(ctx context.Context, key string, content []byte) error {
	if !strings.HasSuffix(key, fenceName) {
		b.do()
	}
	return b.Bucket.Create(ctx, key, content)
}

// The writer looked, found no fence, and writes after it.
func TestWhatIsWrittenAfterAFenceIsNotAcknowledged(t *testing.T) {
	b, _ := directory(t)
	for name, write := range map[string]func(a *Archive) error{
		"wal": func(a *Archive) error {
			return errOf(a.PutWAL(context.Background(), walFile(seg(1), segment(1)), bytes.NewReader(segment(1))))
		},
		"backup": func(a *Archive) error {
			_, err := a.PutBackup(context.Background(), "x", time.Now(), from(strings.NewReader("x")))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fenceOf := open(t, New(b), db+"/"+map[string]string{"wal": "3", "backup": "4"}[name], key)
			a := open(t, New(&during{b, func() {
				if err := fenceOf.Fence(context.Background()); err != nil {
					t.Error(err)
				}
			}}), fenceOf.Name(), key)
			if err := write(a); !errors.Is(err, ErrFenced) {
				t.Errorf("%v", err)
			}
			if err := write(a); !errors.Is(err, ErrFenced) {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestADeletedArchiveIsGone(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		one, two := open(t, s, first, key), open(t, s, second, otherKey)
		ten := open(t, s, db+"/10", key)
		for _, a := range []*Archive{one, two, ten} {
			stub(t, a, 2, epoch)
			backup(t, a, "b", 2, 2, epoch, []byte("x"))
		}
		for range 2 {
			if err := s.Delete(t.Context(), first); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := one.Info(t.Context()); err != nil || got.Objects != 1 || len(got.BaseBackups) != 0 || !got.Fenced {
			t.Errorf("%+v, %v", got, err)
		}
		for _, a := range []*Archive{two, ten} {
			if got, err := a.Info(t.Context()); err != nil || len(got.BaseBackups) != 1 {
				t.Errorf("%s: %+v, %v", a.Name(), got, err)
			}
		}
		for range 2 {
			if err := s.Delete(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range objects(t, dir) {
			if !strings.HasSuffix(name, "/"+fenceName) && !strings.HasPrefix(name, removedDir) {
				t.Errorf("%s is left", name)
			}
		}
		if _, err := two.Choose(t.Context(), nil); !errors.Is(err, ErrNothing) {
			t.Error(err)
		}
	})
}

// The leader deletes an archive when no box has it, as far as it knows. A host that is
// cut off may have one that lives.
func TestADeletedArchiveTakesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		now := time.Now()
		s.now = func() time.Time { return now }
		written, never, late := open(t, s, first, key), open(t, s, second, otherKey), open(t, s, db+"/3", key)
		putWAL(t, written, seg(1), segment(1))
		remove := func(a *Archive) {
			t.Helper()
			if err := s.Delete(t.Context(), a.Name()); err != nil {
				t.Fatal(err)
			}
		}
		remove(written)
		remove(never)
		for _, a := range []*Archive{written, never} {
			if err := errOf(a.PutWAL(t.Context(), walFile(seg(2), segment(2)), bytes.NewReader(segment(2)))); !errors.Is(err, ErrFenced) {
				t.Errorf("%s: %v", a.Name(), err)
			}
		}
		// In the end nothing is left, also of what came after the fence.
		stub(t, written, 3, epoch)
		now = now.Add(fenceAge - 48*time.Hour)
		remove(late)
		if got := objects(t, dir); len(got) != 7 {
			t.Errorf("objects: %v", got)
		}
		now = now.Add(96 * time.Hour)
		remove(late)
		for _, name := range objects(t, dir) {
			if !strings.HasPrefix(name, root+late.Name()+"/") && !(strings.HasPrefix(name, removedDir) && strings.HasSuffix(name, "-3")) {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// A delete that is cut off leaves nothing that looks as if it could be restored.
func TestADeleteTakesManifestsFirst(t *testing.T) {
	m := newMemory()
	s := New(m)
	a := open(t, s, first, key)
	for n := range uint64(5) {
		stub(t, a, n+2, at(int(n)))
	}
	backup(t, a, "a", 2, 2, at(1), long())
	backup(t, a, "b", 3, 3, at(2), long())
	m.budget = 2
	if err := s.Delete(t.Context(), db); !errors.Is(err, errCrashed) {
		t.Fatal(err)
	}
	if got, err := a.Info(t.Context()); err != nil || len(got.BaseBackups) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestNamesThatAreNoArchive(t *testing.T) {
	s := New(newMemory())
	for _, name := range []string{
		"", "/", db, db + "/", db + "/0", db + "/01", db + "/1/", db + "/1/2", db + "/x", db + "/-1", db + "/1234567890123456789",
		"../1", "x/1", strings.ToUpper(db) + "/1", db + "\n/1", db[:35] + "/1", "/" + first,
	} {
		if _, err := s.Open(hostapi.Archive{Name: name, Key: key}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q was opened: %v", name, err)
		}
		if err := s.Delete(t.Context(), name); name != db && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q was deleted: %v", name, err)
		}
	}
	for _, key := range [][]byte{nil, key[:31], append(key, 1)} {
		if _, err := s.Open(hostapi.Archive{Name: first, Key: key}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a key of %d bytes: %v", len(key), err)
		}
	}
}
