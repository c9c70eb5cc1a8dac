package hostapi

import "time"

// BuildSpec asks for one build of a template. Template is the name under which
// this host keeps it. From names another of its templates, or an OCI image.
type BuildSpec struct {
	Template    string `json:"template"`
	WorkspaceID string `json:"workspace_id"` // whose it is: what is made of it is shared with no other
	From        string `json:"from"`
	FromOCI     bool   `json:"from_oci,omitempty"` // From is an OCI reference

	Run      []string          `json:"run,omitempty"`
	Files    map[string]string `json:"files,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Start    string            `json:"start,omitempty"`
	Ready    *BuildReady       `json:"ready,omitempty"`
	CPU      int               `json:"cpu,omitempty"`
	MemoryMB int               `json:"memory_mb,omitempty"`
	DiskMB   int               `json:"disk_mb,omitempty"`
}

// BuildReady is what must hold before the guest's state is stored.
type BuildReady struct {
	Port           int    `json:"port,omitempty"`
	Cmd            string `json:"cmd,omitempty"`
	TimeoutSeconds int    `json:"timeout_seconds,omitempty"`
}

// BuildStatus is where a build stands.
type BuildStatus string

// A build that the daemon's end cut off is failed after the daemon's next start.
const (
	BuildQueued    BuildStatus = "queued"
	BuildBuilding  BuildStatus = "building"
	BuildSucceeded BuildStatus = "ready"
	BuildFailed    BuildStatus = "failed"
)

// Build is one build as its host sees it.
type Build struct {
	ID         string      `json:"id"`
	Template   string      `json:"template"`
	Status     BuildStatus `json:"status"`
	Error      string      `json:"error,omitempty"` // one line; the log has the rest
	BuildID    string      `json:"build_id,omitempty"`
	CreatedAt  time.Time   `json:"created_at"`
	FinishedAt time.Time   `json:"finished_at,omitzero"`

	// Interrupted says that it failed because the daemon ended. A Put of the
	// same id begins it anew.
	Interrupted bool `json:"interrupted,omitempty"`

	// Of one that succeeded.
	From      string `json:"from,omitempty"` // what it was made from: an image by its digest
	CPU       int    `json:"cpu,omitempty"`
	MemoryMB  int    `json:"memory_mb,omitempty"`
	DiskMB    int    `json:"disk_mb,omitempty"`
	SizeBytes int64  `json:"size_bytes,omitempty"` // on this host's disk
}
