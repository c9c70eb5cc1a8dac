package pgapi

import "time"

// States of PostgreSQL in Status.
const (
	StateStarting   = "starting"
	StateReady      = "ready"
	StateRecovering = "recovering" // serves reads alone, or nothing yet
	StateStopped    = "stopped"    // as it was told
	StateFailed     = "failed"     // ended, and is started again after a pause; or must be restored, see Status.Error
)

// What writes may do, in Status.
const (
	WritesOpen    = "open"
	WritesLimited = "limited" // transactions are read-only unless they ask not to be: room can be made
	WritesStopped = "stopped" // PostgreSQL runs as a standby of nothing; no session can write
)

// Status is the state of PostgreSQL and of what guestpg does for it. What only
// a server that answers can say is absent where it does not.
type Status struct {
	Version         string    `json:"version"`          // of guestpg
	PostgresVersion string    `json:"postgres_version"` // "16.14"
	State           string    `json:"state"`
	Ready           bool      `json:"ready"` // takes connections and is not in recovery
	Error           string    `json:"error,omitempty"`
	LogTail         []string  `json:"log_tail,omitempty"` // where there is an error
	StartedAt       time.Time `json:"started_at,omitzero"`
	Restarts        int       `json:"restarts"` // after ends that nobody asked for

	Server  *ServerStatus  `json:"server,omitempty"`
	Tenant  *Tenant        `json:"tenant,omitempty"`
	Archive ArchiveStatus  `json:"archive"`
	Volume  VolumeStatus   `json:"volume"`
	Restore *RestoreStatus `json:"restore,omitempty"` // the latest since the data was made
}

// ServerStatus is what PostgreSQL says of itself.
type ServerStatus struct {
	InRecovery         bool   `json:"in_recovery"`
	SystemID           string `json:"system_id"`
	Timeline           uint32 `json:"timeline"`
	WriteLSN           string `json:"write_lsn,omitempty"` // absent in recovery
	ReplayLSN          string `json:"replay_lsn,omitempty"`
	Clients            int    `json:"clients"`     // sessions by TCP: the tenant's; the platform's and the broker's are local
	WALSenders         int    `json:"wal_senders"` // but for base backups
	BaseBackups        int    `json:"base_backups"`
	AutovacuumWorkers  int    `json:"autovacuum_workers"`
	BrokerSessionsBusy int    `json:"broker_sessions_busy"`
	// SwitchesInTime is whether PostgreSQL has looked as often as it should for a segment to
	// be switched by archive_timeout: a checkpoint that waits for a slow disk keeps it from
	// that. Absent where guestpg is of an earlier version.
	SwitchesInTime *bool `json:"switches_in_time,omitempty"`
	// LastActivityAt is when a client or the broker was last seen to do something;
	// what happened between two calls of PathStatus counts as of the second.
	LastActivityAt time.Time `json:"last_activity_at"`
}

// Idle says whether nothing would be cut if the guest were put to sleep.
func (s *ServerStatus) Idle() bool {
	return s.Clients+s.WALSenders+s.BaseBackups+s.AutovacuumWorkers+s.BrokerSessionsBusy == 0
}

// Tenant is whose credentials are set.
type Tenant struct {
	Database string `json:"database"`
	Username string `json:"username"`
}

// ArchiveStatus is how far WAL has left the guest.
type ArchiveStatus struct {
	LastArchived   string    `json:"last_archived,omitempty"` // WAL file
	LastArchivedAt time.Time `json:"last_archived_at,omitzero"`
	Pending        int       `json:"pending"` // complete WAL files that the host has not stored
	PendingBytes   int64     `json:"pending_bytes"`
	OldestPending  time.Time `json:"oldest_pending_at,omitzero"`
	FailingSince   time.Time `json:"failing_since,omitzero"` // since when a file waits in vain
	Error          string    `json:"error,omitempty"`
}

// VolumeStatus is the room on the file system that has the data.
type VolumeStatus struct {
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
	WALBytes   int64  `json:"wal_bytes"`
	Writes     string `json:"writes"`
	Reason     string `json:"reason,omitempty"` // why writes are not open
}
