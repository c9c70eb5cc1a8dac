package record

import (
	"encoding/json"
	"slices"
	"time"
)

// Flow is the cursor of one long operation. Its row exists while the flow is
// live. The transaction that ends it deletes the row and writes its Outcome.
type Flow struct {
	Meta
	Kind     string          `json:"kind"`
	Subject  string          `json:"subject"` // "<table>/<id>"; one live flow a subject
	Step     string          `json:"step"`
	Data     json.RawMessage `json:"data,omitempty"`
	Attempt  int             `json:"attempt"` // of this step, from 0
	WakeAt   time.Time       `json:"wake_at,omitzero"`
	WaitFor  []string        `json:"wait_for,omitempty"` // tables whose change wakes it before WakeAt
	Join     bool            `json:"join,omitempty"`     // it waits for its children to end
	Deadline time.Time       `json:"deadline,omitzero"`  // of the whole flow
	Parent   string          `json:"parent,omitempty"`   // id of the flow that began it, and may wait for it
	Error    string          `json:"error,omitempty"`    // of the last attempt
	Trace    string          `json:"trace,omitempty"`    // the span that began it, as in a traceparent header
}

// Clone returns a deep copy.
func (f *Flow) Clone() *Flow {
	c := *f
	c.Data = slices.Clone(f.Data)
	c.WaitFor = slices.Clone(f.WaitFor)
	return &c
}

// Outcome is what a flow came to, under the flow's id. CreatedAt is when the
// flow ended.
type Outcome struct {
	Meta
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	Parent  string `json:"parent,omitempty"`
	// Preempted says that another flow took its place before it came to anything.
	Preempted bool            `json:"preempted,omitempty"`
	Failure   *Failure        `json:"failure,omitempty"` // nil: it ended well
	Result    json.RawMessage `json:"result,omitempty"`  // what is to be said beyond the records
}

// Failure is the error of an Outcome, in the words that the API answers with.
type Failure struct {
	Code       string        `json:"code"`
	Message    string        `json:"message"`
	Detail     string        `json:"detail,omitempty"`
	RetryAfter time.Duration `json:"retry_after_ns,omitempty"`
}

// Clone returns a deep copy.
func (o *Outcome) Clone() *Outcome {
	c := *o
	c.Result = slices.Clone(o.Result)
	if o.Failure != nil {
		f := *o.Failure
		c.Failure = &f
	}
	return &c
}
