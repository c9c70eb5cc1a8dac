package pgsni

import (
	"math/rand/v2"
	"sync"
	"time"
)

// remembered is how many of the last answers a pace keeps, and longestPace what
// of them counts: more is a wake, and not what a wrong password usually takes.
const (
	remembered  = 64
	longestPace = time.Second
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
