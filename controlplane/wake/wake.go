// Package wake lets all who wait for the same sleeping thing share one wake.
package wake

import (
	"context"
	"sync"
	"time"

	"github.com/berth-cloud/berth/telemetry"
)

// Shared are the wakes that this replica has asked for. Whoever comes while a thing is
// being woken waits for the same wake, and whoever leaves ends its own wait alone.
type Shared struct {
	ask   func(ctx context.Context, id string) error
	limit time.Duration

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	shared map[string]*one // by id
}

// one is a wake under way.
type one struct {
	over  chan struct{}
	err   error
	trace string // of the first who wants it
}

// New returns Shared, which the caller closes. ask wakes a thing and returns once it is
// awake; each call may take as long as limit.
func New(limit time.Duration, ask func(ctx context.Context, id string) error) *Shared {
	s := &Shared{ask: ask, limit: limit, shared: map[string]*one{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Wait returns when a thing is awake, or cannot be woken, or ctx has ended.
func (s *Shared) Wait(ctx context.Context, id string) error {
	w := s.join(ctx, id)
	select {
	case <-w.over:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join begins a wake, unless one is under way. It has the values of the first ctx, such
// as the request's id and its trace, but does not end with it.
func (s *Shared) join(ctx context.Context, id string) *one {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.shared[id]; w != nil {
		telemetry.Current(ctx).Link(w.trace)
		return w
	}
	w := &one{over: make(chan struct{}), trace: telemetry.Parent(ctx)}
	if s.closed {
		w.err = context.Canceled
		close(w.over)
		return w
	}
	s.shared[id] = w
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		err := s.ask(ctx, id)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.shared, id)
		w.err = err
		close(w.over)
	})
	return w
}

// Close ends the wakes that this replica waits for; the leader goes on with its own.
func (s *Shared) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.running.Wait()
}
