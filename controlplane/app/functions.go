package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app/code"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Functions implements the use cases of functions. A function is an app of another kind: its
// source is uploaded, its start command is the runner of handlers in the template of apps,
// and callers invoke it through the API. Deployments, sleep and wake, environment and logs
// are as with apps.
type Functions struct{ *Apps }

// Functions returns the use cases of functions, which share everything else with s.
func (s *Apps) Functions() *Functions {
	of := *s
	of.kind = record.KindFunction
	return &Functions{&of}
}

// IsFunction reports whether an id is that of a function, which may be gone, and not of
// an app.
func IsFunction(id string) bool { return strings.HasPrefix(id, functionPrefix) }

// Time limits of an invocation, in seconds. The edge waits longer than that for an answer.
const (
	defaultTimeout = 30
	maxTimeout     = 240
)

var errNotDeployed = &apierror.Error{Code: apierror.ENotFound, Message: "no code deployed yet", Detail: "POST /v1/functions/{id}/deploy deploys it"}

// runnerCommand returns the command that starts the runner of a function's handler. The
// runner is in templates/app. Its two outputs are one, so that the log has their lines in
// order: the edge reads an invocation's up to the line that the runner ends it with.
func runnerCommand(runtime string, timeoutSeconds int) string {
	program := map[string]string{"python": "python3 -u /usr/lib/berth/function.py", "node": "node /usr/lib/berth/function.mjs"}[runtime]
	return fmt.Sprintf("exec %s --timeout %d 2>&1", program, timeoutSeconds)
}

// Create stores the settings of a new function, which has no code yet.
func (s *Functions) Create(ctx context.Context, c core.Caller, in api.CreateFunction, i core.Idempotency) (api.Function, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Function{}, err
	}
	if !slices.Contains(code.Runtimes(), string(in.Runtime)) {
		return api.Function{}, apierror.Invalid("invalid runtime", "want python or node")
	}
	a := &record.App{
		Status: record.AppCreated, Name: in.Name, Runtime: string(in.Runtime), Port: defaultPort, MaxInstances: maxInstances, AutoHibernate: true,
		TimeoutSeconds: or(in.TimeoutSeconds, defaultTimeout),
	}
	if err := checkFunction(a); err != nil {
		return api.Function{}, err
	}
	if err := validEnv(in.Env); err != nil {
		return api.Function{}, err
	}
	return create(ctx, s.Apps, c, a, in.Env, i, s.showFunction)
}

// checkFunction checks the settings of a function and sets the start command that follows
// from them.
func checkFunction(a *record.App) error {
	if err := validName(a.Name); err != nil {
		return err
	}
	if err := inRange("timeout_seconds", a.TimeoutSeconds, 1, maxTimeout); err != nil {
		return err
	}
	a.StartCommand = runnerCommand(a.Runtime, a.TimeoutSeconds)
	return nil
}

// unnamed refuses a name that another function of the workspace has. Apps may share a name.
func (s *Apps) unnamed(r raftstore.Reader, a *record.App) error {
	if a.Kind != record.KindFunction {
		return nil
	}
	for _, other := range appsOf(r, a.WorkspaceID, a.Kind) {
		if other.Name == a.Name && other.ID != a.ID {
			return &apierror.Error{Code: apierror.EConflict, Message: "function already exists", Detail: "its id is " + other.ID}
		}
	}
	return nil
}

// Get returns one function of the caller's workspace.
func (s *Functions) Get(ctx context.Context, c core.Caller, id string) (api.Function, error) {
	return get(ctx, s.Apps, c, id, s.showFunction)
}

// List returns a page of the workspace's functions, newest first, and the cursor of the
// next page ("" after the last).
func (s *Functions) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Function, next string, err error) {
	return list(ctx, s.Apps, c, o, s.showFunction)
}

var errNoFunctionFields = &apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: name, env, timeout_seconds)"}

// Patch changes settings of a function. A new environment or time limit takes effect with
// the next deployment, at the latest that of the next wake.
func (s *Functions) Patch(ctx context.Context, c core.Caller, id string, in api.PatchFunction) (api.Function, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Function{}, err
	}
	env := core.OrZero(in.Env.Value) // null means the default
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		before, err := s.owned(tx, c, id)
		if err != nil {
			return err
		}
		if !in.Name.Set && !in.Env.Set && !in.TimeoutSeconds.Set {
			return errNoFunctionFields
		}
		if err := validEnv(env); err != nil {
			return err
		}
		a := before.Clone()
		set(&a.Name, in.Name, "")
		set(&a.TimeoutSeconds, in.TimeoutSeconds, defaultTimeout)
		if err := checkFunction(a); err != nil {
			return err
		}
		if err := s.unnamed(tx, a); err != nil {
			return err
		}
		if in.Env.Set {
			if a.Env, err = s.flows.replaceEnv(before, env, tx.Now()); err != nil {
				return err
			}
		}
		changed(before, a)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	if err != nil {
		return api.Function{}, err
	}
	return written(s.Apps, c, id, s.showFunction)
}

// DeployFiles begins a deployment of files, given by name. Like DeployArchive, it returns
// the first deployment if it is repeated with the same idempotency key.
func (s *Functions) DeployFiles(ctx context.Context, c core.Caller, id string, files map[string]string, i core.Idempotency) (api.Deployment, error) {
	if again, out, err := s.again(ctx, c, id, i, func() (core.Idempotency, error) { return i, nil }); again || err != nil {
		return out, err
	}
	_, a, err := s.find(ctx, c, id)
	if err != nil {
		return api.Deployment{}, err
	}
	tarball, err := code.Pack(a.Runtime, files)
	if err != nil {
		return api.Deployment{}, codeError(err)
	}
	return s.deploy(ctx, c, id, bytes.NewReader(tarball), func() core.Idempotency { return i })
}

// DeployArchive begins a deployment of a tar.gz, which is streamed to a host.
func (s *Functions) DeployArchive(ctx context.Context, c core.Caller, id string, tarball io.Reader, i core.Idempotency) (api.Deployment, error) {
	digest := sha256.New()
	again, out, err := s.again(ctx, c, id, i, func() (core.Idempotency, error) {
		_, err := io.Copy(digest, tarball)
		i.BodySHA256 = digest.Sum(nil)
		return i, err
	})
	if again || err != nil {
		return out, err
	}
	_, a, err := s.find(ctx, c, id)
	if err != nil {
		return api.Deployment{}, err
	}
	checked := code.Check(a.Runtime, tarball)
	defer checked.Close()
	return s.deploy(ctx, c, id, io.TeeReader(refusing{checked}, digest), func() core.Idempotency {
		i.BodySHA256 = digest.Sum(nil)
		return i
	})
}

// again answers a deployment whose key is in use, without storing its code again, which
// needs the function and a host. whole returns the key with the digest of the body.
func (s *Functions) again(ctx context.Context, c core.Caller, id string, i core.Idempotency, whole func() (core.Idempotency, error)) (bool, api.Deployment, error) {
	if err := c.RequireWorkspace(); err != nil {
		return false, api.Deployment{}, err
	}
	claimed, err := core.Claimed(ctx, s.core, c, deployRoute(id, routeDeploy), i)
	if err != nil || !claimed {
		return false, api.Deployment{}, err
	}
	if i, err = whole(); err != nil {
		return true, api.Deployment{}, err
	}
	out, err := s.beginOnce(ctx, c, id, routeDeploy, i, &record.Deployment{}, func(*raftstore.Tx, *record.App, *record.Deployment) error {
		return apierror.Unavailable("the Idempotency-Key has just expired", nil)
	})
	return true, out, err
}

// deploy stores the code and begins a deployment. It calls key once the code has been read.
func (s *Functions) deploy(ctx context.Context, c core.Caller, id string, tarball io.Reader, key func() core.Idempotency) (api.Deployment, error) {
	kept, err := s.PutSource(ctx, c, id, tarball)
	if err != nil {
		return api.Deployment{}, err
	}
	return s.Apps.Deploy(ctx, c, id, api.CreateDeployment{SourceID: kept.SourceID}, key())
}

// refusing reads code and converts its errors to those of the API.
type refusing struct{ r io.Reader }

// Read implements io.Reader.
func (r refusing) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	return n, codeError(err)
}

func codeError(err error) error {
	switch {
	case errors.Is(err, code.ErrTooLarge):
		return &apierror.Error{Code: apierror.ETooLarge, Message: "code too large", Detail: err.Error()}
	case errors.Is(err, code.ErrRefused):
		return apierror.Invalid("invalid code", "%s", err)
	}
	return err
}

// Invocable returns an error if no invocation of a function can succeed.
func (s *Functions) Invocable(ctx context.Context, c core.Caller, id string) error {
	view, a, err := s.find(ctx, c, id)
	switch {
	case err != nil:
		return err
	case a.DeploymentID != "":
		return nil
	}
	if under := unfinished(view, id); len(under) > 0 {
		e := *errNotDeployed
		e.Detail = "its first deployment is " + string(under[0].Status)
		return &e
	}
	if all := deploymentsOf(view, id); len(all) > 0 {
		last := all[len(all)-1]
		why, _, _ := strings.Cut(last.Error, "\n")
		return errNotDeployed.With(fmt.Sprintf("its deployment %s has failed: %s; GET /v1/functions/%s/deploys/%s/logs tells more (berth function build-logs %[3]s)", last.ID, strings.TrimSuffix(why, "; it wrote last:"), id, last.ID), nil)
	}
	return errNotDeployed
}

// showFunction returns a function as its workspace sees it.
func (s *Functions) showFunction(a *record.App) (api.Function, error) {
	env, err := s.flows.shownEnv(a)
	return api.Function{
		ID: a.ID, Name: a.Name, Runtime: api.FunctionRuntime(a.Runtime), Status: api.AppStatus(a.Status), Error: a.Error,
		TimeoutSeconds: a.TimeoutSeconds, Env: env, Instances: len(a.Instances), DeploymentID: a.DeploymentID,
		LastInvokedAt: api.NewTime(a.LastRequestAt), CreatedAt: api.Time{Time: a.CreatedAt}, UpdatedAt: api.Time{Time: a.UpdatedAt},
	}, err
}
