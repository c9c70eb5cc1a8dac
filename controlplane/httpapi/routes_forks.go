package httpapi

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Snapshots are the use cases of snapshots.
type Snapshots interface {
	Create(ctx context.Context, c core.Caller, sandboxID string, in api.CreateSnapshot, i core.Idempotency) (api.Snapshot, error)
	Get(ctx context.Context, c core.Caller, id string) (api.Snapshot, error)
	List(ctx context.Context, c core.Caller, sandboxID string, o core.ListOptions) (page []api.Snapshot, next string, err error)
	Delete(ctx context.Context, c core.Caller, id string) error
}

// Forks are the use cases of forks.
type Forks interface {
	Fork(ctx context.Context, c core.Caller, id string, in api.Fork, i core.Idempotency) (api.Forked, error)
	ForkTree(ctx context.Context, c core.Caller, id string, in api.ForkTree, i core.Idempotency) (api.ForkedTree, error)
	Promote(ctx context.Context, c core.Caller, id string, in api.Promote) (api.Promoted, error)
}

var errLargeEnvs = apierror.Error{
	Code: apierror.ERateLimited, Message: "environments too large", Detail: "of the sandboxes and snapshots of a workspace, those over 65536 bytes together",
	Fields: map[string]any{"max_bytes": 32 << 20, "used_bytes": 33423360},
}

// The errors of calls that capture a sandbox.
var captureFailures = []apierror.Error{
	errLargeEnvs,
	{Code: apierror.EForbidden, Message: "account suspended"},
	{Code: apierror.ENotFound, Message: "sandbox not found or not running", Detail: "its status is failed"},
	{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"},
	{Code: apierror.EBadGateway, Message: "agent unreachable"},
	{Code: apierror.EInsufficient, Message: "insufficient host storage for snapshot"},
}

// forkRoutes are the routes of snapshots and forks.
func forkRoutes() []route {
	count := apierror.Error{Code: apierror.EInvalid, Message: "count must be from 1 to 16"}
	children := slices.Concat(captureFailures, []apierror.Error{
		count,
		{Code: apierror.ETooLarge, Message: "request too large", Detail: "the metadata of all children together is too large: make fewer children at once"},
		{Code: apierror.EInternal, Message: "sandbox failed to start"},
		{Code: apierror.EBadGateway, Message: "no available compute node", Detail: "every host with the template is full"},
	})
	volumes := apierror.Error{Code: apierror.EConflict, Message: "volumes are attached"}
	return slices.Concat(snapshotRoutes(volumes), []route{
		{method: post, path: "/v1/sandboxes/:id/fork", access: workspace, handle: (*API).fork, doc: operation{
			id: "forkSandbox", tag: "Snapshots and forks", summary: "Fork a running sandbox with its disk",
			detail: "Cold, the default: each child boots from a copy of the disk. Warm, for a single child: it takes over the parent's memory, " +
				"disk and address, and the parent is paused until it is resumed. A child that fails to start is reported in `failed`; the others live.",
			idempotent: true, body: exampleFork, status: 201, answer: exampleForked,
			failures: slices.Concat(children, []apierror.Error{
				{Code: apierror.EInvalid, Message: "warm fork requires count 1"},
				{Code: apierror.EInvalid, Message: "unknown mode", Detail: `mode is "cold" or "warm"`},
				volumes,
			}),
		}},
		{method: post, path: "/v1/sandboxes/:id/fork-tree", access: workspace, handle: (*API).forkTree, doc: operation{
			id: "forkTree", tag: "Snapshots and forks", summary: "Fork a running sandbox with its disk and memory",
			detail: "Every process lives on in each child. The parent is paused for `pause_ms`. A child that fails to start is " +
				"reported in `failed`; the others live.",
			idempotent: true, body: exampleForkTree, status: 201, answer: exampleForkedTree,
			failures: append(slices.Clone(children), volumes),
		}},
		{method: post, path: "/v1/sandboxes/:id/promote", access: workspace, handle: (*API).promote, doc: operation{
			id: "promote", tag: "Snapshots and forks", summary: "Promote a child of a fork tree, and delete its siblings",
			detail: "The parent is not a sibling, and is kept.",
			body:   examplePromote, status: 200, answer: examplePromoted,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "tree_id is required"},
				{Code: apierror.ENotFound, Message: "not found", Detail: "the sandbox is no child of this fork-tree"},
			},
		}},
	})
}

// bindCreate reads a create's body and its Idempotency-Key.
func bindCreate[T any](c *gin.Context) (in T, i core.Idempotency, err error) {
	return bindCreateOf[T](c, maxJSONBody)
}

// bindCreateOf is bindCreate for a body of at most limit bytes.
func bindCreateOf[T any](c *gin.Context, limit int64) (in T, i core.Idempotency, err error) {
	i, err = idempotency(c)
	if err != nil {
		return in, i, err
	}
	in, raw, err := bind[T](c, limit)
	if err != nil {
		return in, i, err
	}
	digest := sha256.Sum256(raw)
	i.BodySHA256 = digest[:]
	return in, i, nil
}

func (a *API) fork(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, key, err := bindCreate[api.Fork](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Forks.Fork(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) forkTree(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, key, err := bindCreate[api.ForkTree](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Forks.ForkTree(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) promote(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, _, err := bind[api.Promote](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Forks.Promote(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, out)
}
