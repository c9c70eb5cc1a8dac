// Package appapi is what the control plane and guestapp, Berth's program in an app's
// guest, say to each other: HTTP with JSON, on the guest's private link. The control
// plane reaches it through the host.
//
// guestapp builds an app from its source, starts it, and keeps it running. A guest is
// an app's own: the tenant's commands run in it, as another user than guestapp, and
// what guestapp answers is not trusted.
package appapi

import "time"

// Port is where guestapp listens on the guest's address. It is privileged, and no
// tenant's command may bind it. Only the host's end of the link is answered.
const Port = 997

// The routes.
const (
	PathStatus    = "/v1/status"     // GET → Status
	PathSource    = "/v1/source"     // PUT the bytes of a tar.gz → 204; before a Build with Upload
	PathCache     = "/v1/cache"      // PUT the caches of an earlier build → 204; before a Build. GET → those of this one
	PathBuild     = "/v1/build"      // PUT Build → Status; the same ID again changes nothing
	PathBuildLog  = "/v1/build/log"  // GET ?from=<offset>&follow=true → the log's bytes from there
	PathBuildStop = "/v1/build/stop" // POST {} → Status; ends a build as failed
	PathRun       = "/v1/run"        // PUT Run → Status; the same ID again changes nothing
	PathRunLog    = "/v1/run/log"    // GET ?from=<offset>&tail=<lines>&follow=true → what the app wrote
	PathRunStop   = "/v1/run/stop"   // POST {} → Status; ends the app's processes, see StopGrace
)

// StopGrace is how long an app may take to end after SIGTERM. Then it is killed.
const StopGrace = 10 * time.Second

// User is whom the tenant's commands run as: no root, and not guestapp.
const User = "app"

// WorkDir is where the source is put; commands run there, or in RootDirectory below it.
const WorkDir = "/app"

// MaxSource bounds what PathSource takes, in bytes.
const MaxSource = 576 << 20

// MaxCache bounds what PathCache takes, in bytes: caches, and a tar's headers.
const MaxCache = 1088 << 20

// HeaderOffset is the header of a log: the offset, in bytes, of the first byte that
// follows. What is older than a log's limit is gone, and a request for it begins with
// the oldest that there is.
const HeaderOffset = "Berth-Log-Offset"

// Build is one build.
type Build struct {
	ID string `json:"id"` // of the deployment

	Git    *Git `json:"git,omitempty"`
	Upload bool `json:"upload,omitempty"` // the source is what PathSource was given

	RootDirectory string `json:"root_directory,omitempty"` // relative, without ".."
	// Those of the next five that are empty are detected from the source.
	Framework      string `json:"framework,omitempty"`
	Runtime        string `json:"runtime,omitempty"`
	InstallCommand string `json:"install_command,omitempty"`
	BuildCommand   string `json:"build_command,omitempty"`
	StartCommand   string `json:"start_command,omitempty"`
	// NoImage has a Dockerfile passed over, whatever is set.
	NoImage bool `json:"no_image,omitempty"`

	Env     map[string]string `json:"env,omitempty"`      // of the install and build commands
	CacheMB int               `json:"cache_mb,omitempty"` // of caches that may be kept for the next build; 0: none
	Secrets []string          `json:"secrets,omitempty"`  // names of Env whose values never appear in a log
	Port    int               `json:"port"`               // that the app will bind; a PORT for the build's commands

	TimeoutSeconds int `json:"timeout_seconds"` // of all of it
}

// Git is where source is cloned from. The tenant's commands never see Token.
type Git struct {
	URL       string `json:"url"`              // https, or http where the operator allows it
	Ref       string `json:"ref,omitempty"`    // branch, tag or commit; "": the remote's default branch
	Within    string `json:"within,omitempty"` // a ref that has the commit Ref, which may be in no branch; "": none
	Username  string `json:"username,omitempty"`
	Token     string `json:"token,omitempty"`
	AllowHTTP bool   `json:"allow_http,omitempty"`
}

// Run starts the app that was built. Of the Build's environment nothing is left in it.
type Run struct {
	ID   string            `json:"id"` // of the instance and its environment
	Env  map[string]string `json:"env,omitempty"`
	Port int               `json:"port"`
	// Secrets are more names of Env whose values never appear in a log: those of the
	// Build are masked in any case.
	Secrets []string `json:"secrets,omitempty"`
}

// State is the state of a build or of an app.
type State string

// A build is running, then succeeded or failed. An app is running; one that has exited
// is started again, with growing pauses.
const (
	StateNone      State = ""
	StateRunning   State = "running"
	StateSucceeded State = "succeeded"
	StateFailed    State = "failed"
	StateExited    State = "exited" // it is about to be started again
	StateStopped   State = "stopped"
)

// Status is all that guestapp tells.
type Status struct {
	Version string      `json:"version"`
	Build   BuildStatus `json:"build"`
	Run     RunStatus   `json:"run"`
}

// BuildStatus is how far a build has come.
type BuildStatus struct {
	ID    string `json:"id,omitempty"`
	State State  `json:"state,omitempty"`
	// Phase is the one that runs, or failed: see Phase.
	Phase  string  `json:"phase,omitempty"`
	Phases []Phase `json:"phases,omitempty"` // that have ended, in order
	// Error says why it failed, in words for the tenant, with the last lines of the
	// command's output.
	Error string `json:"error,omitempty"`

	GitCommit  string `json:"git_commit,omitempty"` // 40 or 64 hex digits
	GitMessage string `json:"git_message,omitempty"`
	GitAuthor  string `json:"git_author,omitempty"`

	Plan Plan `json:"plan"`

	LogBytes int64 `json:"log_bytes,omitempty"` // the log's end, as an offset

	// CacheBytes is about what PathCache answers with; 0: there is nothing to be kept.
	CacheBytes int64 `json:"cache_bytes,omitempty"`
}

// The phases of a build, in order.
const (
	PhaseSource   = "source" // clone, or unpack
	PhaseDetect   = "detect"
	PhaseRuntimes = "runtimes"
	PhaseInstall  = "install"
	PhaseBuild    = "build"
)

// Phase is a phase that has ended.
type Phase struct {
	Name       string `json:"name"`
	DurationMS int64  `json:"duration_ms"`
}

// Plan is what a build does: what the app's settings say, and what was detected.
type Plan struct {
	Framework      string `json:"framework,omitempty"` // "next", "express", "django", "static", …
	Runtime        string `json:"runtime,omitempty"`   // "node 18.20.4", "python 3.11.2", …
	InstallCommand string `json:"install_command,omitempty"`
	BuildCommand   string `json:"build_command,omitempty"`
	StartCommand   string `json:"start_command,omitempty"` // "" of a static site, which guestapp serves itself
	Dockerfile     string `json:"dockerfile,omitempty"`    // relative to the root directory; "": the app is built and started without an image
	StaticDir      string `json:"static_dir,omitempty"`    // relative to the root directory
	SPA            bool   `json:"spa,omitempty"`           // StaticDir's index.html is the answer for every path without a file
}

// RunStatus is how the app does.
type RunStatus struct {
	ID        string    `json:"id,omitempty"`
	State     State     `json:"state,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Starts    int       `json:"starts,omitempty"` // of its command, in this guest
	ExitCode  *int      `json:"exit_code,omitempty"`
	Signal    string    `json:"signal,omitempty"` // that ended it last, "OOM" if memory was short
	Listening []Listen  `json:"listening,omitempty"`
	LastLines []string  `json:"last_lines,omitempty"` // of what it wrote, secrets redacted
	LogBytes  int64     `json:"log_bytes,omitempty"`
}

// Listen is a port on which one of the app's processes takes connections.
type Listen struct {
	Port     int  `json:"port"`
	Loopback bool `json:"loopback,omitempty"` // nobody outside the guest reaches it
}

// Error is the body of a refusal.
type Error struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

// The codes of refusals.
const (
	CodeInvalid  = "invalid"
	CodeBusy     = "busy"      // another build runs
	CodeNotBuilt = "not_built" // there is nothing to run
	CodeInternal = "internal"
)
