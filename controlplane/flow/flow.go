// Package flow runs long operations as persisted step machines. A flow is a row of
// the control store: its kind, its subject and its current step. A step first acts,
// by calls to hosts that may be repeated without harm, and then commits: one
// transaction changes the records and the flow's cursor together. The leader runs
// the flows; when it dies, its successor runs each flow again from its current step.
//
// So every step runs at least once. It treats "already done" as success, and does
// what must happen only once in its commit.
package flow

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

	// Expire is the step to which a flow goes when its deadline passes. From there
	// on it has no deadline.
	Expire string

	// ActTimeout limits the duration of one Act; default DefaultActTimeout.
	ActTimeout time.Duration

	// Host returns the host that the flow currently calls, or "" for none, so that
	// flows whose host hangs delay only those of the same host. nil: none.
	Host func(r raftstore.Reader, f *record.Flow) string
	// Workspace returns whose flow it is, "" for nobody's, so that what hangs because of
	// a workspace's guests delays those of others least. nil: nobody's.
	Workspace func(r raftstore.Reader, f *record.Flow) string
}

// DefaultActTimeout is the default of Kind.ActTimeout.
var DefaultActTimeout = timescale.Limit(2 * time.Minute)

// Step acts, and returns what to commit. After an error the step is repeated, with
// increasing delays.
type Step func(ctx context.Context, run Run) (Commit, error)

// Commit changes records and says how the flow continues. It runs in the transaction
// that moves the flow's cursor, possibly several times, and must have no other
// effect. Its error has the same effect as the Step's.
type Commit func(tx *raftstore.Tx) (Next, error)

// Run is the input of a step.
type Run struct {
	Flow *record.Flow        // shared: must not be changed
	View *raftstore.Snapshot // in which the flow is at this step
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

// Next says how a flow continues.
type Next struct {
	step  string // "" if the flow ends
	data  any    // nil: unchanged
	after time.Duration
	wait  []string
	join  bool
	by    time.Time // zero: the deadline stays as it is

	result any   // of the outcome
	err    error // of the outcome
}

// Goto runs a step at once. If data is not nil, it replaces the flow's data.
func Goto(step string, data any) Next { return Next{step: step, data: data} }

// Sleep runs a step after a delay.
func Sleep(step string, after time.Duration, data any) Next {
	return Next{step: step, data: data, after: after}
}

// Wait runs a step when one of the tables has changed, or after atMost. The commit
// that returns it must not change those tables every time, or the flow never waits.
func Wait(step string, atMost time.Duration, data any, tables ...string) Next {
	return Next{step: step, data: data, after: atMost, wait: tables}
}

// Join runs a step once every child of the flow has ended.
func Join(step string, data any) Next { return Next{step: step, data: data, join: true} }

// By gives the flow another deadline, for one whose time begins to run at a step.
func (n Next) By(deadline time.Time) Next {
	n.by = deadline
	return n
}

// Done ends the flow with success.
func Done() Next { return Next{} }

// DoneWith ends the flow with success. Whoever waits for it gets result, which is
// stored as JSON.
func DoneWith(result any) Next { return Next{result: result} }

// Fail ends the flow with an error. Whoever waits for it gets err as an
// *apierror.Error without the cause, which is logged here. The same commit must
// bring the records into a final state.
func Fail(err error) Next { return Next{err: err} }

// New describes a flow to begin.
type New struct {
	ID       string // never used before
	Kind     string
	Subject  string // see Subject
	Step     string
	Data     any
	Deadline time.Time // zero: none
	Parent   string    // id of the flow that begins it and may join it; "" for none
}

// NewID returns an id for a new flow.
func NewID() string { return "flow-" + strings.ToLower(rand.Text()) }

// Subject returns the name of the record that a flow works on.
func Subject(table, id string) string { return table + "/" + id }

// Begin adds a flow to a transaction. If a live flow has the same subject, the
// transaction fails with raftstore.ErrConflict.
func Begin(tx *raftstore.Tx, n New) error {
	f := &record.Flow{Meta: record.Meta{ID: n.ID}, Kind: n.Kind, Subject: n.Subject, Step: n.Step, Deadline: n.Deadline, Parent: n.Parent, Trace: tx.Trace()}
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

// Preempt begins a flow and ends the live one on the same subject, if there is one:
// its Act is cancelled, and its Commit finds the row gone.
func Preempt(tx *raftstore.Tx, n New) error {
	if f, ok := Live(tx, n.Subject); ok {
		end(tx, f, &record.Outcome{Preempted: true})
	}
	return Begin(tx, n)
}

// Live returns the live flow on a subject.
func Live(r raftstore.Reader, subject string) (*record.Flow, bool) {
	for _, f := range raftstore.Find(r, record.Flows, "subject", subject) {
		return f, true
	}
	return nil, false
}

// errMoved means that the flow's row has changed since the step began.
var errMoved = errors.New("flow has moved on")

// move writes the new cursor, or the outcome of a flow that has ended.
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
	if !next.by.IsZero() {
		c.Deadline = next.by
	}
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
	if !tx.Writes() && waitsOn(tx, c) {
		return nil
	}
	raftstore.Put(tx, record.Flows, c)
	return nil
}

// waitsOn reports whether a flow that has looked at its tables waits for them as before, and
// the time that its row says is still ahead. Any number of flows may wait for a table: if
// each wrote its row at each change of the table, those of one workspace could take all that
// the log can write.
func waitsOn(tx *raftstore.Tx, c *record.Flow) bool {
	f, ok := raftstore.Get(tx, record.Flows, c.ID)
	return ok && len(c.WaitFor) > 0 && tx.Now().Before(f.WakeAt) && f.Step == c.Step && slices.Equal(f.WaitFor, c.WaitFor) &&
		bytes.Equal(f.Data, c.Data) && f.Deadline.Equal(c.Deadline) && f.Attempt == 0 && f.Error == ""
}

// end replaces a flow's row with its outcome.
func end(tx *raftstore.Tx, f *record.Flow, o *record.Outcome) {
	o.ID, o.Kind, o.Subject, o.Parent = f.ID, f.Kind, f.Subject, f.Parent
	raftstore.Delete(tx, record.Flows, f.ID)
	raftstore.Put(tx, record.Outcomes, o)
}
