// Package hostapi is the wire contract between the control plane and a host
// daemon: the host's HTTPS API (mutual TLS, the control plane calls) and the
// heartbeat (the host calls).
package hostapi

import "time"

// Routes of a host. Every call carries X-Request-Id; a call that changes
// something also carries HeaderTerm.
const (
	PathHealthz = "/healthz"  // GET, no client certificate needed → 200
	PathReadyz  = "/readyz"   // GET, no client certificate needed → 200, or 503 with what is missing
	PathMetrics = "/metrics"  // GET → Prometheus text
	PathInfo    = "/v1/info"  // GET → Heartbeat (the same state, on demand)
	PathBoxes   = "/v1/boxes" // GET → []Box; PUT {id} BoxSpec → Box; GET {id} → Box;
	// DELETE {id}?generation=N → 204, also when it is already gone; PATCH {id} BoxUpdate → Box;
	// POST {id}/pause, /resume, /hibernate, /wake, /restart → Box;
	// POST {id}/exec ExecRequest → ExecResult; POST {id}/exec/stream ExecStream → 101 UpgradeFrames;
	// POST {id}/commands StartCommand → Command; GET {id}/commands → []Command; GET, DELETE {id}/commands/{command};
	// GET {id}/commands/{command}/output?since=&follow= → server-sent events; POST {id}/commands/{command}/input, /signal → 204;
	// GET, PUT, DELETE {id}/fs?path=, GET {id}/fs/stat, GET and POST {id}/fs/dir: as guestd answers them;
	// GET {id}/logs?stream=&tail=&follow= → text or, with follow, server-sent events;
	// GET {id}/stats?history= → BoxStats;
	// GET {id}/ports → []Port; GET {id}/dial/{port} → 101 UpgradeTCP;
	// GET {id}/events?tail=&since=&follow= → []Event or server-sent events; POST {id}/events NewEvent → 204

	PathCaptures = "/v1/captures" // GET → []Capture; PUT {id} CaptureSpec → Capture; GET {id} → Capture;
	// DELETE {id}?stored=true → 204, with the stored copy where stored=true; POST {id}/store → Capture, once it is in the store

	PathStored = "/v1/stored" // GET ?owner=&after=&limit= → StoredPage, of an owner's own store

	PathVolumes = "/v1/volumes" // GET → []Volume; PUT {id} VolumeSpec → Volume; GET {id} → Volume; DELETE {id} → 204

	PathBuilds = "/v1/builds" // PUT {id} BuildSpec → Build, which goes on; GET {id} → Build; DELETE {id} → 204, ended;
	// GET {id}/logs?follow= → text or, with follow, server-sent events

	PathBlobs = "/v1/blobs" // PUT {name} bytes → BlobInfo; GET {name} → bytes; DELETE {name} → 204, also when it is already gone

	PathTemplates = "/v1/templates" // DELETE {name} → 204, or CodeInUse
)

// What follows the 101 of a request that is upgraded (HTTP/1.1, on a connection
// of its own).
const (
	UpgradeFrames = "berth-frames/1" // guestd's frames, both ways; see Frame
	UpgradeTCP    = "berth-tcp/1"    // the bytes of one TCP connection to the guest, both ways
)

// HeaderTerm carries the caller's Raft term, HeaderCluster the name of the cluster
// whose term it is. A host remembers the highest it has seen, on disk, and
// refuses a lower one with 409 and CodeStaleTerm: a deposed leader can do no harm.
// Terms of two clusters do not compare. A cluster restored from a backup has a
// name of its own; who has heard it refuses the one that it was.
const (
	HeaderTerm    = "Berth-Term"
	HeaderCluster = "Berth-Cluster"
)

// MaxCluster is how long a cluster's name may be, in bytes.
const MaxCluster = 64

// QueryGeneration of a DELETE names the generation to bury, so that a PUT of it
// that is still on its way makes no box. Without it, whatever is there goes.
const QueryGeneration = "generation"

// QueryKeepDisk of a DELETE, "true", has the host keep a copy of the disk of a database's
// box for a while: it may have what its archive lacks.
const QueryKeepDisk = "keep_disk"

// HeaderRequestID is passed on from the public API into every log line. A host ignores one
// with more characters than MaxRequestID.
const (
	HeaderRequestID = "X-Request-Id"
	MaxRequestID    = 200
)

// Code names why a host refused, so that nobody branches on a text.
type Code string

// The codes of Error.
const (
	CodeInvalid         Code = "invalid"             // 400
	CodeInvalidCwd      Code = "invalid_cwd"         // 400: the guest has no such directory to run a command in
	CodeInvalidUser     Code = "invalid_user"        // 400: the guest has no such user to run a command as
	CodeInvalidMount    Code = "invalid_mount"       // 400: the guest cannot mount a volume at its path, which Detail names
	CodeUnauthorized    Code = "unauthorized"        // 401, 403: not a control-plane certificate
	CodeNotFound        Code = "not_found"           // 404: no such box
	CodeStaleTerm       Code = "stale_term"          // 409
	CodeStaleGeneration Code = "stale_generation"    // 409: a younger box of this id is or was here
	CodeNotRunning      Code = "not_running"         // 409: paused, hibernated or failed; nothing was begun, and it may be asked again
	CodeCutOff          Code = "cut_off"             // 409: the box stopped while this was under way; it was begun, and is not done again
	CodeIllegalState    Code = "illegal_state"       // 409: the state table has no such transition
	CodeTooLarge        Code = "too_large"           // 413
	CodeBusy            Code = "busy"                // 429: too many execs or connections at once in this box
	CodeTemplateMissing Code = "template_missing"    // 422: this host has no such template, ready to restore
	CodeInternal        Code = "internal"            // 500
	CodeGuest           Code = "guest_unreachable"   // 502: guestd did not answer
	CodeDraining        Code = "draining"            // 503: shutting down or starting up
	CodeNoMemory        Code = "insufficient_memory" // 507
	CodeNoDisk          Code = "insufficient_disk"   // 507
	CodeNoSlot          Code = "no_slot"             // 507
	CodeGuestSays       Code = "guest_says"          // the guest's own refusal, with its status: a path that is not there, a directory that is not empty
	CodePortClosed      Code = "port_closed"         // 502: nothing in the guest listens there
	CodeNoSnapshot      Code = "snapshot_missing"    // 404: no such capture here nor in the store
	CodeBadSnapshot     Code = "snapshot_refused"    // 422: damaged, partial, or made by another engine, as may be the saved memory that a wake needs; Detail names what
	CodeNoStore         Code = "no_snapshot_store"   // 422: this host has no snapshot store
	CodeForeignStore    Code = "foreign_store"       // 409: the snapshot store belongs to another cluster
	CodeInUse           Code = "in_use"              // 409: a template, volume or capture that something holds
	CodeHeartbeatGap    Code = "heartbeat_gap"       // 409, to a host: the leader lacks the heartbeat that this one is a part to
)

// Error is the body of every response of status 400 and above.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Detail  string `json:"detail,omitempty"`

	// HTTPStatus is that of the response; the client fills it in. With
	// CodeGuestSays it is the guest's.
	HTTPStatus int `json:"-"`
	// ContentRange is the response's header of that name, which a 416 has.
	ContentRange string `json:"-"`
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
	Builds      []string          `json:"builds,omitempty"` // digests of builds, any of which it may start from; none: what Template means here
	Boot        Boot              `json:"boot,omitempty"`   // default BootRestore
	Env         map[string]string `json:"env,omitempty"`    // of every later exec
	Hostname    string            `json:"hostname,omitempty"`
	// Persistent boxes are booted from their disk when the host was rebooted.
	Persistent bool `json:"persistent,omitempty"`
	// Exclusive boxes are ended by their host when it has been without a leader
	// for its lease: another may be started in their place.
	Exclusive bool           `json:"exclusive,omitempty"`
	Volumes   []VolumeAttach `json:"volumes,omitempty"`

	// At most one of these. Template is then the source's.
	Capture string `json:"capture,omitempty"` // id of the capture to start from; with BootCold only its disk is used
	// Manifest is Capture.Manifest of that capture: one that is fetched must have
	// it. Empty: any is good.
	Manifest string `json:"manifest,omitempty"`
	// Asleep, with the capture of a box that leaves another host (BoxUpdate.Leaving), makes
	// this one that box: it keeps its identity, and is not started but hibernated.
	Asleep   bool   `json:"asleep,omitempty"`
	WarmFrom string `json:"warm_from,omitempty"` // id of a running box of this host, whose memory, disk and slot it takes over
	// DiskOf is the id of a box of this host that runs, hibernates or has failed. Its disk
	// is copied as a power cut would leave it, and booted from: what its guest has only in
	// memory is not there. With BootCold.
	DiskOf string `json:"disk_of,omitempty"`

	// Origin goes into the event of its start as it is: from_snapshot, forked_from …
	Origin map[string]any `json:"origin,omitempty"`
}

// VolumeAttach is a volume of this host and where the guest has it.
type VolumeAttach struct {
	ID        string `json:"id"`
	MountPath string `json:"mount_path"`
}

// BoxUpdate changes what may change while a box lives; nil leaves it.
type BoxUpdate struct {
	Persistent *bool `json:"persistent,omitempty"`
	// Leaving keeps a hibernated box from waking here, through any restart of the daemon,
	// so that a capture of it stays all that it is; false ends that.
	Leaving *bool `json:"leaving,omitempty"`
}

// Box is a host's view of one sandbox.
type Box struct {
	ID         string    `json:"id"`
	Generation uint64    `json:"generation"`
	Status     Status    `json:"status"`
	Seq        uint64    `json:"seq"` // grows with every change of Status: the higher one is the later one
	Persistent bool      `json:"persistent,omitempty"`
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

	Archive string `json:"archive,omitempty"` // of a database's box: its archive's name

	PauseMS int64 `json:"pause_ms,omitempty"` // of a warm fork's child: how long its parent had stood still when the capture was over
}

// Stage is how long one part of a create took. Engine says that the time is
// the VMM's own (its start, restore and resume), not ours.
type Stage struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration_ns"`
	Engine   bool          `json:"engine"`
}

// The stages in which the host waits for the guest's answer.
const (
	StageGuestBoot = "guest_boot" // cold: until the guest's agent answers
	StageIdentity  = "identity"
)

// Guest reports whether the time of a stage is the guest's. Such a stage overlaps
// no other, nor does one of the engine's.
func (s Stage) Guest() bool { return s.Name == StageGuestBoot || s.Name == StageIdentity }

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
