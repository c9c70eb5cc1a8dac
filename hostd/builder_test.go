package hostd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// said tells of each record that is logged.
type said chan string

func (s said) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

func TestBuildersTakeTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build.lock")
	first, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log := make(said, 1)
	b := &builder{log: slog.New(slog.NewTextHandler(log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := b.turn(ctx, path)
		got <- err
	}()
	<-log // it waits
	cancel()
	if err := <-got; err == nil || !strings.Contains(err.Error(), "another hostd builds a template for this host") {
		t.Errorf("given up: %v", err)
	}
	go func() {
		lock, err := b.turn(t.Context(), path)
		if err == nil {
			err = lock.Close()
		}
		got <- err
	}()
	<-log
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// Whoever is done removes the lock and its directory under those who wait.
func TestBuildersTakeTurnsAtALockThatIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "build.lock")
	b := &builder{log: slog.New(slog.DiscardHandler)}
	var building atomic.Int32
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			for range 5 {
				lock, err := b.turn(t.Context(), path)
				if err != nil {
					return err
				}
				if n := building.Add(1); n != 1 {
					t.Errorf("%d build at once", n)
				}
				runtime.Gosched()
				building.Add(-1)
				if err := os.Remove(path); err != nil {
					t.Errorf("the lock is not where it was: %v", err)
				}
				_ = os.Remove(filepath.Dir(path)) // unless another has made its lock
				if err := lock.Close(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestALockThatWasRemovedIsKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build.lock")
	old, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if !isAt(old, path) {
		t.Error("a lock is not known at its place")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if isAt(old, path) {
		t.Error("a removed lock is taken for one")
	}
	young, err := (&builder{}).turn(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer young.Close()
	if isAt(old, path) {
		t.Error("the lock of before is taken for that of now")
	}
}
