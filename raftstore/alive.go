package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// alive is what Progress remembers.
type alive struct {
	mu       sync.Mutex
	asked    chan struct{} // closed with the answer to a question; nil: none is open
	restored int64
}

// Progress returns nil if Raft's main loop, which every write, vote and election of
// this replica passes through, has answered a question. Whoever leads, and without a
// leader, it answers; it does not while a write to the disk hangs. While a snapshot
// is restored it cannot answer either, and it is progress that more of it was read
// since the last call. The error says which of both is missing.
func (s *Store) Progress(ctx context.Context) error {
	asked := s.ask()
	if asked == nil {
		return errNoWait
	}
	select {
	case <-asked:
		return nil
	case <-ctx.Done():
	}
	s.alive.mu.Lock()
	defer s.alive.mu.Unlock()
	if now := s.fsm.restored.Load(); now != s.alive.restored {
		s.alive.restored = now
		return nil
	}
	return fmt.Errorf("raft's main loop does not answer: %w", ctx.Err())
}

// ask asks, unless a question is still open: of a loop that hangs there is only one.
func (s *Store) ask() <-chan struct{} {
	a := &s.alive
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked != nil {
		return a.asked
	}
	asked := make(chan struct{})
	if !s.waits.start(func() {
		// Whether this replica leads does not matter. After a shutdown nobody answers.
		if err := s.raft.VerifyLeader().Error(); errors.Is(err, raft.ErrRaftShutdown) {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked = nil
		close(asked)
	}) {
		return nil
	}
	a.asked = asked
	return asked
}

// counted counts the bytes that are read.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}
