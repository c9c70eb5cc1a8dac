package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps of a deployment.
//
//	(clone ──► cloned ──►)
//	queue ──► template ──► sandbox ──► box ──► build ──► poll ──► artifact ──► captured ──► run ──► health ──► (live) ──► cache
//	  │                       ▲          └──────────┴────────┴──────────┴────────────┴─────────┤ its host is lost, once
//	  │                       └────────────────────────────────────────────────────────────────┘
//	  └► restore ──► restored ──► run (a rollback with a usable artifact)
//
// All other failures, an exceeded budget (expire) and a cancel lead to end, which keeps the
// log, deletes the sandbox and records the reason in the row.
const (
	stepClone    = "clone"    // for a preview: begin to clone its databases
	stepCloned   = "cloned"   // wait for the clones
	stepQueue    = "queue"    // wait until the app's older deployments have ended
	stepTemplate = "template" // wait until the template of apps is built
	stepSandbox  = "sandbox"  // create a sandbox from it, in a child flow
	stepBox      = "box"      // wait until the sandbox runs
	stepBuild    = "build"    // give guestapp the source and start the build
	stepPoll     = "poll"     // wait for the build
	stepRestore  = "restore"  // create a sandbox from an artifact, in a child flow
	stepRestored = "restored" // wait until the sandbox runs
	stepArtifact = "artifact" // keep the log and begin a snapshot
	stepCaptured = "captured" // wait for the snapshot
	stepRun      = "run"      // start the app
	stepHealth   = "health"   // wait until the app answers, then send requests to the sandbox
	stepCache    = "cache"    // live already: keep the build's caches
	stepFlip     = "flip"     // what waits for the snapshot in flows of earlier versions
	stepEnd      = "end"
	stepExpire   = "expire"
)

// deploy is the data of a deployment's flow.
type deploy struct {
	RequestID string    `json:"request_id,omitempty"`
	Since     time.Time `json:"since"` // when the present phase began
	Begun     bool      `json:"begun,omitempty"`
	Asked     bool      `json:"asked,omitempty"` // the build of the template was requested
	Waits     bool      `json:"waits,omitempty"` // for the template, which its budget does not count
	Lost      bool      `json:"lost,omitempty"`  // a host was lost during it

	SandboxID string `json:"sandbox_id,omitempty"`
	ChildID   string `json:"child_id,omitempty"` // the flow that creates the sandbox
	Restored  bool   `json:"restored,omitempty"` // the sandbox was restored from an artifact
	Revision  uint64 `json:"revision,omitempty"` // of the settings at the build, or when a rollback was requested
	Cache     bool   `json:"cache,omitempty"`    // the build has caches to keep
	Private   bool   `json:"private,omitempty"`  // the build was given variables that are not for previews

	CloneBy time.Time `json:"clone_by,omitzero"` // until when to wait for a database that cannot be cloned yet

	NoToken   string    `json:"no_token,omitempty"`  // why the repository is cloned without a token
	TokenBy   time.Time `json:"token_by,omitzero"`   // until when to wait for a token
	Silent    time.Time `json:"silent,omitzero"`     // since when the guest has not answered
	HealthBy  time.Time `json:"health_by,omitzero"`  // until when the app must answer
	CaptureBy time.Time `json:"capture_by,omitzero"` // until when to wait for the artifact

	EnvRevision uint64 `json:"env_revision,omitempty"` // that the app was started with

	Why string `json:"why,omitempty"` // why it fails
}

// subject finds the deployment that a flow is about, and its app.
func subject(r raftstore.Reader, fl *record.Flow) (*record.Deployment, *record.App, bool) {
	d, ok := raftstore.Get(r, record.Deployments, id(fl, record.Deployments.Name))
	if !ok {
		return nil, nil, false
	}
	a, ok := raftstore.Get(r, record.Apps, d.AppID)
	return d, a, ok
}

// deploying is subject, but returns false if nothing is left to do.
func deploying(r raftstore.Reader, fl *record.Flow) (*record.Deployment, *record.App, bool) {
	d, a, ok := subject(r, fl)
	return d, a, ok && !d.Status.Ended() && a.Status != record.AppDeleting
}

// step loads the data and the rows of a deployment's step. It returns false if nothing is
// left to do.
func step(run flow.Run, data *deploy) (*record.Deployment, *record.App, bool, error) {
	if err := run.Data(data); err != nil {
		return nil, nil, false, err
	}
	d, a, ok := deploying(run.View, run.Flow)
	return d, a, ok, nil
}

// going returns the commit of a step that changes no record.
func going(next flow.Next) flow.Commit {
	return func(*raftstore.Tx) (flow.Next, error) { return next, nil }
}

// changing returns the commit of a step that changes the deployment.
func changing(run flow.Run, change func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error)) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, a, ok := deploying(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		d = d.Clone()
		next, err := change(tx, d, a)
		if err == nil {
			raftstore.Put(tx, record.Deployments, d)
		}
		return next, err
	}
}

// phase ends the present phase of a deployment and begins the next.
func (p *deploy) phase(d *record.Deployment, name string, now time.Time) {
	addPhase(d, name, now.Sub(p.Since))
	p.Since = now
}

// queue waits until all older deployments of the app have ended.
func (f *Flows) queue(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if _, _, ok, err := step(run, &data); err != nil || !ok {
		return resource.Finish, err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, a, ok := deploying(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		if first := unfinished(tx, a.ID)[0]; first.ID != d.ID {
			return flow.Wait(stepQueue, time.Minute, data, record.Deployments.Name), nil
		}
		if err := f.mayBegin(tx, a, d); err != nil {
			return f.fail(data, err)(tx)
		}
		d, data := d.Clone(), data // the commit may run again
		data.phase(d, phaseQueue, tx.Now())
		d.StartedAt = tx.Now()
		deadline := tx.Now().Add(f.cfg.Budget)
		if to, ok := raftstore.Get(tx, record.Deployments, d.RollbackTo); ok && usable(tx, to) {
			d.Status = record.DeploymentDeploying
			raftstore.Put(tx, record.Deployments, d)
			return flow.Goto(stepRestore, data).By(deadline), nil
		}
		next, err := building(tx, d, data)
		raftstore.Put(tx, record.Deployments, d)
		return next.By(deadline), err
	}, nil
}

// mayBegin refuses a deployment whose workspace may not run anything by now. A suspended one
// gets what it had in place of what it has lost.
func (f *Flows) mayBegin(r raftstore.Reader, a *record.App, d *record.Deployment) error {
	if ws, ok := raftstore.Get(r, record.Workspaces, a.WorkspaceID); ok && ws.Suspended && d.Trigger != triggerWake {
		return &apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	}
	return f.MayGoOn(r, a.WorkspaceID)
}

// building sends a deployment to its build, for the first time or again.
func building(tx *raftstore.Tx, d *record.Deployment, data deploy) (flow.Next, error) {
	d.Status = record.DeploymentBuilding
	if !data.Begun {
		data.Begun = true
		if err := tell(tx, api.WebhookDeploymentBuilding, d); err != nil {
			return flow.Next{}, err
		}
	}
	return flow.Goto(stepTemplate, data), nil
}

// awaitTemplate requests the build of the template, if needed, and waits for it. The
// deployment pays for that with none of its budget.
func (f *Flows) awaitTemplate(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if _, _, ok, err := step(run, &data); err != nil || !ok {
		return resource.Finish, err
	}
	none := core.NoNode(&placement.Error{Reason: placement.UnknownTemplate})
	t, known := template.Operators(run.View, template.App)
	switch {
	case known && t.BuildID != "" && data.Waits: // the budget begins now
		data.Waits = false
		return func(tx *raftstore.Tx) (flow.Next, error) {
			return flow.Goto(stepSandbox, data).By(tx.Now().Add(f.cfg.Budget)), nil
		}, nil
	case known && t.BuildID != "":
		return going(flow.Goto(stepSandbox, data)), nil
	case !known && !f.cfg.Templates.Flows.Known(template.App) && !f.Hosts.Warming(run.View):
		return f.fail(data, none), nil
	case known && data.Asked && t.Status == record.TemplateFailed:
		return f.fail(data, template.Unbuildable(template.App, t.Error)), nil
	}
	begins := !data.Waits
	data.Asked, data.Waits = data.Asked || known, true
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if known {
			if _, err := f.cfg.Templates.Flows.Ask(tx, template.App, data.RequestID); errors.Is(err, template.ErrNoSource) {
				return f.fail(data, none)(tx)
			} else if err != nil && !errors.Is(err, template.ErrUnknown) {
				return flow.Next{}, err
			}
		}
		next := flow.Wait(stepTemplate, time.Second, data, record.Templates.Name)
		if begins {
			next = next.By(tx.Now().Add(template.BuildWait))
		}
		return next, nil
	}, nil
}

// makeSandbox begins to create the sandbox in which the app is built. The app is built with
// the settings of this moment.
func (f *Flows) makeSandbox(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if _, _, ok, err := step(run, &data); err != nil || !ok {
		return resource.Finish, err
	}
	t, known := template.Operators(run.View, template.App)
	if !known || t.BuildID == "" {
		return going(flow.Goto(stepTemplate, data)), nil
	}
	req := placement.Request{Template: t.Name}
	if b, ok := raftstore.Get(run.View, record.Builds, t.BuildID); ok {
		req.Builds = b.Digests()
	}
	if none, ok := errors.AsType[*placement.Error](f.Hosts.Choosable(run.View, req)); ok && none.Reason == placement.TemplateUnready {
		return going(flow.Sleep(stepSandbox, time.Second, data)), nil // no host has the template yet
	}
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error) {
		box := newBox(a)
		box.BuildID = t.BuildID
		data.Revision = a.Revision
		return f.beginBox(tx, run, d, data, box, stepBox)
	}), nil
}

// beginBox begins to create a deployment's sandbox, in place of the previous one.
func (f *Flows) beginBox(tx *raftstore.Tx, run flow.Run, d *record.Deployment, data deploy, box *record.Sandbox, then string) (flow.Next, error) {
	if err := deleteBox(tx, d.SandboxID); err != nil {
		return flow.Next{}, err
	}
	d.SandboxID = box.ID
	data.SandboxID, data.ChildID, data.Silent, data.HealthBy = box.ID, flow.NewID(), time.Time{}, time.Time{}
	create := sandbox.Create{Data: resource.Data{RequestID: data.RequestID}}
	if err := f.cfg.Sandboxes.Flows.BeginFor(tx, run.Flow.ID, data.ChildID, box, create); err != nil {
		return flow.Next{}, err
	}
	return flow.Join(then, data), nil
}

// restore begins to create a sandbox from the artifact of the deployment to roll back to.
func (f *Flows) restore(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if _, _, ok, err := step(run, &data); err != nil || !ok {
		return resource.Finish, err
	}
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error) {
		to, ok := raftstore.Get(tx, record.Deployments, d.RollbackTo)
		if !ok || !usable(tx, to) {
			return building(tx, d, data)
		}
		d.Port, d.Framework, d.Runtime, d.StartCommand = to.Port, to.Framework, to.Runtime, to.StartCommand
		d.SnapshotID = to.SnapshotID
		data.Restored = true
		return f.beginBox(tx, run, d, data, restored(tx, a, to), stepRestored)
	}), nil
}

// awaitBox continues with the sandbox that the child flow has created.
func (f *Flows) awaitBox(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if _, _, ok, err := step(run, &data); err != nil || !ok {
		return resource.Finish, err
	}
	if _, lost, err := boxError(run.View, data.SandboxID, data.ChildID); err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, _ *record.App) (flow.Next, error) {
		data := data // the commit may run again
		data.phase(d, phaseSandbox, tx.Now())
		if data.Restored {
			return flow.Goto(stepRun, data), nil
		}
		return flow.Goto(stepBuild, data), nil
	}), nil
}

// boxless continues without a sandbox. If the host was lost, the deployment begins again,
// once. If an artifact cannot be restored, the deployment is built. Otherwise it fails.
func (f *Flows) boxless(run flow.Run, data deploy, lost bool, why error) flow.Commit {
	switch {
	case lost && data.Lost:
		return f.fail(data, &apierror.Error{Code: apierror.EConflict, Message: "its host was lost, and the one after it too"})
	case !lost && !data.Restored, !lost && errors.Is(why, core.ErrNoHost):
		return f.fail(data, why)
	}
	f.Logger.Warn("deployment begins again", "flow_id", run.Flow.ID, "deployment_id", id(run.Flow, record.Deployments.Name), "step", run.Flow.Step, "error", why)
	return f.again(run, data, lost)
}

// again begins a deployment again, on another host if its host was lost.
func (f *Flows) again(run flow.Run, data deploy, lost bool) flow.Commit {
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, _ *record.App) (flow.Next, error) {
		if err := deleteBox(tx, d.SandboxID); err != nil {
			return flow.Next{}, err
		}
		if !data.Restored {
			if err := deleteArtifact(tx, d); err != nil {
				return flow.Next{}, err
			}
		}
		to, known := raftstore.Get(tx, record.Deployments, d.RollbackTo)
		restorable := lost && data.Restored && known && usable(tx, to)
		data := deploy{RequestID: data.RequestID, Since: tx.Now(), Begun: data.Begun, Asked: data.Asked, Lost: data.Lost || lost, Revision: data.Revision}
		keptLog{}.note(d)
		d.SandboxID, d.SnapshotID, d.Phases = "", "", d.Phases[:min(len(d.Phases), 1)]
		if restorable {
			return flow.Goto(stepRestore, data), nil
		}
		return building(tx, d, data)
	})
}

// fail makes a deployment fail, through its last step.
func (f *Flows) fail(data deploy, why error) flow.Commit {
	data.Why = reasonOf(why)
	return going(flow.Goto(stepEnd, data))
}

// expire ends a deployment that took too long. If it is live already, its caches are not
// kept.
func (f *Flows) expire(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, _, ok, err := step(run, &data)
	switch {
	case err != nil:
		return nil, err
	case !ok && data.Cache:
		return f.forgetCache(run, data), nil
	case !ok:
		return resource.Finish, nil
	}
	if data.Why == "" && data.Waits {
		data.Why = fmt.Sprintf("the template %s was not built within %s", template.App, template.BuildWait)
	}
	if data.Why == "" {
		data.Why = f.tooLong(d)
	}
	return f.endWith(ctx, run, data)
}

// tooLong says why an expired deployment fails.
func (f *Flows) tooLong(d *record.Deployment) string {
	why := fmt.Sprintf("it took longer than %s", f.cfg.Budget)
	if n := len(d.Phases); n > 0 {
		why += ", the phase after " + d.Phases[n-1].Name
	}
	return why
}

// end fails a deployment for the reason in the flow's data.
func (f *Flows) end(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	return f.endWith(ctx, run, data)
}

func (f *Flows) endWith(ctx context.Context, run flow.Run, data deploy) (flow.Commit, error) {
	d, a, ok := subject(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	kept := keptLog{d.LogBlob, d.LogHost, d.LogFrom}
	if box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID); ok && kept.blob == "" && a.Status != record.AppDeleting {
		var err error
		if kept, err = f.keepLog(ctx, run, data.RequestID, box, d); err != nil {
			return nil, err
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, _, ok := subject(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		if !d.Status.Ended() {
			if err := failDeployment(tx, d, data.Why, false); err != nil {
				return flow.Next{}, err
			}
			d, _ = raftstore.Get(tx, record.Deployments, d.ID)
		}
		if d.Status != record.DeploymentFailed { // it is live
			return flow.Done(), nil
		}
		if err := dropBuild(tx, d); err != nil {
			return flow.Next{}, err
		}
		d = d.Clone()
		kept.note(d)
		d.SnapshotID = ""
		raftstore.Put(tx, record.Deployments, d)
		return flow.Fail(&apierror.Error{Code: apierror.EConflict, Message: d.Error}), nil
	}, nil
}

// dropBuild deletes what a failed deployment has created.
func dropBuild(tx *raftstore.Tx, d *record.Deployment) error {
	// That of an app that is deleted may have to be told to end.
	if a, ok := raftstore.Get(tx, record.Apps, d.AppID); !ok || !drains(a, d.SandboxID) {
		if err := deleteBox(tx, d.SandboxID); err != nil {
			return err
		}
	}
	if d.RollbackTo != "" {
		return nil // the artifact belongs to another deployment
	}
	return deleteArtifact(tx, d)
}
