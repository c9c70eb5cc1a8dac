package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Limits of a volume, in MiB. DefaultMB and MaxMB are the specification's; an operator may
// set others, up to MaxMB.
const (
	DefaultMB = 256
	// MinMB is the size of an ext4 with a journal and some space.
	MinMB = 16
	MaxMB = 65536
	// DefaultQuotaMB is the total size of a workspace's volumes.
	DefaultQuotaMB = 102400
)

func (s *Volumes) validateCreate(in api.CreateVolume) error {
	switch size := s.sizeOf(in); {
	case in.Name == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	case !IsName(in.Name):
		return apierror.Invalid("invalid name", NameRule)
	case size < MinMB || size > s.cfg.MaxMB:
		return &apierror.Error{Code: apierror.EInvalid, Message: fmt.Sprintf("size_mb must be from %d to %d", MinMB, s.cfg.MaxMB)}
	}
	return nil
}

func (s *Volumes) sizeOf(in api.CreateVolume) int {
	if in.SizeMB == nil {
		return min(s.cfg.DefaultMB, s.cfg.MaxMB)
	}
	return *in.SizeMB
}

// Config is what an operator may set, in MiB. 0 is the default.
type Config struct {
	QuotaMB   int // of all of a workspace's volumes; default DefaultQuotaMB
	DefaultMB int // of a volume whose size is not given; default DefaultMB, or MaxMB if that is less
	MaxMB     int // of one volume; default MaxMB
}

// Volumes contains the use cases of volumes.
type Volumes struct {
	core *core.Core
	cfg  Config
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Volumes {
	cfg.QuotaMB = cmp.Or(cfg.QuotaMB, DefaultQuotaMB)
	cfg.DefaultMB = cmp.Or(cfg.DefaultMB, DefaultMB)
	cfg.MaxMB = cmp.Or(cfg.MaxMB, MaxMB)
	return &Volumes{core: c, cfg: cfg}
}

// Create creates a volume and returns once it can be attached.
func (s *Volumes) Create(ctx context.Context, c core.Caller, in api.CreateVolume, i core.Idempotency) (api.Volume, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Volume{}, err
	}
	if err := s.validateCreate(in); err != nil {
		return api.Volume{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/volumes", i,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Volume, error) {
			row, ok := raftstore.Get(view, record.Volumes, key.ResourceID)
			if !ok || row.WorkspaceID != c.WorkspaceID || row.Status == record.ResourceDeleting {
				return api.Volume{}, core.ErrKeyGone("volume")
			}
			if live, ok := flow.Live(view, Resource.Subject(row.ID)); ok {
				return s.awaitVolume(ctx, c, row.ID, live.ID)
			}
			return s.show(row), nil
		},
		func(keyID string) (api.Volume, error) { return s.create(ctx, c, in, i, keyID) })
}

func (s *Volumes) create(ctx context.Context, c core.Caller, in api.CreateVolume, i core.Idempotency, keyID string) (api.Volume, error) {
	id, flowID := Prefix+core.RandomText(IDLength-len(Prefix)), flow.NewID()
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.MayUse(tx, c); err != nil {
			return err
		}
		if err := i.Claim(tx, keyID, id); err != nil {
			return err
		}
		used := 0
		for _, v := range raftstore.Find(tx, record.Volumes, "workspace", c.WorkspaceID) {
			switch {
			case v.Name == in.Name && v.Status == record.ResourceDeleting:
				return errVolumeLeaves
			case v.Name == in.Name:
				return errVolumeExists
			case v.Status != record.ResourceDeleting:
				used += v.SizeMB
			}
		}
		ws, _ := raftstore.Get(tx, record.Workspaces, c.WorkspaceID)
		if most := s.core.Tiers.VolumeMB(ws, s.cfg.QuotaMB); used+s.sizeOf(in) > most {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "volume quota exceeded",
				Fields: map[string]any{"volume_mb_used": used, "volume_mb_max": most},
			}
		}
		if err := s.core.Tiers.Admit(tx, ws, limits.Need{DiskMB: s.sizeOf(in)}); err != nil {
			return err
		}
		return Begin(tx, flowID, &record.Volume{
			Meta: record.Meta{ID: id}, WorkspaceID: c.WorkspaceID, Name: in.Name, Status: record.ResourceCreating, SizeMB: s.sizeOf(in),
		}, Create{Data: resource.Data{RequestID: c.RequestID, IdempotencyKeyID: keyID}})
	})
	switch {
	case errors.Is(err, raftstore.ErrConflict): // another create was first
		return api.Volume{}, errVolumeExists
	case err != nil:
		return api.Volume{}, err
	}
	return s.awaitVolume(ctx, c, id, flowID)
}

var (
	errVolumeExists = &apierror.Error{
		Code: apierror.EConflict, Message: "volume already exists", Detail: "one of this name is there: choose another name, or delete that one first",
	}
	// errVolumeLeaves says why a name is taken that no list shows.
	errVolumeLeaves = &apierror.Error{
		Code: apierror.EConflict, Message: "volume already exists", Detail: "one of this name is being deleted, which its host has not done yet; try again later",
	}
)

func (s *Volumes) awaitVolume(ctx context.Context, c core.Caller, id, flowID string) (api.Volume, error) {
	if err := s.core.Await(ctx, flowID, nil); err != nil {
		return api.Volume{}, err
	}
	view, err := s.core.CurrentAfter(ctx)
	if err != nil {
		return api.Volume{}, err
	}
	row, ok := raftstore.Get(view, record.Volumes, id)
	if !ok || row.WorkspaceID != c.WorkspaceID || row.Status != record.ResourceReady {
		return api.Volume{}, &apierror.Error{Code: apierror.EConflict, Message: "volume was deleted while it was being created"}
	}
	return s.show(row), nil
}

// Get returns one volume of the caller's workspace, by its name.
func (s *Volumes) Get(ctx context.Context, c core.Caller, name string) (api.Volume, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.Volume{}, err
	}
	row, err := ownedVolume(view, c, name)
	if err != nil || row.Status != record.ResourceReady {
		return api.Volume{}, apierror.NotFound()
	}
	return s.show(row), nil
}

func ownedVolume(r raftstore.Reader, c core.Caller, name string) (*record.Volume, error) {
	for _, v := range raftstore.Find(r, record.Volumes, "name", Key(c.WorkspaceID, name)) {
		return v, nil
	}
	return nil, apierror.NotFound()
}

// List returns a page of the workspace's volumes, newest first.
func (s *Volumes) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Volume, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows := slices.DeleteFunc(raftstore.Find(view, record.Volumes, "workspace", c.WorkspaceID), func(v *record.Volume) bool {
		return v.Status != record.ResourceReady
	})
	if rows, next, err = core.Paginate(rows, o); err != nil {
		return nil, "", err
	}
	return core.Each(rows, s.show), next, nil
}

// Delete deletes a volume and its contents. It refuses an attached one.
func (s *Volumes) Delete(ctx context.Context, c core.Caller, name string) error {
	return s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		row, err := ownedVolume(tx, c, name)
		switch {
		case err != nil:
			return "", err
		case row.Status == record.ResourceCreating:
			return "", apierror.NotFound()
		case row.AttachedTo != "":
			return "", &apierror.Error{Code: apierror.EConflict, Message: "volume in use", Detail: "it is attached to a sandbox; delete that first"}
		}
		return Resource.BeginDelete(tx, flowID, row, c.RequestID)
	})
}

// show converts a row to the public type.
func (s *Volumes) show(v *record.Volume) api.Volume {
	out := api.Volume{
		Name: v.Name, SizeMB: v.SizeMB, AgentID: v.HostID, AttachedTo: core.OrNull(v.AttachedTo), CreatedAt: api.Time{Time: v.CreatedAt},
	}
	session, _ := s.core.Hosts.Session(v.HostID)
	for _, state := range session.Heartbeat.Volumes {
		if state.ID == v.ID {
			out.UsedBytes = state.UsedBytes
		}
	}
	return out
}

// Key returns a volume's key in the index "name".
func Key(workspaceID, name string) string { return workspaceID + "/" + name }

const maxName = 128 // characters

// NameRule describes the valid names of volumes.
const NameRule = "a volume's name has 1 to 128 printable characters, and is neither . nor .."

// IsName reports whether name is a valid name of a volume. Hosts never see names, so
// any printable character is allowed.
func IsName(name string) bool {
	return name != "" && name != "." && name != ".." && utf8.ValidString(name) && utf8.RuneCountInString(name) <= maxName &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}
