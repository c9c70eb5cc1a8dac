package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// maxLog limits the log that is kept of a deployment, in bytes. The end is kept.
const maxLog = 4 << 20

// keptArtifacts is how many of the deployments that were live keep their artifacts.
const keptArtifacts = 5

// capture keeps the log and begins the snapshot of the built app. The app is not started in
// it: no variable of its environment is in the artifact, and each instance starts anew.
func (f *Flows) capture(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, _, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, lost, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	kept, err := f.keepLog(ctx, run, data.RequestID, box, d)
	if err != nil {
		return nil, err
	}
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error) {
		box, ok := raftstore.Get(tx, record.Sandboxes, data.SandboxID)
		if !ok {
			return flow.Goto(stepArtifact, data), nil // which finds out what happened to it
		}
		kept.note(d)
		d.SnapshotID = snapshot.Prefix + core.RandomText(idRandom)
		data.CaptureBy = tx.Now().Add(f.cfg.Capture)
		if last := run.Flow.Deadline.Add(-f.cfg.Health); last.Before(data.CaptureBy) { // the app needs time to start
			data.CaptureBy = last
		}
		row := &record.Snapshot{
			Meta: record.Meta{ID: d.SnapshotID}, WorkspaceID: a.WorkspaceID, Status: record.ResourceCreating, SandboxID: box.ID,
			Owner: &record.Owner{Type: sandbox.OwnerApp, ID: a.ID}, Template: box.Template, TemplateKey: box.TemplateKey, HostID: box.HostID,
			DiskMB: box.MemoryMB + box.DiskMB,
		}
		err := snapshot.Begin(tx, flow.NewID(), row, snapshot.Create{Data: resource.Data{RequestID: data.RequestID}, Generation: box.Generation})
		return flow.Goto(stepCaptured, data), err
	}), nil
}

// awaitCapture waits until the snapshot is on its host. It does not wait for the upload of
// the snapshot. An app that cannot be captured is built again when it wakes.
func (f *Flows) awaitCapture(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, _, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if _, lost, err := boxError(run.View, data.SandboxID, data.ChildID); err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	snap, ok := raftstore.Get(run.View, record.Snapshots, d.SnapshotID)
	switch pending := ok && !captured(snap); {
	case pending && f.unheard(data.SandboxID):
		data.CaptureBy = f.Clock().Add(f.cfg.Capture)
		return going(flow.Wait(stepCaptured, silence, data, record.Snapshots.Name)), nil
	case pending && f.Clock().Before(data.CaptureBy):
		return going(flow.Wait(stepCaptured, data.CaptureBy.Sub(f.Clock()), data, record.Snapshots.Name)), nil
	}
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, _ *record.App) (flow.Next, error) {
		if snap, ok := raftstore.Get(tx, record.Snapshots, d.SnapshotID); !ok || !captured(snap) {
			if err := deleteArtifact(tx, d); err != nil {
				return flow.Next{}, err
			}
			d.SnapshotID = ""
		}
		data := data // the commit may run again
		data.phase(d, phaseArtifact, tx.Now())
		return flow.Goto(stepRun, data), nil
	}), nil
}

// goLive makes a deployment live, in one transaction: its sandbox becomes the app's
// instance, and the previous instances get no new requests. loopback says that the app
// listens on loopback alone.
func (f *Flows) goLive(run flow.Run, data deploy, loopback bool) flow.Commit {
	f.Logger.Info("deployment goes live", "deployment_id", id(run.Flow, record.Deployments.Name), "sandbox_id", hostapi.ShortID(data.SandboxID))
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error) {
		box, ok := raftstore.Get(tx, record.Sandboxes, data.SandboxID)
		if !ok || box.Status != record.SandboxRunning {
			return flow.Goto(stepHealth, data), nil // which finds out what happened to the sandbox
		}
		now, data := tx.Now(), data // the commit may run again
		data.phase(d, phaseStart, now)
		d.Status, d.FinishedAt, d.Error, d.Loopback = record.DeploymentLive, now, "", loopback
		if d.Port == 0 {
			d.Port = a.Port
		}
		a = a.Clone()
		had := len(a.Instances)
		a.Draining = append(a.Draining, draining(a.Instances, now)...)
		a.Instances = []record.AppInstance{{SandboxID: box.ID, DeploymentID: d.ID, Since: now, Port: d.Port, EnvRevision: data.EnvRevision}}
		a.DeploymentID, a.Status, a.Error = d.ID, record.AppRunning, ""
		a.Stale = data.Revision != a.Revision
		raftstore.Put(tx, record.Apps, a)
		raftstore.Put(tx, record.Deployments, d.Clone())
		if err := dropArtifacts(tx, a); err != nil {
			return flow.Next{}, err
		}
		if had > 1 { // one is not left alone with what several were needed for
			if err := beginWaking(tx, a, waking{RequestID: data.RequestID, Scale: true, Until: had}); err != nil {
				return flow.Next{}, err
			}
		}
		next := flow.Done()
		if data.Cache && *f.cfg.CacheMB > 0 {
			next = flow.Goto(stepCache, data)
		}
		return next, tell(tx, api.WebhookDeploymentSucceeded, d)
	})
}

// draining returns instances as they get no new requests from now on.
func draining(of []record.AppInstance, now time.Time) []record.AppInstance {
	out := make([]record.AppInstance, len(of))
	for i, in := range of {
		in.Since = now
		out[i] = in
	}
	return out
}

// dropArtifacts deletes the artifacts of old deployments, beyond keptArtifacts. It keeps
// those that a rollback under way needs.
func dropArtifacts(tx *raftstore.Tx, a *record.App) error {
	kept, restored := map[string]bool{}, map[string]bool{}
	for _, d := range unfinished(tx, a.ID) {
		restored[d.RollbackTo] = true
	}
	rows := live(tx, a.ID)
	for i := len(rows) - 1; i >= 0; i-- {
		d := rows[i]
		switch {
		case d.SnapshotID == "", restored[d.ID]:
		case kept[d.SnapshotID], len(kept) < keptArtifacts, d.ID == a.DeploymentID:
			kept[d.SnapshotID] = true
		default:
			if err := deleteArtifact(tx, d); err != nil {
				return err
			}
			d = d.Clone()
			d.SnapshotID = ""
			raftstore.Put(tx, record.Deployments, d)
		}
	}
	return nil
}

// deleteArtifact begins to delete a deployment's snapshot, if it exists.
func deleteArtifact(tx *raftstore.Tx, d *record.Deployment) error {
	snap, ok := raftstore.Get(tx, record.Snapshots, d.SnapshotID)
	if !ok || snap.Status == record.ResourceDeleting {
		return nil
	}
	_, err := snapshot.Resource.BeginDelete(tx, flow.NewID(), snap, "")
	return err
}

// keptLog describes the kept log of a deployment, if there is one.
type keptLog struct {
	blob string
	host string // the only host that has it; "": others may have it
	from int64  // the offset of its first byte
}

func (k keptLog) note(d *record.Deployment) {
	d.LogBlob, d.LogHost, d.LogFrom = k.blob, k.host, k.from
}

// keepLog keeps the end of a build's log on a host. If that cannot be done, there is no kept
// log: no deployment fails for it. After an error the step must be repeated, because the
// sandbox with the log is deleted afterwards.
func (f *Flows) keepLog(ctx context.Context, run flow.Run, requestID string, box *record.Sandbox, d *record.Deployment) (keptLog, error) {
	bctx, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	kept := keptLog{blob: logBlob(d)}
	text, from, err := f.readLog(bctx, requestID, box)
	if err == nil {
		var at blobPlace
		at, _, err = f.putBlob(hosts.WithRequestID(bctx, requestID), kept.blob, bytes.NewReader(text))
		kept.host, kept.from = at.alone(), from
	}
	switch {
	case err == nil:
		return kept, nil
	case hosts.Superseded(ctx, err), f.Hosts.Passing(run.View, box.HostID, run.Flow.Attempt, err):
		return keptLog{}, err
	}
	f.Logger.InfoContext(ctx, "log of a deployment is not kept", "deployment_id", d.ID, "error", err)
	return keptLog{}, nil
}

// logBlob returns the name of the blob with a deployment's log.
func logBlob(d *record.Deployment) string { return logPrefix + d.ID }

// readLog reads the end of a build's log. from is the offset at which the text begins.
func (f *Flows) readLog(ctx context.Context, requestID string, box *record.Sandbox) (text []byte, from int64, err error) {
	if box.Status != record.SandboxRunning {
		return nil, 0, errBoxGone
	}
	err = f.onGuest(ctx, requestID, box, 0, func(ctx context.Context, g *appapi.Client) error {
		st, err := g.Status(ctx)
		if err != nil {
			return err
		}
		r, at, err := g.BuildLog(ctx, appapi.LogQuery{From: max(0, st.Build.LogBytes-maxLog)})
		if err != nil {
			return err
		}
		defer r.Close()
		from = at
		if text, err = io.ReadAll(io.LimitReader(r, maxLog)); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		return nil
	})
	return text, from, err
}
