package app

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of a wake, which brings up one more instance of an app.
//
//	restore ──► restored ──► health, which starts the app ──► (running)
//	   ▲           └───────────┤ its host or its sandbox is lost, once
//	   └───────────────────────┘
//
// An app without a usable artifact is deployed anew. An app that does not start from its
// artifact is not, because the same build would start no better: the wake fails, and the next
// one tries the artifact again. If the instance was to be an additional one, or to replace
// another one, the wake ends without an instance in both cases.

// waking is the data of a wake's flow.
type waking struct {
	RequestID string `json:"request_id,omitempty"`
	Scale     bool   `json:"scale,omitempty"`  // the app runs and gets one more instance
	Until     int    `json:"until,omitempty"`  // with Scale: one instance after the other, up to so many
	Leaves    string `json:"leaves,omitempty"` // the app runs and the instance replaces this sandbox
	Lost      bool   `json:"lost,omitempty"`   // a sandbox or its host was lost during it

	DeploymentID string    `json:"deployment_id,omitempty"`
	SandboxID    string    `json:"sandbox_id,omitempty"`
	ChildID      string    `json:"child_id,omitempty"`
	HealthBy     time.Time `json:"health_by,omitzero"`
	EnvRevision  uint64    `json:"env_revision,omitempty"` // that the app is started with
}

// beginWake begins a wake of an app, unless a flow is already under way for the app. An app
// without an instance waits for the wake.
func beginWake(tx *raftstore.Tx, a *record.App, scale bool) error {
	return beginWaking(tx, a, waking{Scale: scale})
}

func beginWaking(tx *raftstore.Tx, a *record.App, data waking) error {
	if liveFlow(tx, a) {
		return nil
	}
	return flow.Begin(tx, flow.New{ID: flow.NewID(), Kind: KindWake, Subject: Subject(a.ID), Step: stepRestore, Data: data})
}

// more reports whether the app serves during the wake.
func (w waking) more() bool { return w.Scale || w.Leaves != "" }

// wanted finds the app of a wake and reports whether the app still wants the instance.
func wanted(r raftstore.Reader, fl *record.Flow, data waking) (*record.App, bool) {
	a, ok := of(r, fl)
	switch {
	case !ok:
		return nil, false
	case data.DeploymentID != "" && data.DeploymentID != a.DeploymentID: // another one is live by now
		return a, false
	case data.Leaves != "":
		return a, a.Status == record.AppRunning && instance(a, data.Leaves) >= 0
	case data.Scale:
		return a, a.Status == record.AppRunning && len(a.Instances) > 0 && len(a.Instances) < a.MaxInstances
	}
	return a, a.Status == record.AppWaking && len(a.Instances) == 0
}

// waken loads the data and the app of a wake's step. It returns false if the instance is no
// longer wanted.
func waken(run flow.Run, data *waking) (*record.App, bool, error) {
	if err := run.Data(data); err != nil {
		return nil, false, err
	}
	a, ok := wanted(run.View, run.Flow, *data)
	return a, ok, nil
}

// leave ends a wake that is no longer wanted.
func leave(data waking) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) { return flow.Done(), deleteBox(tx, data.SandboxID) }
}

// wake begins to create a sandbox from the artifact of the live deployment.
func (f *Flows) wake(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data waking
	if _, ok, err := waken(run, &data); err != nil || !ok {
		return leave(data), err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		a, ok := wanted(tx, run.Flow, data)
		if !ok {
			return leave(data)(tx)
		}
		if err := deleteBox(tx, data.SandboxID); err != nil {
			return flow.Next{}, err
		}
		d, ok := raftstore.Get(tx, record.Deployments, a.DeploymentID)
		// While the app serves, one more instance of the same deployment is as current as
		// the others.
		if !ok || a.Stale && !data.more() || !usable(tx, d) {
			return f.redeploy(tx, run, data)
		}
		box := restored(tx, a, d)
		data.DeploymentID, data.SandboxID, data.ChildID, data.HealthBy = d.ID, box.ID, flow.NewID(), time.Time{}
		create := sandbox.Create{Data: resource.Data{RequestID: data.RequestID}, Tried: f.beside(tx, a, d)}
		if err := f.cfg.Sandboxes.Flows.BeginFor(tx, run.Flow.ID, data.ChildID, box, create); err != nil {
			return flow.Next{}, err
		}
		return flow.Join(stepRestored, data), nil
	}, nil
}

// beside returns the hosts to avoid for one more instance: those of the app's instances, if
// any other host has room.
func (f *Flows) beside(r raftstore.Reader, a *record.App, d *record.Deployment) (ids []string) {
	snap, ok := raftstore.Get(r, record.Snapshots, d.SnapshotID)
	if !ok || !snap.Stored {
		return nil
	}
	for _, in := range a.Instances {
		if box, ok := raftstore.Get(r, record.Sandboxes, in.SandboxID); ok && box.HostID != "" {
			ids = append(ids, box.HostID)
		}
	}
	req := placement.Request{
		Template: snap.Template, Exclude: ids, Stored: true, Size: &placement.Template{CPU: snap.CPU, MemoryMB: snap.MemoryMB, DiskMB: snap.DiskMB},
	}
	if len(ids) > 0 && f.Hosts.Choosable(r, req) == nil {
		return ids
	}
	return nil
}

// awaitWoken continues with the sandbox that the child flow has created.
func (f *Flows) awaitWoken(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data waking
	if _, ok, err := waken(run, &data); err != nil || !ok {
		return leave(data), err
	}
	if _, lost, err := boxError(run.View, data.SandboxID, data.ChildID); err != nil {
		return f.unwoken(run, data, lost, err), nil
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		data.HealthBy = tx.Now().Add(f.cfg.Health)
		return flow.Goto(stepHealth, data), nil
	}, nil
}

// unwoken continues a wake without a sandbox. If the sandbox or its host was lost, the wake
// begins again, once. If there is no room, it fails. Otherwise the app is deployed anew. An
// instance that was additional, or was to replace another one, is given up instead.
func (f *Flows) unwoken(run flow.Run, data waking, lost bool, why error) flow.Commit {
	f.Logger.Warn("artifact of an app was not restored", "flow_id", run.Flow.ID, "app_id", id(run.Flow, record.Apps.Name), "step", run.Flow.Step, "error", why)
	return func(tx *raftstore.Tx) (flow.Next, error) {
		switch {
		case lost && !data.Lost:
			data := data // the commit may run again
			data.Lost = true
			return flow.Goto(stepRestore, data), nil
		case data.Leaves != "":
			return f.notReplaced(tx, run, data, reasonOf(why))
		case data.Scale:
			return leave(data)(tx)
		case errors.Is(why, core.ErrNoHost), errors.Is(why, core.ErrUnreachable):
			return f.wakeFailed(tx, run, data, why)
		}
		return f.redeploy(tx, run, data)
	}
}

// unstarted ends a wake whose app was started and does not answer.
func (f *Flows) unstarted(run flow.Run, data waking, why error) flow.Commit {
	f.Logger.Info("app does not start from its artifact", "flow_id", run.Flow.ID, "app_id", id(run.Flow, record.Apps.Name), "error", why)
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if data.Leaves != "" {
			return f.notReplaced(tx, run, data, reasonOf(why))
		}
		return f.wakeFailed(tx, run, data, why)
	}
}

// wakeFailed ends a wake and marks the app as failed. The next request tries again.
func (f *Flows) wakeFailed(tx *raftstore.Tx, run flow.Run, data waking, why error) (flow.Next, error) {
	if a, ok := wanted(tx, run.Flow, data); ok && !data.more() {
		a = a.Clone()
		a.Status, a.Error = record.AppFailed, reasonOf(why)
		raftstore.Put(tx, record.Apps, a)
	}
	return flow.Fail(why), deleteBox(tx, data.SandboxID)
}

// redeploy ends a wake with a deployment in its place: one that is under way, or else a new
// one of the live version. The new one builds the app's branch, or the ref that the live
// deployment was asked for instead, if the repository is still the same. After a rollback
// that ref is a commit.
func (f *Flows) redeploy(tx *raftstore.Tx, run flow.Run, data waking) (flow.Next, error) {
	if err := deleteBox(tx, data.SandboxID); err != nil {
		return flow.Next{}, err
	}
	a, ok := wanted(tx, run.Flow, data)
	switch {
	case ok && data.Leaves != "":
		return f.notReplaced(tx, run, data, "its artifact cannot be used: deploy it again")
	case !ok || data.Scale:
		return flow.Done(), nil
	}
	if len(unfinished(tx, a.ID)) > 0 {
		return flow.Done(), nil // their result will serve; the version before them must not come after them
	}
	d := &record.Deployment{Meta: record.Meta{ID: newDeploymentID()}, Trigger: triggerWake}
	if last, ok := raftstore.Get(tx, record.Deployments, a.DeploymentID); ok {
		if _, missing := upload(tx, a, last.SourceID); missing == "" { // a later upload may have failed
			d.SourceID = last.SourceID
		} else if last.Source == sourceUpload { // not the newest upload: it may never have been deployed
			return f.wakeFailed(tx, run, data, &apierror.Error{Code: apierror.EConflict, Message: "its artifact cannot be used, and its source is gone", Detail: missing})
		} else if !last.OfBranch && last.GitURL == a.GitURL {
			d.GitRef = last.GitRef
		}
	}
	if err := sourceOf(tx, a, d); err != nil {
		return f.wakeFailed(tx, run, data, err)
	}
	return flow.Done(), beginDeploy(tx, a, d, data.RequestID)
}

// awaitServing starts the app, with the environment of this moment, waits until it answers,
// and then lets it serve.
func (f *Flows) awaitServing(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data waking
	a, ok, err := waken(run, &data)
	if err != nil || !ok {
		return leave(data), err
	}
	box, _, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil { // it was restored before, so what it was restored from is not at fault
		return f.unwoken(run, data, true, err), nil
	}
	d, ok := raftstore.Get(run.View, record.Deployments, data.DeploymentID)
	if !ok {
		return f.unwoken(run, data, false, errBoxGone), nil
	}
	port := cmp.Or(d.Port, a.Port)
	late := time.NewTimer(f.patience(run))
	defer late.Stop()
	tick := time.NewTicker(wokenEvery)
	defer tick.Stop()
	var looked time.Time // at an app that did not answer
	for started := false; ; {
		over := !f.Clock().Before(data.HealthBy) // before the probe: this replica may be stopped during it
		var got answer
		if !started {
			err = f.startIn(ctx, data.RequestID, box, d, a, port)
			started, data.EnvRevision = err == nil, a.EnvRevision
		}
		if started {
			got, err = f.probe(ctx, data.RequestID, box, a.ID, port)
		}
		switch now := f.Clock(); {
		case err == nil && got == answered:
			return f.serve(run, data, port), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && f.unheard(box.ID):
			data.HealthBy = now.Add(f.cfg.Health)
		case err != nil && (over || refused(err)):
			return f.unwoken(run, data, false, err), nil
		case err == nil && (over || now.Sub(looked) >= healthEvery):
			looked = now
			if why := f.hopeless(ctx, data.RequestID, box, a.Kind, got, port, over); why != nil {
				return f.unstarted(run, data, why), nil
			}
		}
		select {
		case <-tick.C:
		case <-late.C:
			return going(flow.Goto(stepHealth, data)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serve adds the woken instance to those that serve the app.
func (f *Flows) serve(run flow.Run, data waking, port int) flow.Commit {
	f.Logger.Info("app is served by one more instance", "app_id", id(run.Flow, record.Apps.Name), "sandbox_id", hostapi.ShortID(data.SandboxID), "scale", data.Scale, "leaves", hostapi.ShortID(data.Leaves))
	return func(tx *raftstore.Tx) (flow.Next, error) {
		a, ok := wanted(tx, run.Flow, data)
		if !ok {
			return leave(data)(tx)
		}
		box, ok := raftstore.Get(tx, record.Sandboxes, data.SandboxID)
		if !ok || box.Status != record.SandboxRunning {
			return flow.Goto(stepHealth, data), nil // which finds out what happened to the sandbox
		}
		a = a.Clone()
		a.Status, a.Error = record.AppRunning, ""
		a.Instances = append(a.Instances, record.AppInstance{SandboxID: box.ID, DeploymentID: data.DeploymentID, Since: tx.Now(), Port: port, EnvRevision: data.EnvRevision})
		if data.Leaves != "" {
			replace(tx, a, data.Leaves)
		}
		raftstore.Put(tx, record.Apps, a)
		if len(a.Instances) < data.Until {
			return flow.Goto(stepRestore, waking{RequestID: data.RequestID, Scale: true, Until: data.Until}), nil
		}
		return flow.Done(), nil
	}
}
