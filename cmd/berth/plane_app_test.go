package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// planeApps deploys at once. A deployment of the ref "broken" fails, and one of the ref
// "slow" goes on until it is cancelled.
type planeApps struct {
	httpapi.Apps
	*plane
	apps    []api.App
	deploys []api.Deployment // the newest last
	sources []string         // the names of the files of each
	env     []api.AppVariable
}

func (p *planeApps) one(id string) (*api.App, error) {
	i := slices.IndexFunc(p.apps, func(a api.App) bool { return a.ID == id })
	if i < 0 {
		return nil, apierror.NotFound()
	}
	return &p.apps[i], nil
}

func (p *planeApps) Create(_ context.Context, _ core.Caller, in api.CreateApp, _ core.Idempotency) (api.App, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.Source == nil && in.GitURL == "" {
		return api.App{}, apierror.Invalid("git_url is required", "")
	}
	a := api.App{
		ID: fmt.Sprintf("app-%d", len(p.apps)+1), Name: in.Name, Status: api.AppCreated, GitURL: in.GitURL, GitBranch: in.GitBranch,
		BuildCommand: in.BuildCommand, StartCommand: in.StartCommand, Port: 3000, MaxInstances: 1, AutoHibernate: in.AutoHibernate == nil || *in.AutoHibernate,
		IdleTimeoutSeconds: 900, AutoDeploy: in.AutoDeploy, Previews: in.AutoDeploy, ForkPreviews: in.ForkPreviews, Env: in.Env, CreatedAt: api.Time{Time: time.Now()},
	}
	if in.Previews != nil {
		a.Previews = *in.Previews
	}
	if in.IdleTimeoutSeconds != nil {
		if a.IdleTimeoutSeconds = *in.IdleTimeoutSeconds; a.IdleTimeoutSeconds < 60 {
			return api.App{}, apierror.Invalid("idle_timeout_seconds must be >= 60", "")
		}
	}
	a.URL = "https://" + a.ID + ".app.test/"
	p.apps = append(p.apps, a)
	return a, nil
}

func (p *planeApps) Get(_ context.Context, _ core.Caller, id string) (api.App, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.one(id)
	if err != nil {
		return api.App{}, err
	}
	return *a, nil
}

func (p *planeApps) List(context.Context, core.Caller, core.ListOptions) ([]api.App, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.apps), "", nil
}

func (p *planeApps) Patch(_ context.Context, _ core.Caller, id string, in api.PatchApp) (api.App, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.one(id)
	if err != nil {
		return api.App{}, err
	}
	if in.StartCommand.Value != nil {
		a.StartCommand = *in.StartCommand.Value
	}
	if in.BuildCommand.Set && in.BuildCommand.Value == nil {
		a.BuildCommand = ""
	}
	if in.AutoHibernate.Set {
		a.AutoHibernate = *in.AutoHibernate.Value
	}
	if in.Name.Set {
		a.Name = *in.Name.Value
	}
	if in.Previews.Set {
		a.Previews = *in.Previews.Value
	}
	if in.ForkPreviews.Set {
		a.ForkPreviews = *in.ForkPreviews.Value
	}
	return *a, nil
}

func (p *planeApps) Delete(_ context.Context, _ core.Caller, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.one(id); err != nil {
		return err
	}
	p.apps = slices.DeleteFunc(p.apps, func(a api.App) bool { return a.ID == id })
	return nil
}

func (p *planeApps) PutSource(_ context.Context, _ core.Caller, id string, tarball io.Reader) (api.SourceUpload, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.one(id); err != nil {
		return api.SourceUpload{}, err
	}
	zip, err := gzip.NewReader(tarball)
	if err != nil {
		return api.SourceUpload{}, apierror.Invalid("invalid source", "it is no gzip")
	}
	var names []string
	for tr := tar.NewReader(zip); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return api.SourceUpload{}, apierror.Invalid("invalid source", "it is no tar")
		}
		names = append(names, h.Name)
	}
	p.sources = append(p.sources, strings.Join(names, " "))
	return api.SourceUpload{SourceID: fmt.Sprintf("src-%d", len(p.sources)), SizeBytes: 1}, nil
}

func (p *planeApps) begin(id string, d api.Deployment) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.one(id)
	if err != nil {
		return api.Deployment{}, err
	}
	now := time.Now()
	d.ID, d.AppID, d.Status, d.Phases = fmt.Sprintf("dep-%d", len(p.deploys)+1), id, api.DeploymentQueued, []api.DeploymentPhase{}
	d.CreatedAt = api.Time{Time: now}
	p.deploys = append(p.deploys, d)
	last := &p.deploys[len(p.deploys)-1]
	switch d.GitRef {
	case "slow":
		last.Status = api.DeploymentBuilding
	case "broken":
		last.Status, last.Error, last.FinishedAt = api.DeploymentFailed, "npm ERR! missing script: build", &api.Time{Time: now}
	default:
		last.Status, last.Current, last.FinishedAt = api.DeploymentLive, true, &api.Time{Time: now}
		a.Status, a.Instances, a.DeploymentID = api.AppRunning, 1, d.ID
	}
	return d, nil
}

func (p *planeApps) Deploy(_ context.Context, _ core.Caller, id string, in api.CreateDeployment, _ core.Idempotency) (api.Deployment, error) {
	d := api.Deployment{GitRef: in.GitRef, Source: api.AppFromGit, SourceID: in.SourceID, Trigger: api.TriggerAPI}
	if in.SourceID != "" {
		d.Source = api.AppFromUpload
	}
	return p.begin(id, d)
}

func (p *planeApps) RollBack(_ context.Context, _ core.Caller, id string, in api.RollBackApp, _ core.Idempotency) (api.Deployment, error) {
	if in.DeploymentID == "dep-0" {
		return api.Deployment{}, &apierror.Error{Code: apierror.EConflict, Message: "nothing to roll back to"}
	}
	return p.begin(id, api.Deployment{Source: api.AppFromGit, Trigger: api.TriggerRollback, RollbackTo: in.DeploymentID})
}

func (p *planeApps) Deployments(_ context.Context, _ core.Caller, id string, _ core.ListOptions) ([]api.Deployment, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []api.Deployment
	for _, d := range slices.Backward(p.deploys) {
		if d.AppID == id {
			out = append(out, d)
		}
	}
	return out, "", nil
}

func (p *planeApps) Deployment(_ context.Context, _ core.Caller, id, deploymentID string) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.deploys {
		if d.AppID == id && d.ID == deploymentID {
			return d, nil
		}
	}
	return api.Deployment{}, apierror.NotFound()
}

func (p *planeApps) CancelDeployment(ctx context.Context, c core.Caller, id, deploymentID string) (api.Deployment, error) {
	d, err := p.Deployment(ctx, c, id, deploymentID)
	if err != nil {
		return d, err
	}
	if d.Status != api.DeploymentBuilding {
		return d, &apierror.Error{Code: apierror.EConflict, Message: "deployment has ended"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.deploys {
		if p.deploys[i].ID == deploymentID {
			p.deploys[i].Status, p.deploys[i].Error = api.DeploymentFailed, "cancelled"
			d = p.deploys[i]
		}
	}
	return d, nil
}

// planeDeployment is the log of a deployment, which the file "following" says is read.
type planeDeployment struct {
	lines []sandbox.LogLine
	open  chan struct{} // nil: it ends after its lines
	file  string
	once  sync.Once
}

func (d *planeDeployment) Next() (sandbox.LogLine, error) {
	if len(d.lines) == 0 {
		if d.open != nil {
			if err := os.WriteFile(d.file, nil, 0o600); err != nil {
				return sandbox.LogLine{}, err
			}
			<-d.open
		}
		return sandbox.LogLine{}, io.EOF
	}
	l := d.lines[0]
	d.lines = d.lines[1:]
	return l, nil
}

func (d *planeDeployment) Close() error {
	d.once.Do(func() {
		if d.open != nil {
			close(d.open)
		}
	})
	return nil
}

func (p *planeApps) DeploymentLogs(ctx context.Context, c core.Caller, id, deploymentID string) (core.Follower[sandbox.LogLine], error) {
	d, err := p.Deployment(ctx, c, id, deploymentID)
	if err != nil {
		return nil, err
	}
	log := &planeDeployment{file: filepath.Join(p.dir, "following")}
	say := func(stream, line string) {
		log.lines = append(log.lines, sandbox.LogLine{Stream: stream, LogLine: api.LogLine{Line: line}})
	}
	say("stdout", "==> build "+d.ID)
	if d.SourceID != "" {
		var n int
		_, _ = fmt.Sscanf(d.SourceID, "src-%d", &n)
		say("stdout", "files: "+p.sources[n-1])
	}
	say("stderr", "a warning")
	if d.Status == api.DeploymentBuilding {
		log.open = make(chan struct{})
	}
	return log, nil
}

func (p *planeApps) Logs(_ context.Context, _ core.Caller, id string, tail int) (io.ReadCloser, error) {
	if _, err := p.one(id); err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(fmt.Sprintf("the last %d lines\n", tail))), nil
}

func (p *planeApps) FollowLogs(context.Context, core.Caller, string, int) (core.Follower[sandbox.LogLine], error) {
	return &planeDeployment{lines: []sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "ready"}}}}, nil
}

func (p *planeApps) Env(context.Context, core.Caller, string) ([]api.AppVariable, error) {
	return p.env, nil
}

func (p *planeApps) PutVariable(_ context.Context, _ core.Caller, _, key string, in api.PutAppVariable) (api.AppVariable, error) {
	if key == "PORT" {
		return api.AppVariable{}, apierror.Invalid("invalid key", "PORT is set by the platform")
	}
	v := api.AppVariable{Key: key, Value: in.Value, Secret: in.Secret != nil && *in.Secret, UpdatedAt: api.Time{Time: time.Now()}}
	if in.Scope != nil {
		v.Scope = *in.Scope
	}
	if v.Secret {
		v.Value = "********"
	}
	p.env = append(p.env, v)
	return v, nil
}

func (p *planeApps) DeleteVariable(_ context.Context, _ core.Caller, _, key string) error {
	before := len(p.env)
	if p.env = slices.DeleteFunc(p.env, func(v api.AppVariable) bool { return v.Key == key }); len(p.env) == before {
		return apierror.NotFound()
	}
	return nil
}

func (p *planeApps) ImportEnv(ctx context.Context, c core.Caller, id string, in api.ImportAppEnv) ([]api.AppVariable, error) {
	for line := range strings.Lines(in.Dotenv) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		if _, err := p.PutVariable(ctx, c, id, k, api.PutAppVariable{Value: v, Secret: in.Secret, Scope: in.Scope}); err != nil {
			return nil, err
		}
	}
	return p.env, nil
}
