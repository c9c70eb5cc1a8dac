package database

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// walked is a bucket that is listed slowly, and counts how often.
type walked struct {
	bucket.Bucket
	proceed   chan struct{}
	times     atomic.Int32
	now, most atomic.Int32
}

func (w *walked) Walk(ctx context.Context, prefix string, visit func(bucket.Object) error) error {
	w.times.Add(1)
	n := w.now.Add(1)
	defer w.now.Add(-1)
	for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
	}
	<-w.proceed
	return w.Bucket.Walk(ctx, prefix, visit)
}

func TestManyWhoAskOfAnArchiveShareALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		w := &walked{Bucket: b, proceed: make(chan struct{})}
		s := NewArchives(pgarchive.New(w))
		var all sync.WaitGroup
		ask := func(name string) {
			all.Go(func() {
				if _, err := s.Info(t.Context(), archive(name)); err != nil {
					t.Error(err)
				}
			})
		}
		ask(one)
		synctest.Wait()
		for range 50 {
			ask(one) // what they know of may be newer than the look that is under way
		}
		synctest.Wait()
		for n := range byte(8) {
			ask(string('2'+rune(n)) + one[1:])
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Info(gone, archive(one)); err == nil {
			t.Error("whoever leaves waits on")
		}
		close(w.proceed)
		all.Wait()
		synctest.Wait()
		if n := w.times.Load(); n != 2+8 {
			t.Errorf("%d listings, want 10", n)
		}
		if n := w.most.Load(); n != looksAtOnce {
			t.Errorf("%d listings at once, want %d", n, looksAtOnce)
		}
		if len(s.looks) != 0 {
			t.Errorf("%d are left", len(s.looks))
		}
	})
}

// Where a look takes longer than anybody waits, whoever asks again is answered.
func TestALookThatTookLongIsNotForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		w := &walked{Bucket: b, proceed: make(chan struct{})}
		s := NewArchives(pgarchive.New(w))
		ask := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return second(s.Info(ctx, archive(one)))
		}
		if err := ask(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it is answered: %v", err)
		}
		after(30 * time.Second)
		close(w.proceed)
		synctest.Wait()
		for range 3 {
			must(t, ask())
		}
		if n := w.times.Load(); n != 1 {
			t.Errorf("%d listings, want 1", n)
		}
		after(41 * time.Second)
		must(t, ask())
		must(t, ask())
		if n := w.times.Load(); n != 3 {
			t.Errorf("%d listings, want 3: one is too old, and one was quick", n)
		}
	})
}

// grown makes an archive with a segment and a base backup each day, as time passes.
func grown(t *testing.T, a *pgarchive.Archive, days uint64) {
	t.Helper()
	content := make([]byte, pgapi.SegmentBytes)
	sum := sha256.Sum256(content)
	for n := range days {
		file := pgapi.WALFile{Name: pgapi.SegmentName(1, n+1), Size: pgapi.SegmentBytes, SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()}
		must(t, second(a.PutWAL(t.Context(), file, bytes.NewReader(content))))
		_, err := a.PutBackup(t.Context(), "b"+string(rune('a'+n)), time.Now(), func(w io.Writer) (pgapi.BackupInfo, error) {
			_, err := w.Write([]byte("tar"))
			at := lsn(n+1) * pgapi.SegmentBytes
			return pgapi.BackupInfo{StartLSN: at.String(), StopLSN: (at + 100).String(), Timeline: 1}, err
		})
		must(t, err)
		after(24 * time.Hour)
	}
}

// The leader allows restores to moments within the retention. One that began at its
// edge goes on while the archives are pruned.
func TestARestoreAtTheEdgeOfTheRetentionOutlivesAPrune(t *testing.T) {
	warm(t)
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		store := pgarchive.New(b)
		a, err := store.Open(archive(one))
		must(t, err)
		const retention = 7 * 24 * time.Hour
		grown(t, a, 9)
		after(24*time.Hour - time.Minute)
		target := time.Now().Add(-retention)
		prune := func() {
			t.Helper()
			must(t, second(NewArchives(store).Prune(t.Context(), hostapi.ArchivePrune{Archive: archive(one), Before: time.Now().Add(-retention)})))
		}
		prune()
		base, err := a.Choose(t.Context(), &target)
		must(t, err)
		after(time.Hour) // by now the base backup of the next day is at the edge
		prune()
		must(t, a.Backup(t.Context(), base.ID, io.Discard))
		must(t, third(a.WAL(t.Context(), pgapi.SegmentName(1, parseLSN(base.StopLSN).segment()))))
		after(restoreTime)
		prune()
		if err := a.Backup(t.Context(), base.ID, io.Discard); !errors.Is(err, pgarchive.ErrNothing) {
			t.Errorf("nobody needs it any more: %v", err)
		}
	})
}

func third[T, U any](_ T, _ U, err error) error { return err }

// after waits in the time of a synctest.
func after(d time.Duration) { <-time.After(d) }

// warm makes what all archives share outside of a synctest.
func warm(t *testing.T) {
	t.Helper()
	b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
	must(t, err)
	a, err := pgarchive.New(b).Open(archive(two))
	must(t, err)
	content := make([]byte, pgapi.SegmentBytes)
	sum := sha256.Sum256(content)
	file := pgapi.WALFile{Name: pgapi.SegmentName(1, 1), Size: pgapi.SegmentBytes, SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()}
	must(t, second(a.PutWAL(t.Context(), file, bytes.NewReader(content))))
	must(t, third(a.WAL(t.Context(), file.Name)))
}
