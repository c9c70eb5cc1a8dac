package database

import (
	"context"
	"errors"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// paused reports whether a workspace is paused, so that nothing of it may run.
func paused(r raftstore.Reader, workspaceID string) bool {
	w, ok := raftstore.Get(r, record.Workspaces, workspaceID)
	return ok && !w.PausedAt.IsZero()
}

// stopDue reports whether a database runs although its workspace is paused.
func stopDue(r raftstore.Reader, d *record.Database, box *record.Sandbox) bool {
	if !paused(r, d.WorkspaceID) || d.Status != record.DatabaseReady || box.Status != record.SandboxRunning {
		return false
	}
	_, under := flow.Live(r, Subject(d.ID))
	return !under
}

// stop puts a database to sleep because its workspace is paused, whether or not clients
// are connected. It archives its WAL first; what a busy one writes after that, when it
// wakes. Until then a clone from the archive lacks it. It reports whether the host failed to.
func (k *keeper) stop(ctx context.Context, id string) (failed bool) {
	view, err := k.Store.VerifiedView(ctx)
	if err != nil {
		return false
	}
	d, ok := raftstore.Get(view, record.Databases, id)
	if !ok {
		return false
	}
	box, ok := raftstore.Get(view, record.Sandboxes, d.SandboxID)
	if !ok || !stopDue(view, d, box) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, sleepTimeout)
	defer cancel()
	attrs := []any{"database_id", id, "sandbox_id", hostapi.ShortID(box.ID), "agent_id", box.HostID}
	var asleep hostapi.Box
	err = k.flows.Hosts.Call(ctx, box.HostID, func(ctx context.Context, c *hosts.Client) (err error) {
		asleep, err = c.SleepDatabase(ctx, box.ID, hostapi.DatabaseSleep{})
		return err
	})
	if err == nil {
		_, err = k.flows.sandboxes.Note(ctx, box, asleep)
	} else if ctx.Err() == nil && !hosts.Unreachable(err) {
		k.archiveRest(ctx, d, box)
		_, err = k.flows.sandboxes.HibernateFor(ctx, box)
	}
	switch {
	case err == nil:
		k.Logger.InfoContext(ctx, "database of a paused workspace sleeps", attrs...)
	case !errors.Is(ctx.Err(), context.Canceled):
		k.Logger.WarnContext(ctx, "database of a paused workspace could not be put to sleep", append(attrs, "error", err)...)
		return true
	}
	return false
}

// archiveRest makes a busy database archive what it has written. If it cannot, it is put
// to sleep all the same: nothing of a paused workspace may run.
func (k *keeper) archiveRest(ctx context.Context, d *record.Database, box *record.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	err := k.flows.Hosts.Call(ctx, box.HostID, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.SwitchWAL(ctx, box.ID)
		return err
	})
	if err != nil {
		k.Logger.InfoContext(ctx, "database of a paused workspace did not archive its latest WAL", "database_id", d.ID, "error", err)
	}
}
