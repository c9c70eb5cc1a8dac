package service

import (
	"context"
	"encoding/json"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// Event is one thing that happened to a sandbox.
type Event struct {
	Time      time.Time
	SandboxID string
	AgentID   string
	Type      string
	Code      string // ok, error or warn
	Message   string
	Metadata  json.RawMessage // an object; nil for none
}

// EventQuery says which events are asked for: the last Tail (DefaultEventTail
// unless given), of those after Since where it is given.
type EventQuery struct {
	Tail  *int
	Since time.Time
}

// Bounds of EventQuery.Tail.
const (
	DefaultEventTail = hostapi.DefaultEventTail
	MaxEventTail     = hostapi.MaxEventTail
)

func (q EventQuery) forHost() hostapi.EventQuery {
	return hostapi.EventQuery{Tail: q.Tail, Since: q.Since}
}

// eventCopies is how often events are in memory at most: as they came, as a host's
// and as ours, and as what the client is sent.
const eventCopies = 4

// Events returns a sandbox's events, oldest first. Many of them are held within
// bounds until ctx ends.
func (s *Sandboxes) Events(ctx context.Context, c Caller, id string, q EventQuery) ([]Event, error) {
	var out []Event
	err := s.onHost(ctx, c, id, func(ctx context.Context, t target) error {
		wait, cancel := context.WithTimeout(ctx, eventsTimeout)
		defer cancel()
		client := t.client.Admitting(func(wait context.Context, bytes int64) error {
			return s.outputs.admit(wait, ctx, t.row.WorkspaceID, eventCopies*bytes)
		})
		events, err := client.Events(wait, id, q.forHost())
		for _, e := range events {
			out = append(out, eventOf(e))
		}
		return err
	})
	return out, err
}

// eventsTimeout bounds a question that a host answers from memory or one file.
var eventsTimeout = timescale.Limit(15 * time.Second)

// FollowEvents returns the events asked for and then those to come, until the
// sandbox is gone.
func (s *Sandboxes) FollowEvents(ctx context.Context, c Caller, id string, q EventQuery) (Follower[Event], error) {
	var out opened[*hostapi.Follower[hostapi.Event]]
	err := s.onHost(ctx, c, id, open(s, &out, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.Event], error) {
		return t.client.FollowEvents(ctx, id, q.forHost())
	}))
	if err != nil {
		return nil, err
	}
	return &follower[hostapi.Event, Event]{from: out.it, release: out.release, convert: eventOf}, nil
}

func eventOf(e hostapi.Event) Event {
	return Event{
		Time: e.Time, SandboxID: e.SandboxID, AgentID: e.AgentID, Type: string(e.Type), Code: string(e.Code),
		Message: e.Message, Metadata: e.Metadata,
	}
}
