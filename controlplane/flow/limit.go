package flow

import (
	"context"
	"maps"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// limitKey identifies flows that share a limit because they can delay each other:
// those of one kind that call the same host, or that call none. Of a kind whose
// workspaces are known, those of one workspace have a limit of their own besides: it
// decides how long a host takes for them, because guests are its.
type limitKey struct{ kind, host, workspace string }

// The number of flows of one limitKey that may be at a step at once; the others wait
// for their turn. A flow that waits for a table to change is not at a step.
// manyWorkspaces is how many workspaces may reach theirs before others wait.
const (
	maxOnHost      = 64
	maxOnOther     = 512
	manyWorkspaces = 4

	manyLimits = 4096 // above it those that nobody waits for or has are forgotten
)

// turnOf waits until a flow may run its step. It returns the flow as it is then, and
// a function that ends its turn, or nil if the flow is not to run now.
func (e *Engine) turnOf(live context.Context, id string) (Run, func()) {
	run, ok := e.due(id)
	if !ok {
		return run, nil
	}
	var held []chan struct{}
	leave := func() {
		for _, turns := range held {
			<-turns
		}
	}
	for _, turns := range e.turns(run) {
		select {
		case turns <- struct{}{}: // the usual case
			held = append(held, turns)
			continue
		default:
		}
		got := e.queue(live, run, turns)
		if got == nil {
			leave()
			return run, nil
		}
		held = append(held, got)
		if got != turns {
			break
		}
	}
	// The flow may have changed during the wait.
	if run, ok = e.due(id); !ok {
		leave()
		return run, nil
	}
	return run, leave
}

// queue waits for a turn. If the flow's deadline passes meanwhile, it no longer
// needs the host that the others wait for, and waits for a turn without a host, which
// is all that it needs then.
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

// due returns a flow, and whether its step is to run now.
func (e *Engine) due(id string) (Run, bool) {
	view := e.cfg.Store.View()
	f, ok := raftstore.Get(view, record.Flows, id)
	return Run{Flow: f, View: view}, ok && (!joining(view, f) || e.late(f)) && (len(f.WaitFor) > 0 || !e.here(f, f.WakeAt).After(e.cfg.Clock()))
}

// turns returns what a flow needs a turn of, in the order in which to wait for it: its
// workspace's first, so that it takes none of others' meanwhile.
func (e *Engine) turns(run Run) (all []chan struct{}) {
	kind := e.kinds[run.Flow.Kind]
	in := limitKey{kind: run.Flow.Kind}
	if kind.Host != nil && run.Flow.Step != kind.Expire && !e.late(run.Flow) {
		in.host = kind.Host(run.View, run.Flow)
	}
	if kind.Workspace != nil && !e.late(run.Flow) {
		if own := kind.Workspace(run.View, run.Flow); own != "" {
			all = append(all, e.turnsIn(limitKey{in.kind, in.host, own}))
		}
	}
	return append(all, e.turnsIn(in))
}

func (e *Engine) turnsIn(in limitKey) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	turns := e.limits[in]
	if turns == nil {
		if len(e.limits) >= manyLimits {
			// A flow may enter one just after this, and so exceed its key's limit for the length of a
			// step. That is rare, and a host bears many times the limit.
			maps.DeleteFunc(e.limits, func(_ limitKey, turns chan struct{}) bool { return len(turns) == 0 })
		}
		size := maxOnOther
		if in.host != "" {
			size = maxOnHost
		}
		if in.workspace == "" && e.kinds[in.kind].Workspace != nil {
			size *= manyWorkspaces
		}
		turns = make(chan struct{}, size)
		e.limits[in] = turns
	}
	return turns
}

// expires reports whether a flow has a deadline and its kind an expire step.
func (e *Engine) expires(f *record.Flow) bool {
	return e.kinds[f.Kind].Expire != "" && !f.Deadline.IsZero()
}

// late reports whether a flow's deadline has passed.
func (e *Engine) late(f *record.Flow) bool {
	return e.expires(f) && !e.cfg.Clock().Before(e.here(f, f.Deadline))
}
