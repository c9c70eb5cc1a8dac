package raftstore

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A leader whose disk hangs is replaced, what was acknowledged is there, and what
// waits at it is bounded. When its disk answers again it is a follower.
func TestAHungDiskUnderTheLeader(t *testing.T) {
	var hung atomic.Pointer[chan struct{}] // of the replica that reads it first
	var once sync.Once
	c := newCluster(t, 3, func(cfg *Config) {
		var mine atomic.Bool
		cfg.DiskTimeout = time.Second
		cfg.diskFault = func() {
			if ch := hung.Load(); ch != nil {
				once.Do(func() { mine.Store(true) })
				if mine.Load() {
					<-*ch
				}
			}
		}
	})
	c.update(putWorkspace("before", "x"))
	c.converged() // nothing else is on its way to a disk
	old := c.leader()
	answered := make(chan struct{})
	hung.Store(&answered)
	ctx, cancel := context.WithCancel(t.Context())
	writing := make(chan error, 1)
	go func() { writing <- old.Update(ctx, putWorkspace("lost", "x")) }() // its disk is the first to be written to
	await(t, "another leader", func() bool { return !old.IsLeader() && c.leaderOtherThan(old) != nil })
	next := c.leaderOtherThan(old)
	if err := progress(t, old, 100*time.Millisecond); err == nil {
		t.Error("a replica whose disk hangs says that it makes progress")
	}
	if err := progress(t, next, 10*time.Second); err != nil {
		t.Errorf("the leader: %v", err)
	}
	await(t, "a write", func() bool { return next.Update(t.Context(), putWorkspace("after", "x")) == nil })
	cancel()
	if err := <-writing; err == nil {
		t.Error("a write on a disk that hangs was acknowledged")
	}
	close(answered)
	c.converged()
	if err := progress(t, old, 10*time.Second); err != nil {
		t.Errorf("a replica whose disk answers again: %v", err)
	}
}

func progress(t *testing.T, r *replica, wait time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	return r.Progress(ctx)
}

// While a snapshot is read, which stops the main loop, that it is read on is progress.
func TestARestoreIsProgress(t *testing.T) {
	s := &Store{fsm: &fsm{}}
	s.alive.asked = make(chan struct{}) // the main loop restores
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Progress(over); !errors.Is(err, context.Canceled) {
		t.Errorf("before anything is read: %v", err)
	}
	r := counted{io.NopCloser(strings.NewReader("a snapshot")), &s.fsm.restored}
	for range 2 {
		if _, err := r.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		if err := s.Progress(over); err != nil {
			t.Errorf("while it is read: %v", err)
		}
	}
	if err := s.Progress(over); err == nil {
		t.Error("a restore that hangs is progress")
	}
}

func (c *cluster) leaderOtherThan(r *replica) *replica {
	for _, o := range c.up() {
		if o != r && o.IsLeader() {
			return o
		}
	}
	return nil
}

func TestWritesAreAdmitted(t *testing.T) {
	p := newProposer(&Store{counters: &counters{}})
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range maxQueued {
		waiting.Go(func() { p.propose(ctx, []byte("x")) })
	}
	await(t, "full queue", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.queue) == maxQueued })
	if out := p.propose(ctx, []byte("x")); !errors.Is(out.err, ErrOverloaded) {
		t.Errorf("one too many: %v", out.err)
	}
	cancel() // who gives up makes room
	waiting.Wait()
	if len(p.queue) != 0 || p.bytes != 0 {
		t.Errorf("%d proposals of %d bytes are left", len(p.queue), p.bytes)
	}
}
