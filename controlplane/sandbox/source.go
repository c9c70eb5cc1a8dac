package sandbox

import (
	"context"
	"maps"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// source sets what a new sandbox takes from its snapshot and volumes, and returns
// its environment. The create's transaction checks that the volumes are free.
func (s *Sandboxes) source(ctx context.Context, c core.Caller, row *record.Sandbox, in api.CreateSandbox) (map[string]string, error) {
	if in.FromSnapshot == "" && len(in.Volumes) == 0 {
		return in.Env, nil
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, err
	}
	env, at := in.Env, ""
	if in.FromSnapshot != "" {
		snap, err := usableSnapshot(view, c, in.FromSnapshot)
		if err != nil {
			return nil, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such snapshot"}
		}
		if snap.Template != in.Template {
			return nil, apierror.Invalid("template does not match the snapshot", "the snapshot is of template %q", snap.Template)
		}
		row.FromSnapshot, row.TemplateKey = snap.ID, snap.TemplateKey
		if env, err = s.Flows.OpenEnv(view, snap.ID, snap.EnvRef); err != nil {
			return nil, apierror.As(err)
		}
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, in.Env)
		if err := validEnv(env); err != nil {
			return nil, err
		}
		if !snap.Stored {
			at = snap.HostID
		}
	}
	for i, m := range in.Volumes {
		v, err := readyVolume(view, row.WorkspaceID, m.Name)
		switch {
		case err != nil:
			return nil, err
		case at != "" && at != v.HostID && i == 0:
			return nil, apierror.Invalid("volumes are on different hosts", "the snapshot is not stored, and on another host than volume %q", m.Name)
		case at != "" && at != v.HostID:
			return nil, apierror.Invalid("volumes are on different hosts", "%q is on another host than %q", m.Name, in.Volumes[0].Name)
		}
		at = v.HostID
		row.Volumes = append(row.Volumes, record.VolumeMount{Name: m.Name, MountPath: m.MountPath})
	}
	return env, nil
}

// usableSnapshot returns a snapshot of the caller's workspace that is ready or lost,
// and not the artifact of an app.
func usableSnapshot(r raftstore.Reader, c core.Caller, id string) (*record.Snapshot, error) {
	s, ok := raftstore.Get(r, record.Snapshots, id)
	if !ok || s.WorkspaceID != c.WorkspaceID || s.Owner != nil || s.Status != record.ResourceReady && s.Status != record.ResourceLost {
		return nil, apierror.NotFound()
	}
	return s, nil
}

// readyVolume returns a volume that can be attached.
func readyVolume(r raftstore.Reader, workspaceID, name string) (*record.Volume, error) {
	for _, v := range raftstore.Find(r, record.Volumes, "name", volume.Key(workspaceID, name)) {
		if v.Status == record.ResourceReady {
			return v, nil
		}
	}
	return nil, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such volume: " + name}
}

// attachVolumes attaches a new sandbox's volumes, in its transaction.
func attachVolumes(tx *raftstore.Tx, row *record.Sandbox) error {
	for _, m := range row.Volumes {
		v, err := readyVolume(tx, row.WorkspaceID, m.Name)
		if err != nil {
			return err
		}
		if v.AttachedTo != "" && v.AttachedTo != row.ID {
			return &apierror.Error{Code: apierror.EConflict, Message: "volume in use", Detail: m.Name + " is attached to another sandbox"}
		}
		v = v.Clone()
		v.AttachedTo = row.ID
		raftstore.Put(tx, record.Volumes, v)
	}
	return nil
}

func validMounts(mounts []api.VolumeMount) error {
	if len(mounts) > hostapi.MaxVolumes {
		return apierror.Invalid("invalid volumes", "at most %d", hostapi.MaxVolumes)
	}
	for i, m := range mounts {
		if !volume.IsName(m.Name) {
			return apierror.Invalid("invalid volumes", "volumes[%d]: %s", i, volume.NameRule)
		}
		if why := hostapi.BadMountPath(m.MountPath); why != "" {
			return apierror.Invalid("invalid volumes", "volumes[%d]: mount_path %s", i, why)
		}
		for j, other := range mounts[:i] {
			switch {
			case other.Name == m.Name:
				return apierror.Invalid("invalid volumes", "volumes[%d]: %s is given twice", i, m.Name)
			case hostapi.PathBelow(m.MountPath, other.MountPath), hostapi.PathBelow(other.MountPath, m.MountPath):
				return apierror.Invalid("invalid volumes", "volumes[%d]: its mount_path and that of volumes[%d] are one inside the other", i, j)
			}
		}
	}
	return nil
}
