// Package core is what all things of the API work with: the control store, the
// hosts, the engine of flows, and what their use cases have in common. It knows
// nothing of HTTP, and no thing. A use case checks its input, runs one transaction
// or one flow, and returns a type of package api or an *apierror.Error.
package core

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Sealer encrypts and authenticates with the cluster's keys (raftstore/seal), to
// keep secrets out of the log.
type Sealer interface {
	Seal(plaintext, context []byte) ([]byte, error)
	Open(ciphertext, context []byte) ([]byte, error)
}

// Core is what every thing works with.
type Core struct {
	Store  *raftstore.Store
	Hosts  *hosts.Registry
	Engine *flow.Engine
	Sealer Sealer
	Clock  func() time.Time
	Logger *slog.Logger

	// DeleteWait is how long a delete waits for the host; default 40 s, more
	// than it takes to conclude that the host is lost.
	DeleteWait time.Duration

	// Outputs bounds the memory that what hosts answer takes until clients have
	// read it, and Inputs that of what clients send. They are two, because a command
	// that holds some of its input waits for room for its output.
	Outputs, Inputs *Budget

	creates *turns // by the id of an idempotency key
}

// New fills in what is not given.
func New(c Core) *Core {
	if c.DeleteWait == 0 {
		c.DeleteWait = timescale.Limit(40 * time.Second)
	}
	c.Outputs, c.Inputs, c.creates = NewBudget(), NewBudget(), newTurns()
	return &c
}

// View is a current view of the store for a caller who must have a workspace.
func (c *Core) View(ctx context.Context, caller Caller) (*raftstore.Snapshot, error) {
	if err := caller.RequireWorkspace(); err != nil {
		return nil, err
	}
	return c.Current(ctx)
}

// Current is a current view of the store.
func (c *Core) Current(ctx context.Context) (*raftstore.Snapshot, error) {
	view, err := c.Store.VerifiedView(ctx)
	return view, StoreError(err)
}

// Update runs a transaction. What it fails with is an *apierror.Error.
func (c *Core) Update(ctx context.Context, fn func(tx *raftstore.Tx) error) error {
	return StoreError(c.Store.Update(ctx, fn))
}

// MayCreate refuses a workspace that is blocked from creating compute.
func MayCreate(r raftstore.Reader, c Caller) error {
	ws, ok := raftstore.Get(r, record.Workspaces, c.WorkspaceID)
	switch {
	case !ok:
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	case ws.Suspended:
		return &apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	}
	return nil
}

// Await waits for the end of a flow, and decodes its result into result unless
// that is nil. What became of one whose outcome is not known, the records say.
func (c *Core) Await(ctx context.Context, flowID string, result any) error {
	err := c.Engine.Wait(ctx, flowID, result)
	if errors.Is(err, flow.ErrOutcomeUnknown) || errors.Is(err, flow.ErrPreempted) {
		return nil
	}
	return StoreError(err)
}

// Remove begins the removal of a resource of the caller's workspace and waits for
// its end, for DeleteWait at most. Past that the removal goes on without the caller:
// from the moment that it is marked there is no way back, so a host that does not
// answer only delays it. begin is the transaction; it gets an id for a new flow, and
// returns that of the flow to wait for.
func (c *Core) Remove(ctx context.Context, caller Caller, begin func(tx *raftstore.Tx, flowID string) (string, error)) error {
	if err := caller.RequireWorkspace(); err != nil {
		return err
	}
	fresh, flowID := flow.NewID(), ""
	err := c.Update(ctx, func(tx *raftstore.Tx) (err error) {
		flowID, err = begin(tx, fresh)
		return err
	})
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, c.DeleteWait)
	defer cancel()
	err = c.Await(wait, flowID, nil)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
