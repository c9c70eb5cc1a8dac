package lease

import "time"

// Observer looks at the lease of a host from another process than its daemon. Its
// methods are for one goroutine.
type Observer struct {
	file, bootID string
	now          func() time.Duration
	word         word
}

// Observe reads the file of a Lease. now is the time since boot, nil: SinceBoot.
func Observe(file, bootID string, now func() time.Duration) *Observer {
	if now == nil {
		now = SinceBoot
	}
	return &Observer{file: file, bootID: bootID, now: now}
}

// Over reports whether the lease is over and the daemon should have ended by now what
// is exclusive. A file that cannot be read changes nothing of what it said before.
func (o *Observer) Over() bool {
	if w, ok := read(o.file, o.bootID); ok {
		o.word = w
	}
	return o.word.over(o.now(), shareObserved)
}

// Tick is how long the lease need not be looked at.
func (o *Observer) Tick() time.Duration { return o.word.tick() }
