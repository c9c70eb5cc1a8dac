// Package flow runs long operations as persisted step machines. A flow is a row
// of the control store: which kind it is, on what, at which step. A step first
// acts (calls to hosts, which may be repeated without harm) and then commits:
// one transaction that changes the records and the flow's cursor together. The
// leader runs the flows; one that dies leaves each of them at a step that its
// successor runs again.
//
// So every step runs at least once, "already done" is a success to it, and what
// it must not do twice it does in its commit.
package flow

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Kind is one kind of flow.
type Kind struct {
	Name  string
	Steps map[string]Step

	// Expire is the step to which a flow goes when its deadline passes. It has
	// no deadline from there on.
	Expire string

	// ActTimeout bounds one Act; default DefaultActTimeout.
	ActTimeout time.Duration

	// Host names the host that the flow calls as it stands, "" for none: flows
	// whose host hangs hold up those of the same host alone. nil is none.
	Host func(r raftstore.Reader, f *record.Flow) string
}

// DefaultActTimeout is how long an Act may take.
var DefaultActTimeout = timescale.Limit(2 * time.Minute)

// Step acts, and returns what to commit. An error is for what may pass: the
// step is tried again, later each time.
type Step func(ctx context.Context, run Run) (Commit, error)

// Commit changes records and says what follows. It runs in the transaction that
// moves the flow's cursor, possibly several times; it must change nothing else.
// Its error is a Step's error.
type Commit func(tx *raftstore.Tx) (Next, error)

// Run is what a step is given.
type Run struct {
	Flow *record.Flow        // shared: not to be changed
	View *raftstore.Snapshot // in which the flow stands at this step
}

// Data decodes the flow's data.
func (r Run) Data(into any) error { return Decode(r.Flow, into) }

// Decode decodes a flow's data.
func Decode(f *record.Flow, into any) error {
	if len(f.Data) == 0 {
		return nil
	}
	if err := json.Unmarshal(f.Data, into); err != nil {
		return fmt.Errorf("decode data of flow %s: %w", f.ID, err)
	}
	return nil
}

// Next says how a flow goes on.
type Next struct {
	step  string // "" when it ends here
	data  any    // nil: as it is
	after time.Duration
	wait  []string
	join  bool

	result any   // of the outcome
	err    error // of the outcome
}

// Goto runs a step at once. Data that is not nil replaces the flow's data.
func Goto(step string, data any) Next { return Next{step: step, data: data} }

// Sleep runs a step after a while.
func Sleep(step string, after time.Duration, data any) Next {
	return Next{step: step, data: data, after: after}
}

// Wait runs a step when one of the tables has changed, or after atMost. The
// commit that returns it must not change those tables each time it runs.
func Wait(step string, atMost time.Duration, data any, tables ...string) Next {
	return Next{step: step, data: data, after: atMost, wait: tables}
}

// Join runs a step once every child of the flow has ended. Children has what
// they came to.
func Join(step string, data any) Next { return Next{step: step, data: data, join: true} }

// Done ends the flow well.
func Done() Next { return Next{} }

// DoneWith ends the flow well. Whoever waits for it gets result, which is kept
// as JSON.
func DoneWith(result any) Next { return Next{result: result} }

// Fail ends the flow. Whoever waits for it gets err as an *apierror.Error,
// without the cause, which is logged here. The records have to be in a final
// state by the same commit.
func Fail(err error) Next { return Next{err: err} }

// New is a flow to begin.
type New struct {
	ID       string // unique for ever
	Kind     string
	Subject  string // see Subject
	Step     string
	Data     any
	Deadline time.Time // zero: none
	Parent   string    // id of the flow that begins it and may wait for it; "" for none
}

// NewID makes an id for a flow.
func NewID() string { return "flow-" + strings.ToLower(rand.Text()) }

// Subject names the record that a flow is about.
func Subject(table, id string) string { return table + "/" + id }

// Begin puts a flow into a transaction. A live flow on the same subject makes
// the transaction fail with raftstore.ErrConflict.
func Begin(tx *raftstore.Tx, n New) error {
	f := &record.Flow{Meta: record.Meta{ID: n.ID}, Kind: n.Kind, Subject: n.Subject, Step: n.Step, Deadline: n.Deadline, Parent: n.Parent}
	if n.Data != nil {
		raw, err := json.Marshal(n.Data)
		if err != nil {
			return fmt.Errorf("encode data of flow %s: %w", n.ID, err)
		}
		f.Data = raw
	}
	raftstore.Put(tx, record.Flows, f)
	return nil
}

// Preempt begins a flow in place of the live one on its subject, if there is
// one, which ends where it stands: an Act of it under way is cancelled and its
// Commit finds nothing to move.
func Preempt(tx *raftstore.Tx, n New) error {
	if f, ok := Live(tx, n.Subject); ok {
		end(tx, f, &record.Outcome{Preempted: true})
	}
	return Begin(tx, n)
}

// Children returns what the flows that a flow has begun came to, in the order of
// their ids. It leaves out those that are live.
func Children(r raftstore.Reader, f *record.Flow) []*record.Outcome {
	return raftstore.Find(r, record.Outcomes, "parent", f.ID)
}

// Live finds the flow on a subject.
func Live(r raftstore.Reader, subject string) (*record.Flow, bool) {
	for _, f := range raftstore.Find(r, record.Flows, "subject", subject) {
		return f, true
	}
	return nil, false
}

// errMoved means that the flow is no longer where the step found it.
var errMoved = errors.New("flow has moved on")

// move writes the new cursor, or the outcome of a flow that ends.
func move(tx *raftstore.Tx, f *record.Flow, next Next) error {
	if next.step == "" {
		o, err := outcomeOf(next)
		if err != nil {
			return fmt.Errorf("encode outcome of flow %s: %w", f.ID, err)
		}
		end(tx, f, o)
		return nil
	}
	c := f.Clone()
	c.Step, c.Attempt, c.Error = next.step, 0, ""
	c.WakeAt, c.WaitFor, c.Join = time.Time{}, next.wait, next.join
	if next.after > 0 {
		c.WakeAt = tx.Now().Add(next.after)
	}
	if next.data != nil {
		raw, err := json.Marshal(next.data)
		if err != nil {
			return fmt.Errorf("encode data of flow %s: %w", f.ID, err)
		}
		c.Data = raw
	}
	raftstore.Put(tx, record.Flows, c)
	return nil
}

// end removes a flow's row and writes what it came to.
func end(tx *raftstore.Tx, f *record.Flow, o *record.Outcome) {
	o.ID, o.Kind, o.Subject, o.Parent = f.ID, f.Kind, f.Subject, f.Parent
	raftstore.Delete(tx, record.Flows, f.ID)
	raftstore.Put(tx, record.Outcomes, o)
}
