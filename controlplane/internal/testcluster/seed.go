package testcluster

import (
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// PutSandbox puts a sandbox into the store, with the transitions that lead to its
// status.
func PutSandbox(tx *raftstore.Tx, row *record.Sandbox) {
	put := func(status record.SandboxStatus) {
		c := row.Clone()
		c.Status = status
		raftstore.Put(tx, record.Sandboxes, c)
	}
	put(record.SandboxStarting)
	switch row.Status {
	case record.SandboxStarting:
	case record.SandboxDeleting:
		put(row.Status)
	default:
		put(record.SandboxRunning)
		put(row.Status)
	}
}

// PutSnapshot is PutSandbox for a snapshot.
func PutSnapshot(tx *raftstore.Tx, row *record.Snapshot) {
	put := func(status record.ResourceStatus) {
		c := row.Clone()
		c.Status = status
		raftstore.Put(tx, record.Snapshots, c)
	}
	put(record.ResourceCreating)
	if row.Status != record.ResourceCreating {
		put(record.ResourceReady)
		put(row.Status)
	}
}

// PutVolume is PutSandbox for a volume.
func PutVolume(tx *raftstore.Tx, row *record.Volume) {
	put := func(status record.ResourceStatus) {
		c := row.Clone()
		c.Status = status
		raftstore.Put(tx, record.Volumes, c)
	}
	put(record.ResourceCreating)
	if row.Status != record.ResourceCreating {
		put(record.ResourceReady)
		put(row.Status)
	}
}
