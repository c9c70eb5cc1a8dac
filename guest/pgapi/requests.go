package pgapi

import "time"

// Settings are what PostgreSQL is tuned by.
type Settings struct {
	MemoryMB               int `json:"memory_mb"` // of the guest: 1024, 4096, 16384
	CPUs                   int `json:"cpus"`
	ArchiveIntervalSeconds int `json:"archive_interval_seconds"` // how far the archive may trail writes
}

// SettingsApplied says what it took.
type SettingsApplied struct {
	Changed   bool `json:"changed"`
	Restarted bool `json:"restarted"` // sessions were cut
}

// Credentials are the tenant's. What is missing is made, and what has other names
// is renamed.
type Credentials struct {
	Database string `json:"database"`
	Username string `json:"username"`
	Password string `json:"password"`
	// Verifier is what PostgreSQL is to keep in the password's place (pgscram.Verifier):
	// who checks log-ins before they reach PostgreSQL must have the same one. Empty:
	// one is made.
	Verifier string `json:"verifier,omitempty"`
}

// CredentialsApplied says that a log-in with them was made.
type CredentialsApplied struct {
	Tenant
	SessionsCut int `json:"sessions_cut"`
}

// Switch asks for a checkpoint, a new WAL segment, and that all before it is stored.
type Switch struct {
	TimeoutSeconds int `json:"timeout_seconds"`
}

// Switched says which WAL is not stored yet; none means that all is.
type Switched struct {
	LSN     string   `json:"lsn"` // everything up to here was switched
	Pending []string `json:"pending"`
}

// Stop ends PostgreSQL. Immediate spares the checkpoint.
type Stop struct {
	Immediate bool `json:"immediate,omitempty"`
}

// WALFile is a complete WAL segment, history file or backup label that waits to be
// stored.
type WALFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // lower-case hex
	// WrittenAt is when it was last written to, by the clock that commits are dated by.
	// Commits that are clearly older are in it or in a file before it; how long it has
	// waited since says nothing of them.
	WrittenAt time.Time `json:"written_at"`
}

// Stored says that a file is durable in the archive.
type Stored struct {
	SHA256 string `json:"sha256"`
}

// Backup asks for a base backup. It holds no WAL: that from its start to its stop is
// in the archive.
type Backup struct {
	Label    string `json:"label"`
	MaxRateK int    `json:"max_rate_kb,omitempty"` // a second; 0: as fast as it goes
}

// BackupTrailer names the HTTP trailers of PathBackup's answer, which has ended well
// only if TrailerComplete is there.
const (
	TrailerStartLSN = "Berth-Start-Lsn"
	TrailerStopLSN  = "Berth-Stop-Lsn"
	TrailerTimeline = "Berth-Timeline"
	TrailerFiles    = "Berth-Files"
	TrailerBytes    = "Berth-Data-Bytes"
	TrailerComplete = "Berth-Complete"
)

// BackupInfo is the trailer of a backup.
type BackupInfo struct {
	StartLSN  string `json:"start_lsn"`
	StopLSN   string `json:"stop_lsn"`
	Timeline  uint32 `json:"timeline"`
	Files     int    `json:"files"`
	DataBytes int64  `json:"data_bytes"` // of the files, as the manifest has them
}

// RestoreBase says what a base backup held.
type RestoreBase struct {
	Files     int    `json:"files"`
	DataBytes int64  `json:"data_bytes"`
	SystemID  string `json:"system_id,omitempty"`
}

// Restore asks for recovery from the base that was put, to the end of the archive,
// or to the last commit at or before TargetTime.
type Restore struct {
	TargetTime *time.Time `json:"target_time,omitempty"`
}

// Adopt says that the data came with the disk, which is a copy of another database's,
// and belongs to a new one: what the other has yet to archive is not the new one's to.
type Adopt struct {
	As string `json:"as"` // the new one's archive, by which the guest knows that it has adopted
}

// MaxAs bounds Adopt.As, in bytes.
const MaxAs = 128

// Phases of a restore.
const (
	RestoreUnpacking  = "unpacking"
	RestoreUnpacked   = "unpacked" // PathRestore is awaited
	RestoreRecovering = "recovering"
	RestoreDone       = "done"
	RestoreFailed     = "failed"
)

// RestoreStatus is the progress of a restore.
type RestoreStatus struct {
	Phase        string     `json:"phase"`
	Error        string     `json:"error,omitempty"`
	TargetTime   *time.Time `json:"target_time,omitempty"`
	Waiting      string     `json:"waiting,omitempty"`  // the file that the host was asked for
	LastWAL      string     `json:"last_wal,omitempty"` // the latest segment that came
	WALFiles     int        `json:"wal_files"`          // that came
	ReachedLSN   string     `json:"reached_lsn,omitempty"`
	LastCommitAt time.Time  `json:"last_commit_at,omitzero"`
	EndOfArchive bool       `json:"end_of_archive"`      // the archive ended before the target
	As           string     `json:"as,omitempty"`        // Adopt.As: the data came with the disk
	Unclaimed    bool       `json:"unclaimed,omitempty"` // done, and no credentials were set since
}

// FetchRequest is a file of the archive that recovery needs to know about.
type FetchRequest struct {
	Name string `json:"name"`
}

// FetchFailed says why a file that the archive should have cannot be had.
type FetchFailed struct {
	Error string `json:"error"`
}

// Tenant is whose the credentials are.
func (c Credentials) Tenant() Tenant { return Tenant{Database: c.Database, Username: c.Username} }
