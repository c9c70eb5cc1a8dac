package database

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/telemetry"
)

// heard is a leader's memory of databases: what their hosts last reported, which
// databases someone wants awake, and how that went.
type heard struct {
	clock func() time.Time

	mu       sync.Mutex
	leading  bool
	facts    map[string]fact    // by database id
	wakes    map[string]*waking // by database id; wakes that are wanted or under way
	troubles map[string]string  // by database id: why the last wake failed
	restarts map[string]restart // by sandbox id
	boots    map[string]boot    // by database id; boots that hosts do by themselves
	asked    chan struct{}      // signals that there is a wake to begin
}

// fact is a host's last report of a database.
type fact struct {
	box   string // sandbox id
	seq   uint64 // hostapi.BoxState's
	state hostapi.DatabaseState
	at    time.Time
}

// waking is one wake, shared by all who want it.
type waking struct {
	begun bool
	since time.Time // when it was first wanted
	trace string    // of the first who wants it
	done  chan struct{}
	err   error // valid once done is closed
}

// restart records the failed restarts of a failed box.
type restart struct {
	bootID   string // of the host's daemon that was asked
	failures int
	next     time.Time
	last     string // why the last one failed
}

// boot is a boot that nobody asked the host for: the host was restarted, and tries until
// the box runs.
type boot struct {
	since time.Time // when it was first reported
	why   string    // why it has not ended yet; "" if the host does not say
}

func newHeard(clock func() time.Time) *heard {
	h := &heard{clock: clock, asked: make(chan struct{}, 1)}
	h.clear()
	return h
}

func (h *heard) clear() {
	h.facts, h.wakes, h.troubles = map[string]fact{}, map[string]*waking{}, map[string]string{}
	h.restarts, h.boots = map[string]restart{}, map[string]boot{}
}

// lead begins a leadership with an empty memory.
func (h *heard) lead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clear()
	h.leading = true
}

// resign ends a leadership. Wakes that have not begun fail with hosts.ErrNotLeading.
func (h *heard) resign() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = false
	for id, w := range h.wakes {
		if !w.begun {
			h.end(id, w, hosts.ErrNotLeading)
		}
	}
}

// want asks for a database to run. All callers share one wake until it ends. It does not
// end with ctx, and belongs to the trace of the first.
func (h *heard) want(ctx context.Context, id string) *waking {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.wakes[id]; w != nil {
		telemetry.Current(ctx).Link(w.trace)
		return w
	}
	w := &waking{since: h.clock(), done: make(chan struct{}), trace: telemetry.Parent(ctx)}
	h.wakes[id] = w
	if !h.leading {
		h.end(id, w, hosts.ErrNotLeading)
		return w
	}
	select {
	case h.asked <- struct{}{}:
	default:
	}
	return w
}

// toBegin returns the wakes that have not begun, and marks them as begun.
func (h *heard) toBegin() []toWake {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []toWake
	for id, w := range h.wakes {
		if !w.begun {
			w.begun = true
			out = append(out, toWake{id: id, trace: w.trace})
		}
	}
	return out
}

// toWake is a wake that begins.
type toWake struct{ id, trace string }

// ended records how a wake ended.
func (h *heard) ended(id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.wakes[id]; w != nil {
		h.end(id, w, err)
	}
}

// end is ended with the lock held.
func (h *heard) end(id string, w *waking, err error) {
	delete(h.wakes, id)
	delete(h.troubles, id)
	if err != nil {
		h.troubles[id] = reasonOf(err)
	}
	w.err = err
	close(w.done)
}

// wake reports whether a database is being woken, for how long, and why its last wake
// failed.
func (h *heard) wake(id string) (under bool, since time.Duration, trouble string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.wakes[id]; w != nil {
		under, since = true, h.clock().Sub(w.since)
	}
	return under, since, h.troubles[id]
}

// tell records a host's report of a database. A daemon that has just started may know
// less of what is archived than the one before it, whose word still holds.
func (h *heard) tell(id string, f fact) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, a := h.facts[id], &f.state.Archive
	if was := &before.state.Archive; before.box == f.box && a.LastAt.Before(was.LastAt) {
		a.LastAt, a.LagSeconds = was.LastAt, was.LagSeconds+f.at.Sub(before.at).Seconds()
	}
	h.facts[id] = f
}

// fact returns the last report of a database, if it is about the given box.
func (h *heard) fact(id, box string) (fact, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f, ok := h.facts[id]; ok && f.box == box {
		return f, true
	}
	return fact{}, false
}

// unwell returns why a running database does not serve as it should, or is not archived as
// it should be, within interval; "" if nothing is known of that. A report from before the
// box last changed says nothing: it has woken since.
func (h *heard) unwell(id string, box *record.Sandbox, interval time.Duration) string {
	f, ok := h.fact(id, box.ID)
	if !ok || f.seq < box.HostSeq {
		return ""
	}
	texts := slices.DeleteFunc([]string{unwell(f.state), behind(f.state.Archive, interval, h.clock())}, func(s string) bool { return s == "" })
	return strings.Join(texts, "; ")
}

// booting records which databases their hosts boot by themselves, and why each boot has
// not ended yet.
func (h *heard) booting(now map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.boots
	h.boots = map[string]boot{}
	for id, why := range now {
		b, ok := before[id]
		if !ok {
			b.since = h.clock()
		}
		b.why = why
		h.boots[id] = b
	}
}

// boot returns the boot of a database that its host does by itself, if there is one.
func (h *heard) boot(id string) (boot, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.boots[id]
	return b, ok
}

// lastRestartPause is the longest pause between restarts. The pauses grow fourfold up to
// it.
const lastRestartPause = 5 * time.Minute

// maxRestarts is how many restarts must fail before a database counts as failed.
const maxRestarts = 3

// restartFailed records that a box could not be booted from its disk.
func (h *heard) restartFailed(box, bootID string, first time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.restarts[box]
	if r.bootID != bootID {
		r = restart{bootID: bootID}
	}
	r.next = h.clock().Add(min(first<<min(2*r.failures, 20), lastRestartPause))
	r.failures++
	r.last = reasonOf(err)
	h.restarts[box] = r
}

// restarted forgets a box's earlier failures.
func (h *heard) restarted(box string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.restarts, box)
}

// restart returns how the restarts of a box went on the daemon that runs now.
func (h *heard) restart(box, bootID string) restart {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.restarts[box]; r.bootID == bootID {
		return r
	}
	return restart{}
}

// forget drops what is known of deleted databases and sandboxes.
func (h *heard) forget(database, box func(id string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.facts, func(id string, _ fact) bool { return !database(id) })
	maps.DeleteFunc(h.troubles, func(id string, _ string) bool { return !database(id) })
	maps.DeleteFunc(h.restarts, func(id string, _ restart) bool { return !box(id) })
}
