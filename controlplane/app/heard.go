package app

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// Activity is what a replica's edge has seen of an app.
type Activity struct {
	AppID       string         `json:"app_id"`
	LastRequest time.Time      `json:"last_request,omitzero"` // the last real request
	Open        map[string]int `json:"open,omitempty"`        // open requests, by sandbox
}

// heard is what the leader knows about apps beyond their rows: the requests that replicas
// have reported, and the wakes that have failed. A new leader starts with nothing.
type heard struct {
	clock func() time.Time
	cfg   Config

	mu      sync.Mutex
	since   time.Time            // when this replica began to lead, or the end of a stall since then
	looked  time.Time            // when anything was last noted or asked here
	reports map[string]report    // by replica
	last    map[string]time.Time // the last real request, by app
	wakes   map[string]failure   // failed wakes, by app
}

// report is the last report of a replica, with all open requests there.
type report struct {
	at   time.Time
	open map[string]map[string]int // by app and sandbox
}

// failure is what is known about consecutive failed wakes of an app.
type failure struct {
	times int
	next  time.Time
	noted bool // the last failure is counted
}

func newHeard(clock func() time.Time, cfg Config) *heard {
	h := &heard{clock: clock, cfg: cfg}
	h.lead()
	return h
}

// lead begins a leadership: it forgets everything.
func (h *heard) lead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = h.clock()
	h.looked = h.since
	h.reports, h.last, h.wakes = map[string]report{}, map[string]time.Time{}, map[string]failure{}
}

// now returns the time. The loops ask several times a second; after a gap, this replica was
// stopped or starved and has heard nobody. All replicas then get as long to report as under a
// new leader. The caller holds the lock.
func (h *heard) now() time.Time {
	now := h.clock()
	if now.Sub(h.looked) > h.cfg.ReportKept/stalls {
		h.since = now
	}
	h.looked = now
	return now
}

// stalls: a gap longer than Config.ReportKept divided by this counts as a stall.
const stalls = 4

// Heard takes what a replica's edge has seen since its last report. Every report must
// contain all apps with open requests.
func (s *Apps) Heard(replica string, activity []Activity) { s.heard.take(replica, activity) }

func (h *heard) take(replica string, activity []Activity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	r := report{at: now, open: map[string]map[string]int{}}
	for _, a := range activity {
		if len(a.Open) > 0 {
			r.open[a.AppID] = maps.Clone(a.Open)
		}
		at := a.LastRequest
		if at.After(now) { // the replica's clock is ahead
			at = now
		}
		if at.After(h.last[a.AppID]) {
			h.last[a.AppID] = at
		}
	}
	h.reports[replica] = r
	maps.DeleteFunc(h.reports, func(_ string, r report) bool { return now.Sub(r.at) > h.cfg.ReportKept })
}

// open returns the number of open requests to a sandbox of an app, over all replicas that
// have reported within Config.ReportKept.
func (h *heard) open(appID, sandboxID string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, now := 0, h.now()
	for _, r := range h.reports {
		if now.Sub(r.at) <= h.cfg.ReportKept {
			n += max(0, r.open[appID][sandboxID])
		}
	}
	return n
}

// ledFor returns how long this replica has led without a stall. If it has led only for a
// moment, what it has not heard proves nothing.
func (h *heard) ledFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Sub(h.since)
}

// complete reports whether all replicas have had time to report their open requests to this
// leader. The requests of a replica that has been silent for longer do not count. Ask for
// the requests first: there may be a stall between the two questions.
func (h *heard) complete() bool { return h.ledFor() >= h.cfg.ReportKept }

// lastRequest returns the time of the last real request to an app that was reported, or the
// zero time.
func (h *heard) lastRequest(appID string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[appID]
}

// activeAt returns the latest time at which an app may have been in use, according to
// reports and to its row. The row lags behind, and a new leader has not heard everything
// that came before.
func (h *heard) activeAt(a *record.App) time.Time {
	at := a.LastRequestAt
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now()
	if !at.IsZero() && h.since.After(at) {
		at = earlier(at.Add(h.cfg.WriteRequests), h.since)
	}
	at = later(at, h.last[a.ID])
	for _, in := range a.Instances {
		at = later(at, in.Since)
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// longestPause limits the pause between the wakes of an app that fails each time, as a
// multiple of the pause after the first failure.
const longestPause = 60

// rousing records that an app is about to wake: if that fails, it counts as another failure.
func (h *heard) rousing(appID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f, known := h.wakes[appID]; known {
		f.noted = false
		h.wakes[appID] = f
	}
}

// wakeFailed records that an app has failed to wake, once for each call of rousing, and
// returns how long the app is left alone.
func (h *heard) wakeFailed(a *record.App) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.wakes[a.ID]
	now := h.clock()
	if !f.noted {
		f.times, f.noted = f.times+1, true
		f.next = now.Add(h.cfg.WakePause * time.Duration(min(1<<min(f.times-1, 10), longestPause)))
		h.wakes[a.ID] = f
	}
	return cmp.Or(max(0, f.next.Sub(now)), 1)
}

// woke forgets the failures of an app.
func (h *heard) woke(appID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.wakes, appID)
}

// held returns how much longer a failed app is left alone, however many requests come, and
// why it failed.
func (h *heard) held(a *record.App) (why string, wait time.Duration) {
	if a.Status != record.AppFailed {
		return "", 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f, known := h.wakes[a.ID]
	if !known {
		return "", 0
	}
	return a.Error, f.next.Sub(h.clock())
}

// forget drops what is known about apps that are gone.
func (h *heard) forget(known func(appID string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now() // every pass of a loop is here, also while there are no apps
	maps.DeleteFunc(h.last, func(id string, _ time.Time) bool { return !known(id) })
	maps.DeleteFunc(h.wakes, func(id string, _ failure) bool { return !known(id) })
}
