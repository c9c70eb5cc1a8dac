package database

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// What is put counts at once, and what is listed instead of it.
func TestHowMuchAnArchiveHas(t *testing.T) {
	h := newHost(t)
	a, err := h.store.Open(archive(one))
	must(t, err)
	content := make([]byte, pgapi.SegmentBytes)
	sum := sha256.Sum256(content)
	f := newFacts(a, time.Now)
	put := func(n uint64) {
		t.Helper()
		file := pgapi.WALFile{Name: pgapi.SegmentName(1, n), Size: pgapi.SegmentBytes, SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()}
		stored, err := a.PutWAL(t.Context(), file, bytes.NewReader(content))
		must(t, err)
		f.stored(file.Name, stored.Bytes)
	}
	full := func(quota size, want bool) {
		t.Helper()
		f.begin(quota, time.Time{}, false, time.Minute)
		if got := f.refusesWAL(); got != want {
			t.Errorf("full of %+v: %t", quota, got)
		}
	}
	full(size{}, false)
	for range 2 {
		put(1)
		put(2)
		full(size{objects: 2}, true)
		full(size{objects: 3}, false)
		full(size{bytes: 1000}, true)
		full(size{bytes: pgapi.SegmentBytes}, false) // it is compressed
		full(size{}, false)
		must(t, second(f.list(t.Context())))
	}
	must(t, os.Remove(filepath.Join(h.dir, "pg", filepath.FromSlash(one), "wal", pgapi.SegmentName(1, 1))))
	full(size{objects: 2}, true)
	must(t, second(f.list(t.Context())))
	full(size{objects: 2}, false)
	if got := (Quota{Disks: 20, Objects: 7}).of(10); got != (size{200 << 20, 7}) {
		t.Errorf("quota = %+v", got)
	}
}

// It stops as with a bucket that is away, says why, and goes on once there is room.
func TestAnArchiveThatHasReachedItsQuota(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.stop()
	h.quota = Quota{Objects: 500}
	h.start()
	g := live(t, h, idA, one)
	other := filepath.Join(h.dir, "pg", filepath.FromSlash(one), "base", "of-a-dead-writer")
	must(t, os.MkdirAll(other, 0o700))
	for n := range 500 {
		must(t, os.WriteFile(filepath.Join(other, fmt.Sprintf("%06d", n)), nil, 0o600))
	}
	h.mu.Lock()
	facts := h.dbs[idA].facts
	h.mu.Unlock()
	facts.relist()
	h.await(t, idA, "full", func(*hostapi.DatabaseState) bool { return facts.refusesBackup() })
	written := parseLSN(g.sql(t, "CREATE TABLE t AS SELECT 1 AS x; SELECT pg_current_wal_insert_lsn()"))
	st := h.await(t, idA, "refused", func(st *hostapi.DatabaseState) bool { return st.Archive.Error == hostapi.ArchiveCauseFull })
	if st.Archive.FailingSince.IsZero() || !st.Ready || parseLSN(st.Archive.LastLSN) >= written {
		t.Errorf("state = %+v", st)
	}
	must(t, h.Backup(idA)) // it waits, too
	must(t, os.RemoveAll(other))
	facts.relist()
	h.await(t, idA, "archived and backed up", func(st *hostapi.DatabaseState) bool {
		return st.Archive.Error == "" && parseLSN(st.Archive.LastLSN) >= written && st.Archive.BaseBackups == 2
	})
}

// A full archive has room for the base backup without which nothing of it could ever be
// pruned, and for the WAL that makes that one whole, but for no more.
func TestWhatAFullArchiveTakesAllTheSame(t *testing.T) {
	h := newHost(t)
	a, err := h.store.Open(archive(one))
	must(t, err)
	const disk = 64 * pgapi.SegmentBytes
	now := time.Now()
	at := func(segments int) string { return lsn(segments * pgapi.SegmentBytes).String() }
	full := size{bytes: disk}
	for name, c := range map[string]struct {
		size           int64
		objects        int
		quota          size
		stops          []int // of base backups, in segments
		archived       int
		damaged        bool
		refuse, backup bool // WAL, and a base backup
	}{
		"there is room":                         {disk - 1, 9, full, []int{10}, 70, false, false, false},
		"WAL was archived for long":             {disk, 9, full, []int{10}, 26, false, true, false},
		"not for long enough":                   {disk, 9, full, []int{10}, 25, false, true, true},
		"too much even for that":                {disk * 5 / 4, 9, full, []int{10}, 26, false, true, true},
		"the base backup lacks its WAL":         {disk * 9 / 8, 9, full, []int{10, 30}, 28, false, false, true},
		"it is whole":                           {disk * 9 / 8, 9, full, []int{10, 30}, 30, false, true, true},
		"it lacks WAL, which is too much":       {disk * 5 / 4, 9, full, []int{10, 30}, 28, false, true, true},
		"there is no base backup":               {disk, 9, full, nil, 3, false, true, false},
		"WAL is missing since the last":         {disk, 9, full, []int{10}, 12, true, true, false},
		"too many objects":                      {9, 64, size{objects: 64}, []int{10}, 12, false, true, true},
		"too many objects, for long":            {9, 64, size{objects: 64}, []int{10}, 26, false, true, false},
		"no quota, and more WAL than any other": {disk, 999, size{}, []int{10}, 999, false, false, false},
	} {
		f := newFacts(a, time.Now)
		f.begin(c.quota, time.Time{}, false, time.Minute)
		f.info = hostapi.ArchiveInfo{SizeBytes: c.size, Objects: c.objects}
		for _, stop := range c.stops {
			f.info.BaseBackups = append(f.info.BaseBackups, hostapi.BaseBackup{StopLSN: at(stop), FinishedAt: now})
		}
		if c.damaged {
			f.damaged = now.Add(1)
		}
		f.lag.stored(parseLSN(at(c.archived)))
		if wal, backup := f.refusesWAL(), f.refusesBackup(); wal != c.refuse || backup != c.backup {
			t.Errorf("%s: refuses WAL %t, a base backup %t", name, wal, backup)
		}
	}
}
