package pgsni

import (
	"math/rand/v2"
	"sync"
	"time"
)

// remembered is how many of the last answers a pace keeps, and longestPace what
// of them counts: more is a wake, and not what a wrong password usually takes.
// A timer may be a millisecond late, by half of which it is set too early.
const (
	remembered  = 64
	longestPace = time.Second
	timerLate   = time.Millisecond / 2
)

// pace keeps how long real servers lately took to answer during a login, so that
// a login that the router only plays takes as long. Without it the name of no
// database would be known by the quick answer.
type pace struct {
	mu    sync.Mutex
	kept  [remembered]time.Duration
	count int // of all that were ever noted
}

// note adds what a server took.
func (p *pace) note(d time.Duration) {
	if d > longestPace {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept[p.count%remembered] = d
	p.count++
}

// draw is what one of the last answers took, by chance.
func (p *pace) draw() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == 0 {
		return 0
	}
	return p.kept[rand.IntN(min(p.count, remembered))] //nolint:gosec // G404: chance that nobody gains from guessing
}

// rhythm pauses in one played login where a server would answer. What a pause was
// too long or too short is made up for by the next.
type rhythm struct {
	until        <-chan struct{} // ends pauses early
	first, later *pace           // nil: no pauses
	owed         time.Duration
	begun        bool
}

// answer pauses before an answer. spent is what has passed already since the
// client spoke.
func (r *rhythm) answer(spent time.Duration) {
	p := r.later
	if !r.begun {
		p, r.begun = r.first, true
	}
	if p == nil {
		return
	}
	if r.owed += p.draw() - spent; r.owed <= timerLate {
		return
	}
	began := time.Now()
	t := time.NewTimer(r.owed - timerLate)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.until:
	}
	r.owed -= time.Since(began)
}
