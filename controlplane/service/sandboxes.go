package service

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// SandboxesConfig is what the use cases of sandboxes work with.
type SandboxesConfig struct {
	Store         *raftstore.Store
	Hosts         *hosts.Registry
	Flows         *sandbox.Flows
	Templates     *template.Flows
	Engine        *flow.Engine
	PreviewURL    string // pattern with {port} and {id}; "" leaves preview_url empty
	PreviewTokens PreviewTokens
	Clock         func() time.Time
	Logger        *slog.Logger

	// Observe is told how long each stage of a create took. engine: the time is
	// the VMM's own.
	Observe func(stage string, engine bool, took time.Duration)

	// DeleteWait is how long a delete waits for the host; default 40 s, more
	// than it takes to conclude that the host is lost.
	DeleteWait time.Duration
}

// Sandboxes are the use cases of /v1/sandboxes.
type Sandboxes struct {
	cfg         SandboxesConfig
	transitions *sandbox.Transitions
	outputs     *outputs
	inputs      *outputs // of its own: who holds some of it waits for room for its output
}

// NewSandboxes makes the use cases.
func NewSandboxes(cfg SandboxesConfig) *Sandboxes {
	if cfg.DeleteWait == 0 {
		cfg.DeleteWait = timescale.Limit(40 * time.Second)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, bool, time.Duration) {}
	}
	return &Sandboxes{
		cfg: cfg, transitions: sandbox.NewTransitions(sandbox.TransitionsConfig{Store: cfg.Store, Hosts: cfg.Hosts, Logger: cfg.Logger}),
		outputs: newOutputs(), inputs: newOutputs(),
	}
}

// Get returns one sandbox of the caller's workspace.
func (s *Sandboxes) Get(ctx context.Context, c Caller, id string) (Sandbox, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Sandbox{}, err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return Sandbox{}, storeError(err)
	}
	row, err := owned(view, c, id)
	if err != nil {
		return Sandbox{}, err
	}
	return s.show(row), nil
}

// owned finds a sandbox of the caller's workspace. Another workspace's is no
// different from none.
func owned(r raftstore.Reader, c Caller, id string) (*record.Sandbox, error) {
	row, ok := raftstore.Get(r, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return nil, apierror.NotFound()
	}
	return row, nil
}

// List returns a page of the workspace's sandboxes, newest first, and the
// cursor of the next page ("" after the last). A long one is held within bounds
// until ctx ends.
func (s *Sandboxes) List(ctx context.Context, c Caller, o ListOptions) (page []Sandbox, next string, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, "", err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return nil, "", storeError(err)
	}
	rows, next, err := paginate(raftstore.Find(view, record.Sandboxes, "workspace", c.WorkspaceID), o)
	if err != nil {
		return nil, "", err
	}
	if err := s.admitList(ctx, c, rows); err != nil {
		return nil, "", err
	}
	page = make([]Sandbox, len(rows))
	for i, row := range rows {
		page[i] = s.show(row)
	}
	return page, next, nil
}

// Delete removes a sandbox; it returns once it is gone from its host. From the
// moment it is marked there is no way back, so a host that does not answer only
// delays the answer: past DeleteWait the removal goes on without the caller.
func (s *Sandboxes) Delete(ctx context.Context, c Caller, id string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	fresh := flow.NewID()
	var flowID string
	err := s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := owned(tx, c, id)
		if err != nil {
			return err
		}
		if row.Owner != nil {
			return &apierror.Error{Code: apierror.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"}
		}
		flowID, err = sandbox.Resource.BeginDelete(tx, fresh, row, c.RequestID)
		return err
	})
	if err != nil {
		return storeError(err)
	}
	return s.awaitRemoval(ctx, flowID)
}

// await waits for the end of a flow, and decodes its result into result unless
// that is nil. What became of one whose outcome is not known, the records say.
func (s *Sandboxes) await(ctx context.Context, flowID string, result any) error {
	err := s.cfg.Engine.Wait(ctx, flowID, result)
	if errors.Is(err, flow.ErrOutcomeUnknown) || errors.Is(err, flow.ErrPreempted) {
		return nil
	}
	return storeError(err)
}

// show converts a row for its workspace.
func (s *Sandboxes) show(r *record.Sandbox) Sandbox {
	out := Sandbox{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Status: string(r.Status), Template: r.Template, Metadata: r.Metadata,
		CPU: r.CPU, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB, AgentID: r.AgentID,
		FromSnapshot: r.FromSnapshot, ForkedFrom: r.ForkedFrom,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, ExpiresAt: r.ExpiresAt, TTLSeconds: r.TTLSeconds,
		Persistent: r.Persistent, Error: r.Error, Preview: string(cmp.Or(r.Preview, record.PreviewPublic)),
	}
	if r.Owner != nil {
		out.Owner = &Owner{Type: r.Owner.Type, ID: r.Owner.ID}
	}
	for _, v := range r.Volumes {
		out.Volumes = append(out.Volumes, VolumeMount{Name: v.Name, MountPath: v.MountPath})
	}
	out.PreviewURL = s.previewURL(r.ID)
	return out
}

// previewURL is a sandbox's preview URLs with "{port}" for the port.
func (s *Sandboxes) previewURL(id string) string {
	if s.cfg.PreviewURL == "" {
		return ""
	}
	return strings.Replace(s.cfg.PreviewURL, "{id}", id, 1)
}

// storeError says in the API's words why the control store did not do it.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrClosed), errors.Is(err, hosts.ErrNotLeading):
		return apierror.Unavailable("leadership is changing; nothing was done", err)
	case errors.Is(err, raftstore.ErrLeadershipLost):
		return apierror.Unavailable("leadership was lost while this was done; it may or may not have happened", err)
	case errors.Is(err, raftstore.ErrOverloaded):
		return apierror.Unavailable("too many writes wait; nothing was done", err)
	case errors.Is(err, raftstore.ErrContention):
		return apierror.Unavailable("too many changes at once; nothing was done", err)
	case errors.Is(err, raftstore.ErrTooLarge):
		return &apierror.Error{Code: apierror.ETooLarge, Message: "request too large", Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return apierror.Unavailable("the request ended before it was done; it may or may not have happened", err)
	}
	return apierror.As(err)
}
