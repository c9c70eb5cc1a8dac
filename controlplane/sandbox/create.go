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
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Create creates a sandbox and returns once it runs.
func (s *Sandboxes) Create(ctx context.Context, c core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Sandbox{}, err
	}
	if err := validateCreate(in); err != nil {
		return api.Sandbox{}, err
	}
	if len(in.Volumes) > 0 { // who runs commands beside a volume reads and writes it
		if err := core.Authorize(c, core.Write, core.Resource{Area: core.AreaVolumes}); err != nil {
			return api.Sandbox{}, err
		}
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
	vars, err := s.source(ctx, c, row, in)
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
	env, err := s.Flows.NewEnv(vars)
	if err != nil {
		return api.Sandbox{}, apierror.As(err)
	}
	row.EnvRef = env.Ref
	leave, err := s.core.AdmissionTurn(ctx, c, row.Large())
	if err != nil {
		return api.Sandbox{}, err
	}
	defer leave()
	if row.Large() { // before any of it is written
		if err := s.core.Admissible(s.core.Store.View(), c, needOf(row)); err != nil {
			return api.Sandbox{}, err
		}
	}
	discard, err := s.Flows.prepare(ctx, env, c.WorkspaceID)
	if err != nil {
		return api.Sandbox{}, err
	}
	begun := false
	defer func() {
		if !begun {
			discard()
		}
	}()
	placing := s.core.Clock()
	if err := s.Flows.Place(s.core.Store.View(), row); err != nil {
		return api.Sandbox{}, s.placeError(ctx, c, row, err)
	}
	sizeUnplaced(s.core.Store.View(), row)
	times.placing = s.core.Clock().Sub(placing)
	flowID := flow.NewID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.Admit(tx, c, needOf(row)); err != nil {
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
		if err := env.Put(tx, row.WorkspaceID, 1); err != nil {
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
	begun = true
	leave()
	times.admitted = s.core.Clock()
	out, made, err := s.awaitCreate(ctx, c, row.ID, flowID)
	if err == nil && !made.Answered.IsZero() {
		times.report(made)
	}
	return out, err
}

// awaitCreate waits for a create and returns its sandbox.
func (s *Sandboxes) awaitCreate(ctx context.Context, c core.Caller, id, flowID string) (api.Sandbox, Created, error) {
	var made Created
	if err := s.core.Await(ctx, flowID, &made); err != nil {
		return api.Sandbox{}, made, err
	}
	view := s.core.Store.View()
	if made.Answered.IsZero() {
		// The flow ended before this call began, so its commit does not prove that
		// the view is current.
		var err error
		if view, err = s.core.CurrentAfter(ctx); err != nil {
			return api.Sandbox{}, made, err
		}
	}
	row, ok := raftstore.Get(view, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.SandboxDeleting {
		return api.Sandbox{}, made, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return s.Show(row), made, nil
}

// replay returns what an earlier create with the same key created.
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

// needOf returns what a new sandbox takes of its workspace's quotas.
func needOf(row *record.Sandbox) limits.Need {
	return limits.Need{Sandboxes: 1, CPU: row.CPU, MemoryMB: row.MemoryMB, DiskMB: row.DiskMB}
}

// sizeUnplaced sets the size of a sandbox that waits for its first host by its
// snapshot, or by its template's record, so that it counts from the beginning.
func sizeUnplaced(view raftstore.Reader, row *record.Sandbox) {
	if row.HostID != "" {
		return
	}
	if row.FromSnapshot != "" { // its template may have another size by now
		if snap, ok := raftstore.Get(view, record.Snapshots, row.FromSnapshot); ok {
			row.CPU, row.MemoryMB, row.DiskMB = snap.CPU, snap.MemoryMB, snap.DiskMB
		}
		return
	}
	if t, ok := template.SizeOf(view, row); ok {
		row.CPU, row.MemoryMB, row.DiskMB = t.CPU, t.MemoryMB, t.DiskMB
	}
}

// placeError converts the error of a placement. It first checks whether the caller
// may create the sandbox at all, because that error takes precedence.
func (s *Sandboxes) placeError(ctx context.Context, c core.Caller, row *record.Sandbox, err error) error {
	var none *placement.Error
	if !errors.As(err, &none) {
		return core.StoreError(err)
	}
	view, verr := s.core.Current(ctx)
	if verr != nil {
		return verr
	}
	if err := s.core.Admissible(view, c, needOf(row)); err != nil {
		return err
	}
	return noHost(view, row, none)
}

// stages measures the stages of a create.
type stages struct {
	observe  func(stage string, engine bool, took time.Duration)
	clock    func() time.Time
	start    time.Time
	admitted time.Time // validated, placed and committed
	placing  time.Duration
}

// report observes the stages of a successful create. "admit", "placement",
// "dispatch", "host_call" and "commit" are the control plane's; those of the host
// begin with "host.". "total" is the whole create, and "own" the part of our own
// processes: everything except the engine's start, restore and resume, and the
// guest's answer.
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
	if made.Took > 0 { // stages may overlap, so the host's total is more precise
		hostTotal = made.Took
	}
	t.observe("host_call", false, max(0, made.Answered.Sub(made.Dispatched)-hostTotal))
	t.observe("commit", false, end.Sub(made.Answered))
	t.observe("total", false, end.Sub(t.start))
	t.observe("own", false, max(0, end.Sub(t.start)-others))
}
