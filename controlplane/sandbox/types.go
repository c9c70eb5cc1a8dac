package sandbox

import (
	"encoding/json"
	"time"
)

// Sandbox is one sandbox as its workspace sees it.
type Sandbox struct {
	ID           string
	WorkspaceID  string
	Status       string // starting, running, paused, hibernated, failed, deleting
	Template     string
	Metadata     json.RawMessage // an object; nil when none was given
	CPU          int
	MemoryMB     int
	DiskMB       int
	AgentID      string // empty until it is placed
	Owner        *Owner
	FromSnapshot string
	ForkedFrom   string
	CreatedAt    time.Time
	StartedAt    time.Time // zero until it first ran
	ExpiresAt    time.Time // zero without a TTL
	TTLSeconds   *int64
	Persistent   bool
	Error        string // why it failed
	Volumes      []VolumeMount
	Preview      string // who may see its ports: "public" or "token"
	PreviewURL   string // with "{port}" in it; empty when no preview suffix is configured
}

// Owner is the app or database that manages a sandbox.
type Owner struct {
	Type string // "app" or "database"
	ID   string
}

// VolumeMount is a volume attached to a sandbox.
type VolumeMount struct {
	Name      string
	MountPath string
}

// CreateSandbox asks for a sandbox.
type CreateSandbox struct {
	Template     string
	TTLSeconds   *int64            // nil: it lives until it is deleted
	Metadata     json.RawMessage   // nil or "null": none; otherwise it must be an object
	Env          map[string]string // of every later exec
	FromSnapshot string
	Volumes      []VolumeMount
	Boot         *string // nil or "restore": from the template's stored state; "cold": boot its kernel
	Persistent   bool    // when its time ends it hibernates instead of being deleted
	Preview      *string // nil or "public", or "token"

	// IdempotencyKey is the header's value, empty without one. BodySHA256 is
	// the digest of the request body as it came, needed with a key.
	IdempotencyKey string
	BodySHA256     []byte
}

// Exec asks for a command. Exactly one of Shell and Argv is set: an API cmd
// that is a string is Shell and runs under "sh -c", an array is Argv.
type Exec struct {
	Shell          string
	Argv           []string
	Cwd            string // absolute; "" is the user's home
	Env            map[string]string
	User           string
	Stdin          []byte
	TimeoutSeconds *int64 // nil: DefaultExecSeconds
}

// Bounds of an exec.
const (
	DefaultExecSeconds = 60
	MaxExecSeconds     = 3600
	ExecOutputBytes    = 8 << 20 // kept of each stream
)

// ExecResult is the end of a command. Stdout and Stderr are the bytes that it
// wrote, whether or not they are valid UTF-8.
type ExecResult struct {
	ExitCode   int
	Stdout     string
	Stderr     string
	DurationMS int64
	TimedOut   bool
	Truncated  bool // output past ExecOutputBytes was dropped
}
