package api

// TemplateStatus is the status of a template or of one of its builds.
type TemplateStatus string

// Only builds are queued.
const (
	TemplateUnbuilt  TemplateStatus = "unbuilt" // a shared template that has not been needed yet
	TemplateQueued   TemplateStatus = "queued"
	TemplateBuilding TemplateStatus = "building"
	TemplateReady    TemplateStatus = "ready"
	TemplateFailed   TemplateStatus = "failed"
)

// Template is what sandboxes are created from.
type Template struct {
	Name      string         `json:"name"`
	Status    TemplateStatus `json:"status"`
	BuildID   string         `json:"build_id"` // of the build in use
	CPU       int            `json:"cpu"`
	MemoryMB  int            `json:"memory_mb"`
	DiskMB    int            `json:"disk_mb"`
	CreatedAt Time           `json:"created_at"`
	UpdatedAt Time           `json:"updated_at"`
	SizeBytes int64          `json:"size_bytes"` // on a host's disk
}

// BuildTemplate is the body of POST /v1/templates/build.
type BuildTemplate struct {
	Name     string         `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,49}$"`
	From     string         `json:"from" pattern:"^[!-~]{1,512}$"` // a template, or an OCI image reference
	Run      []string       `json:"run,omitempty" maxItems:"100"`  // shell commands, run in the guest in sequence
	Files    StringMap      `json:"files,omitempty"`               // absolute path to content, written before run
	Env      StringMap      `json:"env,omitempty"`                 // environment of run, start and every exec
	Start    string         `json:"start,omitempty"`               // shell command that runs as long as the guest
	Ready    *TemplateCheck `json:"ready,omitempty"`               // what must hold before the guest is stored
	CPU      *int           `json:"cpu,omitempty" minimum:"1" maximum:"32"`
	MemoryMB *int           `json:"memory_mb,omitempty" minimum:"256" maximum:"262144"`
	DiskMB   *int           `json:"disk_mb,omitempty" minimum:"256" maximum:"4194304"`
}

// TemplateCheck says when a new guest is ready; all given conditions must hold.
type TemplateCheck struct {
	Port           *int   `json:"port,omitempty" minimum:"1" maximum:"65535"` // accepts a TCP connection
	Cmd            string `json:"cmd,omitempty"`                              // exits 0
	TimeoutSeconds *int   `json:"timeout_seconds,omitempty" minimum:"1" maximum:"3600"`
}

// Build is one build of a template.
type Build struct {
	ID         string         `json:"id"`
	Template   string         `json:"template"`
	Status     TemplateStatus `json:"status"`
	Error      *string        `json:"error"`
	CreatedAt  Time           `json:"created_at"`
	FinishedAt *Time          `json:"finished_at"`
}

// BuildLog is one event "log" of a build's log.
type BuildLog struct {
	Line string `json:"line"`
}

// BuildEnd is the event "end", the last of a build's log.
type BuildEnd struct {
	Status TemplateStatus `json:"status"` // ready or failed
	Error  *string        `json:"error"`
}

// Volume is a file system that outlives sandboxes.
type Volume struct {
	Name       string  `json:"name"`
	SizeMB     int     `json:"size_mb"`
	UsedBytes  int64   `json:"used_bytes"`
	AgentID    string  `json:"agent_id"`
	AttachedTo *string `json:"attached_to"` // id of the sandbox
	CreatedAt  Time    `json:"created_at"`
}

// CreateVolume is the body of POST /v1/volumes.
type CreateVolume struct {
	Name   string `json:"name" minLength:"1" maxLength:"128"`
	SizeMB *int   `json:"size_mb,omitempty" minimum:"16" maximum:"65536"` // default 256, at most 65536
}
