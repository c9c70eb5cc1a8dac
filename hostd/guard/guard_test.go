package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/lease"
	"github.com/berth-cloud/berth/tier"
)

var (
	idA = strings.Repeat("a", 26)
	idB = strings.Repeat("b", 26)
)

const length = 30 * time.Second

// groups are cgroups in which processes live until they are killed.
type groups struct {
	mu     sync.Mutex
	busy   map[string]bool
	stuck  map[string]bool // does not end
	killed []string
}

func (g *groups) Busy(id string) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy[id], nil
}

func (g *groups) Kill(ctx context.Context, id string) error {
	g.mu.Lock()
	g.killed = append(g.killed, id)
	stuck := g.stuck[id]
	g.busy[id] = stuck
	g.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (g *groups) take() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.killed
	g.killed = nil
	slices.Sort(out)
	return slices.Compact(out)
}

// world is a daemon's lease and marks, and a guard beside it, on the bubble's clock.
type world struct {
	lease  *lease.Lease
	marks  Marks
	groups *groups
}

func newWorld(t *testing.T) *world {
	t.Helper()
	booted, dir := time.Now(), t.TempDir()
	now := func() time.Duration { return time.Since(booted) + time.Hour }
	file := filepath.Join(dir, "lease.json")
	w := &world{
		lease: lease.New(lease.Config{File: file, BootID: "boot-1", Now: now}), marks: Marks(filepath.Join(dir, "guard")),
		groups: &groups{busy: map[string]bool{idA: true, idB: true}, stuck: map[string]bool{}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var guard sync.WaitGroup
	guard.Go(func() {
		Config{Marks: w.marks, Lease: lease.Observe(file, "boot-1", now), Groups: w.groups}.watch(ctx, func() bool { return true })
	})
	t.Cleanup(func() { cancel(); guard.Wait() })
	return w
}

// after returns who was killed by the end of a time.
func (w *world) after(d time.Duration) []string {
	<-time.After(d)
	synctest.Wait()
	return w.groups.take()
}

func TestExclusiveBoxesEndWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lease.Renew(w.lease.Now(), length)
		if err := w.marks.Set(idA); err != nil {
			t.Fatal(err)
		}
		if got := w.after(20 * time.Second); got != nil {
			t.Errorf("killed while the lease is in force: %q", got)
		}
		w.lease.Renew(w.lease.Now(), length)
		if got := w.after(25 * time.Second); got != nil || w.marks.Ended(idA) {
			t.Errorf("killed although the lease was renewed: %q", got)
		}
		if got := w.after(4 * time.Second); !slices.Equal(got, []string{idA}) || !w.marks.Ended(idA) || w.marks.Ended(idB) {
			t.Errorf("after the lease %q are killed, by their marks A %t, B %t", got, w.marks.Ended(idA), w.marks.Ended(idB))
		}
		if got := w.after(time.Minute); got != nil {
			t.Errorf("killed again: %q", got)
		}
		// The daemon starts another one when it has the leader's word again.
		w.lease.Renew(w.lease.Now(), length)
		if err := w.marks.Set(idA); err != nil || w.marks.Ended(idA) {
			t.Errorf("the mark of a new VMM: ended %t, %v", w.marks.Ended(idA), err)
		}
		w.groups.mu.Lock()
		w.groups.busy[idA] = true
		w.groups.mu.Unlock()
		if got := w.after(20 * time.Second); got != nil {
			t.Errorf("killed in a new lease: %q", got)
		}
	})
}

// A process that waits for a disk is killed again and again, and keeps no other one
// alive.
func TestOneThatDoesNotEndHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.groups.mu.Lock()
		w.groups.stuck[idA] = true
		w.groups.mu.Unlock()
		for _, id := range []string{idA, idB} {
			if err := w.marks.Set(id); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.after(3 * time.Second); !slices.Equal(got, []string{idA, idB}) { // there never was a lease
			t.Errorf("killed: %q", got)
		}
		if got := w.after(10 * time.Second); !slices.Equal(got, []string{idA}) {
			t.Errorf("killed again: %q", got)
		}
	})
}

func TestMarksAreThoseOfTheLedger(t *testing.T) {
	m := Marks(filepath.Join(t.TempDir(), "guard"))
	if err := errors.Join(m.Set(idA), m.end(idA)); err != nil {
		t.Fatal(err)
	}
	idC := strings.Repeat("c", 26)
	if err := errors.Join(m.Set(idB), m.Keep([]string{idA, idC}), m.Clear(idB)); err != nil {
		t.Fatal(err)
	}
	if got, err := m.List(); err != nil || !slices.Equal(got, []string{idA, idC}) {
		t.Errorf("marked: %q, %v", got, err)
	}
	if !m.Ended(idA) || m.Ended(idC) || m.Ended(idB) {
		t.Error("what the guard has ended is forgotten, or invented")
	}
}

// The file system of the marks may be full, of whatever.
func TestMarksOnAFullFileSystem(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	m := Marks(filepath.Join(dir, "guard"))
	if err := m.Set(idA); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	if err := errors.Join(m.end(idA), m.Set(idB)); err != nil || !m.Ended(idA) || m.Ended(idB) {
		t.Errorf("ended: A %t, B %t; %v", m.Ended(idA), m.Ended(idB), err)
	}
	if got, err := m.List(); err != nil || !slices.Equal(got, []string{idA, idB}) {
		t.Errorf("marked: %q, %v", got, err)
	}
}

func verify(m *testing.M) { goleak.VerifyTestMain(m) }
