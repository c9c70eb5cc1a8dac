package sandbox

import (
	"context"
	"maps"
	"path"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/volume"
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
		if env, err = s.Flows.OpenEnv(snap.ID, snap.EnvSealed); err != nil {
			return nil, apierror.As(err)
		}
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, in.Env)
		if err := core.ValidEnv(env); err != nil {
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

// Limits of a create's volumes.
const (
	maxVolumes   = 8
	maxMountPath = 1024
)

// Paths that the guest's kernel, its agent and the start of programs need.
// guest/disks refuses them too, but only after the create has begun.
var (
	reservedTrees = []string{"/proc", "/sys", "/dev", "/run", "/etc/berth", "/var/log/berth"}
	reservedPaths = []string{
		"/", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin",
		"/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin", "/var", "/var/log",
	}
)

func validMounts(mounts []api.VolumeMount) error {
	if len(mounts) > maxVolumes {
		return apierror.Invalid("invalid volumes", "at most %d", maxVolumes)
	}
	for i, m := range mounts {
		if !volume.IsName(m.Name) {
			return apierror.Invalid("invalid volumes", "volumes[%d]: %s", i, volume.NameRule)
		}
		if why := badMountPath(m.MountPath); why != "" {
			return apierror.Invalid("invalid volumes", "volumes[%d]: mount_path %s", i, why)
		}
		for j, other := range mounts[:i] {
			switch {
			case other.Name == m.Name:
				return apierror.Invalid("invalid volumes", "volumes[%d]: %s is given twice", i, m.Name)
			case below(m.MountPath, other.MountPath), below(other.MountPath, m.MountPath):
				return apierror.Invalid("invalid volumes", "volumes[%d]: its mount_path and that of volumes[%d] are one inside the other", i, j)
			}
		}
	}
	return nil
}

// badMountPath returns what is wrong with a mount path, or "".
func badMountPath(p string) string {
	switch {
	case !path.IsAbs(p):
		return "must be an absolute path"
	case len(p) > maxMountPath, strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has control characters or is too long"
	case path.Clean(p) != p && p != "/":
		return `must have no "..", "." or "//" in it and no "/" at its end`
	}
	for _, r := range reservedPaths {
		if p == r {
			return "is reserved: " + r
		}
	}
	for _, r := range reservedTrees {
		if below(p, r) {
			return "is reserved: " + r
		}
	}
	return ""
}

// below reports whether p is dir or in it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
