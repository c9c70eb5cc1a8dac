package database

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of a delete: first the sandboxes go, then the archives, and the row with the
// last of them.
const (
	stepSandboxes = "sandboxes"
	stepArchives  = "archives"
)

// Delete removes a database with everything that it can be restored from. See core.Remove
// for how long it waits.
func (s *Databases) Delete(ctx context.Context, c core.Caller, id string) error {
	return s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		d, ok := raftstore.Get(tx, record.Databases, id)
		if !ok || d.WorkspaceID != c.WorkspaceID {
			return "", apierror.NotFound()
		}
		if clone := clonedBy(tx, d); clone != nil {
			return "", &apierror.Error{Code: apierror.EConflict, Message: "database is being cloned", Detail: "its clone " + clone.ID + " is provisioning: wait until it runs, or delete it first"}
		}
		return beginDelete(tx, flowID, d, c.RequestID)
	})
}

// clonedBy returns a clone of a database that is being created, or nil.
func clonedBy(r raftstore.Reader, d *record.Database) *record.Database {
	for _, clone := range raftstore.Find(r, record.Databases, "cloned_from", d.ID) {
		if clone.Status == record.DatabaseProvisioning {
			return clone
		}
	}
	return nil
}

// beginDelete marks a database as deleting and begins its removal, preempting any other
// flow on it. It returns the id of the flow to wait for.
func beginDelete(tx *raftstore.Tx, flowID string, d *record.Database, requestID string) (string, error) {
	if d.Status != record.DatabaseDeleting {
		c := d.Clone()
		c.Status = record.DatabaseDeleting
		raftstore.Put(tx, record.Databases, c)
	} else if live, ok := flow.Live(tx, Subject(d.ID)); ok && live.Kind == KindDelete {
		return live.ID, nil
	}
	if err := removeBoxes(tx, d); err != nil {
		return "", err
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindDelete, Subject: Subject(d.ID), Step: stepSandboxes, Data: resource.Data{RequestID: requestID},
	})
}

// removeSandboxes waits until the sandboxes are gone.
func (f *Flows) removeSandboxes(ctx context.Context, run flow.Run) (flow.Commit, error) {
	d, ok := of(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	if err := f.awaitGone(ctx, d); err != nil {
		return nil, err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if len(boxesOf(tx, d)) > 0 {
			return flow.Goto(stepSandboxes, nil), removeBoxes(tx, d)
		}
		return flow.Goto(stepArchives, nil), nil
	}, nil
}

// awaitGone waits until a database has no sandbox, for at most patience.
func (f *Flows) awaitGone(ctx context.Context, d *record.Database) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		view := f.Store.View()
		if len(boxesOf(view, d)) == 0 {
			return nil
		}
		select {
		case <-view.Changed(record.Sandboxes.Name):
		case <-late.C:
			return nil // the step's commit checks again
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// removeArchives deletes the database's archives from the bucket, then its row.
func (f *Flows) removeArchives(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data resource.Data
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	d, ok := of(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	for i := range d.Archives {
		if err := f.deleteArchive(ctx, &d.Archives[i]); err != nil {
			return nil, err
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		raftstore.Delete(tx, record.Databases, d.ID)
		return flow.Done(), nil
	}, nil
}

func (f *Flows) deleteArchive(ctx context.Context, a *record.DatabaseArchive) error {
	named, err := f.archive(a)
	if err != nil {
		return err
	}
	return f.anyHost(ctx, func(ctx context.Context, c *hosts.Client) error { return c.DeleteArchive(ctx, named) })
}
