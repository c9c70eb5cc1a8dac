package pgarchive

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// history is an archive that grew by chance, with what there is to know of it.
type history struct {
	*Archive
	bucket  *memory
	written []time.Time // of segments 1 and on
	targets []time.Time
}

// grow makes an archive with segments, with base backups that were taken meanwhile,
// and maybe with segments that are lost.
func grow(t *rapid.T, tb testing.TB) *history {
	m := newMemory()
	h := &history{Archive: open(tb, New(m), first, key), bucket: m}
	h.store.now = func() time.Time { return epoch.AddDate(1, 0, 0) }
	n := rapid.IntRange(1, 14).Draw(t, "segments")
	now := epoch
	for i := range n {
		now = now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
		h.written = append(h.written, now)
		stub(tb, h.Archive, uint64(i+1), now)
		h.targets = append(h.targets, now, now.Add(-flushTime), now.Add(time.Second))
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "backups") {
		start := rapid.IntRange(1, n).Draw(t, "start")
		stop := rapid.IntRange(start, min(start+2, n+1)).Draw(t, "stop") // the last may be on its way
		finished := now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
		if stop <= n {
			finished = h.written[stop-1].Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
		}
		backup(tb, h.Archive, fmt.Sprintf("b%d", i), uint64(start), uint64(stop), finished, []byte("x"))
		h.targets = append(h.targets, finished, finished.Add(-1))
	}
	for range rapid.IntRange(0, 2).Draw(t, "lost") {
		delete(m.objects, h.prefix()+walDir+seg(uint64(rapid.IntRange(1, n).Draw(t, "segment"))))
	}
	putWAL(tb, h.Archive, "00000002.history", []byte("x"))
	return h
}

// restores says whether a restore to a moment finds all that it needs: a base backup
// that comes back, and the segments from its start to the first that must have all
// commits up to then, or to the end where none must.
func (h *history) restores(t *rapid.T, target *time.Time) bool {
	b, err := h.Choose(t.Context(), target)
	if err != nil {
		if !errors.Is(err, ErrNothing) && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		return false
	}
	m, err := h.manifest(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Backup(t.Context(), b.ID, io.Discard); err != nil {
		t.Errorf("the base backup that was chosen: %v", err)
	}
	if target != nil && m.FinishedAt.After(*target) {
		t.Errorf("it was finished after the target")
	}
	need := uint64(len(h.written))
	for n := m.stop; target != nil && n <= need; n++ {
		if !h.written[n-1].Add(-flushTime).Before(*target) {
			need = n
		}
	}
	for n := m.start; n <= need; n++ {
		if _, ok := h.bucket.objects[h.prefix()+walDir+seg(n)]; !ok {
			// The end of the archive may have been lost with nothing after it.
			for later := n; later <= uint64(len(h.written)); later++ {
				if _, ok := h.bucket.objects[h.prefix()+walDir+seg(later)]; ok {
					t.Fatalf("segment %d is missing, and %d is there: nobody was told", n, later)
				}
			}
			break
		}
	}
	return true
}

func TestPruneKeepsEveryWindowWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := grow(rt, t)
		for range rapid.IntRange(1, 3).Draw(rt, "prunes") {
			before := epoch.Add(time.Duration(rapid.IntRange(-60, 4000).Draw(rt, "before")) * time.Second)
			could := map[time.Time]bool{}
			for _, target := range h.targets {
				could[target] = !target.Before(before) && h.restores(rt, &target)
			}
			latest := h.restores(rt, nil)
			was, wasErr := h.Info(rt.Context())

			h.bucket.budget = rapid.SampledFrom([]int{-1, 0, 1, 2, 3, 5, 8}).Draw(rt, "budget")
			_, err := h.Prune(rt.Context(), before)
			if err != nil && !errors.Is(err, errCrashed) && !errors.Is(err, ErrDamaged) {
				rt.Fatal(err)
			}
			h.bucket.budget = -1

			for target, ok := range could {
				if ok && !h.restores(rt, &target) {
					_, err := h.Choose(rt.Context(), &target)
					rt.Errorf("after a prune before %s (%v), a restore to %s fails: %v", before, err, target, err)
				}
			}
			if latest && !h.restores(rt, nil) {
				rt.Errorf("after a prune before %s, nothing can be restored", before)
			}
			is, err := h.Info(rt.Context())
			if wasErr == nil && err != nil {
				rt.Errorf("a prune did damage: %v", err)
			}
			if wasErr == nil && is.LastRestorable.Before(was.LastRestorable) {
				rt.Errorf("restorable until %s, and before the prune until %s", is.LastRestorable, was.LastRestorable)
			}
			if _, _, err := h.WAL(rt.Context(), "00000002.history"); err != nil {
				rt.Errorf("the history: %v", err)
			}
		}
	})
}

// A base backup that was finished later began earlier, before WAL that is lost.
func TestPruneKeepsTheBaseBackupFromWhichTheWALLeadsOn(t *testing.T) {
	a := built(t, 2 /* */, 4, 5, 6, 7)
	backup(t, a, "later", 4, 4, at(4), []byte("x"))
	backup(t, a, "slow", 2, 2, at(5), []byte("x"))
	for range 2 {
		info, err := a.Prune(t.Context(), at(6))
		if err != nil || len(info.BaseBackups) != 1 || info.BaseBackups[0].ID != "later" || !info.FirstRestorable.Equal(at(4)) || !info.LastRestorable.Equal(at(7).Add(-flushTime)) {
			t.Errorf("%+v, %v", info, err)
		}
	}
	if b, err := a.Choose(t.Context(), nil); err != nil || b.ID != "later" {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestPruneRemovesWhatNobodyNeeds(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		a := open(t, s, first, key)
		for n := range uint64(10) {
			stub(t, a, n+1, at(int(n)+1))
		}
		putWAL(t, a, "000000010000000000000002.00000028.backup", []byte("x"))
		putWAL(t, a, "00000002.history", []byte("x"))
		backup(t, a, "a", 2, 2, at(2), long())
		backup(t, a, "b", 4, 5, at(5), long())
		backup(t, a, "c", 7, 7, at(7), long())
		count := func() (n int) { return len(objects(t, dir)) }
		all := count()
		if info, err := a.Prune(t.Context(), at(2).Add(-1)); err != nil || len(info.BaseBackups) != 3 || count() != all {
			t.Errorf("before the first: %+v, %v", info, err)
		}
		if info, err := a.Prune(t.Context(), at(4)); err != nil || len(info.BaseBackups) != 3 || count() != all-1 {
			t.Errorf("after the first: %+v, %v", info, err) // segment 1
		}
		before := a.must(t)
		info, err := a.Prune(t.Context(), at(6))
		if err != nil || len(info.BaseBackups) != 2 || !info.FirstRestorable.Equal(at(5)) || !info.LastRestorable.Equal(at(10).Add(-flushTime)) || info.SizeBytes >= before.SizeBytes {
			t.Errorf("after the second: %+v, %v", info, err)
		}
		// Segments 2 and 3, the label, three parts and a manifest.
		if got := count(); got != all-1-7 {
			t.Errorf("%d objects are left: %v", got, objects(t, dir))
		}
		if info, err := a.Prune(t.Context(), at(1000)); err != nil || len(info.BaseBackups) != 1 || info.LastLSN != "0/B000000" {
			t.Errorf("after all: %+v, %v", info, err)
		}
		left := strings.Join(objects(t, dir), " ")
		for _, name := range []string{seg(6), "backups/a", "base/a", "backups/b", "base/b"} {
			if strings.Contains(left, name) {
				t.Errorf("%s is left: %s", name, left)
			}
		}
		for _, name := range []string{seg(7), seg(10), "00000002.history", "backups/c"} {
			if !strings.Contains(left, name) {
				t.Errorf("%s is gone: %s", name, left)
			}
		}
	})
}

// Of what an unreadable manifest needs nothing is known, but that nobody needs what is
// older than the base backup that every restore may begin with.
func TestPruneIsHeldUpByADamagedManifestThatMayBeNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		damaged string
		before  time.Time
		left    []string // of base backups; nil: all
	}{
		"older than what is kept":  {"a", at(5), []string{"b", "c"}},
		"newer than what is kept":  {"c", at(5), nil},
		"what would be kept":       {"b", at(5), nil},
		"nothing was finished yet": {"a", at(1), nil},
		"older, as are others":     {"a", at(7), []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, dir := directory(t)
			a := open(t, New(b), first, key)
			for n := range uint64(10) {
				stub(t, a, n+1, at(int(n)+1))
			}
			for i, id := range []string{"a", "b", "c"} {
				start := uint64(2 + 2*i)
				backup(t, a, id, start, start, at(int(start)), []byte("x"))
				file := filepath.Join(dir, filepath.FromSlash(a.prefix()+backupsDir+id))
				if id == c.damaged {
					if err := os.WriteFile(file, []byte("not a manifest"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Chtimes(file, at(int(start)), at(int(start))); err != nil {
					t.Fatal(err)
				}
			}
			all := objects(t, dir)
			info, err := a.Prune(t.Context(), c.before)
			if c.left == nil {
				if !errors.Is(err, ErrDamaged) || len(objects(t, dir)) != len(all) {
					t.Errorf("%v; %d objects are left of %d", err, len(objects(t, dir)), len(all))
				}
				return
			}
			var left []string
			for _, b := range info.BaseBackups {
				left = append(left, b.ID)
			}
			if err != nil || !slices.Equal(left, c.left) {
				t.Errorf("base backups %q are left, want %q; %v", left, c.left, err)
			}
			if names := strings.Join(objects(t, dir), " "); strings.Contains(names, "/a") || strings.Contains(names, seg(3)) || !strings.Contains(names, seg(7)) {
				t.Errorf("left: %s", names)
			}
		})
	}
}
