package pgarchive

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// built is an archive with segments that were written a minute after each other.
func built(t *testing.T, segments ...uint64) *Archive {
	t.Helper()
	a := open(t, New(newMemory()), first, key)
	for _, n := range segments {
		stub(t, a, n, at(int(n)))
	}
	return a
}

func ptr[T any](v T) *T { return &v }

func (a *Archive) must(t *testing.T) hostapi.ArchiveInfo {
	t.Helper()
	info, err := a.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestWhatCanBeRestored(t *testing.T) {
	choose := func(t *testing.T, a *Archive, target *time.Time, want string) {
		t.Helper()
		if b, err := a.Choose(t.Context(), target); err != nil || b.ID != want {
			t.Errorf("chosen: %q, %v; want %q", b.ID, err, want)
		}
	}
	nothing := func(t *testing.T, a *Archive, target *time.Time) {
		t.Helper()
		if b, err := a.Choose(t.Context(), target); !errors.Is(err, ErrNothing) || errors.Is(err, ErrDamaged) {
			t.Errorf("chosen: %q, %v", b.ID, err)
		}
	}
	window := func(t *testing.T, info hostapi.ArchiveInfo, first, last time.Time, lsn string) {
		t.Helper()
		if !info.FirstRestorable.Equal(first) || !info.LastRestorable.Equal(last) || info.LastLSN != lsn {
			t.Errorf("%+v; want %s to %s, %s", info, first, last, lsn)
		}
	}
	t.Run("an empty archive", func(t *testing.T) {
		a := built(t)
		window(t, a.must(t), time.Time{}, time.Time{}, "")
		if info := a.must(t); info.BaseBackups == nil || info.SizeBytes != 0 {
			t.Errorf("%+v", info)
		}
		nothing(t, a, nil)
		nothing(t, a, ptr(at(5)))
	})
	t.Run("WAL alone", func(t *testing.T) {
		a := built(t, 4, 5)
		window(t, a.must(t), time.Time{}, time.Time{}, "0/6000000")
		nothing(t, a, nil)
	})
	t.Run("a base backup whose WAL is on its way", func(t *testing.T) {
		a := built(t, 2)
		backup(t, a, "a", 2, 3, at(3), []byte("x"))
		window(t, a.must(t), time.Time{}, time.Time{}, "0/3000000")
		if info := a.must(t); len(info.BaseBackups) != 1 {
			t.Errorf("%+v", info)
		}
		nothing(t, a, nil)
		stub(t, a, 3, at(3).Add(-time.Second))
		// Nothing was written since it was finished.
		window(t, a.must(t), at(3), at(3), "0/4000000")
		choose(t, a, nil, "a")
		choose(t, a, ptr(at(3)), "a")
		nothing(t, a, ptr(at(3).Add(-1)))
		stub(t, a, 4, at(7))
		window(t, a.must(t), at(3), at(7).Add(-flushTime), "0/5000000")
	})
	t.Run("a base backup that stops where a segment begins", func(t *testing.T) {
		m := manifest{StartLSN: lsn(2, 0x28), StopLSN: lsn(4, 0), Timeline: 1, Parts: 1}
		if err := m.check(); err != nil || m.start != 2 || m.stop != 3 {
			t.Errorf("%+v, %v", m, err)
		}
	})
	t.Run("the newest that fits", func(t *testing.T) {
		a := built(t, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		backup(t, a, "a", 2, 2, at(3), []byte("x"))
		backup(t, a, "b", 5, 5, at(6), []byte("x"))
		backup(t, a, "c", 9, 10, at(10), []byte("x")) // its WAL is on its way
		window(t, a.must(t), at(3), at(9).Add(-flushTime), "0/A000000")
		choose(t, a, nil, "b")
		choose(t, a, ptr(at(20)), "b")
		choose(t, a, ptr(at(6)), "b")
		choose(t, a, ptr(at(6).Add(-1)), "a")
		nothing(t, a, ptr(at(2)))
		info := a.must(t)
		if len(info.BaseBackups) != 3 || info.BaseBackups[0].ID != "a" || info.BaseBackups[2].ID != "c" {
			t.Errorf("%+v", info.BaseBackups)
		}
	})
	t.Run("a segment that waited for long", func(t *testing.T) {
		// The bucket was away from minute 3 to minute 60, and what was written in
		// segment 4 meanwhile still waits.
		a := built(t, 1, 2)
		backup(t, a, "a", 1, 2, at(2), []byte("x"))
		s, err := a.seal(walDir+seg(3), walHeader{WrittenAt: at(4), ArchivedAt: at(60)}, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.create(t.Context(), a.prefix()+walDir+seg(3), s.raw); err != nil {
			t.Fatal(err)
		}
		window(t, a.must(t), at(2), at(4).Add(-flushTime), "0/4000000")
	})
	t.Run("a guest whose clock is ahead", func(t *testing.T) {
		a := built(t, 1, 2)
		backup(t, a, "a", 1, 1, at(1), []byte("x"))
		s, err := a.seal(walDir+seg(3), walHeader{WrittenAt: at(1000), ArchivedAt: at(4)}, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.create(t.Context(), a.prefix()+walDir+seg(3), s.raw); err != nil {
			t.Fatal(err)
		}
		window(t, a.must(t), at(1), at(4).Add(-flushTime), "0/4000000")
	})
	t.Run("a gap", func(t *testing.T) {
		a := built(t, 1, 2, 3, 4 /* */, 7, 8)
		backup(t, a, "a", 2, 2, at(2), []byte("x"))
		info, err := a.Info(t.Context())
		damaged(t, err, walDir+seg(5))
		window(t, info, at(2), at(4).Add(-flushTime), "0/5000000")
		choose(t, a, ptr(at(3)), "a")
		_, err = a.Choose(t.Context(), ptr(at(5)))
		damaged(t, err, walDir+seg(5))
		_, err = a.Choose(t.Context(), nil)
		damaged(t, err, walDir+seg(5))
		if !info.EndLost {
			t.Errorf("%+v does not say that the end cannot be restored", info)
		}
		nothing(t, built(t, 7, 8), nil)

		// A base backup after it makes what comes then restorable.
		backup(t, a, "b", 7, 8, at(9), []byte("x"))
		info, err = a.Info(t.Context())
		damaged(t, err, walDir+seg(5))
		window(t, info, at(9), at(9), "0/9000000")
		if want := []hostapi.Window{{First: at(2), Last: at(4).Add(-flushTime)}}; !slices.EqualFunc(info.Earlier, want, func(x, y hostapi.Window) bool { return x.First.Equal(y.First) && x.Last.Equal(y.Last) }) {
			t.Errorf("before the gap: %v, want %v", info.Earlier, want)
		}
		choose(t, a, nil, "b")
		if info.EndLost {
			t.Errorf("%+v says that the end cannot be restored", info)
		}
		choose(t, a, ptr(at(3)), "a")
		choose(t, a, &info.Earlier[0].First, "a")
		choose(t, a, &info.Earlier[0].Last, "a")
		_, err = a.Choose(t.Context(), ptr(at(6)))
		damaged(t, err, walDir+seg(5))
	})
	t.Run("a gap in a base backup", func(t *testing.T) {
		a := built(t, 1, 2, 4, 5)
		backup(t, a, "a", 2, 4, at(4), []byte("x"))
		_, err := a.Choose(t.Context(), nil)
		damaged(t, err, walDir+seg(3))
		_, err = a.Info(t.Context())
		damaged(t, err, walDir+seg(3))
	})
	t.Run("the first segment is lost", func(t *testing.T) {
		a := built(t, 3, 4)
		backup(t, a, "a", 2, 3, at(4), []byte("x"))
		_, err := a.Choose(t.Context(), nil)
		damaged(t, err, walDir+seg(2))
	})
	t.Run("a gap before the oldest base backup", func(t *testing.T) {
		a := built(t, 1, 3, 4)
		backup(t, a, "a", 3, 3, at(4), []byte("x"))
		window(t, a.must(t), at(4), at(4), "0/5000000")
		choose(t, a, nil, "a")
	})
	t.Run("a manifest that is damaged", func(t *testing.T) {
		b, dir := directory(t)
		a := open(t, New(b), first, key)
		for n := range uint64(5) {
			stub(t, a, n+1, at(int(n)))
		}
		backup(t, a, "a", 1, 1, at(1), []byte("x"))
		backup(t, a, "b", 3, 3, at(3), []byte("x"))
		change(t, filepath.Join(dir, root, first, backupsDir, "b"), func(raw []byte) []byte { return raw[:len(raw)-1] })
		info, err := a.Info(t.Context())
		damaged(t, err, backupsDir+"b")
		window(t, info, at(1), at(4).Add(-flushTime), "0/6000000")
		choose(t, a, nil, "a") // with all the WAL since it leads to the same
		info, err = a.Prune(t.Context(), at(100))
		damaged(t, err, backupsDir+"b")
		if len(info.BaseBackups) != 1 {
			t.Errorf("%+v", info)
		}
		if err := os.Remove(filepath.Join(dir, root, first, backupsDir, "a")); err != nil {
			t.Fatal(err)
		}
		_, err = a.Choose(t.Context(), nil)
		damaged(t, err, backupsDir+"b")
	})
}

// change does something to an object.
func change(t testing.TB, path string, f func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, f(raw), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Clients are told of moments in milliseconds. The first that can be restored, as they are
// told it, can be.
func TestTheFirstMomentThatIsTold(t *testing.T) {
	a := built(t, 3, 4, 5)
	finished := at(4).Add(123456 * time.Nanosecond)
	backup(t, a, "b1", 3, 4, finished, []byte("x"))
	first := a.must(t).FirstRestorable
	if first.Before(finished) {
		t.Errorf("%s is before the base backup's end, %s", first, finished)
	}
	if b, err := a.Choose(t.Context(), ptr(first.Truncate(time.Millisecond))); err != nil || b.ID != "b1" {
		t.Errorf("%q, %v", b.ID, err)
	}
}
