package sandbox

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// TemplateOf returns the name by which hosts know a sandbox's template.
func TemplateOf(s *record.Sandbox) string { return cmp.Or(s.TemplateKey, s.Template) }

// request returns a sandbox's requirements for placement. The error is ErrSnapshot
// or a *placement.Error.
func request(r raftstore.Reader, s *record.Sandbox, tried []string) (placement.Request, error) {
	req := placement.Request{Template: TemplateOf(s), Builds: buildsOf(r, s), Exclude: tried}
	if s.FromSnapshot != "" {
		snap, ok := raftstore.Get(r, record.Snapshots, s.FromSnapshot)
		if !ok || snap.Status == record.ResourceDeleting {
			return req, ErrSnapshot.With("it has been deleted", nil)
		}
		req.Size = &placement.Template{CPU: snap.CPU, MemoryMB: snap.MemoryMB, DiskMB: snap.DiskMB}
		if snap.Stored {
			req.Prefer, req.Stored = snap.HostID, true
		} else {
			req.Only = snap.HostID
		}
	}
	for _, v := range volumesOf(r, s) {
		if req.Only != "" && req.Only != v.HostID {
			return req, &placement.Error{Reason: placement.Apart}
		}
		req.Only = v.HostID
	}
	return req, nil
}

// buildsOf returns the digests by which hosts know the sandbox's build.
func buildsOf(r raftstore.Reader, s *record.Sandbox) []string {
	b, ok := raftstore.Get(r, record.Builds, s.BuildID)
	if s.FromSnapshot != "" || !ok {
		return nil
	}
	return b.Digests()
}

// currentBuild returns the current build of a sandbox's template. The one in its row
// may have been replaced while the sandbox waited for a host.
func currentBuild(r raftstore.Reader, s *record.Sandbox) string {
	if s.BuildID == "" || s.FromSnapshot != "" {
		return s.BuildID
	}
	own, ok := raftstore.Get(r, record.Builds, s.BuildID)
	if !ok {
		return s.BuildID
	}
	for _, t := range raftstore.Find(r, record.Templates, "name", own.WorkspaceID+"/"+own.Template) {
		if t.BuildID != "" {
			return t.BuildID
		}
	}
	return s.BuildID
}

// volumesOf returns the rows of a sandbox's volumes, in the order of its mounts. It
// omits those that are gone.
func volumesOf(r raftstore.Reader, s *record.Sandbox) []*record.Volume {
	out := make([]*record.Volume, 0, len(s.Volumes))
	for _, m := range s.Volumes {
		out = append(out, raftstore.Find(r, record.Volumes, "name", volume.Key(s.WorkspaceID, m.Name))...)
	}
	return out
}

// DeleteRow removes a sandbox's row and its environment, detaches its volumes, and keeps
// for whom its last use is counted. Sandboxes' rows must not be removed in any other way.
func DeleteRow(tx *raftstore.Tx, s *record.Sandbox) {
	for _, v := range volumesOf(tx, s) {
		if v.AttachedTo == s.ID {
			c := v.Clone()
			c.AttachedTo = ""
			raftstore.Put(tx, record.Volumes, c)
		}
	}
	if s.HostID != "" {
		PutEnded(tx, s, s.HostID)
	}
	raftstore.Delete(tx, record.Sandboxes, s.ID)
	DropEnv(tx, s.EnvRef)
}

// PutEnded keeps for whom a host has counted a sandbox that is not there any more: it may
// still tell what the sandbox has used.
func PutEnded(tx *raftstore.Tx, s *record.Sandbox, hostID string) {
	raftstore.Put(tx, record.EndedBoxes, &record.EndedBox{
		Meta: record.Meta{ID: record.EndedBoxID(s.ID, hostID)}, WorkspaceID: s.WorkspaceID, Product: s.Product(), HostID: hostID,
		CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB, Began: s.CreatedAt,
	})
}

// spec returns the box that the host is to create.
func (f *Flows) spec(r raftstore.Reader, s *record.Sandbox, data Create) (hostapi.BoxSpec, error) {
	env, err := f.OpenEnv(r, s.ID, s.EnvRef)
	if err != nil {
		return hostapi.BoxSpec{}, err
	}
	spec := hostapi.BoxSpec{
		Generation: s.Generation, WorkspaceID: s.WorkspaceID, Template: TemplateOf(s), Builds: buildsOf(r, s), Boot: data.Boot, Env: env,
		Persistent: s.Persistent, Exclusive: s.Exclusive, Capture: s.FromSnapshot,
	}
	if s.FromSnapshot != "" {
		if snap, ok := raftstore.Get(r, record.Snapshots, s.FromSnapshot); ok {
			spec.Manifest = snap.Manifest
		}
		spec.Origin = map[string]any{"from_snapshot": s.FromSnapshot}
	}
	if data.Copy != nil {
		spec.DiskOf, spec.Boot = data.Copy.SandboxID, hostapi.BootCold
	}
	paths := make(map[string]string, len(s.Volumes))
	for _, m := range s.Volumes {
		paths[volume.Key(s.WorkspaceID, m.Name)] = m.MountPath
	}
	for _, v := range volumesOf(r, s) {
		spec.Volumes = append(spec.Volumes, hostapi.VolumeAttach{ID: v.ID, MountPath: paths[volume.Key(s.WorkspaceID, v.Name)]})
	}
	return spec, nil
}

// refusedSnapshot returns why a host refused a snapshot, or "" if err is another
// error.
func refusedSnapshot(err error) string {
	var refusal *hostapi.Error
	if !errors.As(err, &refusal) || refusal.Code != hostapi.CodeNoSnapshot && refusal.Code != hostapi.CodeBadSnapshot {
		return ""
	}
	return fmt.Sprint(refusal)
}
