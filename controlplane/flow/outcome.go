package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// OutcomeKept is how long outcomes are kept.
const OutcomeKept = time.Hour

// The errors of flows that have no outcome of their own.
var (
	// ErrPreempted means that another flow replaced this one.
	ErrPreempted = errors.New("another flow took its place")
	// ErrOutcomeUnknown means that there is no such flow, or that it ended more than
	// OutcomeKept ago.
	ErrOutcomeUnknown = errors.New("the flow is over and its outcome is not known any more")
)

func outcomeOf(next Next) (*record.Outcome, error) {
	o := &record.Outcome{}
	if e := apierror.As(next.err); e != nil {
		o.Failure = &record.Failure{Code: string(e.Code), Message: e.Message, Detail: e.Detail, RetryAfter: e.RetryAfter}
	}
	if next.result != nil {
		raw, err := json.Marshal(next.result)
		if err != nil {
			return nil, err
		}
		o.Result = raw
	}
	return o, nil
}

// Failure returns the error in an outcome: nil, ErrPreempted or an *apierror.Error.
func Failure(o *record.Outcome) error {
	switch f := o.Failure; {
	case o.Preempted:
		return ErrPreempted
	case f != nil:
		return &apierror.Error{Code: apierror.Code(f.Code), Message: f.Message, Detail: f.Detail, RetryAfter: f.RetryAfter}
	}
	return nil
}

// Ended returns the error of a flow that has ended, nil for none, and decodes its
// result into result unless that is nil. If the outcome is unknown, it returns
// ErrOutcomeUnknown.
func Ended(r raftstore.Reader, id string, result any) error {
	o, ok := raftstore.Get(r, record.Outcomes, id)
	if !ok {
		return ErrOutcomeUnknown
	}
	if err := Failure(o); err != nil {
		return err
	}
	if result == nil || len(o.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(o.Result, result); err != nil {
		return fmt.Errorf("decode result of flow %s: %w", id, err)
	}
	return nil
}

// recheck is how often Wait checks that this replica still leads, before Run begins.
const recheck = 250 * time.Millisecond

// Wait waits for a flow to end and returns what Ended returns, or
// raftstore.ErrLeadershipLost if this replica stops leading first.
func (e *Engine) Wait(ctx context.Context, id string, result any) error {
	led := false
	for {
		e.mu.Lock()
		turned, running := e.turned, e.running
		e.mu.Unlock()
		view := e.cfg.Store.View()
		_, live := raftstore.Get(view, record.Flows, id)
		switch {
		case !live:
			return Ended(view, id, result)
		case led && !running, !running && !e.cfg.Store.IsLeader():
			return fmt.Errorf("wait for flow: %w", raftstore.ErrLeadershipLost)
		}
		led = led || running
		var again <-chan time.Time // until Run begins
		if !running {
			again = time.After(recheck)
		}
		select {
		case <-view.Changed(record.Flows.Name):
		case <-turned:
		case <-again:
		case <-ctx.Done():
			return fmt.Errorf("wait for flow: %w", ctx.Err())
		}
	}
}
