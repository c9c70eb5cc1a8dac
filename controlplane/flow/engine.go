package flow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config is what an Engine works with.
type Config struct {
	Store  *raftstore.Store
	Clock  func() time.Time
	Random func() float64 // in [0,1), for the jitter of retries
	Logger *slog.Logger

	// Fault, for tests, is asked at every point of every step. An error makes
	// the engine drop the flow there as a crash would; it is then run again.
	Fault func(f *record.Flow, at Point) error
}

// Point is a place in the run of a step.
type Point string

// The points at which Config.Fault is asked.
const (
	BeforeAct    Point = "before act"
	BeforeCommit Point = "before commit"
	AfterCommit  Point = "after commit"
)

// Engine runs the flows while this replica leads.
type Engine struct {
	cfg   Config
	kinds map[string]Kind

	mu       sync.Mutex
	turned   chan struct{}        // closed and replaced when Run begins or ends
	running  bool                 // Run is under way
	notUntil map[string]time.Time // subjects whose commit failed: not at once again

	limits map[limitKey]chan struct{} // who is at a step, in this Run
	// inherited is the index of the state that this Run began with, at began. Times
	// in rows up to it may be of another leader's clock.
	inherited uint64
	began     time.Time
}

// NewEngine makes an engine that knows no kind yet.
func NewEngine(cfg Config) *Engine {
	return &Engine{cfg: cfg, kinds: map[string]Kind{}, turned: make(chan struct{})}
}

// Register adds kinds, before Run. It refuses those that lack a step they name.
func (e *Engine) Register(kinds ...Kind) error {
	for _, k := range kinds {
		if _, twice := e.kinds[k.Name]; twice || k.Name == "" {
			return fmt.Errorf("flow kind %q is named twice or not at all", k.Name)
		}
		if k.Expire != "" && k.Steps[k.Expire] == nil {
			return fmt.Errorf("flow kind %s: no step %q", k.Name, k.Expire)
		}
		if k.ActTimeout == 0 {
			k.ActTimeout = DefaultActTimeout
		}
		e.kinds[k.Name] = k
	}
	return nil
}

// worker runs the flow on one subject.
type worker struct {
	flowID string
	cancel context.CancelFunc
}

// Run runs every flow until ctx ends, and returns once no step is under way. It
// is for the leader, behind its barrier.
func (e *Engine) Run(ctx context.Context) {
	e.turn(true)
	defer e.turn(false)
	workers := map[string]worker{} // by subject: never two on one
	finished := make(chan string)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wake := time.NewTimer(0)
	defer wake.Stop()

	for {
		view := e.cfg.Store.View()
		now := e.cfg.Clock()
		next := time.Time{}
		for _, f := range raftstore.All(view, record.Flows) {
			if _, busy := workers[f.Subject]; busy {
				continue
			}
			at, ever := e.runnableAt(view, f)
			if !ever {
				continue
			}
			if at.After(now) {
				if next.IsZero() || at.Before(next) {
					next = at
				}
				continue
			}
			live, stop := context.WithCancel(ctx)
			workers[f.Subject] = worker{flowID: f.ID, cancel: stop}
			wg.Go(func() {
				defer stop()
				e.advance(ctx, live, f.ID)
				select {
				case finished <- f.Subject:
				case <-ctx.Done():
				}
			})
		}
		for _, w := range workers {
			// Ended or preempted: what it is doing has no commit to come to.
			if _, live := raftstore.Get(view, record.Flows, w.flowID); !live {
				w.cancel()
			}
		}
		e.forget(now)
		if !next.IsZero() {
			wake.Reset(max(next.Sub(now), 0))
		}
		select {
		case <-ctx.Done():
			return
		case subject := <-finished:
			delete(workers, subject)
		case <-view.Changed(record.Flows.Name):
		case <-wake.C:
		}
	}
}

// joining reports whether a flow waits for children that have not ended.
func joining(r raftstore.Reader, f *record.Flow) bool {
	return f.Join && len(raftstore.Find(r, record.Flows, "parent", f.ID)) > 0
}

// runnableAt is when a flow may run; ever is false while only the end of its
// children can tell. One that waits for tables runs at once: a worker of this
// engine holds on to it while it waits, so that here it is one left by another
// leader, and whatever changed since is unknown.
func (e *Engine) runnableAt(r raftstore.Reader, f *record.Flow) (at time.Time, ever bool) {
	at = e.here(f, f.WakeAt)
	switch {
	case len(f.WaitFor) > 0:
		at = time.Time{}
	case joining(r, f) && !e.expires(f):
		return at, false
	case joining(r, f):
		at = e.here(f, f.Deadline)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if held := e.notUntil[f.Subject]; held.After(at) {
		at = held
	}
	return at, true
}

// here is a time of a flow's row by this leader's clock. What another leader
// wrote is as far off from when this one began as it was from the writing.
func (e *Engine) here(f *record.Flow, at time.Time) time.Time {
	if at.IsZero() || f.ModifyIndex > e.inherited {
		return at
	}
	return e.began.Add(max(0, at.Sub(f.UpdatedAt)))
}

func (e *Engine) turn(running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = running
	if running {
		e.inherited, e.began = e.cfg.Store.View().Index(), e.cfg.Clock()
		e.notUntil = map[string]time.Time{}
		e.limits = map[limitKey]chan struct{}{}
	}
	close(e.turned)
	e.turned = make(chan struct{})
}

func (e *Engine) forget(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for subject, at := range e.notUntil {
		if !at.After(now) {
			delete(e.notUntil, subject)
		}
	}
}
