package service

import (
	"context"
	"errors"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Snapshot is a sandbox's memory, device state and disk at one moment.
type Snapshot struct {
	ID          string
	Status      string // "ready", or "lost" with its host
	SandboxID   string
	Template    string
	Name        string
	CreatedAt   time.Time
	MemoryBytes int64
	DiskBytes   int64
	AgentID     string
	Stored      bool
	PauseMS     int64
}

// CreateSnapshot asks for a snapshot.
type CreateSnapshot struct {
	Name        string
	Idempotency Idempotency
}

const (
	maxSnapshotName = 63
	snapshotRandom  = 20 // characters of an id after its prefix
)

func (in CreateSnapshot) validate() error {
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

// Snapshots are the use cases of snapshots.
type Snapshots struct{ *Sandboxes }

// NewSnapshots makes the use cases.
func NewSnapshots(s *Sandboxes) *Snapshots { return &Snapshots{s} }

// canCapture refuses to capture what does not run, or memory beside which a
// volume would change.
func canCapture(row *record.Sandbox, memory bool) error {
	switch {
	case row.Status == record.SandboxPaused, row.Status == record.SandboxHibernated:
		return errResumeFirst
	case row.Status != record.SandboxRunning:
		return apierror.NotRunning("its status is " + string(row.Status))
	case memory && len(row.Volumes) > 0:
		return snapshot.ErrVolumes
	}
	return nil
}

// CreateSnapshot captures a running sandbox and returns once the snapshot can be
// used; where its host has a snapshot store, once it is in there.
func (s *Snapshots) CreateSnapshot(ctx context.Context, c Caller, sandboxID string, in CreateSnapshot) (Snapshot, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Snapshot{}, err
	}
	if err := in.validate(); err != nil {
		return Snapshot{}, err
	}
	return once(ctx, s.cfg.Store, s.cfg.Clock, c, "POST /v1/sandboxes/"+sandboxID+"/snapshots", in.Idempotency,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Snapshot, error) {
			live, _ := flow.Live(view, snapshot.Resource.Subject(key.ResourceID))
			if live != nil && live.Kind == snapshot.Resource.CreateKind() {
				return s.awaitSnapshot(ctx, c, key.ResourceID, live.ID)
			}
			row, err := ownedSnapshot(view, c, key.ResourceID)
			if err != nil {
				return Snapshot{}, errKeyGone("snapshot")
			}
			return showSnapshot(row), nil
		},
		func(keyID string) (Snapshot, error) { return s.createSnapshot(ctx, c, sandboxID, in, keyID) })
}

func (s *Snapshots) createSnapshot(ctx context.Context, c Caller, sandboxID string, in CreateSnapshot, keyID string) (Snapshot, error) {
	id, flowID := snapshot.Prefix+randomText(snapshotRandom), flow.NewID()
	err := s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if err := mayCreate(tx, c); err != nil {
			return err
		}
		box, err := owned(tx, c, sandboxID)
		if err != nil {
			return err
		}
		if err := canCapture(box, true); err != nil {
			return err
		}
		if err := in.Idempotency.claim(tx, keyID, id); err != nil {
			return err
		}
		row := &record.Snapshot{
			Meta: record.Meta{ID: id}, WorkspaceID: c.WorkspaceID, Status: record.ResourceCreating, SandboxID: box.ID,
			Template: box.Template, TemplateKey: box.TemplateKey, Name: in.Name, AgentID: box.AgentID,
		}
		if row.EnvSealed, err = s.resealEnv(box, id); err != nil {
			return err
		}
		return snapshot.Begin(tx, flowID, row, snapshot.Create{Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}, Generation: box.Generation})
	})
	if err != nil {
		return Snapshot{}, createError(err)
	}
	return s.awaitSnapshot(ctx, c, id, flowID)
}

// resealEnv seals a sandbox's environment anew, for a row that inherits it.
func (s *Sandboxes) resealEnv(from *record.Sandbox, forID string) ([]byte, error) {
	env, err := s.cfg.Flows.OpenEnv(from.ID, from.EnvSealed)
	if err != nil {
		return nil, err
	}
	return s.cfg.Flows.SealEnv(forID, env)
}

func (s *Snapshots) awaitSnapshot(ctx context.Context, c Caller, id, flowID string) (Snapshot, error) {
	if err := s.await(ctx, flowID, nil); err != nil {
		return Snapshot{}, err
	}
	view, verr := s.cfg.Store.VerifiedView(ctx)
	if verr != nil {
		return Snapshot{}, storeError(verr)
	}
	row, err := ownedSnapshot(view, c, id)
	if err != nil {
		return Snapshot{}, &apierror.Error{Code: apierror.EConflict, Message: "snapshot was deleted while it was being created"}
	}
	return showSnapshot(row), nil
}

// ownedSnapshot finds a snapshot of the caller's workspace that is there: one
// that is being made or deleted is not.
func ownedSnapshot(r raftstore.Reader, c Caller, id string) (*record.Snapshot, error) {
	row, ok := raftstore.Get(r, record.Snapshots, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || !visible(row) {
		return nil, apierror.NotFound()
	}
	return row, nil
}

func visible(row *record.Snapshot) bool {
	return row.Status == record.ResourceReady || row.Status == record.ResourceLost
}

// GetSnapshot returns one snapshot of the caller's workspace.
func (s *Snapshots) GetSnapshot(ctx context.Context, c Caller, id string) (Snapshot, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Snapshot{}, err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return Snapshot{}, storeError(err)
	}
	row, err := ownedSnapshot(view, c, id)
	if err != nil {
		return Snapshot{}, err
	}
	return showSnapshot(row), nil
}

// ListSnapshots returns a page of the workspace's snapshots, newest first, of
// one sandbox or, with sandboxID "", of all.
func (s *Snapshots) ListSnapshots(ctx context.Context, c Caller, sandboxID string, o ListOptions) (page []Snapshot, next string, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, "", err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return nil, "", storeError(err)
	}
	rows := slices.DeleteFunc(raftstore.Find(view, record.Snapshots, "workspace", c.WorkspaceID), func(r *record.Snapshot) bool {
		return !visible(r) || sandboxID != "" && r.SandboxID != sandboxID
	})
	rows, next, err = paginate(rows, o)
	if err != nil {
		return nil, "", err
	}
	for _, r := range rows {
		page = append(page, showSnapshot(r))
	}
	return page, next, nil
}

// DeleteSnapshot removes a snapshot, from its host and from the store. From the
// moment it is marked there is no way back, so what does not answer only delays
// the removal.
func (s *Snapshots) DeleteSnapshot(ctx context.Context, c Caller, id string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	fresh, flowID := flow.NewID(), ""
	err := s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Snapshots, id)
		if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.ResourceCreating {
			return apierror.NotFound()
		}
		var err error
		flowID, err = snapshot.Resource.BeginDelete(tx, fresh, row, c.RequestID)
		return err
	})
	if err != nil {
		return storeError(err)
	}
	return s.awaitRemoval(ctx, flowID)
}

// awaitRemoval waits for the end of a removal for a while. It goes on without
// the caller past that.
func (s *Sandboxes) awaitRemoval(ctx context.Context, flowID string) error {
	wait, cancel := context.WithTimeout(ctx, s.cfg.DeleteWait)
	defer cancel()
	err := s.await(wait, flowID, nil)
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

func showSnapshot(r *record.Snapshot) Snapshot {
	return Snapshot{
		ID: r.ID, Status: string(r.Status), SandboxID: r.SandboxID, Template: r.Template, Name: r.Name, CreatedAt: r.CreatedAt,
		MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes, AgentID: r.AgentID, Stored: r.Stored, PauseMS: r.PauseMS,
	}
}
