package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// pollEvery is how often a guest is asked for the state of its build.
const pollEvery = 250 * time.Millisecond

// silence is how long a step pauses when a guest has not answered.
const silence = 500 * time.Millisecond

// build gives guestapp the source and starts the build. If the step is repeated, a build
// that has begun goes on.
func (f *Flows) build(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, a, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, lost, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	st, err := f.status(ctx, data.RequestID, box)
	if err == nil && st.Build.ID != d.ID {
		login, wait := f.login(ctx, &data, d, a)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case wait:
			return going(flow.Sleep(stepBuild, tokenPause, data)), nil
		}
		data.Private = data.Private || d.Trigger != triggerPullRequest && slices.ContainsFunc(a.Env, func(v record.AppVariable) bool { return v.Scope == production })
		err = f.beginBuild(ctx, run, data, box, d, a, login)
	}
	if err != nil {
		return f.unanswered(ctx, run, data, err)
	}
	return going(flow.Goto(stepPoll, data)), nil // which hears whether the guest knows of it
}

func (f *Flows) beginBuild(ctx context.Context, run flow.Run, data deploy, box *record.Sandbox, d *record.Deployment, a *record.App, login login) error {
	f.handOverCache(ctx, data.RequestID, box, d, a)
	b, err := f.buildOf(run, d, a)
	if err != nil {
		return err
	}
	if b.Git != nil {
		b.Git.Username, b.Git.Token = login.username, login.token
	}
	if b.Upload {
		if err := f.handOver(ctx, data.RequestID, box, d, a); err != nil {
			return err
		}
	}
	err = f.onGuest(ctx, data.RequestID, box, guestTime, func(ctx context.Context, g *appapi.Client) error {
		_, err := g.Build(ctx, b)
		return err
	})
	return login.without(err)
}

// buildOf returns the build that guestapp is asked for.
func (f *Flows) buildOf(run flow.Run, d *record.Deployment, a *record.App) (appapi.Build, error) {
	b := appapi.Build{
		ID: d.ID, Upload: d.Source == sourceUpload, RootDirectory: a.RootDirectory, Framework: a.Framework, Runtime: a.Runtime,
		InstallCommand: a.InstallCommand, BuildCommand: a.BuildCommand, StartCommand: a.StartCommand, Port: a.Port,
		NoImage:        a.Kind == record.KindFunction, // the runner in the template runs it
		CacheMB:        *f.cfg.CacheMB,
		TimeoutSeconds: max(1, int(run.Flow.Deadline.Sub(f.Clock())/time.Second)),
	}
	if !b.Upload {
		b.Git = &appapi.Git{URL: repositoryOf(d, a), Ref: refOf(d), AllowHTTP: f.cfg.AllowHTTP}
		if pushed(d) && strings.HasPrefix(d.GitRef, "refs/") { // of a fork: its commits are in no branch
			b.Git.Within = d.GitRef
		}
	}
	var err error
	b.Env, b.Secrets, err = f.envOf(d, a)
	return b, err
}

// envOf returns the environment of a deployment. A deployment of a pull request gets no
// variables for production.
func (f *Flows) envOf(d *record.Deployment, a *record.App) (env map[string]string, secrets []string, err error) {
	if d.Trigger != triggerPullRequest {
		return f.openWithClones(a)
	}
	preview := a.Clone()
	preview.Env = nil
	for _, v := range a.Env {
		if v.Scope != production {
			preview.Env = append(preview.Env, v)
		}
	}
	return f.openWithClones(preview)
}

var errSourceGone = &apierror.Error{Code: apierror.EConflict, Message: "its source is gone", Detail: "upload it again"}

// handOver streams an uploaded source from the host that has it to the guest.
func (f *Flows) handOver(ctx context.Context, requestID string, box *record.Sandbox, d *record.Deployment, a *record.App) error {
	u, missing := upload(f.Store.View(), a, d.SourceID)
	if missing != "" {
		return &apierror.Error{Code: apierror.EConflict, Message: "its source is gone", Detail: missing}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tarball, _, err := f.getBlob(hosts.WithRequestID(ctx, requestID), placeOf(u), u.ID)
	switch {
	case err == nil:
	case hosts.Unreachable(err), hosts.Superseded(ctx, err):
		return err
	case hostapi.HasCode(err, hostapi.CodeNotFound):
		return errSourceGone
	default:
		return &apierror.Error{Code: apierror.EConflict, Message: "its source cannot be read", Detail: reasonOf(err), Err: err}
	}
	defer tarball.Close()
	return f.onGuest(ctx, requestID, box, 0, func(ctx context.Context, g *appapi.Client) error { return g.PutSource(ctx, tarball) })
}

// unanswered continues after a failed call to a guest. It repeats the step as long as the
// guest may still answer, and otherwise fails the deployment.
func (f *Flows) unanswered(ctx context.Context, run flow.Run, data deploy, err error) (flow.Commit, error) {
	switch {
	case hosts.Superseded(ctx, err):
		return nil, err
	case refused(err):
		return f.fail(data, err), nil
	}
	f.Logger.InfoContext(ctx, "guest of an app does not answer", "flow_id", run.Flow.ID, "step", run.Flow.Step, "error", err)
	return f.silent(run, data, run.Flow.Step, err), nil
}

var errForgotten = &apierror.Error{Code: apierror.EInternal, Message: "its guest does not know of the build that it was given"}

// silent continues with a step after a pause, unless the guest has said nothing of use for
// too long. If the host is silent, its lease decides. If the guest is silent, its sandbox
// and this limit decide.
func (f *Flows) silent(run flow.Run, data deploy, step string, why error) flow.Commit {
	now := f.Clock()
	switch {
	case f.unheard(data.SandboxID):
		data.Silent = time.Time{}
	case data.Silent.IsZero():
		data.Silent = now
	}
	if !data.Silent.IsZero() && now.Sub(data.Silent) >= f.cfg.GuestSilent {
		return f.fail(data, why)
	}
	return going(flow.Sleep(step, silence, data))
}

// refused reports whether a call to a guest fails however often it is repeated.
func refused(err error) bool {
	var own *apierror.Error
	said, ok := errors.AsType[*appapi.Refusal](err)
	return asOwn(err, &own) || ok && said.Body.Code != appapi.CodeBusy && said.Body.Code != appapi.CodeInternal
}

// poll waits until the build has ended.
func (f *Flows) poll(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, _, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, lost, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	late := time.NewTimer(f.patience(run))
	defer late.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		st, err := f.status(ctx, data.RequestID, box)
		if err != nil {
			return f.unanswered(ctx, run, data, err)
		}
		b := st.Build
		if b.ID != d.ID { // the guest was restarted, or lies
			return f.silent(run, data, stepBuild, errForgotten), nil
		}
		data.Silent = time.Time{}
		switch {
		case b.State == appapi.StateSucceeded:
			return f.built(run, data, b), nil
		case b.State != appapi.StateRunning:
			return f.notBuilt(run, data, b), nil
		case heardOf(d.Clone(), b):
			return changing(run, func(_ *raftstore.Tx, d *record.Deployment, _ *record.App) (flow.Next, error) {
				heardOf(d, b)
				return flow.Sleep(stepPoll, pollEvery, data), nil // it may have news each time
			}), nil
		}
		select {
		case <-tick.C:
		case <-late.C:
			return going(flow.Goto(stepPoll, data)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// built continues after a build that has succeeded.
func (f *Flows) built(run flow.Run, data deploy, b appapi.BuildStatus) flow.Commit {
	return changing(run, func(tx *raftstore.Tx, d *record.Deployment, a *record.App) (flow.Next, error) {
		heardOf(d, b)
		d.Status, d.Port = record.DeploymentDeploying, a.Port
		data.Since, data.Cache = tx.Now(), b.CacheBytes > 0
		return flow.Goto(stepArtifact, data), nil
	})
}

// notBuilt continues after a build that has failed.
func (f *Flows) notBuilt(run flow.Run, data deploy, b appapi.BuildStatus) flow.Commit {
	data.Why = clean(b.Error, maxReason)
	if data.Why == "" {
		data.Why = "the build failed"
		if phase := cleanLine(b.Phase, 20); phaseNames[phase] {
			data.Why = fmt.Sprintf("the build failed in its phase %s", phase)
		}
	}
	if data.NoToken != "" && b.Phase == appapi.PhaseSource {
		data.Why = clean("no token to clone a private repository with: "+data.NoToken+"\n"+data.Why, maxReason)
	}
	return changing(run, func(_ *raftstore.Tx, d *record.Deployment, _ *record.App) (flow.Next, error) {
		heardOf(d, b)
		return flow.Goto(stepEnd, data), nil
	})
}

// start makes guestapp start the app, with the environment of this moment.
func (f *Flows) start(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	d, a, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, lost, err := boxError(run.View, data.SandboxID, data.ChildID)
	if err != nil {
		return f.boxless(run, data, lost, err), nil
	}
	if err := f.startIn(ctx, data.RequestID, box, d, a, d.Port); err != nil {
		return f.unanswered(ctx, run, data, err)
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		data.Silent, data.HealthBy, data.EnvRevision = time.Time{}, tx.Now().Add(f.cfg.Health), a.EnvRevision
		return flow.Goto(stepHealth, data), nil
	}, nil
}

// startIn makes guestapp start the app in a sandbox, unless it has been started there with
// the same environment.
func (f *Flows) startIn(ctx context.Context, requestID string, box *record.Sandbox, d *record.Deployment, a *record.App, port int) error {
	env, secrets, err := f.envOf(d, a)
	if err != nil {
		return err
	}
	return f.onGuest(ctx, requestID, box, guestTime, func(ctx context.Context, g *appapi.Client) error {
		_, err := g.Run(ctx, appapi.Run{ID: fmt.Sprintf("%s.%d", box.ID, a.EnvRevision), Env: env, Secrets: secrets, Port: port})
		return err
	})
}
