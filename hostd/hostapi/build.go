package hostapi

import "time"

// BuildSpec asks for one build of a template. Template is the name under which
// this host keeps it. From names another of its templates, or an OCI image. With
// Source or Fetch the rest is not looked at.
type BuildSpec struct {
	Template    string `json:"template"`
	WorkspaceID string `json:"workspace_id"` // whose it is: what is made of it is shared with no other

	Source string `json:"source,omitempty"` // build this host's own definition of that name, which has this recipe
	Fetch  string `json:"fetch,omitempty"`  // take what another host has built from the snapshot store

	From    string `json:"from"`
	FromOCI bool   `json:"from_oci,omitempty"` // From is an OCI reference

	Run      []string          `json:"run,omitempty"`
	Files    map[string]string `json:"files,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Start    string            `json:"start,omitempty"`
	Ready    *BuildReady       `json:"ready,omitempty"`
	CPU      int               `json:"cpu,omitempty"`
	MemoryMB int               `json:"memory_mb,omitempty"`
	DiskMB   int               `json:"disk_mb,omitempty"`
}

// StoredBuild is the name of a build in the snapshot store, by its digest. No
// capture has a name with this prefix.
func StoredBuild(digest string) string { return "tpl-" + digest }

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
	Error      string      `json:"error,omitempty"`    // one line; the log has the rest
	BuildID    string      `json:"build_id,omitempty"` // digest of its content
	CreatedAt  time.Time   `json:"created_at"`
	FinishedAt time.Time   `json:"finished_at,omitzero"`

	// Interrupted says that it failed because the daemon ended, or because of a
	// Delete whose caller did not wait for its end. A Put of the same id begins it
	// anew.
	Interrupted bool `json:"interrupted,omitempty"`
	// Refused says that it failed because the host had no room for its guest. A
	// Put of the same id tries again.
	Refused bool `json:"refused,omitempty"`
	// Missing says that it failed because what it was to fetch is not in the
	// snapshot store.
	Missing bool `json:"missing,omitempty"`

	// The rest is set once the build has succeeded.
	From      string `json:"from,omitempty"` // what it was made from: an image by its digest
	CPU       int    `json:"cpu,omitempty"`
	MemoryMB  int    `json:"memory_mb,omitempty"`
	DiskMB    int    `json:"disk_mb,omitempty"`
	SizeBytes int64  `json:"size_bytes,omitempty"` // on this host's disk
}
