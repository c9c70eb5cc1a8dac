package flow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/telemetry"
)

// advance runs one flow step by step until it ends, sleeps, or cannot continue now.
// live ends before ctx when the flow's row is gone: this cancels the Act of a
// preempted flow. Commits use ctx, because they detect a preemption themselves, and
// because the last commit of a flow, which removes the row, must not be cancelled by
// its own effect.
func (e *Engine) advance(ctx, live context.Context, id string) {
	for live.Err() == nil {
		run, release := e.turnOf(live, id)
		if release == nil {
			return
		}
		f := run.Flow
		request := requestOf(f)
		ctx, live := hostapi.WithRequestID(ctx, request), hostapi.WithRequestID(live, request)
		next, err := e.step(ctx, live, run)
		release()
		switch {
		case err == nil && len(next.wait) > 0:
			await(live, run.View, next)
		case err == nil && next.join:
			return // Run continues it when the last child has ended
		case err == nil, errors.Is(err, errMoved):
		case live.Err() != nil:
		case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrLeadershipLost):
			// ctx is about to end. If leadership was lost and won again at once, Run
			// begins the flow again.
			e.hold(f.Subject)
			return
		case errors.Is(err, errDropped):
			return
		default:
			if !e.retry(ctx, f, err) {
				return
			}
		}
	}
}

// requestOf returns the id of the request that began a flow, if the flow's data has it:
// what the flow's steps write, and what they ask of hosts, is for that request.
func requestOf(f *record.Flow) string {
	var data struct {
		RequestID string `json:"request_id"`
	}
	_ = Decode(f, &data) // data of another form has none
	return data.RequestID
}

var errDropped = errors.New("dropped by a fault")

// step runs one step in the flow's trace: Act and Commit.
func (e *Engine) step(ctx, live context.Context, run Run) (Next, error) {
	f := run.Flow
	spanCtx, span := telemetry.Start(telemetry.Under(ctx, f.Trace), "flow ", f.Kind, " ", f.Step)
	span.Set(telemetry.KeyFlowID, f.ID)
	span.Set(telemetry.KeyFlowKind, f.Kind)
	span.Set(telemetry.KeyStep, f.Step)
	span.SetInt(telemetry.KeyAttempt, f.Attempt)
	next, err := e.perform(telemetry.Carry(ctx, spanCtx), telemetry.Carry(live, spanCtx), run)
	if errors.Is(err, errMoved) {
		span.End(nil)
	} else {
		span.End(err)
	}
	return next, err
}

func (e *Engine) perform(ctx, live context.Context, run Run) (Next, error) {
	f := run.Flow
	if err := e.fault(f, BeforeAct); err != nil {
		return Next{}, err
	}
	kind, ok := e.kinds[f.Kind]
	if !ok {
		return Next{}, fmt.Errorf("no flow kind %q", f.Kind)
	}
	if e.late(f) {
		e.cfg.Logger.WarnContext(ctx, "flow is past its deadline", "flow_id", f.ID, "kind", f.Kind, "step", f.Step, "last_error", f.Error)
		return e.commit(ctx, f, func(*raftstore.Tx) (Next, error) { return Goto(kind.Expire, nil), nil }, true)
	}
	act := kind.Steps[f.Step]
	if act == nil {
		return Next{}, fmt.Errorf("flow kind %s has no step %q", f.Kind, f.Step)
	}
	actCtx, cancel := context.WithTimeout(live, kind.ActTimeout)
	commit, err := e.act(actCtx, act, run)
	cancel()
	if err != nil {
		return Next{}, err
	}
	if err := e.fault(f, BeforeCommit); err != nil {
		return Next{}, err
	}
	next, err := e.commit(ctx, f, commit, false)
	if err != nil {
		return Next{}, err
	}
	return next, e.fault(f, AfterCommit)
}

// act calls a step. A panic counts as a failure, so that the flow stays and does not
// crash one leader after another.
func (e *Engine) act(ctx context.Context, act Step, run Run) (commit Commit, err error) {
	defer func() {
		if v := recover(); v != nil {
			e.cfg.Logger.ErrorContext(ctx, "flow step panicked", "flow_id", run.Flow.ID, "kind", run.Flow.Kind, "step", run.Flow.Step, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("step panicked: %v", v)
		}
	}()
	return act(ctx, run)
}

// commit runs a Commit if the flow's row has not changed since the step began.
func (e *Engine) commit(ctx context.Context, f *record.Flow, commit Commit, expired bool) (Next, error) {
	var next Next
	err := e.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		now, ok := raftstore.Get(tx, record.Flows, f.ID)
		if !ok || now.ModifyIndex != f.ModifyIndex {
			return errMoved
		}
		now = now.Clone()
		now.Deadline = e.here(f, now.Deadline)
		if expired {
			now.Deadline = time.Time{}
		}
		var err error
		if next, err = commit(tx); err != nil {
			return err
		}
		return move(tx, now, next)
	})
	if err != nil {
		return Next{}, err
	}
	if next.step == "" && next.err != nil {
		e.cfg.Logger.InfoContext(ctx, "flow failed", "flow_id", f.ID, "kind", f.Kind, "step", f.Step, "error", next.err)
	}
	return next, nil
}

// await waits until one of the flow's tables has changed since the view that its
// step saw, so that no change between the two is missed.
func await(ctx context.Context, view *raftstore.Snapshot, next Next) {
	atMost := time.NewTimer(next.after)
	defer atMost.Stop()
	select {
	case <-view.Changed(next.wait...):
	case <-atMost.C:
	case <-ctx.Done(): // also when the flow was preempted
	}
}

// retry records that a step failed and when it is repeated. It reports whether the
// worker should continue with the flow.
func (e *Engine) retry(ctx context.Context, f *record.Flow, cause error) bool {
	if e.cfg.Failed != nil {
		e.cfg.Failed(f.Kind, f.Step)
	}
	wait := backoff(f.Attempt, e.cfg.Random())
	e.cfg.Logger.WarnContext(ctx, "flow step failed", "flow_id", f.ID, "kind", f.Kind, "step", f.Step, "attempt", f.Attempt, "retry_in", wait, "error", cause)
	err := e.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		now, ok := raftstore.Get(tx, record.Flows, f.ID)
		if !ok || now.ModifyIndex != f.ModifyIndex {
			return errMoved
		}
		c := now.Clone()
		c.Attempt++
		c.Deadline = e.here(f, c.Deadline)
		c.WakeAt, c.WaitFor = tx.Now().Add(wait), nil
		if !c.Deadline.IsZero() && c.Deadline.Before(c.WakeAt) {
			c.WakeAt = c.Deadline
		}
		c.Error = clip(cause.Error())
		raftstore.Put(tx, record.Flows, c)
		return nil
	})
	if err != nil && !errors.Is(err, errMoved) {
		e.cfg.Logger.WarnContext(ctx, "retry of a flow could not be written down", "flow_id", f.ID, "error", err)
		e.hold(f.Subject)
		return false
	}
	return true
}

// hold delays a flow whose row could not be written, so that it does not run in a
// tight loop.
func (e *Engine) hold(subject string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notUntil[subject] = e.cfg.Clock().Add(time.Second)
}

func (e *Engine) fault(f *record.Flow, at Point) error {
	if e.cfg.Fault == nil {
		return nil
	}
	if err := e.cfg.Fault(f, at); err != nil {
		return fmt.Errorf("%w: %w", errDropped, err)
	}
	return nil
}

// The delays between the attempts of a step.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 15 * time.Second
)

// backoff doubles with each attempt. The jitter keeps flows that failed together
// from repeating together. random is in [0,1).
func backoff(attempt int, random float64) time.Duration {
	d := math.Min(float64(firstBackoff)*math.Pow(2, float64(min(attempt, 30))), float64(maxBackoff))
	return time.Duration(d * (0.5 + random))
}

// clip limits the length of an error in a row.
func clip(s string) string {
	const limit = 500
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}
