package app

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of a delete. The first removes deployments, sandboxes and artifacts; the second
// removes the blobs and, after the last blob, the rows.
const (
	stepClear = "clear"
	stepBlobs = "blobs"
)

// blobTries is how often the deletion of blobs is tried before the rest is left on the
// hosts.
const blobTries = 8

// Delete removes an app with everything that belongs to it; see core.Remove for how long it
// waits.
func (s *Apps) Delete(ctx context.Context, c core.Caller, id string) error {
	return s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		a, ok := raftstore.Get(tx, record.Apps, id)
		if !ok || a.WorkspaceID != c.WorkspaceID || a.Kind != s.kind {
			return "", apierror.NotFound()
		}
		return beginDelete(tx, flowID, a, c.RequestID)
	})
}

// beginDelete marks an app as deleting and begins its removal, whatever is under way for the
// app. It returns the id of the flow to wait for.
func beginDelete(tx *raftstore.Tx, flowID string, a *record.App, requestID string) (string, error) {
	if a.Status != record.AppDeleting {
		a = a.Clone()
		a.Draining = slices.Concat(a.Draining, draining(a.Instances, tx.Now()), starting(tx, a))
		a.Status, a.Instances = record.AppDeleting, nil
		for i := range a.Draining {
			a.Draining[i].Ending = true
		}
		raftstore.Put(tx, record.Apps, a)
		for _, d := range raftstore.Find(tx, record.Domains, "app", a.ID) {
			raftstore.Delete(tx, record.Domains, d.ID)
		}
	} else if live, ok := flow.Live(tx, Subject(a.ID)); ok && live.Kind == KindDelete {
		return live.ID, nil
	}
	if err := clearApp(tx, a); err != nil {
		return "", err
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: KindDelete, Subject: Subject(a.ID), Step: stepClear, Data: resource.Data{RequestID: requestID},
	})
}

// starting returns the sandboxes in which an app's program may run although they are no
// instances yet: those that run, and in which nothing is being built.
func starting(tx *raftstore.Tx, a *record.App) (out []record.AppInstance) {
	builds := map[string]bool{}
	for _, d := range unfinished(tx, a.ID) {
		builds[d.SandboxID] = d.Status != record.DeploymentDeploying
	}
	for _, box := range boxesOf(tx, a) {
		if box.Status == record.SandboxRunning && !builds[box.ID] && instance(a, box.ID) < 0 && !drains(a, box.ID) {
			out = append(out, record.AppInstance{SandboxID: box.ID, Since: tx.Now()})
		}
	}
	return out
}

// drains reports whether a sandbox of an app is one that drains.
func drains(a *record.App, sandboxID string) bool {
	return slices.ContainsFunc(a.Draining, func(in record.AppInstance) bool { return in.SandboxID == sandboxID })
}

// clearApp ends an app's deployments and begins to delete its sandboxes and snapshots.
// Those in which its program runs go when that has ended: see keeper.endDrained.
func clearApp(tx *raftstore.Tx, a *record.App) error {
	for _, d := range unfinished(tx, a.ID) {
		if err := abandon(tx, d, whyDeleted, false); err != nil {
			return err
		}
	}
	for _, box := range boxesOf(tx, a) {
		if drains(a, box.ID) {
			continue
		}
		if err := deleteBox(tx, box.ID); err != nil {
			return err
		}
	}
	for _, s := range snapshotsOf(tx, a) {
		if s.Status == record.ResourceDeleting {
			continue
		}
		if _, err := snapshot.Resource.BeginDelete(tx, flow.NewID(), s, ""); err != nil {
			return err
		}
	}
	return nil
}

// cleared reports whether only rows and blobs are left of an app.
func cleared(r raftstore.Reader, a *record.App) bool {
	if len(boxesOf(r, a)) > 0 || len(snapshotsOf(r, a)) > 0 {
		return false
	}
	for _, d := range deploymentsOf(r, a.ID) {
		if _, under := flow.Live(r, DeploymentSubject(d.ID)); under || !d.Status.Ended() {
			return false
		}
	}
	return true
}

// clear waits until only rows and blobs are left of an app.
func (f *Flows) clear(ctx context.Context, run flow.Run) (flow.Commit, error) {
	a, ok := of(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	late := time.NewTimer(f.patience(run))
	defer late.Stop()
	for waiting := true; waiting; {
		view := f.Store.View()
		if cleared(view, a) {
			break
		}
		select {
		case <-view.Changed(record.Sandboxes.Name, record.Snapshots.Name, record.Flows.Name):
		case <-late.C:
			waiting = false // the commit checks again
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if !cleared(tx, a) {
			return flow.Goto(stepClear, nil), clearApp(tx, a)
		}
		return flow.Goto(stepBlobs, nil), nil
	}, nil
}

// removeBlobs deletes an app's blobs and then its rows. A host that does not answer for a
// long time keeps its blobs.
func (f *Flows) removeBlobs(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data resource.Data
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	a, ok := of(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	hctx := hosts.WithRequestID(ctx, data.RequestID)
	for name, at := range blobsOf(run.View, a) {
		err := f.deleteBlob(hctx, at, name)
		switch {
		case err == nil:
		case run.Flow.Attempt < blobTries || ctx.Err() != nil:
			return nil, err
		default:
			f.Logger.WarnContext(ctx, "blob of a deleted app is left on its host", "app_id", a.ID, "blob", name, "error", err)
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		rows := deploymentsOf(tx, a.ID)
		for _, d := range rows[:min(len(rows), manyRows)] {
			raftstore.Delete(tx, record.Deployments, d.ID)
		}
		if len(rows) > manyRows {
			return flow.Goto(stepBlobs, nil), nil
		}
		raftstore.Delete(tx, record.Apps, a.ID)
		return flow.Done(), nil
	}, nil
}

// manyRows limits the rows that are deleted in one transaction.
const manyRows = 200

// blobsOf returns the places of an app's blobs, by name.
func blobsOf(r raftstore.Reader, a *record.App) map[string]blobPlace {
	blobs := map[string]blobPlace{}
	for _, u := range a.Uploads {
		blobs[u.ID] = placeOf(u)
	}
	if a.Cache != nil {
		blobs[a.Cache.ID] = placeOf(*a.Cache)
	}
	if a.Log != nil {
		blobs[a.Log.ID] = placeOf(*a.Log)
	}
	for _, d := range deploymentsOf(r, a.ID) {
		if !d.StartedAt.IsZero() { // an interrupted step may have kept its log
			blobs[logBlob(d)] = logPlace(d)
		}
	}
	return blobs
}
