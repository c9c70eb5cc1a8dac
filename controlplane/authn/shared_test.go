package authn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/limits"
)

func specified(string) limits.Rate { return limits.DefaultRate }

// A client that spreads over three replicas gets what one bucket has, and not more.
func TestOneBucketForAllReplicas(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	leader := NewLimiter(clock, specified)
	var asked, broken atomic.Int64
	take := func(_ context.Context, ws string, n int) (int, error) {
		asked.Add(1)
		if broken.Load() > 0 {
			return 0, errors.New("no leader")
		}
		return leader.Take(ws, n), nil
	}
	replicas := []*Shared{NewShared(leader, func() bool { return true }, nil, clock)}
	for range 2 {
		replicas = append(replicas, NewShared(NewLimiter(clock, specified), func() bool { return false }, take, clock))
	}
	// spread sends requests to all replicas at once, and returns how many were let through.
	spread := func(requests int) int {
		var passed atomic.Int64
		var all sync.WaitGroup
		for i := range requests {
			all.Go(func() {
				err := replicas[i%3].Allow("ws")
				if err == nil {
					passed.Add(1)
				} else if e := apierror.As(err); e.Message != "rate limit: 50 req/burst, 25/sec sustained per workspace" || e.RetryAfter != time.Second {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return int(passed.Load())
	}
	if n := spread(600); n > limits.RequestsBurst || n < limits.RequestsBurst-2*takeAtOnce {
		t.Errorf("a burst of %d", n)
	}
	total := 0
	for range 40 { // ten seconds
		mu.Lock()
		now = now.Add(250 * time.Millisecond)
		mu.Unlock()
		total += spread(60)
	}
	if total > 10*limits.RequestsPerSecond+2*takeAtOnce || total < 10*limits.RequestsPerSecond*3/4 {
		t.Errorf("%d in ten seconds", total)
	}
	if err := replicas[1].Allow("another"); err != nil {
		t.Errorf("another workspace: %v", err)
	}
	// Without a leader each replica has a bucket of its own.
	broken.Store(1)
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	passed := 0
	for range 200 {
		if replicas[2].Allow("ws") == nil {
			passed++
		}
	}
	if passed != limits.RequestsBurst {
		t.Errorf("without a leader: %d", passed)
	}
	if asked.Load() == 0 {
		t.Error("nobody asked")
	}
}

// What a replica took and did not use is lost after a second.
func TestTakenTokensDoNotPileUp(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	leader := NewLimiter(clock, specified)
	s := NewShared(NewLimiter(clock, specified), func() bool { return false }, func(_ context.Context, ws string, n int) (int, error) { return leader.Take(ws, n), nil }, clock)
	for range 20 {
		if err := s.Allow("ws"); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * time.Second)
	}
	passed := 0
	for range 200 {
		if s.Allow("ws") == nil {
			passed++
		}
	}
	if passed > limits.RequestsBurst {
		t.Errorf("%d at once", passed)
	}
}
