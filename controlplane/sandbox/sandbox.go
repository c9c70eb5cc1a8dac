package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config is what sandboxes need beside the core.
type Config struct {
	Templates     *template.Templates
	PreviewURL    string // pattern with {port} and {id}; "" leaves preview_url empty
	PreviewTokens PreviewTokens

	// Observe is told how long each stage of a create took. engine: the time is
	// the VMM's own.
	Observe func(stage string, engine bool, took time.Duration)

	// RestPause is how long a persistent sandbox that could not be hibernated at
	// its end is left alone; default ten seconds.
	RestPause time.Duration
}

// Sandboxes are the use cases of a sandbox's life. Those of what runs in it, and of
// what it holds, are beside them.
type Sandboxes struct {
	Flows    *Flows
	Commands *Commands
	Files    *Files
	Logs     *Logs
	Ports    *Ports

	*reach
	cfg Config
}

// New makes the use cases.
func New(c *core.Core, cfg Config) *Sandboxes {
	if cfg.Observe == nil {
		cfg.Observe = func(string, bool, time.Duration) {}
	}
	if cfg.RestPause == 0 {
		cfg.RestPause = 10 * time.Second
	}
	r := &reach{core: c, transitions: &Transitions{Core: c}}
	files := &Files{reach: r}
	return &Sandboxes{
		Flows: &Flows{Core: c}, Commands: &Commands{reach: r, files: files}, Files: files, Logs: &Logs{reach: r},
		Ports: &Ports{reach: r, previewURL: cfg.PreviewURL, tokens: cfg.PreviewTokens},
		reach: r, cfg: cfg,
	}
}

// Get returns one sandbox of the caller's workspace.
func (s *Sandboxes) Get(ctx context.Context, c core.Caller, id string) (Sandbox, error) {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return Sandbox{}, err
	}
	return s.Show(row), nil
}

// Owned finds a sandbox of the caller's workspace. Another workspace's is no
// different from none.
func Owned(r raftstore.Reader, c core.Caller, id string) (*record.Sandbox, error) {
	row, ok := raftstore.Get(r, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return nil, apierror.NotFound()
	}
	return row, nil
}

// List returns a page of the workspace's sandboxes, newest first, and the
// cursor of the next page ("" after the last). A long one is held within bounds
// until ctx ends.
func (s *Sandboxes) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []Sandbox, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.Find(view, record.Sandboxes, "workspace", c.WorkspaceID), o)
	if err != nil {
		return nil, "", err
	}
	if err := s.admitList(ctx, c, rows); err != nil {
		return nil, "", err
	}
	page = make([]Sandbox, len(rows))
	for i, row := range rows {
		page[i] = s.Show(row)
	}
	return page, next, nil
}

// Delete removes a sandbox; it returns once it is gone from its host, or has waited
// long for that: see core.AwaitRemoval.
func (s *Sandboxes) Delete(ctx context.Context, c core.Caller, id string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	fresh := flow.NewID()
	var flowID string
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		if row.Owner != nil {
			return &apierror.Error{Code: apierror.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"}
		}
		flowID, err = Resource.BeginDelete(tx, fresh, row, c.RequestID)
		return err
	})
	if err != nil {
		return err
	}
	return s.core.AwaitRemoval(ctx, flowID)
}

// Show converts a row for its workspace.
func (s *Sandboxes) Show(r *record.Sandbox) Sandbox {
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
	out.PreviewURL = s.Ports.pattern(r.ID)
	return out
}
