package sandbox

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// eventCopies is the number of copies of events in memory: as received, as the
// host's type, as the API's type, and as sent.
const eventCopies = 4

// Events returns a sandbox's events, oldest first. Their memory is limited until ctx
// ends.
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

// eventsTimeout limits a call that a host answers from memory or one file.
var eventsTimeout = timescale.Limit(15 * time.Second)

// FollowEvents returns the selected events and then new ones, until the sandbox is
// deleted.
func (l *Logs) FollowEvents(ctx context.Context, c core.Caller, id string, q api.EventQuery) (core.Follower[api.Event], error) {
	out, err := followed[hostapi.Event](l.reach, c)
	if err != nil {
		return nil, err
	}
	err = l.onHost(ctx, c, id, open(l.reach, &out.opened, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.Event], error) {
		return t.client.FollowEvents(ctx, id, hostapi.EventQuery{Tail: q.Tail, Since: q.Since})
	}))
	if err != nil {
		out.leave()
		return nil, err
	}
	return &core.Converted[hostapi.Event, api.Event]{From: out.it, Release: out.end, Convert: core.Event}, nil
}
