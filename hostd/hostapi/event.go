package hostapi

import (
	"encoding/json"
	"time"
)

// EventType names what happened; SPEC's catalog, "sandbox.running" and so on.
type EventType string

// The catalog.
const (
	EventRunning           EventType = "sandbox.running"
	EventSSHReady          EventType = "sandbox.ssh_ready"
	EventPaused            EventType = "sandbox.paused"
	EventResumed           EventType = "sandbox.resumed"
	EventHibernated        EventType = "sandbox.hibernated"
	EventWoken             EventType = "sandbox.woken"
	EventDeleted           EventType = "sandbox.deleted"
	EventForked            EventType = "sandbox.forked"
	EventWarmForked        EventType = "sandbox.warmforked"
	EventForkStaged        EventType = "fork.staged"
	EventForkCompleted     EventType = "fork.completed"
	EventForkChildFailed   EventType = "fork.child_failed"
	EventForkTreeCompleted EventType = "fork_tree.completed"
	EventForkTreePromoted  EventType = "fork_tree.promoted"
	EventWarmForkStaged    EventType = "warmfork.staged"
	EventVMDied            EventType = "vm.died"
	EventVolumeUnflushed   EventType = "volume.unflushed"
	EventOrphaned          EventType = "recover.orphaned"
	EventLost              EventType = "recover.lost"
	EventReturned          EventType = "recover.returned"
	EventUnmanaged         EventType = "recover.unmanaged"
)

// EventCode is how grave an event is; its type decides.
type EventCode string

// The codes.
const (
	EventOK    EventCode = "ok"
	EventError EventCode = "error"
	EventWarn  EventCode = "warn"
)

// Code returns the code of a type; one that is not in the catalog is ok.
func (t EventType) Code() EventCode {
	switch t {
	case EventVMDied, EventOrphaned, EventLost, EventForkChildFailed:
		return EventError
	case EventUnmanaged, EventReturned, EventVolumeUnflushed:
		return EventWarn
	}
	return EventOK
}

// Event is one thing that happened to one sandbox. Seq grows by one with every
// event of the host, so (HostID, Seq) names it for ever.
type Event struct {
	Seq         uint64          `json:"seq"`
	Time        time.Time       `json:"ts"` // millisecond precision, UTC; never before an earlier event of the same sandbox
	SandboxID   string          `json:"sandbox_id"`
	WorkspaceID string          `json:"workspace_id,omitempty"`
	Template    string          `json:"template,omitempty"`
	HostID      string          `json:"agent_id"`
	Type        EventType       `json:"type"`
	Code        EventCode       `json:"code"`
	Message     string          `json:"message"`
	Metadata    json.RawMessage `json:"metadata,omitempty"` // an object
}

// NewEvent is an event that the control plane adds to a sandbox's. The same
// Key again, for one sandbox, adds nothing.
//
// With a WorkspaceID it may be of a sandbox that the host does not have: then it goes
// only to the replicas' event stores, each time that it is posted.
type NewEvent struct {
	Key      string         `json:"key"`
	Type     EventType      `json:"type"`
	Message  string         `json:"message"`
	Metadata map[string]any `json:"metadata,omitempty"`

	WorkspaceID string `json:"workspace_id,omitempty"`
	Template    string `json:"template,omitempty"`
}

// EventBatch is what a host tells a replica's event store: events in the order
// of Seq. Events before First are gone for good: the host's spool is bounded.
type EventBatch struct {
	HostID string  `json:"agent_id"`
	First  uint64  `json:"first"` // oldest Seq that the host still has
	Events []Event `json:"events"`
}

// EventCursor says up to which Seq a replica's store has the host's events; an
// empty batch asks for it.
type EventCursor struct {
	Seq uint64 `json:"seq"`
}
