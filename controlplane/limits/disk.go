package limits

import (
	"maps"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// databaseDiskMB is how much disk a database of each size counts for: what the templates
// of PostgreSQL have. It does not depend on where the database's box is, so a failover or
// a sleep changes nothing.
var databaseDiskMB = map[string]int{"1g": 10240, "4g": 20480, "16g": 40960}

// DatabaseDiskMB returns how much disk a database of a size counts for.
func DatabaseDiskMB(size string) int { return databaseDiskMB[size] }

// snapshotDiskMB returns how much disk a snapshot counts for: its size or, while that is
// not known, the most that it may become.
func snapshotDiskMB(s *record.Snapshot) int {
	if s.Status == record.ResourceCreating || s.MemoryBytes+s.DiskBytes == 0 {
		return s.MemoryMB + s.DiskMB
	}
	return int((s.MemoryBytes + s.DiskBytes + 1<<20 - 1) >> 20)
}

// DiskOf counts the disk of a workspace, in MiB: the disks of its sandboxes in every
// state, its databases, its snapshots and its volumes. The sandboxes and artifacts of its
// apps do not count, as for the other quotas; what is being deleted counts no more.
func DiskOf(r raftstore.Reader, workspaceID string) (mb int) {
	for _, s := range raftstore.Find(r, record.Sandboxes, "workspace", workspaceID) {
		if s.Owner == nil && s.Status != record.SandboxDeleting {
			mb += s.DiskMB
		}
	}
	for _, d := range raftstore.Find(r, record.Databases, "workspace", workspaceID) {
		if d.Status != record.DatabaseDeleting {
			mb += DatabaseDiskMB(d.Size)
		}
	}
	for _, s := range raftstore.Find(r, record.Snapshots, "workspace", workspaceID) {
		if s.Owner == nil && s.Status != record.ResourceDeleting {
			mb += snapshotDiskMB(s)
		}
	}
	return mb + volumeMB(r, workspaceID)
}

func volumeMB(r raftstore.Reader, workspaceID string) (mb int) {
	for _, v := range raftstore.Find(r, record.Volumes, "workspace", workspaceID) {
		if v.Status != record.ResourceDeleting {
			mb += v.SizeMB
		}
	}
	return mb
}

// disk checks the quota of disk.
func disk(r raftstore.Reader, w *record.Workspace, q record.Quotas, n Need) error {
	most, limited := limit(q.DiskMB)
	if !limited {
		return nil
	}
	used := DiskOf(r, w.ID)
	if used+n.DiskMB <= most {
		return nil
	}
	e := resources(UsageOf(r, w.ID), q)
	maps.Copy(e.Fields, map[string]any{"disk_mb_used": used, "disk_mb_max": most})
	return e
}

// DiskRefusal is the refusal of what would exceed the quota of disk, as an example.
func DiskRefusal() apierror.Error {
	e := resources(Usage{CPU: 4, MemoryMB: 8192}, record.Quotas{CPU: new(16), MemoryMB: new(16384)})
	maps.Copy(e.Fields, map[string]any{"disk_mb_used": 184320, "disk_mb_max": 184320})
	return *e
}
