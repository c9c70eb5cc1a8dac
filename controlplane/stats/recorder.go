package stats

import (
	"context"
	"log/slog"
	"time"

	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Notes is where a Recorder writes.
type Notes interface {
	Note(ctx context.Context, owned []eventstore.Owned, deployments []eventstore.Deployment, events []hostapi.Event) error
}

// Recorder tells the event store of this replica what the control store knows and hosts
// do not: which sandboxes belong to which apps and databases, how deployments ended, and
// which sandboxes were on a host that was lost.
// The control store forgets that; each replica reads its own copy.
type Recorder struct {
	View  func() *raftstore.Snapshot
	Notes Notes
	Log   *slog.Logger
	Every time.Duration // the least time between two looks; default 1 s

	seen map[string]struct{} // ids of rows that were told and are still there
}

// noteTimeout limits one write to the event store.
var noteTimeout = timescale.Limit(20 * time.Second)

// maxNotes is how many rows are written at a time.
const maxNotes = 1000

// Run looks at each change until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	if r.Every == 0 {
		r.Every = time.Second
	}
	wait := r.Every
	for {
		view := r.View()
		more, err := r.look(ctx, view)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // the rows are still there the next time, most likely
			r.Log.WarnContext(ctx, "the event store was not told of apps, databases and lost sandboxes", "error", err)
			wait = min(2*wait, time.Minute)
		default:
			wait = r.Every
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if more || err != nil {
			continue
		}
		select {
		case <-view.Changed(record.Sandboxes.Name, record.Deployments.Name):
		case <-ctx.Done():
			return
		}
	}
}

// look tells what it has not told yet, at most maxNotes; more says that there is more.
func (r *Recorder) look(ctx context.Context, view *raftstore.Snapshot) (more bool, err error) {
	var owned []eventstore.Owned
	var ended []eventstore.Deployment
	var lost []hostapi.Event
	var told []string
	here := map[string]struct{}{}
	deploys := map[string]bool{}
	fresh := func(id string) bool {
		if _, seen := r.seen[id]; seen {
			here[id] = struct{}{}
			return false
		}
		if len(told) >= maxNotes {
			more = true
			return false
		}
		told = append(told, id)
		return true
	}
	for _, d := range raftstore.All(view, record.Deployments) {
		deploys[d.SandboxID] = true
		if d.Status.Ended() && !d.FinishedAt.IsZero() && fresh(d.ID) {
			ended = append(ended, eventstore.Deployment{
				ID: d.ID, WorkspaceID: d.WorkspaceID, AppID: d.AppID, EndedAt: d.FinishedAt, Failed: d.Status == record.DeploymentFailed, Took: took(d),
			})
		}
	}
	for _, s := range raftstore.All(view, record.Sandboxes) {
		if s.Owner != nil && kindOf(s.Owner.Type) != "" && fresh(s.ID) {
			owned = append(owned, eventstore.Owned{
				SandboxID: s.ID, WorkspaceID: s.WorkspaceID, Kind: kindOf(s.Owner.Type), ResourceID: s.Owner.ID, Deploys: deploys[s.ID], CreatedAt: s.CreatedAt,
			})
		}
		if l := s.Lost; !l.At.IsZero() && fresh(s.ID+" lost "+l.At.String()) {
			lost = append(lost, hostapi.Event{
				HostID: l.HostID, Time: l.At, SandboxID: s.ID, WorkspaceID: s.WorkspaceID, Template: s.Template,
				Type: hostapi.EventLost, Code: hostapi.EventLost.Code(), Message: l.Why,
			})
		}
	}
	if len(told) > 0 {
		ctx, cancel := context.WithTimeout(ctx, noteTimeout)
		defer cancel()
		if err := r.Notes.Note(ctx, owned, ended, lost); err != nil {
			return more, err
		}
	}
	for _, id := range told {
		here[id] = struct{}{}
	}
	r.seen = here
	return more, nil
}

// took is how long a deployment took, without the time that it waited for its turn.
func took(d *record.Deployment) time.Duration {
	if d.StartedAt.IsZero() {
		return 0 // it ended before its turn came
	}
	return d.FinishedAt.Sub(d.StartedAt)
}

func kindOf(owner string) string {
	switch owner {
	case sandbox.OwnerApp:
		return eventstore.KindApp
	case sandbox.OwnerDatabase:
		return eventstore.KindDatabase
	}
	return ""
}
