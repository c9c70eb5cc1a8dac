package httpapi

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Lifecycle are the use cases of pause, resume, hibernate, wake and lifecycle.
type Lifecycle interface {
	Pause(ctx context.Context, c core.Caller, id string) (api.Sandbox, error)
	Resume(ctx context.Context, c core.Caller, id string) (api.Sandbox, error)
	Hibernate(ctx context.Context, c core.Caller, id string) (api.Sandbox, error)
	Wake(ctx context.Context, c core.Caller, id string) (api.Sandbox, error)
	Lifecycle(ctx context.Context, c core.Caller, id string) (api.Lifecycle, error)
	PatchLifecycle(ctx context.Context, c core.Caller, id string, in api.PatchLifecycle) (api.Lifecycle, error)
}

// lifecycleRoutes are the routes that pause, resume, hibernate and wake sandboxes.
func lifecycleRoutes() []route {
	away := apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	gone := apierror.Error{Code: apierror.ENotFound, Message: "sandbox not found or not running"}
	full := apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox"}
	is := func(status, detail string) apierror.Error {
		return apierror.Error{Code: apierror.EConflict, Message: "sandbox is " + status, Detail: detail}
	}
	paused, hibernated := exampleSandbox, exampleSandbox
	paused.Status, hibernated.Status = api.SandboxPaused, api.SandboxHibernated
	return []route{
		{method: post, path: "/v1/sandboxes/:id/pause", access: workspace, handle: (*API).pauseSandbox, doc: operation{
			id: "pauseSandbox", tag: "Lifecycle", summary: "Pause a running sandbox: stop its CPUs",
			detail: "Its memory stays on the host, and its time to live keeps counting.",
			body:   api.Empty{}, status: 200, answer: paused,
			failures: []apierror.Error{gone, is("hibernated", "cannot pause it: wake it first"), away},
		}},
		{method: post, path: "/v1/sandboxes/:id/resume", access: workspace, handle: (*API).resumeSandbox, doc: operation{
			id: "resumeSandbox", tag: "Lifecycle", summary: "Resume a paused sandbox",
			detail: "Also resumes the parent of a warm fork, which is left paused, and gets memory and a network slot again.",
			body:   api.Empty{}, status: 200, answer: exampleSandbox,
			failures: []apierror.Error{gone, is("running", "cannot resume it: there is nothing to do"), away, full},
		}},
		{method: post, path: "/v1/sandboxes/:id/hibernate", access: workspace, handle: (*API).hibernateSandbox, doc: operation{
			id: "hibernateSandbox", tag: "Lifecycle", summary: "Hibernate a running sandbox: write its memory to its host's disk, and end its VM",
			detail: "It keeps its disk and its network slot, but takes no memory and no CPU.",
			body:   api.Empty{}, status: 200, answer: hibernated,
			failures: []apierror.Error{
				gone, is("paused", "cannot hibernate it: resume it first"), away,
				{Code: apierror.EInsufficient, Message: "insufficient host storage for sandbox"},
			},
		}},
		{method: post, path: "/v1/sandboxes/:id/wake", access: workspace, handle: (*API).wakeSandbox, doc: operation{
			id: "wakeSandbox", tag: "Lifecycle", summary: "Wake a hibernated sandbox",
			detail: "A sandbox that already runs is returned as it is, so wakes at the same time are one wake.",
			body:   api.Empty{}, status: 200, answer: exampleSandbox,
			failures: []apierror.Error{gone, is("paused", "cannot wake it: resume it first"), away, full, errMemoryLost},
		}},
		{method: get, path: "/v1/sandboxes/:id/lifecycle", access: workspace, handle: (*API).getLifecycle, doc: operation{
			id: "getLifecycle", tag: "Lifecycle", summary: "Read how long a sandbox lives and what becomes of it then",
			status: 200, answer: exampleLifecycle,
		}},
		{method: patch, path: "/v1/sandboxes/:id/lifecycle", access: workspace, handle: (*API).patchLifecycle, doc: operation{
			id: "patchLifecycle", tag: "Lifecycle", summary: "Change how long a sandbox lives and what becomes of it then",
			detail: "`ttl_seconds` counts from now; null removes the end. What is absent stays as it is.",
			body:   examplePatchLifecycle, status: 200, answer: exampleLifecycle,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 31536000, or null for no end"},
				{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: ttl_seconds, persistent)"},
				is("deleting", "it is being deleted"), gone, away,
			},
		}},
	}
}

func (a *API) pauseSandbox(c *gin.Context) error { return a.change(c, a.cfg.Lifecycle.Pause) }

func (a *API) resumeSandbox(c *gin.Context) error { return a.change(c, a.cfg.Lifecycle.Resume) }

func (a *API) hibernateSandbox(c *gin.Context) error { return a.change(c, a.cfg.Lifecycle.Hibernate) }

func (a *API) wakeSandbox(c *gin.Context) error { return a.change(c, a.cfg.Lifecycle.Wake) }

// change handles the four transitions. The request's body is empty, but it must be
// JSON like any other.
func (a *API) change(c *gin.Context, change func(context.Context, core.Caller, string) (api.Sandbox, error)) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	sb, err := change(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, sb)
}

func (a *API) getLifecycle(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	l, err := a.cfg.Lifecycle.Lifecycle(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, l)
}

func (a *API) patchLifecycle(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, _, err := bind[api.PatchLifecycle](c, maxJSONBody)
	if err != nil {
		return err
	}
	if in.Persistent.Set && in.Persistent.Value == nil {
		return invalidJSON("persistent must be true or false, not null")
	}
	l, err := a.cfg.Lifecycle.PatchLifecycle(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, l)
}
