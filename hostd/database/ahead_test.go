package database

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// held is a bucket of which each read of a segment takes for ever that is no multiple
// of 16, whether or not it is still wanted.
type held struct {
	bucket.Bucket
	release   chan struct{}
	now, most atomic.Int32
}

func (h *held) Get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if strings.HasSuffix(key, "0") {
		return nil, 0, bucket.ErrNotFound
	}
	n := h.now.Add(1)
	defer h.now.Add(-1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	<-h.release
	return nil, 0, bucket.ErrNotFound
}

// A guest may ask for any file: no more is held of them than of those in their order.
func TestReadingAheadOfAGuestThatJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		slow := &held{Bucket: b, release: make(chan struct{})}
		a, err := pgarchive.New(slow).Open(archive(one))
		must(t, err)
		files := newAhead(t.Context(), a, make(turns, aheadAtOnce))
		for i := range uint64(20) {
			if _, _, err := files.get(t.Context(), pgapi.SegmentName(1, 16*i)); !errors.Is(err, pgarchive.ErrNotArchived) {
				t.Fatal(err)
			}
			synctest.Wait() // the reads have begun
		}
		close(slow.release)
		files.close()
		if n := slow.most.Load(); n != aheadBy {
			t.Errorf("%d files were read at once, want %d at most", n, aheadBy)
		}
	})
}

// However many databases a host restores, it has so many segments in advance, which count
// until they are asked for. The other restores go on without.
func TestManyRestoresReadLittleAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		slow := &held{Bucket: b, release: make(chan struct{})}
		a, err := pgarchive.New(slow).Open(archive(one))
		must(t, err)
		room := make(turns, aheadAtOnce)
		var all []*ahead
		for range 2 * aheadAtOnce {
			files := newAhead(t.Context(), a, room)
			all = append(all, files)
			if _, _, err := files.get(t.Context(), pgapi.SegmentName(1, 16)); !errors.Is(err, pgarchive.ErrNotArchived) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := slow.most.Load(); n != aheadAtOnce {
			t.Errorf("%d files were read at once, want %d", n, aheadAtOnce)
		}
		close(slow.release)
		synctest.Wait()
		if n := len(room); n != aheadAtOnce {
			t.Errorf("%d files are in memory, and %d count", aheadAtOnce, n)
		}
		for i, files := range all[:2] {
			if _, _, err := files.get(t.Context(), pgapi.SegmentName(1, 17)); !errors.Is(err, pgarchive.ErrNotArchived) {
				t.Errorf("restore %d: %v", i, err)
			}
		}
		for _, files := range all {
			files.close()
		}
		if n := len(room); n != 0 {
			t.Errorf("%d files count that are forgotten", n)
		}
	})
}
