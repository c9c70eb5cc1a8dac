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

// Config configures an Engine.
type Config struct {
	Store  *raftstore.Store
	Clock  func() time.Time
	Random func() float64 // in [0,1), for the jitter of retries
	Logger *slog.Logger

	// Failed is told of every attempt of a step that failed, for metrics; nil: nobody is.
	Failed func(kind, step string)

	// Fault is called at every point of every step, in tests. If it returns an
	// error, the engine drops the flow there, as a crash would, and runs it again.
	Fault func(f *record.Flow, at Point) error
}

// Point is a point in the execution of a step.
type Point string

// The points at which Config.Fault is called.
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
	running  bool                 // Run is in progress
	notUntil map[string]time.Time // subjects whose commit failed: when they may run again

	limits map[limitKey]chan struct{} // flows that are at a step, in this Run
	// inherited is the store's index when this Run began, and began the time. Rows
	// up to it may contain times of another leader's clock.
	inherited uint64
	began     time.Time
}

// NewEngine creates an engine without kinds.
func NewEngine(cfg Config) *Engine {
	return &Engine{cfg: cfg, kinds: map[string]Kind{}, turned: make(chan struct{})}
}

// Register adds kinds. Call it before Run. It refuses a kind that lacks its expire
// step.
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

// Run runs every flow until ctx ends, and returns once no step is in progress. The
// leader calls it after its barrier.
func (e *Engine) Run(ctx context.Context) {
	e.turn(true)
	defer e.turn(false)
	workers := map[string]worker{} // by subject: at most one flow runs on each
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
			// The flow has ended or was preempted, so its step can no longer commit.
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

// runnableAt returns when a flow may run. ever is false if it waits for the end of
// its children. A flow that waits for tables may run at once: while it waits, a
// worker of this engine has it, so a flow seen here was left by another leader, and
// the tables may have changed since.
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

// here converts a time in a flow's row to this leader's clock. A time that another
// leader wrote is counted from when this leader began, as far ahead as it was when
// it was written.
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
