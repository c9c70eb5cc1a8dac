// Package snapshot creates and deletes snapshots by flows. A snapshot is a capture
// of a running sandbox on its host. If the host has a snapshot store, the capture is
// uploaded, so that any host can start from it.
package snapshot

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Resource describes snapshots to package resource.
var Resource = &resource.Kind[*record.Snapshot]{
	Name: "snapshot", Table: record.Snapshots,
	Host:     func(s *record.Snapshot) string { return s.HostID },
	Owner:    func(s *record.Snapshot) string { return s.WorkspaceID },
	Creating: func(s *record.Snapshot) bool { return s.Status == record.ResourceCreating },
	Deleting: func(s *record.Snapshot) bool { return s.Status == record.ResourceDeleting },
	Delete: func(s *record.Snapshot) *record.Snapshot {
		c := s.Clone()
		c.Status = record.ResourceDeleting
		return c
	},
	Drop: func(tx *raftstore.Tx, s *record.Snapshot) {
		raftstore.Delete(tx, record.Snapshots, s.ID)
		sandbox.DropEnv(tx, s.EnvRef)
	},
}

// KindStore is the flow that uploads a snapshot whose creation could not.
const KindStore = "snapshot.store"

// Prefix is the beginning of every snapshot's id.
const Prefix = "snap-"

// Deadline limits the creation of a snapshot. Its upload takes time in proportion to
// the sandbox's memory and disk.
var Deadline = timescale.Limit(15 * time.Minute)

// storeTimeout limits one call to a host. An upload continues after it, and the next
// call joins it.
var storeTimeout = timescale.Limit(10 * time.Minute)

// The steps.
//
//	capture ──► store ──► (ready)
//
// Past the deadline (expire), a captured snapshot is ready without being stored, and
// any other is given up. A flow of kind KindStore tries to store it again.
const (
	stepCapture    = "capture"
	stepStore      = "store"
	stepExpire     = "expire"
	stepStoreAgain = "store again"
)

// flows contains the steps of all kinds.
type flows struct {
	*core.Core
	pause time.Duration // see Config.StorePause
}

// Kinds returns the kinds of flows, for the engine.
func (s *Snapshots) Kinds() []flow.Kind {
	f := &flows{Core: s.core, pause: s.cfg.StorePause}
	return []flow.Kind{
		{
			Name: Resource.CreateKind(), Expire: stepExpire, ActTimeout: storeTimeout, Host: Resource.HostOf(""), Workspace: Resource.OwnerOf,
			Steps: map[string]flow.Step{stepCapture: f.capture, stepStore: f.store, stepExpire: f.expire},
		},
		Resource.Removal(f.remove),
		{
			Name: KindStore, ActTimeout: storeTimeout, Host: Resource.HostOf(""), Workspace: Resource.OwnerOf,
			Steps: map[string]flow.Step{stepStoreAgain: f.storeAgain},
		},
	}
}

// Create is the data of a create.
type Create struct {
	resource.Data
	Generation uint64 `json:"generation,omitempty"` // of the sandbox's box
}

// Begin adds a snapshot and its create to a transaction.
func Begin(tx *raftstore.Tx, flowID string, s *record.Snapshot, data Create) error {
	return Resource.Begin(tx, "", flowID, s, stepCapture, data, tx.Now().Add(Deadline))
}

// again reports whether to repeat a failed step.
func (f *flows) again(ctx context.Context, run flow.Run, hostID string, err error) bool {
	return hosts.Superseded(ctx, err) || f.Hosts.Passing(run.View, hostID, run.Flow.Attempt, err)
}

// capture is the step that captures the sandbox on its host.
func (f *flows) capture(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	var made hostapi.Capture
	err := f.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error {
		var err error
		made, err = c.PutCapture(ctx, s.ID, hostapi.CaptureSpec{
			BoxID: s.SandboxID, Generation: data.Generation, Memory: true, After: hostapi.AfterResume,
		})
		return err
	})
	switch {
	case err == nil:
	case f.again(ctx, run, s.HostID, err):
		return nil, err
	default:
		f.Logger.WarnContext(ctx, "snapshot was not taken", "snapshot_id", s.ID, "agent_id", s.HostID, "request_id", data.RequestID, "error", err)
		f.discard(ctx, s) // the capture may exist
		return Resource.GiveUp(run, data.Data, sandbox.NotCaptured(err, ErrNotTaken)), nil
	}
	// Even if the host says that it is stored, because the upload's answer has the
	// digest.
	session, _ := f.Hosts.Session(s.HostID)
	store := session.Heartbeat.Store
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := Resource.Made(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := s.Clone()
		c.MemoryBytes, c.DiskBytes = believed(&made, s.DiskMB)
		c.CPU, c.MemoryMB, c.DiskMB = made.CPU, made.MemoryMB, made.DiskMB
		c.PauseMS, c.Stored = made.PauseMS, made.Stored
		if !store {
			c.Status = record.ResourceReady
		}
		raftstore.Put(tx, record.Snapshots, c)
		if !store {
			return flow.Done(), nil
		}
		return flow.Goto(stepStore, nil), nil
	}, nil
}

// believed returns how large a capture is, as its host says, and no more than the memory and
// the disk of its sandbox: that is what its workspace pays for, and what its quota counts. 0:
// the row is of an earlier version, which does not say.
func believed(made *hostapi.Capture, mostMB int) (memory, disk int64) {
	memory, disk = max(made.MemoryBytes, 0), max(made.DiskBytes, 0)
	if mostMB == 0 {
		return memory, disk
	}
	most := int64(mostMB) << 20
	memory = min(memory, most)
	return memory, min(disk, most-memory)
}

// store is the step that uploads the capture. If it fails, the snapshot is usable on
// its own host until an upload succeeds.
func (f *flows) store(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	ctx = hosts.WithRequestID(ctx, data.RequestID)
	made, err := f.upload(ctx, s)
	if err != nil {
		if f.again(ctx, run, s.HostID, err) {
			return nil, err
		}
		f.Logger.WarnContext(ctx, "snapshot was not stored", "snapshot_id", s.ID, "agent_id", s.HostID, "request_id", data.RequestID, "error", err)
	}
	return ready(run, err == nil, made.Manifest), nil
}

func ready(run flow.Run, stored bool, manifest string) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if s, ok := Resource.Made(tx, run.Flow); ok {
			c := s.Clone()
			c.Status, c.Stored, c.Manifest = record.ResourceReady, stored, manifest
			raftstore.Put(tx, record.Snapshots, c)
		}
		return flow.Done(), nil
	}
}

// expire is the step that ends a creation past its deadline.
func (f *flows) expire(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data Create
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Made(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	if s.MemoryMB > 0 { // it is captured
		return ready(run, false, ""), nil
	}
	f.discard(ctx, s)
	return Resource.GiveUp(run, data.Data, ErrNotTaken), nil
}

// discard tries once to delete a capture that may exist. If it fails, the inventory
// deletes it.
func (f *flows) discard(ctx context.Context, s *record.Snapshot) {
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(5*time.Second))
	defer cancel()
	err := f.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, s.ID, true) })
	if err != nil {
		f.Logger.InfoContext(ctx, "capture is left to the inventory", "snapshot_id", s.ID, "agent_id", s.HostID, "error", err)
	}
}
