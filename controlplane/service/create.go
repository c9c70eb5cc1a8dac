package service

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Create makes a sandbox and returns once it runs.
func (s *Sandboxes) Create(ctx context.Context, c Caller, in CreateSandbox) (Sandbox, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Sandbox{}, err
	}
	if err := in.validate(); err != nil {
		return Sandbox{}, err
	}
	return once(ctx, s.cfg.Store, s.cfg.Clock, c, "POST /v1/sandboxes", in.idempotency(),
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Sandbox, error) {
			return s.replay(ctx, c, view, key)
		},
		func(keyID string) (Sandbox, error) { return s.create(ctx, c, in, keyID) })
}

func (in CreateSandbox) idempotency() Idempotency {
	return Idempotency{Key: in.IdempotencyKey, BodySHA256: in.BodySHA256}
}

func (s *Sandboxes) create(ctx context.Context, c Caller, in CreateSandbox, keyID string) (Sandbox, error) {
	times := stages{observe: s.cfg.Observe, clock: s.cfg.Clock, start: s.cfg.Clock()}
	row := &record.Sandbox{
		Meta: record.Meta{ID: randomText(hostapi.IDLength)}, WorkspaceID: c.WorkspaceID, Status: record.SandboxStarting,
		Template: in.Template, TTLSeconds: in.TTLSeconds, Persistent: in.Persistent, Preview: record.PreviewMode(orZero(in.Preview)),
	}
	if string(in.Metadata) != "null" {
		row.Metadata = in.Metadata
	}
	env, err := s.source(ctx, c, row, in)
	if err != nil {
		return Sandbox{}, err
	}
	if row.FromSnapshot == "" {
		if err := s.awaitTemplate(ctx, c, in.Template); err != nil {
			return Sandbox{}, err
		}
	}
	if err := resolveTemplate(s.cfg.Store.View(), row); err != nil {
		return Sandbox{}, err
	}
	if row.EnvSealed, err = s.cfg.Flows.SealEnv(row.ID, env); err != nil {
		return Sandbox{}, apierror.As(err)
	}
	placing := s.cfg.Clock()
	if err := s.cfg.Flows.Place(s.cfg.Store.View(), row); err != nil {
		return Sandbox{}, s.placeError(ctx, c, err)
	}
	times.placing = s.cfg.Clock().Sub(placing)
	flowID := flow.NewID()
	err = s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if err := mayCreate(tx, c); err != nil {
			return err
		}
		if err := in.idempotency().claim(tx, keyID, row.ID); err != nil {
			return err
		}
		if err := resolveTemplate(tx, row); err != nil { // it may have been deleted meanwhile
			return err
		}
		if err := attachVolumes(tx, row); err != nil {
			return err
		}
		return s.cfg.Flows.Begin(tx, flowID, row, sandbox.Create{
			Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}, Boot: hostapi.Boot(orZero(in.Boot)),
		})
	})
	if err != nil {
		s.cfg.Flows.Unplace(row)
		return Sandbox{}, createError(err)
	}
	times.admitted = s.cfg.Clock()
	out, made, err := s.awaitCreate(ctx, c, row.ID, flowID)
	if err == nil && !made.Answered.IsZero() {
		times.report(made)
	}
	return out, err
}

// mayCreate refuses a workspace that is blocked from creating compute.
func mayCreate(r raftstore.Reader, c Caller) error {
	ws, ok := raftstore.Get(r, record.Workspaces, c.WorkspaceID)
	switch {
	case !ok:
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	case ws.Suspended:
		return &apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	}
	return nil
}

// awaitCreate waits for a create and answers with its sandbox.
func (s *Sandboxes) awaitCreate(ctx context.Context, c Caller, id, flowID string) (Sandbox, sandbox.Created, error) {
	var made sandbox.Created
	if err := s.await(ctx, flowID, &made); err != nil {
		return Sandbox{}, made, err
	}
	view := s.cfg.Store.View()
	if made.Answered.IsZero() {
		// That the flow has ended was not committed after the call began: what is
		// read needs another proof of being recent.
		var err error
		if view, err = s.cfg.Store.VerifiedView(ctx); err != nil {
			return Sandbox{}, made, storeError(err)
		}
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.SandboxDeleting {
		return Sandbox{}, made, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return s.show(row), made, nil
}

// replay answers a create whose key was used before with what that one made.
func (s *Sandboxes) replay(ctx context.Context, c Caller, view *raftstore.Snapshot, key *record.IdempotencyKey) (Sandbox, error) {
	row, ok := raftstore.Get(view, record.Sandboxes, key.ResourceID)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.SandboxDeleting {
		return Sandbox{}, errKeyGone("sandbox")
	}
	if live, ok := flow.Live(view, sandbox.Resource.Subject(row.ID)); ok && live.Kind == sandbox.Resource.CreateKind() {
		out, _, err := s.awaitCreate(ctx, c, row.ID, live.ID)
		return out, err
	}
	return s.show(row), nil
}

// placeError says why no host was found at once. Whether the caller may create
// at all is found out first: it decides which error they get.
func (s *Sandboxes) placeError(ctx context.Context, c Caller, err error) error {
	var none *placement.Error
	if !errors.As(err, &none) {
		return storeError(err)
	}
	view, verr := s.cfg.Store.VerifiedView(ctx)
	if verr != nil {
		return storeError(verr)
	}
	if err := mayCreate(view, c); err != nil {
		return err
	}
	return sandbox.NoHost(none)
}

// stages tells where the time of a create went.
type stages struct {
	observe  func(stage string, engine bool, took time.Duration)
	clock    func() time.Time
	start    time.Time
	admitted time.Time // validated, placed, written
	placing  time.Duration
}

// report tells of a create that went through. The stages
// "admit", "placement", "dispatch", "host_call" and "commit" are the control
// plane's own; those of the host begin with "host."; "total" is all of it, and
// "own" is the part that was not the engine's start, restore and resume.
func (t *stages) report(made sandbox.Created) {
	end := t.clock()
	t.observe("admit", false, t.admitted.Sub(t.start)-t.placing)
	t.observe("placement", false, t.placing)
	t.observe("dispatch", false, max(0, made.Dispatched.Sub(t.admitted)))
	var hostTotal, engine time.Duration
	for _, st := range made.Stages {
		t.observe("host."+st.Name, st.Engine, st.Duration)
		hostTotal += st.Duration
		if st.Engine {
			engine += st.Duration
		}
	}
	if made.Took > 0 { // stages may overlap; the host knows better
		hostTotal, engine = made.Took, made.Took-made.Own
	}
	t.observe("host_call", false, max(0, made.Answered.Sub(made.Dispatched)-hostTotal))
	t.observe("commit", false, end.Sub(made.Answered))
	t.observe("total", false, end.Sub(t.start))
	t.observe("own", false, max(0, end.Sub(t.start)-engine))
}
