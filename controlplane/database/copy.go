package database

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// A clone of the latest state has a fast path: it starts on the source's host with a copy
// of the source's disk. PostgreSQL recovers there from its own WAL, which has everything
// that was committed before the copy.
//
//	copy ──► tell ──► ready ──► login ──► (ready)
//	  └───────┴────────┴─────────┴──► cleared ──► switch ──► template ──► …
//
// Any failure before the database is ready leads to a restore from the archive, and
// nothing of the copy is kept.
const (
	stepCopy    = "copy"    // create a sandbox with a copy of the source's disk
	stepCleared = "cleared" // wait until that sandbox, and the room it took, is gone
)

// diskCopy says whose disk is copied, and how long that is worth waiting for.
type diskCopy struct {
	sandbox.Copy

	Until time.Time `json:"until"`
}

// copyLimit bounds the fast path: a boot, and recovery from the WAL since the last
// checkpoint.
var copyLimit = timescale.Limit(10 * time.Minute)

// copyOf returns the disk that a clone may start with a copy of. It returns nil if there
// is none, or no room beside it.
func (f *Flows) copyOf(ctx context.Context, r raftstore.Reader, from *record.Database) *diskCopy {
	box, err := f.copyable(r, from)
	if err != nil {
		f.Logger.InfoContext(ctx, "database is cloned from its archive", "database_id", from.ID, "reason", err.Error())
		return nil
	}
	f.Logger.InfoContext(ctx, "database is cloned by a copy of its disk", "database_id", from.ID, "agent_id", box.HostID)
	return &diskCopy{Copy: sandbox.Copy{SandboxID: box.ID, HostID: box.HostID}, Until: f.Clock().Add(copyLimit)}
}

// copyable finds the sandbox whose disk holds all of a database's data, or returns why
// its disk cannot be copied.
func (f *Flows) copyable(r raftstore.Reader, from *record.Database) (*record.Sandbox, error) {
	box, ok := raftstore.Get(r, record.Sandboxes, from.SandboxID)
	switch {
	case from.Status != record.DatabaseReady || !ok:
		return nil, errors.New("it has no data but in its archive")
	case !hostUp(r, box.HostID):
		return nil, errors.New("its host is not there")
	}
	switch box.Status {
	case record.SandboxRunning, record.SandboxHibernated, record.SandboxFailed:
	default:
		return nil, errors.New("its sandbox is " + string(box.Status))
	}
	return box, f.Hosts.Choosable(r, placement.Request{Only: box.HostID, Size: sizeOf(box)})
}

func sizeOf(box *record.Sandbox) *placement.Template {
	return &placement.Template{CPU: box.CPU, MemoryMB: box.MemoryMB, DiskMB: box.DiskMB}
}

// copyDisk gives a clone a sandbox with a copy of its source's disk, and with the same
// build as the source's sandbox.
func (f *Flows) copyDisk(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	other, ok := raftstore.Get(run.View, record.Sandboxes, data.Copy.SandboxID)
	if !ok {
		return f.fail(run, &apierror.Error{Code: apierror.EConflict, Message: errBoxGone}), nil
	}
	box := &record.Sandbox{
		Template: other.Template, TemplateKey: other.TemplateKey, BuildID: other.BuildID, CPU: other.CPU, MemoryMB: other.MemoryMB, DiskMB: other.DiskMB,
	}
	return f.beginSandbox(run, d, data, box, &data.Copy.Copy)
}

var errSlowCopy = &apierror.Error{Code: apierror.EInternal, Message: "it took too long"}

// inTime wraps a step so that it gives up a copy that takes too long.
func (f *Flows) inTime(act flow.Step) flow.Step {
	return func(ctx context.Context, run flow.Run) (flow.Commit, error) {
		var data provision
		if err := run.Data(&data); err != nil {
			return nil, err
		}
		if data.Copy != nil && f.Clock().After(data.Copy.Until) {
			return f.fail(run, errSlowCopy), nil
		}
		return act(ctx, run)
	}
}

// giveUpCopy discards the copy and continues with a restore from the archive.
func (f *Flows) giveUpCopy(run flow.Run, data provision, why error) flow.Commit {
	f.Logger.Warn("copy of a database's disk is given up, its archive is restored", "flow_id", run.Flow.ID, "step", run.Flow.Step,
		"database_id", data.Source.DatabaseID, "reason", reasonOf(why))
	data.Copy, data.ChildID = nil, ""
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		if err := removeBoxes(tx, d); err != nil {
			return flow.Next{}, err
		}
		d = d.Clone()
		d.SandboxID, d.Error = "", "its data is being restored from the archive"
		closeArchive(tx, d)
		raftstore.Put(tx, record.Databases, d)
		return flow.Goto(stepCleared, data), nil
	}
}

// awaitCleared waits until nothing of an abandoned copy is left: the host may have no
// room for the restored database beside it.
func (f *Flows) awaitCleared(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if err := f.awaitGone(ctx, d); err != nil {
		return nil, err
	}
	if len(boxesOf(f.Store.View(), d)) > 0 {
		return going(flow.Goto(stepCleared, data)), nil
	}
	return going(flow.Goto(stepSwitch, data)), nil
}
