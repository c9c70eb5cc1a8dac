package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
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

// planeFunctions deploys at once. A function named "broken" cannot be deployed.
type planeFunctions struct {
	httpapi.Functions
	mu        sync.Mutex
	functions []api.Function
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
	return p.deployment(id), nil
}

func (p *planeFunctions) deployment(id string) api.Deployment {
	d := api.Deployment{ID: "dep-1", AppID: id, Status: api.DeploymentLive, FinishedAt: &api.Time{Time: time.Now()}, CreatedAt: api.Time{Time: time.Now()}}
	if f, err := p.one(id); err == nil && f.Name == "broken" {
		d.Status, d.Error = api.DeploymentFailed, "SyntaxError: invalid syntax"
	}
	return d
}

func (p *planeFunctions) Deployment(_ context.Context, _ core.Caller, id, _ string) (api.Deployment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deployment(id), nil
}

func (p *planeFunctions) DeploymentLogs(context.Context, core.Caller, string, string) (core.Follower[sandbox.LogLine], error) {
	return &planeDeployment{lines: []sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "==> build"}}}}, nil
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
