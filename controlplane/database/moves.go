package database

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A database moves to another host as any sandbox does: asleep, with its memory and its
// disk. WAL that is not archived yet is on that disk, and the new host archives it into
// the same archive. So, unlike in a failover, nothing is lost, and no base backup is
// needed first.

func (f *Flows) moves() sandbox.Moves {
	return sandbox.Moves{Busy: f.changing, Stays: failedStays, Arrive: f.arrive}
}

// changing reports whether a flow works on a database, or a clone may be reading its
// disk.
func (f *Flows) changing(r raftstore.Reader, s *record.Sandbox) bool {
	d, ok := raftstore.Get(r, record.Databases, s.Owner.ID)
	if !ok || d.SandboxID != s.ID || d.Status != record.DatabaseReady {
		return true
	}
	_, under := flow.Live(r, Subject(d.ID))
	_, booting := f.heard.boot(d.ID)
	return under || booting || clonedBy(r, d) != nil
}

// failedStays keeps the sandbox of a failed database where it is: another one takes its
// place once the database fails over.
func failedStays(r raftstore.Reader, s *record.Sandbox) string {
	d, ok := raftstore.Get(r, record.Databases, s.Owner.ID)
	if _, under := flow.Live(r, Subject(s.Owner.ID)); !ok || under || d.Status != record.DatabaseFailed {
		return ""
	}
	return "the database " + d.ID + " has failed: fail it over"
}

// arrive makes the new host archive what the database writes once it wakes.
func (f *Flows) arrive(ctx context.Context, r raftstore.Reader, s *record.Sandbox, c *hosts.Client) error {
	d, ok := raftstore.Get(r, record.Databases, s.Owner.ID)
	if !ok {
		return nil // the sandbox is being deleted
	}
	spec, err := f.spec(r, d, provision{}) // its data came with the disk
	if err != nil {
		return err
	}
	if a := d.Archive(); a != nil && a.FirstRestorable.IsZero() {
		spec.FirstBackupSeconds = 0 // after a failover, all since then depends on it
	}
	_, err = c.PutDatabase(ctx, s.ID, spec)
	return err
}

// arriving reports whether a database's sandbox is being moved to another host, or has
// arrived there and is about to wake. Until then, WAL of the database may be on its disk
// alone.
func arriving(r raftstore.Reader, box *record.Sandbox) bool {
	if box == nil {
		return false
	}
	_, under := flow.Live(r, sandbox.Resource.Subject(box.ID))
	return box.Move != nil || under && box.Status == record.SandboxHibernated
}

// errArriving is said of a database that a failover would take data from.
const errArriving = "it is moving to another host, and arrives there with everything"

// stored reports whether a database's sandbox is moving, and a host for it is chosen: all
// of it is in the snapshot store then.
func stored(box *record.Sandbox) bool { return box != nil && box.Move != nil && box.Move.To != "" }
