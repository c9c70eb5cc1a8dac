package authn

import (
	"context"
	"sync"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// takeAtOnce is how many tokens a replica that does not lead takes from the leader's
// bucket at once, and takeKept how long it may use them: what is left then is lost, so
// that a replica never adds old tokens to new ones.
const (
	takeAtOnce = 5
	takeKept   = time.Second
)

// Shared is a Limiter for requests that any replica answers itself: there is one bucket
// for each workspace, in the leader's memory, however a client spreads its requests.
type Shared struct {
	own     *Limiter
	leading func() bool
	take    func(ctx context.Context, workspaceID string, n int) (granted int, err error)
	clock   func() time.Time

	mu    sync.Mutex
	held  map[string]*held
	swept time.Time
}

// held are the tokens of a workspace that this replica has taken.
type held struct {
	mu    sync.Mutex // while the leader is asked, too
	left  int
	until time.Time
}

// NewShared returns a limiter that uses own while this replica leads, and also while
// the leader cannot be asked: then a replica for itself admits no more than one bucket.
// take asks the leader for tokens.
func NewShared(own *Limiter, leading func() bool, take func(ctx context.Context, workspaceID string, n int) (int, error), clock func() time.Time) *Shared {
	return &Shared{own: own, leading: leading, take: take, clock: clock, held: map[string]*held{}}
}

// Allow takes a token. If there is none left, the error is a 429.
func (s *Shared) Allow(workspaceID string) error {
	if s.leading() {
		return s.own.Allow(workspaceID)
	}
	h := s.heldOf(workspaceID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == 0 || !s.clock().Before(h.until) {
		ctx, cancel := context.WithTimeout(context.Background(), timescale.Limit(time.Second))
		defer cancel()
		granted, err := s.take(ctx, workspaceID, takeAtOnce)
		if err != nil {
			return s.own.Allow(workspaceID)
		}
		h.left, h.until = granted, s.clock().Add(takeKept)
	}
	if h.left == 0 {
		return s.own.rates(workspaceID).Exceeded()
	}
	h.left--
	return nil
}

func (s *Shared) heldOf(workspaceID string) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.clock(); now.Sub(s.swept) >= time.Minute {
		s.swept = now
		clear(s.held) // who has one goes on with it; the others take new tokens
	}
	h := s.held[workspaceID]
	if h == nil {
		h = &held{}
		s.held[workspaceID] = h
	}
	return h
}
