// Package hostapi is the wire contract between the control plane and a host
// daemon: the host's HTTPS API (mutual TLS, the control plane calls) and the
// heartbeat (the host calls).
package hostapi

import "time"

// Routes of a host. Every call carries X-Request-Id; a call that changes
// something also carries HeaderTerm.
const (
	PathHealthz = "/healthz"  // GET, no client certificate needed → 200
	PathMetrics = "/metrics"  // GET → Prometheus text
	PathInfo    = "/v1/info"  // GET → Heartbeat (the same picture, on demand)
	PathBoxes   = "/v1/boxes" // GET → []Box; PUT {id} BoxSpec → Box; GET {id} → Box;
	// DELETE {id}?generation=N → 204, also when it is already gone;
	// POST {id}/pause, {id}/resume → Box; POST {id}/exec ExecRequest → ExecResult
)

// HeaderTerm carries the caller's Raft term. A host remembers the highest it
// has seen, on disk, and refuses a lower one with 409 and CodeStaleTerm: a
// deposed leader can do no harm.
const HeaderTerm = "Berth-Term"

// QueryGeneration of a DELETE names the generation to bury, so that a PUT of it
// that is still on its way makes no box. Without it, whatever is there goes.
const QueryGeneration = "generation"

// HeaderRequestID is passed on from the public API into every log line.
const HeaderRequestID = "X-Request-Id"

// Code names why a host refused, so that nobody branches on a text.
type Code string

// The codes of Error.
const (
	CodeInvalid         Code = "invalid"             // 400
	CodeUnauthorized    Code = "unauthorized"        // 401, 403: not a control-plane certificate
	CodeNotFound        Code = "not_found"           // 404: no such box
	CodeStaleTerm       Code = "stale_term"          // 409
	CodeStaleGeneration Code = "stale_generation"    // 409: a younger box of this id is or was here
	CodeNotRunning      Code = "not_running"         // 409: paused, hibernated or failed
	CodeIllegalState    Code = "illegal_state"       // 409: the state table has no such move
	CodeTooLarge        Code = "too_large"           // 413
	CodeBusy            Code = "busy"                // 429: too many execs at once in this box
	CodeTemplateMissing Code = "template_missing"    // 422: this host has no such template, ready to restore
	CodeInternal        Code = "internal"            // 500
	CodeGuest           Code = "guest_unreachable"   // 502: guestd did not answer
	CodeDraining        Code = "draining"            // 503: shutting down or starting up
	CodeNoMemory        Code = "insufficient_memory" // 507
	CodeNoDisk          Code = "insufficient_disk"   // 507
	CodeNoSlot          Code = "no_slot"             // 507
)

// Error is the body of every response of status 400 and above.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Detail  string `json:"detail,omitempty"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + ": " + e.Detail
}

// Status is a box's state as its host sees it.
type Status string

// A box is starting until its guest confirmed its identity.
const (
	StatusStarting   Status = "starting"
	StatusRunning    Status = "running"
	StatusPaused     Status = "paused"
	StatusHibernated Status = "hibernated"
	StatusFailed     Status = "failed"
	StatusDeleting   Status = "deleting"
)

// Boot says how a box comes to life.
type Boot string

// BootRestore is the rule; BootCold starts the guest's kernel on the template's disk.
const (
	BootRestore Boot = "restore"
	BootCold    Boot = "cold"
)

// BoxSpec asks for one box. The same id and generation again answers with the
// box that is there; a lower generation than the host has seen is refused.
type BoxSpec struct {
	Generation  uint64            `json:"generation"` // from 1
	WorkspaceID string            `json:"workspace_id"`
	Template    string            `json:"template"`
	Boot        Boot              `json:"boot,omitempty"` // default BootRestore
	Env         map[string]string `json:"env,omitempty"`  // of every later exec
	Hostname    string            `json:"hostname,omitempty"`
}

// Box is a host's view of one sandbox.
type Box struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"`
	Status     Status    `json:"status"`
	Template   string    `json:"template"`
	CPU        int       `json:"cpu"`
	MemoryMB   int       `json:"memory_mb"`
	DiskMB     int       `json:"disk_mb"`
	Slot       int       `json:"slot"`
	VMMPID     int       `json:"vmm_pid,omitempty"`
	Error      string    `json:"error,omitempty"`     // why it failed
	ExitCode   *int      `json:"exit_code,omitempty"` // of the VMM, once it died
	Signal     string    `json:"signal,omitempty"`    // that ended the VMM
	CreatedAt  time.Time `json:"created_at"`
	StartedAt  time.Time `json:"started_at"`
	Boot       Boot      `json:"boot"`
	Stages     []Stage   `json:"stages,omitempty"` // of its create, by their start; some overlap

	CreateDuration    time.Duration `json:"create_ns,omitempty"`     // of the whole create
	CreateOwnDuration time.Duration `json:"create_own_ns,omitempty"` // of it, while the engine was not starting, restoring or resuming
}

// Stage is how long one part of a create took. Engine says that the time is
// the VMM's own (its start, restore and resume), not ours.
type Stage struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration_ns"`
	Engine   bool          `json:"engine"`
}

// ExecRequest runs a command and waits for its end.
type ExecRequest struct {
	Argv             []string          `json:"argv"`
	Cwd              string            `json:"cwd,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	User             string            `json:"user,omitempty"`
	Stdin            []byte            `json:"stdin,omitempty"`
	Timeout          time.Duration     `json:"timeout_ns"`
	OutputLimitBytes int64             `json:"output_limit_bytes"` // per stream
}

// ExecResult is the end of an exec, with its output up to the limit.
type ExecResult struct {
	ExitCode   int    `json:"exit_code"`
	Stdout     []byte `json:"stdout"`
	Stderr     []byte `json:"stderr"`
	DurationMS int64  `json:"duration_ms"`
	TimedOut   bool   `json:"timed_out"`
	Truncated  bool   `json:"truncated"`
}
