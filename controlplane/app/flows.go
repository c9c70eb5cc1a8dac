package app

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flows.
const (
	KindDeploy = "app.deploy"
	KindWake   = "app.wake"
	KindDelete = "app.delete"
)

// blobTime limits an operation on a blob that is not the main work of a flow.
var blobTime = timescale.Limit(15 * time.Second)

// Flows implements the steps of all kinds of flows.
type Flows struct {
	*core.Core
	cfg   Config
	heard *heard
}

// Kinds returns the kinds of flows, for the engine.
func (s *Apps) Kinds() []flow.Kind {
	f := s.flows
	return []flow.Kind{
		{Name: KindDeploy, Expire: stepExpire, ActTimeout: max(f.cfg.Budget, timescale.Limit(time.Minute)), Host: f.hostOf, Workspace: workspaceOf, Steps: map[string]flow.Step{
			stepClone: f.cloneDatabases, stepCloned: f.awaitClones,
			stepQueue: f.queue, stepTemplate: f.awaitTemplate, stepSandbox: f.makeSandbox, stepBox: f.awaitBox, stepBuild: f.build, stepPoll: f.poll,
			stepRun: f.start, stepRestore: f.restore, stepRestored: f.awaitBox, stepHealth: f.awaitHealth, stepArtifact: f.capture, stepCaptured: f.awaitCapture, stepCache: f.saveCache,
			stepFlip: f.awaitCapture, stepEnd: f.end, stepExpire: f.expire,
		}},
		{Name: KindWake, ActTimeout: timescale.Limit(time.Minute), Host: f.hostOf, Workspace: workspaceOf, Steps: map[string]flow.Step{
			stepRestore: f.wake, stepRestored: f.awaitWoken, stepHealth: f.awaitServing,
		}},
		{Name: KindDelete, ActTimeout: timescale.Limit(time.Minute), Steps: map[string]flow.Step{stepClear: f.clear, stepBlobs: f.removeBlobs}},
	}
}

// hostOf returns the host that a flow calls in its present step, or "" if the step calls no
// host or any host.
func (f *Flows) hostOf(r raftstore.Reader, fl *record.Flow) string {
	switch fl.Step {
	case stepBuild, stepPoll, stepRun, stepHealth, stepCache:
	default:
		return ""
	}
	var on struct {
		SandboxID string `json:"sandbox_id"`
	}
	if json.Unmarshal(fl.Data, &on) != nil {
		return ""
	}
	box, ok := raftstore.Get(r, record.Sandboxes, on.SandboxID)
	if !ok {
		return ""
	}
	return box.HostID
}

// workspaceOf returns the workspace of the deployment or the app that a flow is about.
func workspaceOf(r raftstore.Reader, fl *record.Flow) string {
	if d, _, ok := subject(r, fl); ok {
		return d.WorkspaceID
	}
	if a, ok := of(r, fl); ok {
		return a.WorkspaceID
	}
	return ""
}

// patience returns how long a step may wait in memory. A step must not wait beyond the
// flow's deadline, which is checked only between two steps.
func (f *Flows) patience(run flow.Run) time.Duration {
	if run.Flow.Deadline.IsZero() {
		return f.cfg.Patience
	}
	return max(0, min(f.cfg.Patience, run.Flow.Deadline.Sub(f.Clock())))
}

// onHost calls the host of a sandbox.
func (f *Flows) onHost(ctx context.Context, requestID string, box *record.Sandbox, do func(ctx context.Context, c *hosts.Client) error) error {
	return f.Hosts.Call(hosts.WithRequestID(ctx, requestID), box.HostID, do)
}

// newBox returns the row of a new sandbox for an app.
func newBox(a *record.App) *record.Sandbox {
	return &record.Sandbox{
		Meta: record.Meta{ID: core.RandomText(hostapi.IDLength)}, WorkspaceID: a.WorkspaceID, Status: record.SandboxStarting,
		Owner: &record.Owner{Type: sandbox.OwnerApp, ID: a.ID}, Preview: record.PreviewToken, Template: template.App,
	}
}

// restored returns the row of a new sandbox that is restored from a deployment's artifact.
func restored(r raftstore.Reader, a *record.App, d *record.Deployment) *record.Sandbox {
	box := newBox(a)
	if snap, ok := raftstore.Get(r, record.Snapshots, d.SnapshotID); ok {
		box.FromSnapshot, box.Template, box.TemplateKey = snap.ID, snap.Template, snap.TemplateKey
	}
	return box
}

// ownedBy reports whether an owner is a certain app.
func ownedBy(o *record.Owner, appID string) bool {
	return o != nil && *o == record.Owner{Type: sandbox.OwnerApp, ID: appID}
}

// boxesOf returns all sandboxes of an app.
func boxesOf(r raftstore.Reader, a *record.App) (boxes []*record.Sandbox) {
	for _, box := range raftstore.Find(r, record.Sandboxes, "workspace", a.WorkspaceID) {
		if ownedBy(box.Owner, a.ID) {
			boxes = append(boxes, box)
		}
	}
	return boxes
}

// snapshotsOf returns all snapshots of an app.
func snapshotsOf(r raftstore.Reader, a *record.App) (rows []*record.Snapshot) {
	for _, s := range raftstore.Find(r, record.Snapshots, "workspace", a.WorkspaceID) {
		if ownedBy(s.Owner, a.ID) {
			rows = append(rows, s)
		}
	}
	return rows
}

// deleteBox begins to delete a sandbox, if it exists.
func deleteBox(tx *raftstore.Tx, id string) error {
	box, ok := raftstore.Get(tx, record.Sandboxes, id)
	if !ok || box.Status == record.SandboxDeleting {
		return nil
	}
	_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), box, "")
	return err
}

func hostUp(r raftstore.Reader, id string) bool {
	h, ok := raftstore.Get(r, record.Hosts, id)
	return ok && h.State == record.HostUp
}

// boxError returns an app's sandbox, or an error if the sandbox cannot be used. lost is true
// if the reason is the loss of its host.
func boxError(r raftstore.Reader, boxID, childID string) (box *record.Sandbox, lost bool, err error) {
	box, ok := raftstore.Get(r, record.Sandboxes, boxID)
	switch {
	case !ok:
		var own *apierror.Error
		if err := flow.Ended(r, childID, nil); asOwn(err, &own) {
			return nil, false, own
		}
		return nil, false, errBoxGone
	case box.Status == record.SandboxRunning:
		return box, false, nil
	case box.Status == record.SandboxFailed && !hostUp(r, box.HostID):
		return nil, true, &apierror.Error{Code: apierror.EConflict, Message: "its host was lost"}
	case box.Status == record.SandboxFailed:
		return nil, false, &apierror.Error{Code: apierror.EConflict, Message: "its virtual machine failed", Detail: box.Error}
	}
	return nil, false, &apierror.Error{Code: apierror.EConflict, Message: "its virtual machine is " + string(box.Status)}
}

var errBoxGone = &apierror.Error{Code: apierror.EConflict, Message: "its virtual machine is gone"}

// id returns the part of a flow's subject that follows the table's name.
func id(fl *record.Flow, table string) string { return strings.TrimPrefix(fl.Subject, table+"/") }
