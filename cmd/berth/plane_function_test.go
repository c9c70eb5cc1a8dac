package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app/code"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// planeFunctions deploys at once. A function named "broken" cannot be deployed, and a
// deployment of one named "slow" goes on until it is cancelled.
type planeFunctions struct {
	httpapi.Functions
	mu        sync.Mutex
	dir       string
	functions []api.Function
	deploys   []api.Deployment // the newest last
	env       []api.AppVariable
}

func (p *planeFunctions) one(id string) (*api.Function, error) {
	i := slices.IndexFunc(p.functions, func(f api.Function) bool { return f.ID == id })
	if i < 0 {
		return nil, apierror.NotFound()
	}
	return &p.functions[i], nil
}

func (p *planeFunctions) Create(_ context.Context, _ core.Caller, in api.CreateFunction, _ core.Idempotency) (api.Function, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.Runtime != api.RuntimePython && in.Runtime != api.RuntimeNode {
		return api.Function{}, apierror.Invalid("invalid runtime", "want python or node")
	}
	f := api.Function{ID: fmt.Sprintf("fn-%d", len(p.functions)+1), Name: in.Name, Runtime: in.Runtime, Status: api.AppCreated, TimeoutSeconds: 30, Env: in.Env}
	p.functions = append(p.functions, f)
	return f, nil
}

func (p *planeFunctions) Get(_ context.Context, _ core.Caller, id string) (api.Function, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := p.one(id)
	if err != nil {
		return api.Function{}, err
	}
	return *f, nil
}

func (p *planeFunctions) List(context.Context, core.Caller, core.ListOptions) ([]api.Function, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.functions), "", nil
}

func (p *planeFunctions) Patch(_ context.Context, _ core.Caller, id string, in api.PatchFunction) (api.Function, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := p.one(id)
	if err != nil {
		return api.Function{}, err
	}
	if in.TimeoutSeconds.Value != nil {
		f.TimeoutSeconds = *in.TimeoutSeconds.Value
	}
	return *f, nil
}

func (p *planeFunctions) Delete(_ context.Context, _ core.Caller, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.one(id); err != nil {
		return err
	}
	p.functions = slices.DeleteFunc(p.functions, func(f api.Function) bool { return f.ID == id })
	return nil
}

func (p *planeFunctions) DeployArchive(_ context.Context, _ core.Caller, id string, tarball io.Reader, _ core.Idempotency) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := p.one(id)
	if err != nil {
		return api.Deployment{}, err
	}
	checked := code.Check(string(f.Runtime), tarball)
	defer checked.Close()
	if _, err := io.Copy(io.Discard, checked); err != nil {
		return api.Deployment{}, apierror.Invalid("invalid code", "%s", err)
	}
	return p.begin(f, api.Deployment{Trigger: api.TriggerAPI}), nil
}

func (p *planeFunctions) begin(f *api.Function, d api.Deployment) api.Deployment {
	now := time.Now()
	d.ID, d.AppID, d.Status, d.Phases, d.CreatedAt = fmt.Sprintf("dep-%d", len(p.deploys)+1), f.ID, api.DeploymentLive, []api.DeploymentPhase{}, api.Time{Time: now}
	switch f.Name {
	case "broken":
		d.Status, d.Error = api.DeploymentFailed, planeTrace
	case "slow":
		d.Status = api.DeploymentBuilding
	default:
		d.Current, f.DeploymentID = true, d.ID
	}
	if d.Status != api.DeploymentBuilding {
		d.FinishedAt = &api.Time{Time: now}
	}
	p.deploys = append(p.deploys, d)
	return d
}

// planeTrace is why a deployment of "broken" fails.
const planeTrace = "the function exited with code 1; it wrote last:\n  File \"/app/handler.py\", line 1\n    def handler(\nSyntaxError: invalid syntax"

func (p *planeFunctions) RollBack(_ context.Context, _ core.Caller, id string, in api.RollBackApp, _ core.Idempotency) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := p.one(id)
	if err != nil {
		return api.Deployment{}, err
	}
	return p.begin(f, api.Deployment{Trigger: api.TriggerRollback, RollbackTo: in.DeploymentID}), nil
}

func (p *planeFunctions) Deployments(_ context.Context, _ core.Caller, id string, o core.ListOptions) (out []api.Deployment, next string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range slices.Backward(p.deploys) {
		if d.AppID == id {
			out = append(out, d)
		}
	}
	return out[:min(len(out), o.Limit)], "", nil
}

func (p *planeFunctions) Deployment(_ context.Context, _ core.Caller, id, deploymentID string) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.deploys, func(d api.Deployment) bool { return d.AppID == id && d.ID == deploymentID })
	if i < 0 {
		return api.Deployment{}, apierror.NotFound()
	}
	return p.deploys[i], nil
}

func (p *planeFunctions) CancelDeployment(_ context.Context, _ core.Caller, id, deploymentID string) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.deploys, func(d api.Deployment) bool { return d.AppID == id && d.ID == deploymentID })
	if i < 0 {
		return api.Deployment{}, apierror.NotFound()
	}
	p.deploys[i].Status, p.deploys[i].Error = api.DeploymentFailed, "cancelled"
	return p.deploys[i], nil
}

func (p *planeFunctions) DeploymentLogs(ctx context.Context, c core.Caller, id, deploymentID string) (core.Follower[sandbox.LogLine], error) {
	d, err := p.Deployment(ctx, c, id, deploymentID)
	if err != nil {
		return nil, err
	}
	log := &planeDeployment{file: filepath.Join(p.dir, "following"), lines: []sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "==> build"}}}}
	switch d.Status {
	case api.DeploymentBuilding:
		log.open = make(chan struct{})
	case api.DeploymentFailed:
		log.lines = append(log.lines, sandbox.LogLine{Stream: "stderr", LogLine: api.LogLine{Line: "deployment failed: " + d.Error}})
	}
	return log, nil
}

func (p *planeFunctions) Invocable(context.Context, core.Caller, string) error { return nil }

func (p *planeFunctions) Logs(_ context.Context, _ core.Caller, id string, tail int) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(fmt.Sprintf("the last %d of %s\n", tail, id))), nil
}

func (p *planeFunctions) Env(context.Context, core.Caller, string) ([]api.AppVariable, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.env), nil
}

func (p *planeFunctions) PutVariable(_ context.Context, _ core.Caller, _, key string, in api.PutAppVariable) (api.AppVariable, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := api.AppVariable{Key: key, Value: in.Value, Secret: in.Secret != nil && *in.Secret}
	if v.Secret {
		v.Value = "********"
	}
	p.env = append(p.env, v)
	return v, nil
}

// invokePlane is every function: it says how it was called.
func invokePlane(_, rest string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if rest == "fail" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "%s /%s?%s %s %q %s\n", r.Method, rest, r.URL.RawQuery, r.Header.Get("Content-Type"), body, r.Header.Get("X-Key"))
	})
}
