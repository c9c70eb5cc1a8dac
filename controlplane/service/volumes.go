package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Bounds of a volume, in MiB.
const (
	DefaultVolumeMB = 256
	// MinVolumeMB is what an ext4 with a journal and some room takes.
	MinVolumeMB = 16
	MaxVolumeMB = 65536
	// DefaultVolumeQuotaMB is how much a workspace's volumes may have together.
	DefaultVolumeQuotaMB = 102400
)

// Volume is a file system that outlives sandboxes.
type Volume struct {
	Name       string
	SizeMB     int
	UsedBytes  int64 // as its host last said
	AgentID    string
	AttachedTo string // id of a sandbox, "" when it is free
	CreatedAt  time.Time
}

// CreateVolume asks for a volume.
type CreateVolume struct {
	Name        string
	SizeMB      *int // nil: DefaultVolumeMB
	Idempotency Idempotency
}

func (in CreateVolume) size() int {
	if in.SizeMB == nil {
		return DefaultVolumeMB
	}
	return *in.SizeMB
}

func (in CreateVolume) validate() error {
	switch {
	case in.Name == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	case !IsVolumeName(in.Name):
		return apierror.Invalid("invalid name", volumeNameRule)
	case in.size() < MinVolumeMB || in.size() > MaxVolumeMB:
		return &apierror.Error{Code: apierror.EInvalid, Message: "size_mb must be from 16 to 65536"}
	}
	return nil
}

// Volumes are the use cases of volumes.
type Volumes struct {
	*Sandboxes
	quotaMB int
}

// NewVolumes makes the use cases. quotaMB bounds what a workspace's volumes have
// together; 0: DefaultVolumeQuotaMB.
func NewVolumes(s *Sandboxes, quotaMB int) *Volumes {
	if quotaMB == 0 {
		quotaMB = DefaultVolumeQuotaMB
	}
	return &Volumes{Sandboxes: s, quotaMB: quotaMB}
}

// CreateVolume makes a volume and returns once it can be attached.
func (s *Volumes) CreateVolume(ctx context.Context, c Caller, in CreateVolume) (Volume, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Volume{}, err
	}
	if err := in.validate(); err != nil {
		return Volume{}, err
	}
	return once(ctx, s.cfg.Store, s.cfg.Clock, c, "POST /v1/volumes", in.Idempotency,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Volume, error) {
			row, ok := raftstore.Get(view, record.Volumes, key.ResourceID)
			if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.ResourceDeleting {
				return Volume{}, errKeyGone("volume")
			}
			if live, ok := flow.Live(view, volume.Resource.Subject(row.ID)); ok {
				return s.awaitVolume(ctx, c, row.ID, live.ID)
			}
			return s.showVolume(row), nil
		},
		func(keyID string) (Volume, error) { return s.createVolume(ctx, c, in, keyID) })
}

func (s *Volumes) createVolume(ctx context.Context, c Caller, in CreateVolume, keyID string) (Volume, error) {
	id, flowID := volume.Prefix+randomText(volume.IDLength-len(volume.Prefix)), flow.NewID()
	err := s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if err := mayCreate(tx, c); err != nil {
			return err
		}
		if err := in.Idempotency.claim(tx, keyID, id); err != nil {
			return err
		}
		used := 0
		for _, v := range raftstore.Find(tx, record.Volumes, "workspace", c.WorkspaceID) {
			if v.Name == in.Name {
				return errVolumeExists
			}
			used += v.SizeMB
		}
		if used+in.size() > s.quotaMB {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "volume quota exceeded",
				Fields: map[string]any{"volume_mb_used": used, "volume_mb_max": s.quotaMB},
			}
		}
		return volume.Begin(tx, flowID, &record.Volume{
			Meta: record.Meta{ID: id}, WorkspaceID: c.WorkspaceID, Name: in.Name, Status: record.ResourceCreating, SizeMB: in.size(),
		}, volume.Create{Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}})
	})
	switch {
	case errors.Is(err, raftstore.ErrConflict): // another one came first
		return Volume{}, errVolumeExists
	case err != nil:
		return Volume{}, createError(err)
	}
	return s.awaitVolume(ctx, c, id, flowID)
}

var errVolumeExists = &apierror.Error{Code: apierror.EConflict, Message: "volume already exists"}

func (s *Volumes) awaitVolume(ctx context.Context, c Caller, id, flowID string) (Volume, error) {
	if err := s.await(ctx, flowID, nil); err != nil {
		return Volume{}, err
	}
	view, verr := s.cfg.Store.VerifiedView(ctx)
	if verr != nil {
		return Volume{}, storeError(verr)
	}
	row, ok := raftstore.Get(view, record.Volumes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status != record.ResourceReady {
		return Volume{}, &apierror.Error{Code: apierror.EConflict, Message: "volume was deleted while it was being created"}
	}
	return s.showVolume(row), nil
}

// GetVolume returns one volume of the caller's workspace, by its name.
func (s *Volumes) GetVolume(ctx context.Context, c Caller, name string) (Volume, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Volume{}, err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return Volume{}, storeError(err)
	}
	row, err := ownedVolume(view, c, name)
	if err != nil || row.Status != record.ResourceReady {
		return Volume{}, apierror.NotFound()
	}
	return s.showVolume(row), nil
}

func ownedVolume(r raftstore.Reader, c Caller, name string) (*record.Volume, error) {
	for _, v := range raftstore.Find(r, record.Volumes, "name", sandbox.VolumeKey(c.WorkspaceID, name)) {
		return v, nil
	}
	return nil, apierror.NotFound()
}

// ListVolumes returns a page of the workspace's volumes, newest first.
func (s *Volumes) ListVolumes(ctx context.Context, c Caller, o ListOptions) (page []Volume, next string, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, "", err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return nil, "", storeError(err)
	}
	rows := slices.DeleteFunc(raftstore.Find(view, record.Volumes, "workspace", c.WorkspaceID), func(v *record.Volume) bool {
		return v.Status != record.ResourceReady
	})
	if rows, next, err = paginate(rows, o); err != nil {
		return nil, "", err
	}
	for _, v := range rows {
		page = append(page, s.showVolume(v))
	}
	return page, next, nil
}

// DeleteVolume removes a volume and all that is in it. One that is attached is
// left alone.
func (s *Volumes) DeleteVolume(ctx context.Context, c Caller, name string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	fresh, flowID := flow.NewID(), ""
	err := s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := ownedVolume(tx, c, name)
		switch {
		case err != nil:
			return err
		case row.Status == record.ResourceCreating:
			return apierror.NotFound()
		case row.AttachedTo != "":
			return &apierror.Error{Code: apierror.EConflict, Message: "volume in use", Detail: "it is attached to a sandbox; delete that first"}
		}
		flowID, err = volume.Resource.BeginDelete(tx, fresh, row, c.RequestID)
		return err
	})
	if err != nil {
		return storeError(err)
	}
	return s.awaitRemoval(ctx, flowID)
}

func (s *Volumes) showVolume(v *record.Volume) Volume {
	out := Volume{Name: v.Name, SizeMB: v.SizeMB, AgentID: v.AgentID, AttachedTo: v.AttachedTo, CreatedAt: v.CreatedAt}
	for _, state := range s.cfg.Hosts.Sessions()[v.AgentID].Heartbeat.Volumes {
		if state.ID == v.ID {
			out.UsedBytes = state.UsedBytes
		}
	}
	return out
}
