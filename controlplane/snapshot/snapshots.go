package snapshot

import (
	"context"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	maxSnapshotName = 63
	snapshotRandom  = 20 // characters of an id after its prefix
)

func validateCreate(in api.CreateSnapshot) error {
	if utf8.RuneCountInString(in.Name) > maxSnapshotName {
		return apierror.Invalid("invalid name", "name has at most %d characters", maxSnapshotName)
	}
	for _, r := range in.Name {
		if !unicode.IsPrint(r) {
			return apierror.Invalid("invalid name", "name has a character that cannot be shown")
		}
	}
	return nil
}

// Config configures Snapshots.
type Config struct {
	Sandboxes *sandbox.Sandboxes

	// Claims are the claims of other kinds of resources.
	Claims []Claim

	// StorePause is the delay after the first failed upload; default 10 s.
	StorePause time.Duration
}

// Snapshots contains the use cases of snapshots.
type Snapshots struct {
	core *core.Core
	cfg  Config
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Snapshots {
	if cfg.StorePause == 0 {
		cfg.StorePause = firstPause
	}
	return &Snapshots{core: c, cfg: cfg}
}

// Create captures a running sandbox and returns once the snapshot can be used. If
// the host has a snapshot store, it waits for the upload.
func (s *Snapshots) Create(ctx context.Context, c core.Caller, sandboxID string, in api.CreateSnapshot, i core.Idempotency) (api.Snapshot, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Snapshot{}, err
	}
	if err := validateCreate(in); err != nil {
		return api.Snapshot{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/sandboxes/"+sandboxID+"/snapshots", i,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Snapshot, error) {
			live, _ := flow.Live(view, Resource.Subject(key.ResourceID))
			if live != nil && live.Kind == Resource.CreateKind() {
				return s.awaitSnapshot(ctx, c, key.ResourceID, live.ID)
			}
			row, err := ownedSnapshot(view, c, key.ResourceID)
			if err != nil {
				return api.Snapshot{}, core.ErrKeyGone("snapshot")
			}
			return show(row), nil
		},
		func(keyID string) (api.Snapshot, error) { return s.create(ctx, c, sandboxID, in, i, keyID) })
}

func (s *Snapshots) create(ctx context.Context, c core.Caller, sandboxID string, in api.CreateSnapshot, i core.Idempotency, keyID string) (api.Snapshot, error) {
	id, flowID := Prefix+core.RandomText(snapshotRandom), flow.NewID()
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.MayUse(tx, c); err != nil {
			return err
		}
		box, err := sandbox.Owned(tx, c, sandboxID)
		if err != nil {
			return err
		}
		if err := s.core.Admit(tx, c, limits.Need{Snapshots: 1, DiskMB: box.MemoryMB + box.DiskMB}); err != nil {
			return err
		}
		if err := sandbox.CanCapture(box, true); err != nil {
			return err
		}
		if err := i.Claim(tx, keyID, id); err != nil {
			return err
		}
		row := &record.Snapshot{
			Meta: record.Meta{ID: id}, WorkspaceID: c.WorkspaceID, Status: record.ResourceCreating, SandboxID: box.ID,
			Template: box.Template, TemplateKey: box.TemplateKey, Name: in.Name, HostID: box.HostID,
			DiskMB: box.MemoryMB + box.DiskMB, // the most that it may become, until it is captured
		}
		env, err := s.cfg.Sandboxes.Flows.Inherit(tx, box)
		if err != nil {
			return err
		}
		if err := env.Put(tx, c.WorkspaceID, 1); err != nil {
			return err
		}
		row.EnvRef = env.Ref
		return Begin(tx, flowID, row, Create{Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}, Generation: box.Generation})
	})
	if err != nil {
		return api.Snapshot{}, err
	}
	return s.awaitSnapshot(ctx, c, id, flowID)
}

func (s *Snapshots) awaitSnapshot(ctx context.Context, c core.Caller, id, flowID string) (api.Snapshot, error) {
	if err := s.core.Await(ctx, flowID, nil); err != nil {
		return api.Snapshot{}, err
	}
	view, err := s.core.CurrentAfter(ctx)
	if err != nil {
		return api.Snapshot{}, err
	}
	row, err := ownedSnapshot(view, c, id)
	if err != nil {
		return api.Snapshot{}, &apierror.Error{Code: apierror.EConflict, Message: "snapshot was deleted while it was being created"}
	}
	return show(row), nil
}

// ownedSnapshot returns a snapshot of the caller's workspace, unless it is being
// created or deleted.
func ownedSnapshot(r raftstore.Reader, c core.Caller, id string) (*record.Snapshot, error) {
	row, ok := raftstore.Get(r, record.Snapshots, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || !visible(row) {
		return nil, apierror.NotFound()
	}
	return row, nil
}

// visible reports whether a workspace sees a snapshot. The artifact of an app is the
// app's alone.
func visible(row *record.Snapshot) bool {
	return row.Owner == nil && (row.Status == record.ResourceReady || row.Status == record.ResourceLost)
}

// Get returns one snapshot of the caller's workspace.
func (s *Snapshots) Get(ctx context.Context, c core.Caller, id string) (api.Snapshot, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.Snapshot{}, err
	}
	row, err := ownedSnapshot(view, c, id)
	if err != nil {
		return api.Snapshot{}, err
	}
	return show(row), nil
}

// List returns a page of the workspace's snapshots, newest first: those of one
// sandbox, or all if sandboxID is "".
func (s *Snapshots) List(ctx context.Context, c core.Caller, sandboxID string, o core.ListOptions) (page []api.Snapshot, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows := slices.DeleteFunc(raftstore.Find(view, record.Snapshots, "workspace", c.WorkspaceID), func(r *record.Snapshot) bool {
		return !visible(r) || sandboxID != "" && r.SandboxID != sandboxID
	})
	rows, next, err = core.Paginate(rows, o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, show), next, nil
}

// Delete deletes a snapshot from its host and from the store.
func (s *Snapshots) Delete(ctx context.Context, c core.Caller, id string) error {
	return s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		row, ok := raftstore.Get(tx, record.Snapshots, id)
		if !ok || row.WorkspaceID != c.WorkspaceID || row.Owner != nil || row.Status == record.ResourceCreating {
			return "", apierror.NotFound()
		}
		return Resource.BeginDelete(tx, flowID, row, c.RequestID)
	})
}

// show converts a row to the public type.
func show(r *record.Snapshot) api.Snapshot {
	return api.Snapshot{
		ID: r.ID, Status: api.SnapshotStatus(r.Status), SandboxID: r.SandboxID, Template: r.Template, Name: r.Name, CreatedAt: api.Time{Time: r.CreatedAt},
		SizeBytes: r.MemoryBytes + r.DiskBytes, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes, AgentID: r.HostID, Stored: r.Stored, PauseMS: r.PauseMS,
	}
}
