package app

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The triggers of deployments.
const (
	triggerAPI         = string(api.TriggerAPI)
	triggerPush        = string(api.TriggerPush)
	triggerWake        = string(api.TriggerWake)
	triggerRollback    = string(api.TriggerRollback)
	triggerPullRequest = string(api.TriggerPullRequest)
)

// The sources of deployments.
const (
	sourceGit    = string(api.AppFromGit)
	sourceUpload = string(api.AppFromUpload)
)

// keptDeployments is how many ended deployments of an app are kept.
const keptDeployments = 100

// Reasons of failed deployments that are nobody's fault.
const (
	whyCancelled  = "cancelled"
	whySuperseded = "superseded by a newer deployment"
	whyDeleted    = "its app was deleted"
)

// Deploy begins a deployment and returns it, queued.
func (s *Apps) Deploy(ctx context.Context, c core.Caller, id string, in api.CreateDeployment, i core.Idempotency) (api.Deployment, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Deployment{}, err
	}
	if in.GitRef != "" {
		if err := validRef("git_ref", in.GitRef); err != nil {
			return api.Deployment{}, err
		}
	}
	d := &record.Deployment{Trigger: triggerAPI, GitRef: in.GitRef, SourceID: in.SourceID, NoCache: in.ClearCache}
	return s.beginOnce(ctx, c, id, routeDeploy, i, d, func(tx *raftstore.Tx, a *record.App, d *record.Deployment) error {
		if err := sourceOf(tx, a, d); err != nil {
			return err
		}
		if in.ClearCache && a.Cache != nil {
			a = a.Clone()
			dropCache(tx, a)
			raftstore.Put(tx, record.Apps, a)
		}
		return nil
	})
}

const routeDeploy = "deploys"

// deployRoute names a route below an app, for its idempotency keys. A function's are those of
// an app.
func deployRoute(id, route string) string { return "POST /v1/apps/" + id + "/" + route }

// beginOnce calls begin for a route below an app, once for each idempotency key.
func (s *Apps) beginOnce(
	ctx context.Context, c core.Caller, id, route string, i core.Idempotency, d *record.Deployment, prepare preparation,
) (api.Deployment, error) {
	return core.Once(ctx, s.core, c, deployRoute(id, route), i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Deployment, error) {
			d, a, err := s.deploymentOf(view, c, id, key.ResourceID)
			if err != nil {
				return api.Deployment{}, core.ErrKeyGone("deployment")
			}
			return core.Answered(s.core, key, func() (api.Deployment, error) { return showDeployment(a, d), nil })
		},
		func(keyID string) (api.Deployment, error) { return s.begin(ctx, c, id, d, i, keyID, prepare) })
}

// preparation completes or refuses a deployment of an app. It may run several times.
type preparation func(tx *raftstore.Tx, a *record.App, d *record.Deployment) error

// begin adds a deployment of an app.
func (s *Apps) begin(
	ctx context.Context, c core.Caller, id string, d *record.Deployment, i core.Idempotency, keyID string, prepare preparation,
) (out api.Deployment, err error) {
	d.ID = newDeploymentID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		a, err := s.owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := s.core.MayUse(tx, c); err != nil {
			return err
		}
		row := d.Clone()
		if err := prepare(tx, a, row); err != nil {
			return err
		}
		if err := beginDeploy(tx, a, row, c.RequestID); err != nil {
			return err
		}
		out = showDeployment(a, row)
		return core.ClaimAnswer(tx, s.core, i, keyID, d.ID, out)
	})
	return out, err
}

func newDeploymentID() string { return deploymentPrefix + core.RandomText(idRandom) }

// sourceOf sets where a deployment's source comes from, as its app and the request demand.
func sourceOf(r raftstore.Reader, a *record.App, d *record.Deployment) error {
	switch {
	case d.SourceID != "" && d.GitRef != "":
		return apierror.Invalid("invalid source_id", "an uploaded source has no git_ref")
	case d.SourceID != "":
		if _, missing := upload(r, a, d.SourceID); missing != "" {
			return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: missing}
		}
		d.Source = sourceUpload
	case a.GitURL != "":
		d.OfBranch = d.GitRef == "" || d.GitRef == a.GitBranch || d.Trigger == triggerPush
		d.Source, d.GitURL, d.GitRef = sourceGit, a.GitURL, cmp.Or(d.GitRef, a.GitBranch)
	case d.GitRef != "":
		return apierror.Invalid("invalid git_ref", "the source of this app is uploaded")
	default:
		last, ok := lastUpload(r, a)
		if !ok {
			return &apierror.Error{
				Code: apierror.EConflict, Message: "no source uploaded yet", Detail: "the source of this app is uploaded: send a tar.gz to PUT /v1/apps/" + a.ID + "/source first",
			}
		}
		d.Source, d.SourceID = sourceUpload, last.ID
	}
	return nil
}

// beginDeploy adds a queued deployment and its flow. It takes the place of one that still
// waits: so at most two of an app have not ended.
func beginDeploy(tx *raftstore.Tx, a *record.App, d *record.Deployment, requestID string) error {
	d.WorkspaceID, d.AppID, d.Status = a.WorkspaceID, a.ID, record.DeploymentQueued
	others := unfinished(tx, a.ID)
	raftstore.Put(tx, record.Deployments, d)
	for _, other := range others {
		if other.Status == record.DeploymentQueued {
			if err := abandon(tx, other, whySuperseded, false); err != nil {
				return err
			}
		}
	}
	first := stepQueue
	if len(clonedFor(a)) > 0 {
		first = stepClone
	}
	return flow.Begin(tx, flow.New{
		ID: flow.NewID(), Kind: KindDeploy, Subject: DeploymentSubject(d.ID), Step: first,
		Data: deploy{RequestID: requestID, Since: tx.Now(), Revision: a.Revision},
	})
}

// abandon ends a deployment as failed, whatever its state. The flow restarts with the last
// step, which cleans up.
func abandon(tx *raftstore.Tx, d *record.Deployment, why string, byClient bool) error {
	data := deploy{}
	if live, ok := flow.Live(tx, DeploymentSubject(d.ID)); ok {
		if err := flow.Decode(live, &data); err != nil {
			return err
		}
	}
	if err := failDeployment(tx, d, why, byClient); err != nil {
		return err
	}
	data.Why = why
	return flow.Preempt(tx, flow.New{ID: flow.NewID(), Kind: KindDeploy, Subject: DeploymentSubject(d.ID), Step: stepEnd, Data: data})
}

// failDeployment marks a deployment as failed, enqueues the event for webhooks, and
// continues with an app that waits for the deployment.
func failDeployment(tx *raftstore.Tx, d *record.Deployment, why string, byClient bool) error {
	d = d.Clone()
	d.Status, d.Error, d.FinishedAt, d.Cancelled = record.DeploymentFailed, why, tx.Now(), byClient
	raftstore.Put(tx, record.Deployments, d)
	if err := tell(tx, api.WebhookDeploymentFailed, d); err != nil {
		return err
	}
	return unwake(tx, d, why)
}

// unwake continues with an app that waits for a failed deployment, unless the app waits for
// something else too. It begins a wake if the app may not have had one yet, and otherwise
// marks the app as failed.
func unwake(tx *raftstore.Tx, d *record.Deployment, why string) error {
	a, ok := raftstore.Get(tx, record.Apps, d.AppID)
	if !ok || a.Status != record.AppWaking || len(a.Instances) > 0 || awaited(tx, a) {
		return nil
	}
	if d.Trigger != triggerWake && !a.Paused {
		return beginWake(tx, a, false)
	}
	a = a.Clone()
	a.Status, a.Error = record.AppFailed, why
	raftstore.Put(tx, record.Apps, a)
	return nil
}

// tell enqueues an event of a deployment for the workspace's webhooks.
func tell(tx *raftstore.Tx, t api.WebhookEventType, d *record.Deployment) error {
	return webhook.Enqueue(tx, d.WorkspaceID, t, api.WebhookDeployment{
		DeploymentID: d.ID, AppID: d.AppID, Status: string(d.Status), GitCommit: d.GitCommit, Error: webhook.Text(d.Error),
	})
}

// unfinished returns the deployments of an app that have not ended, oldest first.
func unfinished(r raftstore.Reader, appID string) (rows []*record.Deployment) {
	for _, d := range deploymentsOf(r, appID) {
		if !d.Status.Ended() {
			rows = append(rows, d)
		}
	}
	return rows
}

// live returns the deployments of an app that are or were live, oldest first.
func live(r raftstore.Reader, appID string) (rows []*record.Deployment) {
	for _, d := range deploymentsOf(r, appID) {
		if d.Status == record.DeploymentLive {
			rows = append(rows, d)
		}
	}
	return rows
}

// deploymentsOf returns all deployments of an app, oldest first. Deployments of the present
// transaction, which have no index yet, come last.
func deploymentsOf(r raftstore.Reader, appID string) []*record.Deployment {
	rows := raftstore.Find(r, record.Deployments, "app", appID)
	slices.SortFunc(rows, older)
	return rows
}

func older(a, b *record.Deployment) int {
	age := func(d *record.Deployment) uint64 { return d.CreateIndex - 1 } // largest for a new row, which has index 0
	return cmp.Or(cmp.Compare(age(a), age(b)), cmp.Compare(a.ID, b.ID))
}

// deploymentOf finds a deployment of one of the caller's apps.
func (s *Apps) deploymentOf(r raftstore.Reader, c core.Caller, id, deploymentID string) (*record.Deployment, *record.App, error) {
	a, err := s.owned(r, c, id)
	if err != nil {
		return nil, nil, err
	}
	d, ok := raftstore.Get(r, record.Deployments, deploymentID)
	if !ok || d.AppID != id {
		return nil, nil, apierror.NotFound()
	}
	return d, a, nil
}

// Deployments returns a page of an app's deployments, newest first.
func (s *Apps) Deployments(ctx context.Context, c core.Caller, id string, o core.ListOptions) (page []api.Deployment, next string, err error) {
	view, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Deployments, "app", id), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, func(d *record.Deployment) api.Deployment { return showDeployment(a, d) }), next, nil
}

// Deployment returns one deployment.
func (s *Apps) Deployment(ctx context.Context, c core.Caller, id, deploymentID string) (api.Deployment, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.Deployment{}, err
	}
	d, a, err := s.deploymentOf(view, c, id, deploymentID)
	if err != nil {
		return api.Deployment{}, err
	}
	return showDeployment(a, d), nil
}

// CancelDeployment cancels a deployment that has not ended.
func (s *Apps) CancelDeployment(ctx context.Context, c core.Caller, id, deploymentID string) (api.Deployment, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Deployment{}, err
	}
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		d, _, err := s.deploymentOf(tx, c, id, deploymentID)
		switch {
		case err != nil:
			return err
		case d.Cancelled:
			return nil
		case d.Status.Ended():
			return &apierror.Error{Code: apierror.EConflict, Message: "deployment has ended", Detail: "it is " + string(d.Status)}
		}
		return abandon(tx, d, whyCancelled, true)
	})
	if err != nil {
		return api.Deployment{}, err
	}
	d, a, err := s.deploymentOf(s.core.Store.View(), c, id, deploymentID)
	if err != nil {
		return api.Deployment{}, err
	}
	return showDeployment(a, d), nil
}

// RollBack begins a deployment of what was live before, or of a named deployment. An
// idempotency key makes it happen once; without a key, a second call would go back to yet
// another deployment.
func (s *Apps) RollBack(ctx context.Context, c core.Caller, id string, in api.RollBackApp, i core.Idempotency) (api.Deployment, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Deployment{}, err
	}
	d := &record.Deployment{Trigger: triggerRollback}
	return s.beginOnce(ctx, c, id, "rollback", i, d, func(tx *raftstore.Tx, a *record.App, d *record.Deployment) error {
		to, err := rollbackTarget(tx, a, in.DeploymentID)
		if err != nil {
			return err
		}
		if to.Source == sourceUpload && !usable(tx, to) {
			if err := sourceForRollback(tx, a, to); err != nil {
				return err
			}
		}
		d.RollbackTo, d.Source, d.SourceID, d.GitURL = to.ID, to.Source, to.SourceID, to.GitURL
		d.GitRef, d.GitCommit, d.GitMessage, d.GitAuthor = cmp.Or(to.GitCommit, to.GitRef), to.GitCommit, to.GitMessage, to.GitAuthor
		return nil
	})
}

// sourceForRollback refuses a rollback that would have to build from an uploaded source that
// is gone or cannot be reached.
func sourceForRollback(r raftstore.Reader, a *record.App, to *record.Deployment) error {
	no := &apierror.Error{Code: apierror.EConflict, Message: "deployment cannot be rolled back to"}
	i := slices.IndexFunc(a.Uploads, func(u record.AppUpload) bool { return u.ID == to.SourceID && !u.Dropped })
	switch {
	case i < 0:
		no.Detail = "its artifact and its source are gone"
	case placeOf(a.Uploads[i]).lost(r):
		no.Detail = "its artifact is gone, and the host that kept its source was removed: upload the source again, and deploy it"
	case placeOf(a.Uploads[i]).away(r):
		no.Detail = "its artifact is gone, and the host that keeps its source does not answer"
	default:
		return nil
	}
	return no
}

// rollbackTarget finds the deployment to roll back to: the named one, or the one that was
// live before the present one.
func rollbackTarget(r raftstore.Reader, a *record.App, id string) (*record.Deployment, error) {
	if id != "" {
		d, ok := raftstore.Get(r, record.Deployments, id)
		switch {
		case !ok || d.AppID != a.ID:
			return nil, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such deployment"}
		case d.Status != record.DeploymentLive:
			return nil, &apierror.Error{Code: apierror.EConflict, Message: "deployment was never live", Detail: "it is " + string(d.Status)}
		}
		return d, nil
	}
	all := live(r, a.ID)
	for i := len(all) - 1; i > 0; i-- {
		if all[i].ID == a.DeploymentID {
			return all[i-1], nil
		}
	}
	return nil, &apierror.Error{Code: apierror.EConflict, Message: "nothing to roll back to", Detail: "no deployment was live before the present one"}
}

// usable reports whether a deployment's artifact can be restored.
func usable(r raftstore.Reader, d *record.Deployment) bool {
	snap, ok := raftstore.Get(r, record.Snapshots, d.SnapshotID)
	if !ok {
		return false
	}
	return snap.Status == record.ResourceReady || snap.Status == record.ResourceCreating && captured(snap)
}

// captured reports whether a snapshot is on its host, even if it is not uploaded yet.
func captured(s *record.Snapshot) bool { return s.MemoryMB > 0 }

// showDeployment returns a deployment as its workspace sees it.
func showDeployment(a *record.App, d *record.Deployment) api.Deployment {
	return api.Deployment{
		ID: d.ID, AppID: d.AppID, Status: api.DeploymentStatus(d.Status), Current: d.ID == a.DeploymentID,
		GitRef: d.GitRef, GitCommit: d.GitCommit, GitMessage: d.GitMessage, GitAuthor: d.GitAuthor,
		Source: api.AppSource(d.Source), SourceID: d.SourceID, Trigger: api.DeploymentTrigger(d.Trigger), RollbackTo: d.RollbackTo,
		CreatedAt: api.Time{Time: d.CreatedAt}, StartedAt: api.NewTime(d.StartedAt), FinishedAt: api.NewTime(d.FinishedAt), Error: d.Error,
		Phases: core.Each(d.Phases, func(p record.DeployPhase) api.DeploymentPhase {
			return api.DeploymentPhase{Name: p.Name, DurationMS: p.DurationMS}
		}),
		Framework: d.Framework, Runtime: d.Runtime, StartCommand: d.StartCommand,
	}
}
