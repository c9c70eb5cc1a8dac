package flow

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// limitKey names flows that share a limit, because they may hold each other up: those
// of one kind that call the same host, or that call none.
type limitKey struct{ kind, host string }

// How many of them are at a step at once; the others wait their turn. One
// that waits for a table to change is at none.
const (
	maxOnHost  = 64
	maxOnOther = 512
)

// turnOf waits until a flow may be at a step, and returns it as it is then with
// what ends its turn: nil when it has none to wait for.
func (e *Engine) turnOf(live context.Context, id string) (Run, func()) {
	run, ok := e.due(id)
	if !ok {
		return run, nil
	}
	turns := e.turns(run)
	select {
	case turns <- struct{}{}: // the usual case
	default:
		if turns = e.queue(live, run, turns); turns == nil {
			return run, nil
		}
	}
	// The wait may have been long.
	if run, ok = e.due(id); !ok {
		<-turns
		return run, nil
	}
	return run, func() { <-turns }
}

// queue waits for a turn among turns. A flow whose deadline passes meanwhile has
// nothing more to ask of the host that the others wait for, and goes elsewhere.
func (e *Engine) queue(live context.Context, run Run, turns chan struct{}) chan struct{} {
	var late <-chan time.Time
	if e.expires(run.Flow) && !e.late(run.Flow) {
		t := time.NewTimer(e.here(run.Flow, run.Flow.Deadline).Sub(e.cfg.Clock()))
		defer t.Stop()
		late = t.C
	}
	for {
		select {
		case turns <- struct{}{}:
			return turns
		case <-late:
			turns, late = e.turnsIn(limitKey{kind: run.Flow.Kind}), nil
		case <-live.Done():
			return nil
		}
	}
}

// due finds a flow that is to be at a step now.
func (e *Engine) due(id string) (Run, bool) {
	view := e.cfg.Store.View()
	f, ok := raftstore.Get(view, record.Flows, id)
	return Run{Flow: f, View: view}, ok && (!joining(view, f) || e.late(f)) && (len(f.WaitFor) > 0 || !e.here(f, f.WakeAt).After(e.cfg.Clock()))
}

func (e *Engine) turns(run Run) chan struct{} {
	kind := e.kinds[run.Flow.Kind]
	in := limitKey{kind: run.Flow.Kind}
	if kind.Host != nil && run.Flow.Step != kind.Expire && !e.late(run.Flow) {
		in.host = kind.Host(run.View, run.Flow)
	}
	return e.turnsIn(in)
}

func (e *Engine) turnsIn(in limitKey) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	turns := e.limits[in]
	if turns == nil {
		size := maxOnOther
		if in.host != "" {
			size = maxOnHost
		}
		turns = make(chan struct{}, size)
		e.limits[in] = turns
	}
	return turns
}

// expires reports whether a flow has a deadline and a step for what comes after.
func (e *Engine) expires(f *record.Flow) bool {
	return e.kinds[f.Kind].Expire != "" && !f.Deadline.IsZero()
}

// late reports whether a flow's deadline is over.
func (e *Engine) late(f *record.Flow) bool {
	return e.expires(f) && !e.cfg.Clock().Before(e.here(f, f.Deadline))
}
