package sandbox

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// eventCopies is how often events are in memory at most: as they came, as a host's
// and as ours, and as what the client is sent.
const eventCopies = 4

// Events returns a sandbox's events, oldest first. Many of them are held within
// bounds until ctx ends.
func (l *Logs) Events(ctx context.Context, c core.Caller, id string, q api.EventQuery) ([]api.Event, error) {
	out := []api.Event{}
	err := l.onHost(ctx, c, id, func(ctx context.Context, t target) error {
		wait, cancel := context.WithTimeout(ctx, eventsTimeout)
		defer cancel()
		client := t.client.Admitting(func(wait context.Context, bytes int64) error {
			return l.core.Outputs.Admit(wait, ctx, t.row.WorkspaceID, eventCopies*bytes)
		})
		events, err := client.Events(wait, id, hostapi.EventQuery{Tail: q.Tail, Since: q.Since})
		for _, e := range events {
			out = append(out, core.Event(e))
		}
		return err
	})
	return out, err
}

// eventsTimeout bounds a question that a host answers from memory or one file.
var eventsTimeout = timescale.Limit(15 * time.Second)

// FollowEvents returns the events asked for and then those to come, until the
// sandbox is gone.
func (l *Logs) FollowEvents(ctx context.Context, c core.Caller, id string, q api.EventQuery) (core.Follower[api.Event], error) {
	var out opened[*hostapi.Follower[hostapi.Event]]
	err := l.onHost(ctx, c, id, open(l.reach, &out, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.Event], error) {
		return t.client.FollowEvents(ctx, id, hostapi.EventQuery{Tail: q.Tail, Since: q.Since})
	}))
	if err != nil {
		return nil, err
	}
	return &core.Converted[hostapi.Event, api.Event]{From: out.it, Release: out.release, Convert: core.Event}, nil
}
