package authn

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// The limit of each workspace. Changing it changes the message that clients
// are shown, which the specification words.
const (
	burst     = 50
	perSecond = 25
)

// Limiter is a token bucket for each workspace, in the leader's memory: a new
// leader begins with full buckets.
type Limiter struct {
	clock func() time.Time

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	swept   time.Time
}

// NewLimiter makes a limiter.
func NewLimiter(clock func() time.Time) *Limiter {
	return &Limiter{clock: clock, buckets: map[string]*rate.Limiter{}}
}

// Allow takes one request from the workspace's bucket; it fails with a 429 when
// there is none left.
func (l *Limiter) Allow(workspaceID string) error {
	now := l.clock()
	l.mu.Lock()
	b := l.buckets[workspaceID]
	if b == nil {
		l.sweep(now)
		b = rate.NewLimiter(perSecond, burst)
		l.buckets[workspaceID] = b
	}
	l.mu.Unlock()
	if b.AllowN(now, 1) {
		return nil
	}
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: "rate limit: 50 req/burst, 25/sec sustained per workspace", RetryAfter: time.Second,
	}
}

// sweep forgets buckets that are full again: they are as good as new.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Minute {
		return
	}
	l.swept = now
	for id, b := range l.buckets {
		if b.TokensAt(now) >= burst {
			delete(l.buckets, id)
		}
	}
}
