package record

import (
	"slices"
	"time"
)

// ResourceStatus is the status of a resource that a flow creates.
type ResourceStatus string

// The statuses of snapshots and volumes. The only copy of a lost snapshot is on a
// host that is lost; it is ready again when the host returns with it.
const (
	ResourceCreating ResourceStatus = "creating"
	ResourceReady    ResourceStatus = "ready"
	ResourceLost     ResourceStatus = "lost"
	ResourceDeleting ResourceStatus = "deleting"
)

// Snapshot is a capture of a sandbox that is kept until it is deleted. Its id
// is the capture's on the host.
type Snapshot struct {
	Meta
	WorkspaceID string         `json:"workspace_id"`
	Status      ResourceStatus `json:"status"`
	SandboxID   string         `json:"sandbox_id"`
	Owner       *Owner         `json:"owner,omitempty"` // the app whose artifact it is: clients do not see it
	Template    string         `json:"template"`
	TemplateKey string         `json:"template_key,omitempty"` // as Sandbox.TemplateKey
	Name        string         `json:"name,omitempty"`
	HostID      string         `json:"agent_id"` // which has it on its disk
	CPU         int            `json:"cpu"`
	MemoryMB    int            `json:"memory_mb"`
	DiskMB      int            `json:"disk_mb"`
	MemoryBytes int64          `json:"memory_bytes"`
	DiskBytes   int64          `json:"disk_bytes"`
	PauseMS     int64          `json:"pause_ms"`
	Stored      bool           `json:"stored"`             // in the snapshot store: any host can start from it
	Manifest    string         `json:"manifest,omitempty"` // SHA-256 of its manifest there; older rows have none
	EnvRef
}

// Clone returns a deep copy.
func (s *Snapshot) Clone() *Snapshot {
	c := *s
	c.EnvRef = s.EnvRef.clone()
	if s.Owner != nil {
		o := *s.Owner
		c.Owner = &o
	}
	return &c
}

// Volume is a file system that outlives sandboxes, on the one host that made it.
type Volume struct {
	Meta
	WorkspaceID string         `json:"workspace_id"`
	Name        string         `json:"name"`
	Status      ResourceStatus `json:"status"`
	SizeMB      int            `json:"size_mb"`
	HostID      string         `json:"agent_id,omitempty"`
	AttachedTo  string         `json:"attached_to,omitempty"` // sandbox
}

// Clone returns a copy.
func (v *Volume) Clone() *Volume { c := *v; return &c }

// TemplateStatus is the status of a template or a build.
type TemplateStatus string

// A template is building until it has a usable build; only builds are queued. An
// operator's template is unbuilt until it is first used.
const (
	TemplateUnbuilt  TemplateStatus = "unbuilt"
	TemplateQueued   TemplateStatus = "queued"
	TemplateBuilding TemplateStatus = "building"
	TemplateReady    TemplateStatus = "ready"
	TemplateFailed   TemplateStatus = "failed"
)

// Template is a template that a workspace built or, without a workspace, an
// operator's, which hosts report.
type Template struct {
	Meta
	WorkspaceID string         `json:"workspace_id"`
	Name        string         `json:"name"`
	Key         string         `json:"key"` // its name on the hosts
	Status      TemplateStatus `json:"status"`
	BuildID     string         `json:"build_id,omitempty"` // of the build in use
	CPU         int            `json:"cpu"`
	MemoryMB    int            `json:"memory_mb"`
	DiskMB      int            `json:"disk_mb"`
	SizeBytes   int64          `json:"size_bytes"`
	Error       string         `json:"error,omitempty"`
}

// Clone returns a copy.
func (t *Template) Clone() *Template { c := *t; return &c }

// Product is the result of a build on a host. Hosts share it through the snapshot
// store. A host that cannot use it (another engine, no store) makes another product
// of the same build.
type Product struct {
	Digest    string    `json:"digest"` // of its content: hosts know it by this
	Engine    string    `json:"engine"`
	Stored    bool      `json:"stored,omitempty"` // in the snapshot store
	CreatedAt time.Time `json:"created_at"`
}

// Build is one build of a template.
type Build struct {
	Meta
	WorkspaceID string         `json:"workspace_id"`
	Template    string         `json:"template"` // its name
	Key         string         `json:"key"`      // the template's name on the hosts
	Status      TemplateStatus `json:"status"`
	From        string         `json:"from,omitempty"`     // the template or the image that it is made from
	HostID      string         `json:"agent_id,omitempty"` // which builds it
	SpecSealed  []byte         `json:"spec_sealed"`        // hostapi.BuildSpec as JSON, sealed: files and env may hold secrets; empty once it is not needed any more
	Recipe      string         `json:"recipe,omitempty"`   // of an operator's: which definition of a host's it was built from
	Products    []Product      `json:"products,omitempty"`
	Dropped     bool           `json:"dropped,omitempty"` // its template is gone; the row goes when the snapshot store has nothing of it
	Error       string         `json:"error,omitempty"`
	FinishedAt  time.Time      `json:"finished_at,omitzero"`
}

// Clone returns a deep copy.
func (b *Build) Clone() *Build {
	c := *b
	c.SpecSealed = slices.Clone(b.SpecSealed)
	c.Products = slices.Clone(b.Products)
	return &c
}

// Digests are those of a build's products.
func (b *Build) Digests() []string {
	out := make([]string, len(b.Products))
	for i, p := range b.Products {
		out[i] = p.Digest
	}
	return out
}
