package sandbox

import (
	"cmp"
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config configures Sandboxes.
type Config struct {
	Templates     *template.Templates
	PreviewURL    string // pattern with {port} and {id}; "" leaves preview_url empty
	PreviewTokens PreviewTokens

	// History has the events of sandboxes that their hosts do not have any more; nil:
	// nothing has.
	History History

	// Observe is called with the duration of each stage of a create. engine means
	// that the time is the VMM's own.
	Observe func(stage string, engine bool, took time.Duration)

	// HibernateRetry is the delay after a failed hibernation of an expired
	// persistent sandbox; default ten seconds.
	HibernateRetry time.Duration
}

// Sandboxes contains the use cases of a sandbox's life. Its fields contain those of
// commands, files, logs and ports.
type Sandboxes struct {
	Flows    *Flows
	Commands *Commands
	Files    *Files
	Logs     *Logs
	Ports    *Ports

	*reach
	cfg Config
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Sandboxes {
	if cfg.Observe == nil {
		cfg.Observe = func(string, bool, time.Duration) {}
	}
	if cfg.HibernateRetry == 0 {
		cfg.HibernateRetry = 10 * time.Second
	}
	r := &reach{core: c, transitions: &Transitions{Core: c}}
	files := &Files{reach: r}
	s := &Sandboxes{
		Flows: &Flows{Core: c, moves: map[string]Moves{}}, Commands: &Commands{reach: r, files: files}, Files: files, Logs: &Logs{reach: r, history: cfg.History},
		Ports: &Ports{reach: r, previewURL: cfg.PreviewURL, tokens: cfg.PreviewTokens},
		reach: r, cfg: cfg,
	}
	s.Flows.show = s.Show
	return s
}

// Get returns one sandbox of the caller's workspace.
func (s *Sandboxes) Get(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	row, err := s.find(ctx, c, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	return s.Show(row), nil
}

// Owned returns a sandbox of the caller's workspace. For another workspace's, the
// error is that of an unknown id.
func Owned(r raftstore.Reader, c core.Caller, id string) (*record.Sandbox, error) {
	row, ok := raftstore.Get(r, record.Sandboxes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return nil, apierror.NotFound()
	}
	return row, nil
}

// List returns a page of the workspace's sandboxes, newest first, and the cursor of
// the next page ("" after the last). The memory of a long list is limited until ctx
// ends.
func (s *Sandboxes) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Sandbox, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	all := raftstore.Find(view, record.Sandboxes, "workspace", c.WorkspaceID)
	if o.Metadata != "" {
		if all, err = withMetadata(all, o.Metadata); err != nil {
			return nil, "", err
		}
	}
	rows, next, err := core.Paginate(all, o)
	if err != nil {
		return nil, "", err
	}
	if err := s.admitList(ctx, c, rows); err != nil {
		return nil, "", err
	}
	return core.Each(rows, s.Show), next, nil
}

// Delete deletes a sandbox. It returns once the host has deleted it, or after a
// timeout: see core.Remove.
func (s *Sandboxes) Delete(ctx context.Context, c core.Caller, id string) error {
	return s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		row, err := Owned(tx, c, id)
		if err != nil {
			return "", err
		}
		if row.Owner != nil {
			return "", ErrManaged
		}
		return Resource.BeginDelete(tx, flowID, row, c.RequestID)
	})
}

// Show converts a row to the public type.
func (s *Sandboxes) Show(r *record.Sandbox) api.Sandbox {
	out := api.Sandbox{
		ID: r.ID, Status: api.SandboxStatus(r.Status), Template: r.Template, CPU: r.CPU, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB, AgentID: r.HostID,
		FromSnapshot: core.OrNull(r.FromSnapshot), ForkedFrom: core.OrNull(r.ForkedFrom),
		CreatedAt: api.Time{Time: r.CreatedAt}, StartedAt: api.NewTime(r.StartedAt), ExpiresAt: api.NewTime(r.ExpiresAt), TTLSeconds: r.TTLSeconds,
		Persistent: r.Persistent, Error: core.OrNull(r.Error), PreviewURL: s.Ports.pattern(r.ID),
		Preview: api.PreviewMode(cmp.Or(r.Preview, record.PreviewPublic)),
		Volumes: core.Each(r.Volumes, func(v record.VolumeMount) api.VolumeMount {
			return api.VolumeMount{Name: v.Name, MountPath: v.MountPath}
		}),
	}
	if string(r.Metadata) != "null" {
		out.Metadata = api.Object(r.Metadata)
	}
	if r.Owner != nil {
		out.Owner = &api.Owner{Type: r.Owner.Type, ID: r.Owner.ID}
		out.FromSnapshot = nil // its owner's, which clients do not see
	}
	return out
}
