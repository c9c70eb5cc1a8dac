package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Create makes a sandbox and returns once it runs.
func (s *Sandboxes) Create(ctx context.Context, c core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Sandbox{}, err
	}
	if err := validateCreate(in); err != nil {
		return api.Sandbox{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/sandboxes", i,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Sandbox, error) {
			return s.replay(ctx, c, view, key)
		},
		func(keyID string) (api.Sandbox, error) { return s.create(ctx, c, in, i, keyID) })
}

func (s *Sandboxes) create(ctx context.Context, c core.Caller, in api.CreateSandbox, i core.Idempotency, keyID string) (api.Sandbox, error) {
	times := stages{observe: s.cfg.Observe, clock: s.core.Clock, start: s.core.Clock()}
	row := &record.Sandbox{
		Meta: record.Meta{ID: core.RandomText(hostapi.IDLength)}, WorkspaceID: c.WorkspaceID, Status: record.SandboxStarting,
		Template: in.Template, TTLSeconds: in.TTLSeconds, Metadata: json.RawMessage(in.Metadata), Persistent: in.Persistent, Preview: record.PreviewMode(core.OrZero(in.Preview)),
	}
	env, err := s.source(ctx, c, row, in)
	if err != nil {
		return api.Sandbox{}, err
	}
	if row.FromSnapshot == "" {
		if err := s.cfg.Templates.Await(ctx, c, in.Template); err != nil {
			return api.Sandbox{}, err
		}
	}
	if err := template.Resolve(s.core.Store.View(), row); err != nil {
		return api.Sandbox{}, err
	}
	if row.EnvSealed, err = s.Flows.SealEnv(row.ID, env); err != nil {
		return api.Sandbox{}, apierror.As(err)
	}
	placing := s.core.Clock()
	if err := s.Flows.Place(s.core.Store.View(), row); err != nil {
		return api.Sandbox{}, s.placeError(ctx, c, err)
	}
	times.placing = s.core.Clock().Sub(placing)
	flowID := flow.NewID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := core.MayCreate(tx, c); err != nil {
			return err
		}
		if err := i.Claim(tx, keyID, row.ID); err != nil {
			return err
		}
		if err := template.Resolve(tx, row); err != nil { // it may have been deleted meanwhile
			return err
		}
		if err := attachVolumes(tx, row); err != nil {
			return err
		}
		return s.Flows.Begin(tx, flowID, row, Create{
			Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}, Boot: hostapi.Boot(core.OrZero(in.Boot)),
		})
	})
	if err != nil {
		s.Flows.Unplace(row)
		return api.Sandbox{}, err
	}
	times.admitted = s.core.Clock()
	out, made, err := s.awaitCreate(ctx, c, row.ID, flowID)
	if err == nil && !made.Answered.IsZero() {
		times.report(made)
	}
	return out, err
}

// awaitCreate waits for a create and answers with its sandbox.
func (s *Sandboxes) awaitCreate(ctx context.Context, c core.Caller, id, flowID string) (api.Sandbox, Created, error) {
	var made Created
	if err := s.core.Await(ctx, flowID, &made); err != nil {
		return api.Sandbox{}, made, err
	}
	view := s.core.Store.View()
	if made.Answered.IsZero() {
		// That the flow has ended was not committed after the call began: what is
		// read needs another proof of being recent.
		var err error
		if view, err = s.core.Current(ctx); err != nil {
			return api.Sandbox{}, made, err
		}
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.SandboxDeleting {
		return api.Sandbox{}, made, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return s.Show(row), made, nil
}

// replay answers a create whose key was used before with what that one made.
func (s *Sandboxes) replay(ctx context.Context, c core.Caller, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Sandbox, error) {
	row, ok := raftstore.Get(view, record.Sandboxes, key.ResourceID)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.SandboxDeleting {
		return api.Sandbox{}, core.ErrKeyGone("sandbox")
	}
	if live, ok := flow.Live(view, Resource.Subject(row.ID)); ok && live.Kind == Resource.CreateKind() {
		out, _, err := s.awaitCreate(ctx, c, row.ID, live.ID)
		return out, err
	}
	return s.Show(row), nil
}

// placeError says why no host was found at once. Whether the caller may create
// at all is found out first: it decides which error they get.
func (s *Sandboxes) placeError(ctx context.Context, c core.Caller, err error) error {
	var none *placement.Error
	if !errors.As(err, &none) {
		return core.StoreError(err)
	}
	view, verr := s.core.Current(ctx)
	if verr != nil {
		return verr
	}
	if err := core.MayCreate(view, c); err != nil {
		return err
	}
	return NoHost(none)
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
// "own" is what our own processes take of it: everything but the engine's start,
// restore and resume, and the guest's answer.
func (t *stages) report(made Created) {
	end := t.clock()
	t.observe("admit", false, t.admitted.Sub(t.start)-t.placing)
	t.observe("placement", false, t.placing)
	t.observe("dispatch", false, max(0, made.Dispatched.Sub(t.admitted)))
	var hostTotal, others time.Duration
	for _, st := range made.Stages {
		t.observe("host."+st.Name, st.Engine, st.Duration)
		hostTotal += st.Duration
		if st.Engine || st.Guest() {
			others += st.Duration
		}
	}
	if made.Took > 0 { // our stages may overlap; the host knows better
		hostTotal = made.Took
	}
	t.observe("host_call", false, max(0, made.Answered.Sub(made.Dispatched)-hostTotal))
	t.observe("commit", false, end.Sub(made.Answered))
	t.observe("total", false, end.Sub(t.start))
	t.observe("own", false, max(0, end.Sub(t.start)-others))
}
