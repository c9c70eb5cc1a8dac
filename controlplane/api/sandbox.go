package api

import (
	"encoding/json"
	"reflect"
)

// SandboxStatus is the status of a sandbox.
type SandboxStatus string

// A sandbox is starting until its guest has confirmed its identity. A create answers
// only after that, so only lists show this status. deleting lasts while the host
// removes the sandbox.
const (
	SandboxStarting   SandboxStatus = "starting"
	SandboxRunning    SandboxStatus = "running"
	SandboxPaused     SandboxStatus = "paused"
	SandboxHibernated SandboxStatus = "hibernated"
	SandboxFailed     SandboxStatus = "failed"
	SandboxDeleting   SandboxStatus = "deleting"
)

// Sandbox is one microVM. Its id is a bearer credential: whoever has it reaches the
// sandbox's ports through the preview URL.
type Sandbox struct {
	ID           string        `json:"id"` // 26 characters of lower-case base32
	Status       SandboxStatus `json:"status"`
	Template     string        `json:"template"` // its name
	Metadata     Object        `json:"metadata"` // the client's own object; {} if it gave none
	CPU          int           `json:"cpu"`      // virtual CPUs, from the template
	MemoryMB     int           `json:"memory_mb"`
	DiskMB       int           `json:"disk_mb"`
	AgentID      string        `json:"agent_id"`      // the host; empty until one is chosen
	Owner        *Owner        `json:"owner"`         // the app or database that manages it
	FromSnapshot *string       `json:"from_snapshot"` // id of the snapshot it was made from
	ForkedFrom   *string       `json:"forked_from"`   // id of the sandbox it was forked from
	CreatedAt    Time          `json:"created_at"`
	StartedAt    *Time         `json:"started_at"`  // when it first ran
	ExpiresAt    *Time         `json:"expires_at"`  // null: never
	TTLSeconds   *int64        `json:"ttl_seconds"` // as requested
	Persistent   bool          `json:"persistent"`  // at expires_at it hibernates instead of being deleted
	Error        *string       `json:"error"`       // why it failed
	Volumes      []VolumeMount `json:"volumes"`
	PreviewURL   string        `json:"preview_url"` // a pattern: replace {port}
	Preview      PreviewMode   `json:"preview"`
}

// PreviewMode says who may see a sandbox's ports by their preview URLs.
type PreviewMode string

// PreviewPublic, the default, shows ports to whoever knows the URL, whose id is the
// credential. PreviewToken also requires a token of POST
// /v1/sandboxes/{id}/preview-tokens.
const (
	PreviewPublic PreviewMode = "public"
	PreviewToken  PreviewMode = "token"
)

// CreatePreviewToken is the body of POST /v1/sandboxes/{id}/preview-tokens.
type CreatePreviewToken struct {
	TTLSeconds *int64 `json:"ttl_seconds,omitempty" minimum:"1" maximum:"604800"` // default 3600, at most 604800
	Port       *int   `json:"port,omitempty" minimum:"1" maximum:"65535"`         // default: every port
}

// PreviewAccess is a token for the preview URLs of one sandbox. A client sends it
// once as the query parameter berth_token, which sets a cookie, or with each request
// as the header Berth-Preview-Token.
type PreviewAccess struct {
	Token     string `json:"token"`
	ExpiresAt Time   `json:"expires_at"`
	URL       string `json:"url"` // with the token; a pattern unless a port was given
}

// Owner is the app or database that manages a sandbox.
type Owner struct {
	Type string `json:"type"` // "app" or "database"
	ID   string `json:"id"`
}

// VolumeMount attaches a volume to a sandbox.
type VolumeMount struct {
	Name      string `json:"name" minLength:"1" maxLength:"128"`
	MountPath string `json:"mount_path" pattern:"^/." maxLength:"1024"` // absolute path in the guest
}

// CreateSandbox is the body of POST /v1/sandboxes. CPU and memory come from
// the template; cpu and memory_mb are ignored if sent.
type CreateSandbox struct {
	Template     string        `json:"template" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$"`       // its name, such as "base"
	TTLSeconds   *int64        `json:"ttl_seconds,omitempty" minimum:"1" maximum:"31536000"` // default: it never expires
	Metadata     Object        `json:"metadata,omitempty"`                                   // any object; returned unchanged
	Env          StringMap     `json:"env,omitempty"`                                        // environment of every later exec
	FromSnapshot string        `json:"from_snapshot,omitempty"`                              // id of a snapshot of the same template
	Volumes      []VolumeMount `json:"volumes,omitempty"`                                    // at most 8
	Boot         *Boot         `json:"boot,omitempty"`                                       // default restore
	Persistent   bool          `json:"persistent,omitempty"`                                 // at expires_at it hibernates instead of being deleted
	Preview      *PreviewMode  `json:"preview,omitempty"`                                    // default public
}

// Boot says how a new sandbox starts.
type Boot string

// BootRestore, the default, restores the template's stored state. BootCold boots the
// guest's kernel from the template's disk, which is slower. It is for measurements,
// and for a guest that must not share the template's memory.
const (
	BootRestore Boot = "restore"
	BootCold    Boot = "cold"
)

// Exec is the body of POST /v1/sandboxes/{id}/exec.
type Exec struct {
	Cmd            Command   `json:"cmd"`                                                    // a string runs under sh -c, an array is an argv
	Cwd            string    `json:"cwd,omitempty" pattern:"^(/.*)?$" maxLength:"4096"`      // default: the user's home
	Env            StringMap `json:"env,omitempty"`                                          // added to the sandbox's own
	User           string    `json:"user,omitempty" pattern:"^[^/ \\r\\n]*$" maxLength:"64"` // name or uid[:gid]; default root
	Stdin          string    `json:"stdin,omitempty"`                                        // the command's input, as text
	StdinBase64    Bytes     `json:"stdin_base64,omitempty"`                                 // instead of stdin, for arbitrary bytes
	TimeoutSeconds *int64    `json:"timeout_seconds,omitempty" minimum:"1" maximum:"3600"`   // default 60, at most 3600
}

// Command is what an exec runs: a string, under sh -c, or an array of strings,
// as an argv.
type Command struct {
	Shell string   // run by /bin/sh -c
	Argv  []string // run without a shell; takes precedence over Shell
}

// Shell is a Command that runs s under sh -c.
func Shell(s string) Command { return Command{Shell: s} }

// Argv is a Command that runs a program with its arguments, without a shell.
func Argv(argv ...string) Command { return Command{Argv: argv} }

// IsZero reports whether there is no command.
func (c Command) IsZero() bool { return c.Shell == "" && len(c.Argv) == 0 }

// MarshalJSON implements json.Marshaler.
func (c Command) MarshalJSON() ([]byte, error) {
	if c.Argv != nil {
		return encode(c.Argv)
	}
	return encode(c.Shell)
}

// UnmarshalJSON implements json.Unmarshaler: a string or an array of strings.
func (c *Command) UnmarshalJSON(b []byte) error {
	*c = Command{}
	switch kindOf(b) {
	case "null":
		return nil
	case "string":
		return json.Unmarshal(b, &c.Shell)
	case "array":
		var argv []*string
		if err := json.Unmarshal(b, &argv); err != nil {
			return &json.UnmarshalTypeError{Value: "an array with something else in it", Type: reflect.TypeFor[Command]()}
		}
		c.Argv = make([]string, len(argv))
		for i, a := range argv {
			if a == nil {
				return &json.UnmarshalTypeError{Value: "an array with something else in it", Type: reflect.TypeFor[Command]()}
			}
			c.Argv[i] = *a
		}
		return nil
	}
	return wrongType[Command](b)
}

// ExecResult is the result of an exec, with up to 8 MiB of each output stream.
type ExecResult struct {
	ExitCode   int    `json:"exit_code"` // 128+n when signal n ended it
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	DurationMS int64  `json:"duration_ms"` // in the guest
	TimedOut   bool   `json:"timed_out"`   // timeout_seconds passed and the process group was killed
	Truncated  bool   `json:"truncated"`   // output was dropped: a stream exceeded 8 MiB, or the host's memory for outputs was full

	// Present only if the text is not exact, because U+FFFD replaces what is not
	// UTF-8.
	StdoutBase64 Bytes `json:"stdout_base64,omitempty"` // the exact bytes, if stdout is not UTF-8
	StderrBase64 Bytes `json:"stderr_base64,omitempty"` // the exact bytes, if stderr is not UTF-8
}

// StdoutBytes returns exactly what the command wrote to stdout.
func (r *ExecResult) StdoutBytes() []byte { return exact(r.Stdout, r.StdoutBase64) }

// StderrBytes returns exactly what the command wrote to stderr.
func (r *ExecResult) StderrBytes() []byte { return exact(r.Stderr, r.StderrBase64) }

func exact(text string, raw []byte) []byte {
	if raw != nil {
		return raw
	}
	return []byte(text)
}
