package raftstore

import (
	"context"
	"errors"
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
	await(t, 20*time.Second, "another leader", func() bool { return !old.IsLeader() && c.leaderOtherThan(old) != nil })
	next := c.leaderOtherThan(old)
	await(t, 10*time.Second, "a write", func() bool { return next.Update(t.Context(), putWorkspace("after", "x")) == nil })
	cancel()
	if err := <-writing; err == nil {
		t.Error("a write on a disk that hangs was acknowledged")
	}
	close(answered)
	c.converged()
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
	await(t, 20*time.Second, "full queue", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.queue) == maxQueued })
	if out := p.propose(ctx, []byte("x")); !errors.Is(out.err, ErrOverloaded) {
		t.Errorf("one too many: %v", out.err)
	}
	cancel() // who gives up makes room
	waiting.Wait()
	if len(p.queue) != 0 || p.bytes != 0 {
		t.Errorf("%d proposals of %d bytes are left", len(p.queue), p.bytes)
	}
}
