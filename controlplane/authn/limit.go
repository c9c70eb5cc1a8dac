package authn

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/limits"
)

// Rates says how many requests a workspace may make, also if its tier has changed. What is
// said of workspaces here holds for people, too, who have buckets of their own.
type Rates func(workspaceID string) limits.Rate

// Limiter has a token bucket for each workspace in the leader's memory. A new leader
// starts with full buckets.
type Limiter struct {
	clock func() time.Time
	rates Rates

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	swept   time.Time
}

// NewLimiter returns a limiter with full buckets.
func NewLimiter(clock func() time.Time, rates Rates) *Limiter {
	return &Limiter{clock: clock, rates: rates, buckets: map[string]*rate.Limiter{}}
}

// Allow takes a token from the workspace's bucket. If there is none left, the error
// is a 429.
func (l *Limiter) Allow(workspaceID string) error {
	if l.Take(workspaceID, 1) == 0 {
		return l.rates(workspaceID).Exceeded()
	}
	return nil
}

// Take takes as many tokens as there are, at most n, and returns how many.
func (l *Limiter) Take(workspaceID string, n int) (taken int) {
	is, now := l.rates(workspaceID), l.clock()
	if is.None {
		return n
	}
	l.mu.Lock()
	b := l.buckets[workspaceID]
	if b == nil {
		l.sweep(now)
		b = rate.NewLimiter(rate.Limit(is.PerSecond), is.Burst)
		l.buckets[workspaceID] = b
	}
	if b.Burst() != is.Burst || b.Limit() != rate.Limit(is.PerSecond) { // another tier: what it has left is kept
		b.SetLimitAt(now, rate.Limit(is.PerSecond))
		b.SetBurstAt(now, is.Burst)
	}
	l.mu.Unlock()
	for taken < n && b.AllowN(now, 1) {
		taken++
	}
	return taken
}

// sweep removes full buckets, which are the same as new ones.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Minute {
		return
	}
	l.swept = now
	for id, b := range l.buckets {
		if b.TokensAt(now) >= float64(b.Burst()) {
			delete(l.buckets, id)
		}
	}
}
