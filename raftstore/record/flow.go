package record

import (
	"encoding/json"
	"slices"
	"time"
)

// Flow is the cursor of one long operation. Its row exists while the flow is
// live and is deleted by the transaction that ends it.
type Flow struct {
	Meta
	Kind     string          `json:"kind"`
	Subject  string          `json:"subject"` // "<table>/<id>"; one live flow a subject
	Step     string          `json:"step"`
	Data     json.RawMessage `json:"data,omitempty"`
	Attempt  int             `json:"attempt"` // of this step, from 0
	WakeAt   time.Time       `json:"wake_at,omitzero"`
	WaitFor  []string        `json:"wait_for,omitempty"` // tables whose change wakes it before WakeAt
	Deadline time.Time       `json:"deadline,omitzero"`  // of the whole flow
	Parent   string          `json:"parent,omitempty"`
	Error    string          `json:"error,omitempty"` // of the last attempt
}

// Clone returns a deep copy.
func (f *Flow) Clone() *Flow {
	c := *f
	c.Data = slices.Clone(f.Data)
	c.WaitFor = slices.Clone(f.WaitFor)
	return &c
}
