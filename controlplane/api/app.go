package api

// AppStatus is the status of an app.
type AppStatus string

// An app is created until its first deployment is live. An idle one hibernates, and a
// request wakes it. A failed one could not be brought up again: the next request, or a
// deploy, tries once more.
const (
	AppCreated    AppStatus = "created"
	AppRunning    AppStatus = "running"
	AppHibernated AppStatus = "hibernated"
	AppWaking     AppStatus = "waking"
	AppFailed     AppStatus = "failed"
)

// AppSource is where an app's source comes from.
type AppSource string

// By default it is cloned from git_url; otherwise it is uploaded.
const (
	AppFromGit    AppSource = "git"
	AppFromUpload AppSource = "upload"
)

// App is a program that is built from a repository and served at a stable URL.
type App struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"`
	Status         AppStatus `json:"status"`
	URL            string    `json:"url"`
	GitURL         string    `json:"git_url"`
	GitBranch      string    `json:"git_branch,omitempty"` // "": the repository's default branch
	Framework      string    `json:"framework,omitempty"`  // "": detected by each build
	Runtime        string    `json:"runtime,omitempty"`
	InstallCommand string    `json:"install_command,omitempty"`
	BuildCommand   string    `json:"build_command,omitempty"`
	StartCommand   string    `json:"start_command,omitempty"`
	RootDirectory  string    `json:"root_directory,omitempty"`
	Port           int       `json:"port"`                // that the app binds, as PORT says
	CPU            int       `json:"cpu,omitempty"`       // as requested; has no effect
	MemoryMB       int       `json:"memory_mb,omitempty"` // as requested; has no effect

	MaxInstances       int  `json:"max_instances"`
	Instances          int  `json:"instances"` // that serve now
	AutoHibernate      bool `json:"auto_hibernate"`
	IdleTimeoutSeconds int  `json:"idle_timeout_seconds"`
	AutoDeploy         bool `json:"auto_deploy"`
	Previews           bool `json:"previews"`      // pull requests of its repository get one
	ForkPreviews       bool `json:"fork_previews"` // those from forks too, without secrets

	Env          map[string]string `json:"env"`           // secret values are masked
	SandboxID    string            `json:"sandbox_id"`    // "" while it hibernates
	DeploymentID string            `json:"deployment_id"` // the one that is served; "": none yet

	LastRequestAt *Time  `json:"last_request_at"` // null: none yet
	CreatedAt     Time   `json:"created_at"`
	UpdatedAt     Time   `json:"updated_at"`
	Error         string `json:"error,omitempty"` // why it is failed, or not what it was deployed as
}

// CreateApp is the body of POST /v1/apps. It stores the settings and builds nothing.
type CreateApp struct {
	Name           string     `json:"name" maxLength:"100"`
	GitURL         string     `json:"git_url,omitempty" maxLength:"2048"` // https; required unless source is "upload"
	GitBranch      string     `json:"git_branch,omitempty" maxLength:"255"`
	Source         *AppSource `json:"source,omitempty"` // default "git"
	Framework      string     `json:"framework,omitempty" maxLength:"64"`
	Runtime        string     `json:"runtime,omitempty" maxLength:"64"`
	InstallCommand string     `json:"install_command,omitempty" maxLength:"4096"`
	BuildCommand   string     `json:"build_command,omitempty" maxLength:"4096"`
	StartCommand   string     `json:"start_command,omitempty" maxLength:"4096"`
	RootDirectory  string     `json:"root_directory,omitempty" maxLength:"1024"`
	Env            StringMap  `json:"env,omitempty"`
	Port           *int       `json:"port,omitempty" minimum:"1" maximum:"65535"` // default 3000
	CPU            *int       `json:"cpu,omitempty" minimum:"0" maximum:"1000000"`
	MemoryMB       *int       `json:"memory_mb,omitempty" minimum:"0" maximum:"1000000000"`
	MaxInstances   *int       `json:"max_instances,omitempty" minimum:"1" maximum:"3"` // default 1

	AutoHibernate      *bool `json:"auto_hibernate,omitempty"`                                     // default true
	IdleTimeoutSeconds *int  `json:"idle_timeout_seconds,omitempty" minimum:"60" maximum:"604800"` // default 900
	AutoDeploy         bool  `json:"auto_deploy,omitempty"`
	Previews           *bool `json:"previews,omitempty"`      // default: as auto_deploy
	ForkPreviews       bool  `json:"fork_previews,omitempty"` // pull requests from forks get one too, without secrets
}

// PatchApp is the body of PATCH /v1/apps/{id}. What is absent stays as it is; null is
// the default. A change of framework, install_command, build_command, start_command,
// root_directory, port or env makes the next wake build the app anew.
type PatchApp struct {
	Name               Patch[string]    `json:"name,omitzero" maxLength:"100"`
	GitURL             Patch[string]    `json:"git_url,omitzero" maxLength:"2048"`
	GitBranch          Patch[string]    `json:"git_branch,omitzero" maxLength:"255"`
	Framework          Patch[string]    `json:"framework,omitzero" maxLength:"64"`
	Runtime            Patch[string]    `json:"runtime,omitzero" maxLength:"64"`
	InstallCommand     Patch[string]    `json:"install_command,omitzero" maxLength:"4096"`
	BuildCommand       Patch[string]    `json:"build_command,omitzero" maxLength:"4096"`
	StartCommand       Patch[string]    `json:"start_command,omitzero" maxLength:"4096"`
	RootDirectory      Patch[string]    `json:"root_directory,omitzero" maxLength:"1024"`
	Env                Patch[StringMap] `json:"env,omitzero"` // replaces all variables
	Port               Patch[int]       `json:"port,omitzero" minimum:"1" maximum:"65535"`
	CPU                Patch[int]       `json:"cpu,omitzero" minimum:"0" maximum:"1000000"`
	MemoryMB           Patch[int]       `json:"memory_mb,omitzero" minimum:"0" maximum:"1000000000"`
	MaxInstances       Patch[int]       `json:"max_instances,omitzero" minimum:"1" maximum:"3"`
	AutoHibernate      Patch[bool]      `json:"auto_hibernate,omitzero"`
	IdleTimeoutSeconds Patch[int]       `json:"idle_timeout_seconds,omitzero" minimum:"60" maximum:"604800"`
	AutoDeploy         Patch[bool]      `json:"auto_deploy,omitzero"`
	Previews           Patch[bool]      `json:"previews,omitzero"` // null: as auto_deploy
	ForkPreviews       Patch[bool]      `json:"fork_previews,omitzero"`
}

// AppVariable is one environment variable of an app.
type AppVariable struct {
	Key       string `json:"key"`
	Value     string `json:"value"` // masked if it is secret
	Secret    bool   `json:"secret"`
	Scope     string `json:"scope"` // "": none
	UpdatedAt Time   `json:"updated_at"`
}

// PutAppVariable is the body of PUT /v1/apps/{id}/env/{key}. Without secret and scope
// a variable that exists keeps its own, and a new one has none.
type PutAppVariable struct {
	Value  string  `json:"value" maxLength:"65536"`
	Secret *bool   `json:"secret,omitempty"`               // masked when read, and redacted from build logs
	Scope  *string `json:"scope,omitempty" maxLength:"64"` // "production" keeps it out of previews
}

// ImportAppEnv is the body of POST /v1/apps/{id}/env/import. secret and scope are as in
// PutAppVariable, for all of its variables.
type ImportAppEnv struct {
	Dotenv string  `json:"dotenv" maxLength:"1048576"` // the text of a .env file
	Secret *bool   `json:"secret,omitempty"`
	Scope  *string `json:"scope,omitempty" maxLength:"64"`
}

// DeploymentStatus is how far a deployment has come.
type DeploymentStatus string

// A deployment ends live or failed. It stays live when another one takes its place.
const (
	DeploymentQueued    DeploymentStatus = "queued"
	DeploymentBuilding  DeploymentStatus = "building"
	DeploymentDeploying DeploymentStatus = "deploying"
	DeploymentLive      DeploymentStatus = "live"
	DeploymentFailed    DeploymentStatus = "failed"
)

// DeploymentTrigger is what began a deployment.
type DeploymentTrigger string

// The triggers. A wake deploys an app that has no artifact that can be used.
const (
	TriggerAPI         DeploymentTrigger = "api"
	TriggerPush        DeploymentTrigger = "push"
	TriggerWake        DeploymentTrigger = "wake"
	TriggerRollback    DeploymentTrigger = "rollback"
	TriggerPullRequest DeploymentTrigger = "pull_request"
)

// Deployment is one attempt to bring a version of an app into service.
type Deployment struct {
	ID         string            `json:"id"`
	AppID      string            `json:"app_id"`
	Status     DeploymentStatus  `json:"status"`
	Current    bool              `json:"current"` // it is the one that is served
	GitRef     string            `json:"git_ref"`
	GitCommit  string            `json:"git_commit"` // "" until it is cloned
	GitMessage string            `json:"git_message"`
	GitAuthor  string            `json:"git_author"`
	Source     AppSource         `json:"source"`
	SourceID   string            `json:"source_id,omitempty"`
	Trigger    DeploymentTrigger `json:"trigger"`
	RollbackTo string            `json:"rollback_to,omitempty"` // the deployment whose artifact it serves
	CreatedAt  Time              `json:"created_at"`
	StartedAt  *Time             `json:"started_at"`
	FinishedAt *Time             `json:"finished_at"`
	Error      string            `json:"error"`  // why it failed; "": it has not
	Phases     []DeploymentPhase `json:"phases"` // that have ended

	Framework    string `json:"framework,omitempty"` // as built
	Runtime      string `json:"runtime,omitempty"`
	StartCommand string `json:"start_command,omitempty"`
}

// DeploymentPhase is a part of a deployment that has ended.
type DeploymentPhase struct {
	Name       string `json:"name"` // queue, sandbox, source, detect, runtimes, install, build, start, artifact
	DurationMS int64  `json:"duration_ms"`
}

// CreateDeployment is the body of POST /v1/apps/{id}/deploys.
type CreateDeployment struct {
	GitRef   string `json:"git_ref,omitempty" maxLength:"255"`  // branch, tag or commit; default: git_branch
	SourceID string `json:"source_id,omitempty" maxLength:"64"` // of an uploaded source
	// ClearCache has the app built without the caches of its earlier builds, which are
	// deleted.
	ClearCache bool `json:"clear_cache,omitempty"`
}

// RollBackApp is the body of POST /v1/apps/{id}/rollback.
type RollBackApp struct {
	DeploymentID string `json:"deployment_id,omitempty" maxLength:"64"` // default: the one that was live before
}

// SourceUpload is the answer to PUT /v1/apps/{id}/source.
type SourceUpload struct {
	SourceID  string `json:"source_id"`
	SizeBytes int64  `json:"size_bytes"`
}
