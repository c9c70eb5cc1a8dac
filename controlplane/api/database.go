package api

// DatabaseStatus is the status of a database.
type DatabaseStatus string

// A database is provisioning until its credentials work, and restoring during a
// failover. An idle database hibernates. It wakes when a client connects, or on
// request.
const (
	DatabaseProvisioning DatabaseStatus = "provisioning"
	DatabaseRunning      DatabaseStatus = "running"
	DatabaseHibernated   DatabaseStatus = "hibernated"
	DatabaseWaking       DatabaseStatus = "waking"
	DatabaseFailed       DatabaseStatus = "failed"
	DatabaseRestoring    DatabaseStatus = "restoring"
)

// DatabaseSize is the memory of a database.
type DatabaseSize string

// The size of a database never changes; a clone may have another.
const (
	Database1G  DatabaseSize = "1g"
	Database4G  DatabaseSize = "4g"
	Database16G DatabaseSize = "16g"
)

// Database is a managed PostgreSQL database. Lists omit its credentials.
type Database struct {
	ID         string         `json:"id"` // a UUID
	Status     DatabaseStatus `json:"status"`
	Template   string         `json:"template"` // "postgres-16"
	Size       DatabaseSize   `json:"size"`
	Label      string         `json:"label,omitempty"`
	AlwaysOn   bool           `json:"always_on"`             // it never sleeps
	ClonedFrom string         `json:"cloned_from,omitempty"` // id of the database that it was cloned from
	TargetTime *Time          `json:"target_time,omitempty"` // the point in time of the source that was cloned, if one was given
	CPU        int            `json:"cpu,omitempty"`         // as requested; has no effect
	MemoryMB   int            `json:"memory_mb,omitempty"`   // as requested; has no effect
	CreatedAt  Time           `json:"created_at"`

	Host          string `json:"host"` // for PostgreSQL clients, with TLS
	Port          int    `json:"port"`
	Database      string `json:"database,omitempty"`       // while it runs
	Username      string `json:"username,omitempty"`       // while it runs
	Password      string `json:"password,omitempty"`       // while it runs
	ConnectionURL string `json:"connection_url,omitempty"` // while it runs; does not set sslmode
	BrokerToken   string `json:"broker_token,omitempty"`   // while it runs; the bearer token of broker_url
	BrokerURL     string `json:"broker_url"`               // accepts SQL over HTTP

	FailoverAvailable  *bool  `json:"failover_available,omitempty"`   // while it is failed
	FailoverReason     string `json:"failover_reason,omitempty"`      // while it is failed: why a failover is possible or not
	FailoverETASeconds int    `json:"failover_eta_seconds,omitempty"` // while it is failed

	Error  string `json:"error,omitempty"`  // why it has this status
	Detail string `json:"detail,omitempty"` // details of the error
}

// DatabaseConnection contains how clients connect to a database.
type DatabaseConnection struct {
	Status        DatabaseStatus `json:"status"`
	Host          string         `json:"host"`
	Port          int            `json:"port"`
	Database      string         `json:"database,omitempty"`       // while it runs
	Username      string         `json:"username,omitempty"`       // while it runs
	Password      string         `json:"password,omitempty"`       // while it runs
	ConnectionURL string         `json:"connection_url,omitempty"` // while it runs
	BrokerToken   string         `json:"broker_token,omitempty"`   // while it runs
	BrokerURL     string         `json:"broker_url"`
	Error         string         `json:"error,omitempty"` // why it has this status
}

// CreateDatabase is the body of POST /v1/databases. cpu and memory_mb are recorded
// and have no effect.
type CreateDatabase struct {
	Label    string        `json:"label,omitempty" maxLength:"100"`
	Size     *DatabaseSize `json:"size,omitempty"` // default 1g
	AlwaysOn bool          `json:"always_on,omitempty"`
	CPU      *int          `json:"cpu,omitempty" minimum:"0" maximum:"1000000"`
	MemoryMB *int          `json:"memory_mb,omitempty" minimum:"0" maximum:"1000000000"`
}

// PatchDatabase is the body of PATCH /v1/databases/{id}.
type PatchDatabase struct {
	AlwaysOn bool `json:"always_on"`
}

// CloneDatabase is the body of POST /v1/databases/{id}/clone.
type CloneDatabase struct {
	Label      string        `json:"label,omitempty" maxLength:"100"` // default: the source's, with " (clone)"
	Size       *DatabaseSize `json:"size,omitempty"`                  // default: the source's
	TargetTime *string       `json:"target_time,omitempty"`           // RFC 3339, for point-in-time recovery; default: the latest that is archived
}

// FailoverDatabase is the body of POST /v1/databases/{id}/failover.
type FailoverDatabase struct {
	Force bool `json:"force,omitempty"` // fail over even if the database runs
}

// DatabaseWake is the answer to a wake.
type DatabaseWake struct {
	Status DatabaseStatus `json:"status"`
	Detail string         `json:"detail"`
}

// DatabaseFailover is the answer to a failover, which continues after it.
type DatabaseFailover struct {
	ID     string         `json:"id"`
	Status DatabaseStatus `json:"status"`
	Error  string         `json:"error"` // where the archive ends, and what is lost
}

// DatabaseArchive describes what a database can be restored from.
type DatabaseArchive struct {
	FirstRestorable *Time                `json:"first_restorable"` // null: nothing yet
	LastRestorable  *Time                `json:"last_restorable"`
	LastArchivedLSN *string              `json:"last_archived_lsn"`
	LagSeconds      float64              `json:"lag_seconds"`  // age of the oldest write that may not be archived
	BaseBackups     []DatabaseBaseBackup `json:"base_backups"` // oldest first
	SizeBytes       int64                `json:"size_bytes"`   // in the bucket
	FailingSince    *Time                `json:"failing_since"`
	Error           *string              `json:"error"` // why it fails
}

// DatabaseBaseBackup is a base backup, the start of a restore.
type DatabaseBaseBackup struct {
	ID        string `json:"id"`
	StartedAt Time   `json:"started_at"`
	SizeBytes int64  `json:"size_bytes"`
}
