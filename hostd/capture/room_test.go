package capture_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// full is a host whose disk is full, with captures that a snapshot store has.
type full struct {
	*daemon
	w      *boxtest.World
	remote *boxtest.Remote

	mu      sync.Mutex
	now     time.Time
	need    int64  // that must be free beside the headroom
	missing int64  // of what is needed
	frees   string // the capture without which there is room
}

const fullHeadroom = 100 << 20

func newFull(t *testing.T, captures ...string) *full {
	t.Helper()
	f := &full{now: time.Now(), missing: -1 << 40, remote: &boxtest.Remote{Dir: t.TempDir()}}
	f.w, f.daemon, _ = world(t, roomy, func(c *box.Config, deps *box.Deps) {
		// Nothing of what boxes may still write is kept for them.
		c.DiskHeadroomMB, c.DiskOvercommit = fullHeadroom>>20, 1<<50
		deps.Remote = f.remote
		deps.Now = func() time.Time { f.mu.Lock(); defer f.mu.Unlock(); return f.now }
		deps.DiskFree = func(string) (int64, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.frees != "" {
				if _, err := os.Stat(filepath.Join(c.Paths.Captures(), f.frees)); err != nil {
					return 1 << 40, nil
				}
			}
			return fullHeadroom + f.need - f.missing, nil
		}
	})
	put(t, f.daemon, idA)
	for _, c := range captures {
		_, err := f.Captures().Make(t.Context(), c, memory(idA))
		must(t, err)
		must(t, os.CopyFS(filepath.Join(f.remote.Dir, c), os.DirFS(filepath.Join(f.w.Paths.Captures(), c))))
		f.pass(time.Second)
	}
	return f
}

func (f *full) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// short says how many bytes are missing of what is needed, and without which
// capture there is room.
func (f *full) short(need, missing int64, frees string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.need, f.missing, f.frees = need, missing, frees
}

func (f *full) list() string {
	var ids []string
	for _, c := range f.Captures().List() {
		ids = append(ids, c.ID)
	}
	return strings.Join(ids, " ")
}

func (f *full) reserve() error {
	release, err := f.Reserve(512, 1024)
	if err == nil {
		release()
	}
	return err
}

// What the store has and nobody uses makes room, what was used least recently
// first, and can be used again.
func TestStoredCapturesMakeRoom(t *testing.T) {
	for name, c := range map[string]struct {
		need int64
		do   func(f *full) error
	}{
		"for a build's guest": {0, (*full).reserve},
		"for a box":           {0, func(f *full) error { _, err := f.Put(t.Context(), id(7), spec(1)); return err }},
		"for a saved state":   {512 << 20, func(f *full) error { _, err := f.Hibernate(t.Context(), idA); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFull(t, "c1", "c2", "c3", "c4", "c5")
			for _, id := range []string{"c1", "c2", "c3", "c4"} {
				must(t, f.Captures().MarkStored(id, true))
			}
			put(t, f.daemon, idB, from("c1")) // used last
			_, _, release, err := f.Captures().Open("c2")
			must(t, err)
			f.short(c.need, 1, "c3")
			if err := c.do(f); !errors.Is(err, hosterr.ErrNoDisk) || f.list() != "c1 c2 c3 c4 c5" {
				t.Fatalf("as long as nobody may know that they are stored: %v, left %s", err, f.list())
			}
			f.pass(timescale.Limit(time.Hour))
			f.short(c.need, 1<<40, "c3")
			if err := c.do(f); !errors.Is(err, hosterr.ErrNoDisk) || f.list() != "c1 c2 c3 c4 c5" {
				t.Fatalf("where all of them are not enough: %v, left %s", err, f.list())
			}
			f.short(c.need, 1, "c3")
			must(t, c.do(f))
			if f.list() != "c1 c2 c4 c5" {
				t.Errorf("left are %s", f.list())
			}
			release()
			f.short(0, -1<<40, "")
			if b := put(t, f.daemon, id(5), from("c3")); b.Status != hostapi.StatusRunning || f.remote.Fetches != 1 {
				t.Errorf("from one that was given up: %+v, %d fetches", b, f.remote.Fetches)
			}
		})
	}
}

// One that was only fetched may go at once. One that is not stored stays, and so
// do all where there is no store.
func TestWhatMakesNoRoom(t *testing.T) {
	f := newFull(t, "c1", "c2")
	f.pass(timescale.Limit(time.Hour))
	f.short(0, 1, "c1")
	if err := f.reserve(); !errors.Is(err, hosterr.ErrNoDisk) || f.list() != "c1 c2" {
		t.Errorf("captures that are not stored: %v, left %s", err, f.list())
	}
	must(t, f.Captures().MarkStored("c1", true))
	f.short(0, -1<<40, "")
	must(t, f.Captures().Delete(t.Context(), "c1"))
	put(t, f.daemon, idB, from("c1"))
	f.short(0, 1, "c1")
	boxtest.Await(t, func() bool { return f.reserve() == nil }) // a create lets go of its capture after it has answered
	if f.list() != "c2" {
		t.Errorf("left are %s", f.list())
	}

	w, d, _ := world(t, roomy, func(_ *box.Config, deps *box.Deps) {
		deps.Now = func() time.Time { return time.Now().Add(time.Hour) }
	})
	put(t, d, idA)
	_, err := d.Captures().Make(t.Context(), "c1", memory(idA))
	must(t, err)
	must(t, d.Captures().MarkStored("c1", true))
	err = d.Captures().MakeRoom(func() (int64, error) { return 1, hosterr.ErrNoDisk })
	if _, gone := os.Stat(filepath.Join(w.Paths.Captures(), "c1")); gone != nil || !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("without a store: %v, %v", gone, err)
	}
}

func TestNoCaptureIsGivenUpForABoxThatIsRefusedAnyway(t *testing.T) {
	f := newFull(t, "c1")
	must(t, f.Captures().MarkStored("c1", true))
	f.pass(timescale.Limit(time.Hour))
	release, err := f.Reserve(7*600-88, 1024) // all that idA leaves
	must(t, err)
	defer release()
	f.short(0, 1, "c1")
	if _, err := f.Put(t.Context(), idB, spec(1)); !errors.Is(err, hosterr.ErrNoMemory) || f.list() != "c1" {
		t.Errorf("a host without memory or room: %v, left %q", err, f.list())
	}
}

// One that could not be removed is there as before, and can be deleted.
func TestACaptureThatCannotBeGivenUp(t *testing.T) {
	f := newFull(t, "c1")
	must(t, f.Captures().MarkStored("c1", true))
	f.pass(timescale.Limit(time.Hour))
	inTheWay := filepath.Join(f.w.Paths.Captures(), ".gone-c1", "x")
	must(t, os.MkdirAll(inTheWay, 0o700))
	f.short(0, 1, "c1")
	if err := f.reserve(); !errors.Is(err, hosterr.ErrNoDisk) || f.list() != "c1" {
		t.Fatalf("it made room: %v, left %q", err, f.list())
	}
	must(t, os.RemoveAll(filepath.Dir(inTheWay)))
	f.short(0, -1<<40, "")
	_, _, release, err := f.Captures().Open("c1")
	must(t, err)
	defer release()
	must(t, f.Captures().Delete(t.Context(), "c1"))
	s := spec(1)
	s.Template, s.Capture = "", "c1"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it would be asked for for ever
	defer cancel()
	if _, err := f.Put(ctx, idB, s); !errors.Is(err, hosterr.ErrInUse) {
		t.Errorf("a box of one that is being deleted: %v", err)
	}
}

// A box that is made of a capture while it is given up has it fetched again.
func TestACaptureThatIsWantedWhileItIsGivenUp(t *testing.T) {
	tier.Slow(t)
	f := newFull(t, "c1")
	must(t, f.Captures().MarkStored("c1", true))
	f.pass(timescale.Limit(time.Hour))
	stop := make(chan struct{})
	var giving sync.WaitGroup
	giving.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			calls := int64(0)
			if err := f.Captures().MakeRoom(func() (int64, error) { calls++; return 3 - calls, nil }); err != nil {
				t.Error(err)
			}
		}
	})
	for n := uint64(1); n <= 100; n++ {
		s := spec(n)
		s.Template, s.Capture = "", "c1"
		if _, err := f.Put(t.Context(), idB, s); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	giving.Wait()
	if f.remote.Fetches == 0 {
		t.Error("it was never given up")
	}
}
