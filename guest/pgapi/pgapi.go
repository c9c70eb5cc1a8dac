// Package pgapi is the wire contract between a host and guestpg, the program
// beside PostgreSQL in a database's guest: plain HTTP/1.1 over the slot's private
// link. guestpg answers the gateway's address only. It can call nobody: what leaves
// the guest is fetched, and what it lacks it is brought.
package pgapi

import "time"

// Port is where guestpg listens on the guest's address; PostgresPort is
// PostgreSQL's there.
const (
	Port         = 998
	PostgresPort = 5432
)

// Routes of guestpg. Every refusal has an Error as its body.
const (
	PathStatus      = "/v1/status"                // GET → Status
	PathSettings    = "/v1/settings"              // PUT Settings → SettingsApplied; the same again changes nothing
	PathCredentials = "/v1/credentials"           // PUT Credentials → CredentialsApplied; 409 while another one is under way
	PathSwitch      = "/v1/checkpoint-and-switch" // POST Switch → Switched
	PathStop        = "/v1/stop"                  // POST Stop → 204 once PostgreSQL has stopped; it stays so
	PathStart       = "/v1/start"                 // POST → 202

	PathWALNext   = "/v1/wal/next"   // GET → WALFile; 204 when none came within WaitSeconds (?wait_seconds=)
	PathWAL       = "/v1/wal/{name}" // GET → its bytes
	PathWALStored = "/v1/wal/{name}/stored"

	PathBackup = "/v1/backup" // POST Backup → a tar stream; see BackupTrailer

	PathRestoreBase = "/v1/restore/base"        // PUT a tar stream of PathBackup → RestoreBase; PostgreSQL stops, its data is replaced
	PathRestore     = "/v1/restore"             // POST Restore → 202; its progress is in Status
	PathAdopt       = "/v1/restore/adopt"       // POST Adopt → 204: data that came with the disk is the database's own; the same again changes nothing
	PathFetchNext   = "/v1/fetch/next"          // GET → FetchRequest; 204 when none came within ?wait_seconds=
	PathFetch       = "/v1/fetch/{name}"        // PUT the bytes (SHA256Header) → 204; DELETE: it does not exist → 204
	PathFetchFailed = "/v1/fetch/{name}/failed" // POST FetchFailed → 204: it is damaged or lost, and the restore ends

	PathQuery       = "/v1/query"       // POST Query → Result, or lines (NDJSON)
	PathBatch       = "/v1/batch"       // POST Queries → BatchResults
	PathTransaction = "/v1/transaction" // POST Queries → BatchResults, or an Error and nothing was done
	PathSchema      = "/v1/schema"      // GET → Schema
)

// NDJSON is what a caller accepts in order to get a query's rows a line each: first
// {"columns"}, then the rows, then {"row_count", "command"} or a BatchError.
const NDJSON = "application/x-ndjson"

// SHA256Header says which bytes a PUT of PathFetch has, in lower-case hex.
const SHA256Header = "Berth-Sha256"

// MaxWait bounds wait_seconds of a long poll.
const MaxWait = 60 * time.Second

// Error is the body of every response of status 400 and above.
type Error struct {
	Error    string `json:"error"`
	SQLState string `json:"sqlstate,omitempty"` // PostgreSQL's, or of the same kind; of the broker's there always is one
	Detail   string `json:"detail,omitempty"`
	Code     string `json:"code,omitempty"`
	Failed   *int   `json:"failed,omitempty"` // of PathTransaction: index of the statement that failed
}

// Codes of Error, for what a caller must tell apart.
const (
	CodeBusy        = "busy"          // the same is under way
	CodeNotReady    = "not_ready"     // PostgreSQL does not serve, or is in recovery
	CodeOtherBytes  = "other_bytes"   // PathWALStored: the file has another SHA-256
	CodeNotOffered  = "not_offered"   // no such WAL file waits
	CodeNotVerified = "not_verified"  // PathCredentials: the log-in failed; the old ones are in force again
	CodeDamaged     = "damaged"       // PathRestoreBase: what it names does not have the bytes that it should
	CodeUnsafe      = "unsafe"        // PathRestoreBase: an entry that no base backup has
	CodeNoRoom      = "no_room"       // the volume is full; PathRestoreBase: what comes does not fit it
	CodeNoTenant    = "no_tenant"     // no credentials were set yet, or their database was dropped
	CodeTooManyCall = "too_many"      // the broker's sessions are all in use
	CodeCut         = "cut"           // PostgreSQL ended the session
	CodeInvalid     = "invalid"       // the request itself
	CodeRefused     = "sql_refused"   // PostgreSQL's refusal, or the broker's of a statement
	CodeTimeout     = "query_timeout" // the statement took longer than it may
)
