package hostapi

import (
	"slices"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Routes of databases. A box is a database's once it has a DatabaseSpec; the routes
// below a box are of such boxes alone, but for the restart. Archives are named, and
// any host answers for any: what it needs is in the bucket.
//
//	PUT  PathBoxes/{id}/database              DatabaseSpec → DatabaseState; the same again changes nothing
//	GET  PathBoxes/{id}/database              → DatabaseState, as the guest answers now
//	PUT  PathBoxes/{id}/database/credentials  pgapi.Credentials → pgapi.CredentialsApplied
//	POST PathBoxes/{id}/database/backup       {} → 202: a base backup begins, unless one is under way
//	POST PathBoxes/{id}/database/switch       {} → DatabaseState, once all that was written before is archived
//	POST PathBoxes/{id}/database/sleep        DatabaseSleep → Box, hibernated; CodeDatabaseBusy if it is not idle
//	POST PathBoxes/{id}/restart               {} → Box: one that has failed is booted from its disk
//
//	POST PathArchives/info    Archive → ArchiveInfo
//	POST PathArchives/prune   ArchivePrune → ArchiveInfo
//	POST PathArchives/fence   Archive → 204: nothing is written to it from now on
//	POST PathArchives/delete  Archive → 204, also when it is already gone
const PathArchives = "/v1/archives"

// The codes of refusals that only databases have.
const (
	CodeNoArchive      Code = "no_archive"       // 404: there is no such archive, or nothing of it can be restored
	CodeArchiveDamaged Code = "archive_damaged"  // 422: Detail names the object that is missing or has other bytes
	CodeArchiveFenced  Code = "archive_fenced"   // 409: another incarnation of the database has taken over
	CodeNotVerified    Code = "not_verified"     // 502: a log-in with the new credentials failed; the old ones are in force
	CodeDatabaseBusy   Code = "database_busy"    // 409: not idle, or the same is under way
	CodeNotReady       Code = "database_unready" // 503: PostgreSQL does not serve yet, or not any more
)

// Archive is where the WAL and the base backups of one incarnation of a database
// are: below its name in the bucket, encrypted with its key.
type Archive struct {
	Name string `json:"name"` // "<database id>/<incarnation>"
	Key  []byte `json:"key"`  // 32 bytes
}

// IsZero reports whether it names none.
func (a Archive) IsZero() bool { return a.Name == "" && len(a.Key) == 0 }

// DatabaseSpec makes a box a database's: the host tunes PostgreSQL to the box,
// archives its WAL and makes its base backups.
type DatabaseSpec struct {
	Archive Archive          `json:"archive"`           // from its first byte
	Restore *DatabaseRestore `json:"restore,omitempty"` // its data comes from there; before anything is archived

	ArchiveIntervalSeconds int `json:"archive_interval_seconds"` // how far the archive may trail writes
	FirstBackupSeconds     int `json:"first_backup_seconds"`     // after it first served
	BackupIntervalSeconds  int `json:"backup_interval_seconds"`  // from then on, if anything was written
}

// Clone returns a deep copy.
func (s *DatabaseSpec) Clone() *DatabaseSpec {
	if s == nil {
		return nil
	}
	c := *s
	c.Archive.Key = slices.Clone(s.Archive.Key)
	if s.Restore != nil {
		r := *s.Restore
		r.From.Key = slices.Clone(r.From.Key)
		if r.TargetTime != nil {
			t := *r.TargetTime
			r.TargetTime = &t
		}
		c.Restore = &r
	}
	return &c
}

// DatabaseRestore is where the data of a clone, or of a database that failed over,
// comes from: an archive, or the disk that the box was made with.
type DatabaseRestore struct {
	From       Archive    `json:"from,omitzero"`
	WithDisk   bool       `json:"with_disk,omitempty"`   // it is there, a copy of another database's (BoxSpec.DiskOf)
	TargetTime *time.Time `json:"target_time,omitempty"` // nil: all that is there
}

// DatabaseSleep hibernates a database that has been idle, with all its WAL archived.
type DatabaseSleep struct {
	IdleSeconds int `json:"idle_seconds"`
}

// DatabaseState is what a host knows of a database. Heartbeats carry it as of a few
// seconds ago.
type DatabaseState struct {
	State string `json:"state"` // pgapi.State…; empty: the guest has not answered yet
	Ready bool   `json:"ready"` // takes clients
	Error string `json:"error,omitempty"`

	Clients int `json:"clients"` // tenant's sessions, and connections on their way to be one
	// IdleSince is since when it could sleep: no client, no base backup, nothing that
	// a sleep would cut. Zero while it could not.
	IdleSince time.Time `json:"idle_since,omitzero"`

	Restore *pgapi.RestoreStatus `json:"restore,omitempty"`
	Volume  pgapi.VolumeStatus   `json:"volume"`
	Tenant  *pgapi.Tenant        `json:"tenant,omitempty"`
	Archive ArchiveState         `json:"archive"`
}

// ArchiveState is how a database's archive keeps up.
type ArchiveState struct {
	LastLSN         string    `json:"last_lsn,omitempty"` // all before it is archived
	LastAt          time.Time `json:"last_at,omitzero"`   // all that was written before it is archived; zero: not known
	LagSeconds      float64   `json:"lag_seconds"`        // time since LastAt; 0 where that is not known
	PendingBytes    int64     `json:"pending_bytes"`
	FailingSince    time.Time `json:"failing_since,omitzero"`
	Error           string    `json:"error,omitempty"` // one of ArchiveCause…: tenants see it
	BaseBackups     int       `json:"base_backups"`
	LastBackupAt    time.Time `json:"last_backup_at,omitzero"`
	FirstRestorable time.Time `json:"first_restorable,omitzero"`
	LastRestorable  time.Time `json:"last_restorable,omitzero"`
	SizeBytes       int64     `json:"size_bytes"` // in the bucket

	BackupsFailingSince time.Time `json:"backups_failing_since,omitzero"` // zero once a base backup is made
	BackupError         string    `json:"backup_error,omitempty"`         // as Error, of the last that failed
}

// CauseMute is what DatabaseState.Error says of a guest that cannot be asked.
const CauseMute = "its guest does not answer"

// What ArchiveState.Error says, and no other's words: those are in the host's log.
const (
	ArchiveCauseSilent  = "the archive's bucket does not answer"
	ArchiveCauseRefused = "the archive's bucket does not take what is to be archived"
	ArchiveCauseFull    = "the archive has reached its quota: nothing is archived until something of it is pruned, or the quota is raised"
	// ArchiveCauseDamaged is followed by a colon and the key of an object.
	ArchiveCauseDamaged  = "an object of the archive is missing or damaged"
	ArchiveCauseConflict = "the archive has other WAL under the name that the next has: nothing is archived until a failover begins another archive"
	ArchiveCauseUnread   = "the database's guest does not hand over its WAL"
	ArchiveCauseUncopied = "PostgreSQL does not hand over all of its data, its log may say why"
	ArchiveCauseWaiting  = "WAL waits in the database's guest"
	ArchiveCauseFenced   = "another incarnation of the database has taken over: nothing is archived any more"
)

// BaseBackup is one of an archive.
type BaseBackup struct {
	ID         string    `json:"id"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"` // it can restore to this moment and later
	StartLSN   string    `json:"start_lsn"`
	StopLSN    string    `json:"stop_lsn"`
	SizeBytes  int64     `json:"size_bytes"` // in the bucket
	DataBytes  int64     `json:"data_bytes"` // on the disk that it is restored to
}

// ArchiveInfo is what the bucket has of an archive.
type ArchiveInfo struct {
	BaseBackups     []BaseBackup `json:"base_backups"`              // the oldest first
	FirstRestorable time.Time    `json:"first_restorable,omitzero"` // zero: nothing can be restored
	LastRestorable  time.Time    `json:"last_restorable,omitzero"`
	// Earlier are moments that can be restored, too, before gaps; the oldest first.
	Earlier   []Window `json:"earlier,omitempty"`
	LastLSN   string   `json:"last_lsn,omitempty"` // all before it is archived
	SizeBytes int64    `json:"size_bytes"`
	Objects   int      `json:"-"` // known to the host alone
	Fenced    bool     `json:"fenced,omitempty"`
	// Damage names what is missing or has other bytes. The rest tells of what is left.
	Damage string `json:"damage,omitempty"`
	// EndLost: no base backup leads to the end of what is archived, so a restore without a
	// target is refused. LastRestorable is before the damage.
	EndLost bool `json:"end_lost,omitempty"`
}

// Window is each moment from one to another.
type Window struct {
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// ArchivePrune removes what no restore to a moment after Before needs.
type ArchivePrune struct {
	Archive
	Before time.Time `json:"before"`
}
