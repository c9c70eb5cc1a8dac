package database

import (
	"fmt"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// saying returns a commit that records a database's progress. what may be empty in a
// failover alone: nothing is to be said but which writes it loses.
func saying(run flow.Run, data provision, what string, next flow.Next) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return next, nil
		}
		if text := data.text(d, what); d.Error != text {
			d = d.Clone()
			d.Error = text
			raftstore.Put(tx, record.Databases, d)
		}
		return next, nil
	}
}

// hintEnd is between the message about lost writes and what follows it.
const hintEnd = "; "

// text returns what a database's row says while the database is made. The message about
// writes that it lacks comes first.
func (p provision) text(d *record.Database, what string) string {
	switch {
	case p.Hint == "" && d.Status == record.DatabaseRestoring: // begun by a leader of an earlier version
		return d.Error
	case p.Hint == "":
		return what
	case what == "":
		return p.Hint
	}
	return p.Hint + hintEnd + what
}

// progress adds to a progress message that provisioning started again, if it did.
func (p provision) progress(what string) string {
	if p.Lost {
		return what + " (again, because its host was lost)"
	}
	return what
}

// progressOf describes a database's progress. During a failover it describes only what
// keeps it from going on.
func (p provision) progressOf(d *record.Database, s hostapi.DatabaseState) string {
	restoring := s.Restore != nil && s.Restore.Phase != pgapi.RestoreDone
	switch {
	case s.Error != "":
		return p.progress("PostgreSQL does not serve yet: " + s.Error)
	case restoring && s.Restore.Error != "":
		return p.progress(fmt.Sprintf("its data is being restored: %s, %d WAL files, and does not go on now: %s", s.Restore.Phase, s.Restore.WALFiles, s.Restore.Error))
	case d.Status == record.DatabaseRestoring:
		return ""
	case restoring:
		return p.progress(fmt.Sprintf("its data is being restored: %s, %d WAL files", s.Restore.Phase, s.Restore.WALFiles))
	}
	return p.progress("PostgreSQL is starting")
}
