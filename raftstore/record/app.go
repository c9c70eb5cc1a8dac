package record

import (
	"bytes"
	"slices"
	"time"
)

// AppStatus is what an app is doing.
type AppStatus string

// An app is created until a deployment of it is live for the first time. One that
// hibernates has no sandbox, and is waking while it gets one from its artifact, or is
// deployed anew because it has none that can be used. It is failed when it could get
// neither; a request tries again. Deleting is never undone.
const (
	AppCreated    AppStatus = "created"
	AppRunning    AppStatus = "running"
	AppHibernated AppStatus = "hibernated"
	AppWaking     AppStatus = "waking"
	AppFailed     AppStatus = "failed"
	AppDeleting   AppStatus = "deleting"
)

// AppKind tells apps from what is made of one, and has routes of its own.
type AppKind string

// The kinds. A function is an app whose source is uploaded and whose start command is
// Berth's runner of handlers. It has no host name.
const (
	KindApp      AppKind = ""
	KindFunction AppKind = "function"
)

// App is a program that is built from a repository and served at a host name.
type App struct {
	Meta                  // the id is the first label of its host name
	Kind        AppKind   `json:"kind,omitempty"`
	WorkspaceID string    `json:"workspace_id"`
	Status      AppStatus `json:"status"`
	Error       string    `json:"error,omitempty"`

	Name           string `json:"name"`
	GitURL         string `json:"git_url"`
	GitBranch      string `json:"git_branch,omitempty"`
	InstallationID string `json:"installation_id,omitempty"` // of the git host, for private repositories
	Framework      string `json:"framework,omitempty"`
	Runtime        string `json:"runtime,omitempty"`
	InstallCommand string `json:"install_command,omitempty"`
	BuildCommand   string `json:"build_command,omitempty"`
	StartCommand   string `json:"start_command,omitempty"`
	RootDirectory  string `json:"root_directory,omitempty"`
	Port           int    `json:"port"`
	CPU            int    `json:"cpu,omitempty"`       // as the client sent it; it has no effect
	MemoryMB       int    `json:"memory_mb,omitempty"` // likewise

	MaxInstances       int  `json:"max_instances"`
	AutoHibernate      bool `json:"auto_hibernate"`
	IdleTimeoutSeconds int  `json:"idle_timeout_seconds"`
	AutoDeploy         bool `json:"auto_deploy"`
	// Previews says whether pull requests get previews; nil: if AutoDeploy.
	Previews *bool `json:"previews,omitempty"`
	// ForkPreviews says that, where there are previews, pull requests from forks get one too.
	ForkPreviews   bool `json:"fork_previews,omitempty"`
	TimeoutSeconds int  `json:"timeout_seconds,omitempty"` // of an invocation of a function

	Env []AppVariable `json:"env,omitempty"` // by key

	// Uploads are sources that were uploaded, the latest last.
	Uploads []AppUpload `json:"uploads,omitempty"`
	// Cache is what the latest build has kept for the next one.
	Cache *AppUpload `json:"cache,omitempty"`
	// Log is what a function that sleeps has written.
	Log *AppUpload `json:"log,omitempty"`
	// ParentID is the app that this is a preview of, for a pull request of its
	// repository.
	ParentID    string `json:"parent_id,omitempty"`
	PullRequest int    `json:"pull_request,omitempty"`
	// Fork says of a preview that its code is of a fork: of somebody who has no right to
	// the repository, nor to what its app knows.
	Fork bool `json:"fork,omitempty"`

	// DeploymentID is the deployment that it serves, or would.
	DeploymentID string `json:"deployment_id,omitempty"`
	// Stale says that a setting has changed since that was built: its artifact is not
	// used again.
	Stale bool `json:"stale,omitempty"`
	// Revision counts the changes of settings on which artifacts depend, and EnvRevision
	// those of Env.
	Revision    uint64 `json:"revision,omitempty"`
	EnvRevision uint64 `json:"env_revision,omitempty"`
	// Instances are the sandboxes that serve it.
	Instances []AppInstance `json:"instances,omitempty"`
	// Draining are those that get no new request, and go when the open ones have ended.
	Draining []AppInstance `json:"draining,omitempty"`

	LastRequestAt time.Time `json:"last_request_at,omitzero"` // written at most once a minute
	Paused        bool      `json:"paused,omitempty"`         // its workspace is
}

// HasPreviews reports whether pull requests of an app's repository get previews of it.
func (a *App) HasPreviews() bool {
	switch {
	case a.ParentID != "":
		return false
	case a.Previews != nil:
		return *a.Previews
	}
	return a.AutoDeploy
}

// AppInstance is a sandbox of an app.
type AppInstance struct {
	SandboxID    string    `json:"sandbox_id"`
	DeploymentID string    `json:"deployment_id"`
	Since        time.Time `json:"since"` // when it came to serve, or to drain
	// Port is the one that it binds: the app's own may have been changed since.
	Port int `json:"port"`
	// EnvRevision is the app's, of the environment that it was started with.
	EnvRevision uint64 `json:"env_revision,omitempty"`
	// Ending says that its program may have been told to end: it serves nobody again.
	Ending bool `json:"ending,omitempty"`
}

// AppUpload is a source that was uploaded, what a build has kept, or what a function has
// written: a blob on the hosts.
type AppUpload struct {
	ID        string    `json:"id"`
	HostID    string    `json:"agent_id"`        // which was given it
	Local     bool      `json:"local,omitempty"` // no other host has it
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	Dropped   bool      `json:"dropped,omitempty"` // it is used no more, and its blob is being deleted
	// Private says of what a build has kept that values were there which are not for
	// previews.
	Private bool `json:"private,omitempty"`
}

// AppVariable is one environment variable of an app.
type AppVariable struct {
	Key         string    `json:"key"`
	ValueSealed []byte    `json:"value_sealed"`
	Secret      bool      `json:"secret,omitempty"`
	Scope       string    `json:"scope,omitempty"` // "production": not for previews
	UpdatedAt   time.Time `json:"updated_at"`

	// DatabaseID is of a preview: the database that the value names, in whose place the
	// preview's clone of it is meant.
	DatabaseID string `json:"database_id,omitempty"`
}

// Clone returns a deep copy.
func (a *App) Clone() *App {
	c := *a
	c.Env = slices.Clone(a.Env)
	for i := range c.Env {
		c.Env[i].ValueSealed = bytes.Clone(c.Env[i].ValueSealed)
	}
	c.Instances, c.Draining, c.Uploads = slices.Clone(a.Instances), slices.Clone(a.Draining), slices.Clone(a.Uploads)
	if a.Cache != nil {
		c.Cache = new(*a.Cache)
	}
	if a.Log != nil {
		c.Log = new(*a.Log)
	}
	return &c
}

// DeploymentStatus is how far a deployment has come.
type DeploymentStatus string

// A deployment ends live or failed. One that was live stays so when another takes its
// place: it can be rolled back to.
const (
	DeploymentQueued    DeploymentStatus = "queued"
	DeploymentBuilding  DeploymentStatus = "building"
	DeploymentDeploying DeploymentStatus = "deploying"
	DeploymentLive      DeploymentStatus = "live"
	DeploymentFailed    DeploymentStatus = "failed"
)

// Ended reports whether a deployment stays as it is.
func (s DeploymentStatus) Ended() bool { return s == DeploymentLive || s == DeploymentFailed }

// Deployment is one attempt to bring a version of an app into service.
type Deployment struct {
	Meta
	WorkspaceID string           `json:"workspace_id"`
	AppID       string           `json:"app_id"`
	Status      DeploymentStatus `json:"status"`
	Error       string           `json:"error,omitempty"`

	GitURL     string `json:"git_url,omitempty"`   // of the repository
	GitRef     string `json:"git_ref,omitempty"`   // as asked for, or the app's branch
	OfBranch   bool   `json:"of_branch,omitempty"` // the ref is the app's branch, as it was
	GitCommit  string `json:"git_commit,omitempty"`
	GitMessage string `json:"git_message,omitempty"`
	GitAuthor  string `json:"git_author,omitempty"`
	Source     string `json:"source"`              // "git" or "upload"
	SourceID   string `json:"source_id,omitempty"` // of an upload: a blob on the hosts
	Trigger    string `json:"trigger"`             // "api", "push", "wake", "rollback", "pull_request"
	RollbackTo string `json:"rollback_to,omitempty"`
	NoCache    bool   `json:"no_cache,omitempty"` // it is built without what earlier builds have kept

	StartedAt  time.Time     `json:"started_at,omitzero"`
	FinishedAt time.Time     `json:"finished_at,omitzero"`
	Phases     []DeployPhase `json:"phases,omitempty"`
	Cancelled  bool          `json:"cancelled,omitempty"` // by a client; its flow ends it

	Framework    string `json:"framework,omitempty"` // as built
	Runtime      string `json:"runtime,omitempty"`
	StartCommand string `json:"start_command,omitempty"`
	Port         int    `json:"port,omitempty"`
	// Loopback: the app listened on loopback alone when it went live.
	Loopback bool `json:"loopback,omitempty"`

	// SandboxID is the one that it is built in, and first served from.
	SandboxID string `json:"sandbox_id,omitempty"`
	// SnapshotID is its artifact: a snapshot of the built app, which is not started in it;
	// "": none, or gone.
	SnapshotID string `json:"snapshot_id,omitempty"`
	// LogBlob is the blob with its log, once it has ended.
	LogBlob string `json:"log_blob,omitempty"`
	// LogFrom is the offset in the log of the blob's first byte.
	LogFrom int64 `json:"log_from,omitempty"`
	// RunLogBytes is not used any more; rows of earlier versions have it.
	RunLogBytes int64 `json:"run_log_bytes,omitempty"`
	// LogHost is the only host that has it; "": those that share a bucket do.
	LogHost string `json:"log_agent_id,omitempty"`
}

// DeployPhase is a phase of a deployment that has ended.
type DeployPhase struct {
	Name       string `json:"name"`
	DurationMS int64  `json:"duration_ms"`
}

// Clone returns a deep copy.
func (d *Deployment) Clone() *Deployment {
	c := *d
	c.Phases = slices.Clone(d.Phases)
	return &c
}

// NotEnded is the key of the index "ended" of deployments under which those are that have
// not.
const NotEnded = "no"

// EndedIn is the key of the index "ended" of deployments under which those are that ended
// in the same hour as a time.
func EndedIn(at time.Time) string { return at.UTC().Format("2006-01-02T15") }

func (d *Deployment) endedIn() string {
	switch {
	case !d.Status.Ended():
		return NotEnded
	case d.FinishedAt.IsZero():
		return ""
	}
	return EndedIn(d.FinishedAt)
}
