// Package core contains what all resources of the API share: the control store, the
// hosts, the engine of flows, and helpers for use cases. It does not know HTTP or
// any specific resource. A use case checks its input, runs one transaction or one
// flow, and returns a type of package api or an *apierror.Error.
package core

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Sealer encrypts secrets with the cluster's keys (raftstore/seal), so that the log
// does not contain them.
type Sealer interface {
	Seal(plaintext, context []byte) ([]byte, error)
	Open(ciphertext, context []byte) ([]byte, error)
}

// Core is shared by the use cases of all resources.
type Core struct {
	Store  *raftstore.Store
	Hosts  *hosts.Registry
	Engine *flow.Engine
	Sealer Sealer
	Clock  func() time.Time
	Logger *slog.Logger
	Tiers  *limits.Tiers // nil: nothing is limited

	// DeleteWait is how long a delete waits for the host; default 40 s, longer than
	// it takes to declare a host lost.
	DeleteWait time.Duration

	// Outputs limits the memory for what clients have not read yet, and Inputs that
	// for what clients send. They are separate because a command that holds input
	// waits for memory for its output.
	Outputs, Inputs *Budget

	// Streams limits what clients follow: each stream keeps a connection to a host open.
	Streams *Open

	creates *keyedMutex // by id of the idempotency key, or by workspace (AdmissionTurn)
	shares  *shares     // of the audit log
}

// maxStreams is how many streams a workspace may follow at once. A host serves 16,384
// connections, those of all its tenants together.
const maxStreams = 100

// New fills in defaults.
func New(c Core) *Core {
	if c.DeleteWait == 0 {
		c.DeleteWait = timescale.Limit(40 * time.Second)
	}
	c.Outputs, c.Inputs, c.creates, c.shares = newBudget(), newBudget(), newKeyedMutex(), &shares{}
	c.Streams = NewOpen("streams", maxStreams)
	return &c
}

// View returns a current view of the store to a caller with a workspace.
func (c *Core) View(ctx context.Context, caller Caller) (*raftstore.Snapshot, error) {
	if err := caller.RequireWorkspace(); err != nil {
		return nil, err
	}
	return c.Current(ctx)
}

// Current returns a current view of the store.
func (c *Core) Current(ctx context.Context) (*raftstore.Snapshot, error) {
	view, err := c.Store.VerifiedView(ctx)
	return view, StoreError(err)
}

// CurrentAfter is Current for a caller whose change is committed. If this replica
// has stopped leading, its error does not say that nothing was done.
func (c *Core) CurrentAfter(ctx context.Context) (*raftstore.Snapshot, error) {
	view, err := c.Store.VerifiedView(ctx)
	if err != nil {
		return nil, lost(err)
	}
	return view, nil
}

// Update runs a transaction. Its error is an *apierror.Error. The first one of a request
// with an Act that writes anything also writes that act's entry in the audit log, unless
// its actor does more than the log tells.
func (c *Core) Update(ctx context.Context, fn func(tx *raftstore.Tx) error) error {
	act := actOf(ctx)
	if act == nil || !act.claim() {
		return StoreError(c.Store.Update(ctx, fn))
	}
	var entry record.AuditEntry
	wrote := false
	// Once, however often the transaction runs; and only if it writes, so that what is
	// refused hides nothing that is done.
	how := sync.OnceValue(func() telling { return c.telling(act.who, entry) })
	err := c.Store.Update(ctx, func(tx *raftstore.Tx) error {
		wrote = false
		if err := fn(tx); err != nil {
			return err
		}
		if wrote = tx.Writes(); wrote {
			entry = act.as(OutcomeOK, "")
			putTold(tx, how(), entry)
		}
		return nil
	})
	done := wrote && err == nil
	act.release(done)
	if done {
		c.logUntold(ctx, how(), entry)
	}
	return StoreError(err)
}

// Admit refuses in the transaction that creates what the caller's workspace may not
// have: all that MayUse refuses, and what exceeds its quotas.
func (c *Core) Admit(tx *raftstore.Tx, caller Caller, need limits.Need) error {
	if err := c.MayUse(tx, caller); err != nil {
		return err
	}
	ws, _ := raftstore.Get(tx, record.Workspaces, caller.WorkspaceID)
	return c.Tiers.Admit(tx, ws, need)
}

// Admissible is Admit for a view: what it admits may still be refused.
func (c *Core) Admissible(r raftstore.Reader, caller Caller, need limits.Need) error {
	if err := c.MayUse(r, caller); err != nil {
		return err
	}
	ws, _ := raftstore.Get(r, record.Workspaces, caller.WorkspaceID)
	return c.Tiers.Check(r, ws, need, c.Clock())
}

// AdmissionTurn waits for the caller's turn to place and admit a create. Those of a workspace
// with quotas take turns: each counts what the ones before have made, so they would only be
// in each other's way. And those that exceed a quota take no memory on hosts meanwhile, or
// others, of whichever workspace, were refused for lack of it. Large creates of a workspace
// take turns, too, or their writes would hold up those of others.
func (c *Core) AdmissionTurn(ctx context.Context, caller Caller, large bool) (leave func(), err error) {
	ws, ok := raftstore.Get(c.Store.View(), record.Workspaces, caller.WorkspaceID)
	if !ok || !large && !c.Tiers.Counts(ws) {
		return func() {}, nil
	}
	if leave, err = c.creates.lock(ctx, "admission/"+ws.ID); err != nil {
		return nil, StoreError(err)
	}
	return leave, nil
}

// MayUse refuses the create of what uses compute or storage: all that MayCreate refuses,
// and workspaces whose month is spent.
func (c *Core) MayUse(r raftstore.Reader, caller Caller) error {
	if err := MayCreate(r, caller); err != nil {
		return err
	}
	ws, _ := raftstore.Get(r, record.Workspaces, caller.WorkspaceID)
	return c.Tiers.MayCreate(r, ws, c.Clock())
}

// MayRun refuses what would run, or wake, in a workspace whose month is spent.
func (c *Core) MayRun(r raftstore.Reader, workspaceID string) error {
	ws, ok := raftstore.Get(r, record.Workspaces, workspaceID)
	if !ok {
		return nil // what is left of it goes
	}
	return c.Tiers.MayRun(r, ws, c.Clock())
}

// MayGoOn refuses to go on with what ran in a workspace whose free credit is spent. To
// boot again what has died, or to restore it elsewhere, is no wake.
func (c *Core) MayGoOn(r raftstore.Reader, workspaceID string) error {
	ws, ok := raftstore.Get(r, record.Workspaces, workspaceID)
	if !ok {
		return nil
	}
	return c.Tiers.MayGoOn(r, ws, c.Clock())
}

// ErrSuspended refuses the creates of a suspended workspace.
var ErrSuspended = &apierror.Error{Code: apierror.EForbidden, Message: "account suspended", Detail: "the operator of this service has suspended the workspace: nothing is created in it until that is lifted"}

// MayCreate refuses a suspended workspace, and one whose subscription is not active.
func MayCreate(r raftstore.Reader, c Caller) error {
	ws, ok := raftstore.Get(r, record.Workspaces, c.WorkspaceID)
	switch {
	case !ok:
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	case ws.Suspended:
		return ErrSuspended
	case ws.SubscriptionStatus == record.SubscriptionPastDue, ws.SubscriptionStatus == record.SubscriptionCanceled:
		return &apierror.Error{
			Code: apierror.EQuota, Message: "subscription not active", Detail: "what runs goes on, and nothing is deleted",
			Fields: map[string]any{"subscription_status": string(ws.SubscriptionStatus)},
		}
	}
	return nil
}

// Await waits for the end of a flow and decodes its result into result unless that
// is nil. If the outcome is unknown, it returns nil, and the caller reads the
// records.
func (c *Core) Await(ctx context.Context, flowID string, result any) error {
	err := c.Engine.Wait(ctx, flowID, result)
	if errors.Is(err, flow.ErrOutcomeUnknown) || errors.Is(err, flow.ErrPreempted) {
		return nil
	}
	return StoreError(err)
}

// Remove begins the removal of a resource of the caller's workspace and waits for
// its end, at most for DeleteWait. A removal cannot be undone once the resource is
// marked, so if the host does not answer in time, the removal continues without the
// caller, who gets ErrRemoving. begin is the transaction: it gets an id for a new flow and returns the id
// of the flow to wait for.
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
	err = c.Engine.Wait(wait, flowID, nil)
	late := ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)
	if late || errors.Is(err, flow.ErrOutcomeUnknown) || errors.Is(err, flow.ErrPreempted) {
		return ErrRemoving
	}
	return StoreError(err)
}

// ErrRemoving says that a removal has begun, cannot be undone, and goes on. It is no
// failure: the edge answers 202.
var ErrRemoving = errors.New("the removal goes on")
