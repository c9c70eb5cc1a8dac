package sandbox

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// eventCopies is the number of copies of events in memory: as received, as the
// host's type, as the API's type, and as sent.
const eventCopies = 4

// History is the event store.
type History interface {
	// OfSandbox returns the last limit events of a workspace's sandbox after since,
	// oldest first.
	OfSandbox(ctx context.Context, workspaceID, sandboxID string, since time.Time, limit int) ([]hostapi.Event, error)
}

// maxHistory is the memory for an answer from the event store, in bytes.
const maxHistory = eventCopies * eventstore.MaxHistory

// Events returns a sandbox's events, oldest first. Their memory is limited until ctx
// ends. The event store answers for a sandbox that was deleted, whose host does not have
// its box any more, or whose host is lost.
func (l *Logs) Events(ctx context.Context, c core.Caller, id string, q api.EventQuery) ([]api.Event, error) {
	var found []hostapi.Event
	gone := false
	err := l.onHost(ctx, c, id, func(ctx context.Context, t target) error {
		wait, cancel := context.WithTimeout(ctx, eventsTimeout)
		defer cancel()
		client := t.client.Admitting(func(wait context.Context, bytes int64) error {
			return l.core.Outputs.Admit(wait, ctx, t.row.WorkspaceID, eventCopies*bytes)
		})
		var err error
		found, err = client.Events(wait, id, hostapi.EventQuery{Tail: q.Tail, Since: q.Since})
		gone = hostapi.HasCode(err, hostapi.CodeNotFound)
		return err
	})
	if err != nil && (gone || apierror.CodeOf(err) == apierror.ENotFound || l.isLost(c, id)) {
		found, err = l.past(ctx, c, id, q, err)
	}
	return core.Each(found, core.Event), err
}

// isLost reports whether a sandbox has failed because its host is silent or was removed.
func (l *Logs) isLost(c core.Caller, id string) bool {
	view := l.core.Store.View()
	row, err := Owned(view, c, id)
	return err == nil && row.Status == record.SandboxFailed && (row.Unreachable || lost(view, row.HostID))
}

// past returns events from the event store, or the given error if it has none.
func (l *Logs) past(ctx context.Context, c core.Caller, id string, q api.EventQuery, none error) ([]hostapi.Event, error) {
	if l.history == nil || c.WorkspaceID == "" {
		return nil, none
	}
	wait, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	if err := l.core.Outputs.Admit(wait, ctx, c.WorkspaceID, maxHistory); err != nil {
		return nil, core.StoreError(err)
	}
	// Whether there is a sandbox does not depend on how much of it is asked for.
	known, err := l.history.OfSandbox(wait, c.WorkspaceID, id, time.Time{}, 1)
	switch {
	case err != nil:
		return nil, core.EventStoreError(err)
	case len(known) == 0:
		return nil, none
	}
	tail := core.DefaultEventTail
	switch {
	case q.Tail != nil:
		tail = *q.Tail
	case !q.Since.IsZero():
		tail = core.MaxEventTail
	}
	found, err := l.history.OfSandbox(wait, c.WorkspaceID, id, q.Since, tail)
	if err != nil {
		return nil, core.EventStoreError(err)
	}
	return found, nil
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
