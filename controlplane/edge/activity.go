package edge

import (
	"maps"
	"sync"
	"time"
)

// Activity is what a replica has seen of an app.
type Activity struct {
	AppID       string         `json:"app_id"`
	LastRequest time.Time      `json:"last_request,omitzero"` // the last real one; zero: none of late
	Open        map[string]int `json:"open,omitempty"`        // open requests by sandbox; absent: none
}

// keepActivity is how long the last request of an app is remembered, for a new leader.
// The one before it writes it to the store sooner.
const keepActivity = 5 * time.Minute

// ledger has what this replica has seen of all apps.
type ledger struct {
	clock func() time.Time

	mu   sync.Mutex
	apps map[string]*seen
	turn int // rotates the choice between instances that are equally busy
}

// seen is what this replica has seen of one app, and what of it the leader knows.
type seen struct {
	last time.Time
	open map[string]int

	toldLast time.Time
	toldOpen bool // it knows of open requests
}

func newLedger(clock func() time.Time) *ledger {
	return &ledger{clock: clock, apps: map[string]*seen{}}
}

// request records a real request, which may not have a sandbox yet.
func (l *ledger) request(app string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(app).last = l.clock()
}

// begin chooses the sandbox with the fewest open requests of this replica, and counts
// one more.
func (l *ledger) begin(app string, sandboxes []string) (chosen int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(app)
	l.turn++
	chosen = l.turn % len(sandboxes)
	for i := range sandboxes {
		i = (i + l.turn) % len(sandboxes)
		if s.open[sandboxes[i]] < s.open[sandboxes[chosen]] {
			chosen = i
		}
	}
	s.open[sandboxes[chosen]]++
	return chosen
}

// end ends what begin has begun. An app has been in use until its last real request
// ended; counts says that this is one.
func (l *ledger) end(app, sandbox string, counts bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(app)
	if s.open[sandbox]--; s.open[sandbox] <= 0 {
		delete(s.open, sandbox)
	}
	if counts {
		s.last = l.clock()
	}
}

// open is how many requests are open.
func (l *ledger) open() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.apps {
		for _, open := range s.open {
			n += open
		}
	}
	return n
}

func (l *ledger) of(app string) *seen {
	s := l.apps[app]
	if s == nil {
		s = &seen{open: map[string]int{}}
		l.apps[app] = s
	}
	return s
}

// report returns all open requests of this replica, so that what is not in it is not
// open, and what else the leader does not know; of that at most so much, the rest with
// the next report. A new leader knows nothing.
func (l *ledger) report(newLeader bool, most int) (out []Activity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, s := range l.apps {
		if newLeader {
			s.toldLast = time.Time{}
		}
		if len(s.open) == 0 {
			if !s.toldOpen && s.toldLast.Equal(s.last) {
				if l.clock().Sub(s.last) > keepActivity {
					delete(l.apps, id)
				}
				continue
			}
			if most--; most < 0 {
				continue
			}
		}
		out = append(out, Activity{AppID: id, LastRequest: s.last, Open: maps.Clone(s.open)})
	}
	return out
}

// told records that the leader has heard a report.
func (l *ledger) told(report []Activity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range report {
		if s := l.apps[a.AppID]; s != nil {
			s.toldLast, s.toldOpen = a.LastRequest, len(a.Open) > 0
		}
	}
}
