package record

import (
	"slices"
	"time"
)

// DatabaseStatus is what a database's flows have made of it. What clients see is
// that and the state of its sandbox: one that is ready may run, sleep or wake.
type DatabaseStatus string

// A database is provisioning until credentials have been proven for the first time,
// and restoring while a failover puts it somewhere else. It is failed when its
// sandbox is lost or its restore could not end; Deleting is never undone.
const (
	DatabaseProvisioning DatabaseStatus = "provisioning"
	DatabaseReady        DatabaseStatus = "ready"
	DatabaseRestoring    DatabaseStatus = "restoring"
	DatabaseFailed       DatabaseStatus = "failed"
	DatabaseDeleting     DatabaseStatus = "deleting"
)

// Database is one managed PostgreSQL database.
type Database struct {
	Meta
	WorkspaceID string         `json:"workspace_id"`
	Status      DatabaseStatus `json:"status"`
	Error       string         `json:"error,omitempty"` // why it is where it is
	Label       string         `json:"label,omitempty"`
	Size        string         `json:"size"` // "1g", "4g" or "16g"
	AlwaysOn    bool           `json:"always_on,omitempty"`
	CPU         int            `json:"cpu,omitempty"`       // as the client sent it; it has no effect
	MemoryMB    int            `json:"memory_mb,omitempty"` // likewise

	ClonedFrom string     `json:"cloned_from,omitempty"`
	TargetTime *time.Time `json:"target_time,omitempty"` // of a clone
	PreviewID  string     `json:"preview_id,omitempty"`  // of a clone: the app that is a preview, with which it goes

	// SandboxID is the box that it has now, or is getting; empty between two.
	SandboxID string `json:"sandbox_id,omitempty"`
	// Archives are its incarnations', the latest last: each box that was given its
	// data archives below a name of its own.
	Archives []DatabaseArchive `json:"archives,omitempty"`

	Name     string `json:"name"` // of the database in PostgreSQL
	Username string `json:"username"`
	// Credentials are those in force; nil until the first were proven.
	Credentials *DatabaseCredentials `json:"credentials,omitempty"`
}

// DatabaseArchive is the archive of one incarnation.
type DatabaseArchive struct {
	Name      string    `json:"name"`       // "<database id>/<incarnation>"
	KeySealed []byte    `json:"key_sealed"` // 32 bytes, sealed
	CreatedAt time.Time `json:"created_at"`
	ClosedAt  time.Time `json:"closed_at,omitzero"` // when its incarnation ended, or the next one took over
	Removing  bool      `json:"removing,omitempty"` // from the bucket: nothing is restored from it any more

	// As a host told last; the bucket knows better.
	FirstRestorable time.Time `json:"first_restorable,omitzero"` // zero: no base backup yet
	LastRestorable  time.Time `json:"last_restorable,omitzero"`
	LastLSN         string    `json:"last_lsn,omitempty"`
	SizeBytes       int64     `json:"size_bytes,omitempty"` // in the bucket
}

// DatabaseCredentials are those of a database's one role, and of its broker.
type DatabaseCredentials struct {
	PasswordSealed    []byte    `json:"password_sealed"`
	Verifier          string    `json:"verifier"` // SCRAM-SHA-256 secret of the password, as in pg_authid
	BrokerTokenSealed []byte    `json:"broker_token_sealed"`
	BrokerTokenHash   []byte    `json:"broker_token_hash"` // SHA-256
	CreatedAt         time.Time `json:"created_at"`
}

// Clone returns a deep copy.
func (d *Database) Clone() *Database {
	c := *d
	c.Archives = slices.Clone(d.Archives)
	for i := range c.Archives {
		c.Archives[i].KeySealed = slices.Clone(c.Archives[i].KeySealed)
	}
	if d.TargetTime != nil {
		t := *d.TargetTime
		c.TargetTime = &t
	}
	if d.Credentials != nil {
		k := *d.Credentials
		k.PasswordSealed, k.BrokerTokenSealed, k.BrokerTokenHash = slices.Clone(k.PasswordSealed), slices.Clone(k.BrokerTokenSealed), slices.Clone(k.BrokerTokenHash)
		c.Credentials = &k
	}
	return &c
}

// Archive is the present incarnation's.
func (d *Database) Archive() *DatabaseArchive {
	if len(d.Archives) == 0 {
		return nil
	}
	return &d.Archives[len(d.Archives)-1]
}
