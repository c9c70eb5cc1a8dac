package api

// Lifecycle describes when a sandbox expires, and what happens then.
type Lifecycle struct {
	Status     SandboxStatus `json:"status"`
	TTLSeconds *int64        `json:"ttl_seconds"`
	ExpiresAt  *Time         `json:"expires_at"` // null: never
	Persistent bool          `json:"persistent"` // at expires_at it hibernates instead of being deleted
}

// PatchLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle. Absent members
// stay unchanged.
type PatchLifecycle struct {
	TTLSeconds Patch[int64] `json:"ttl_seconds,omitzero" minimum:"1" maximum:"31536000"` // from now; null: it never expires
	Persistent Patch[bool]  `json:"persistent,omitzero"`
}

// SnapshotStatus is the status of a snapshot.
type SnapshotStatus string

// The only copy of a lost snapshot is on a host that is lost. It is ready again when
// the host returns with it.
const (
	SnapshotReady SnapshotStatus = "ready"
	SnapshotLost  SnapshotStatus = "lost"
)

// Snapshot is a sandbox's memory, device state and disk at one moment.
type Snapshot struct {
	ID          string         `json:"id"`
	Status      SnapshotStatus `json:"status"`
	SandboxID   string         `json:"sandbox_id"`
	Template    string         `json:"template"`
	Name        string         `json:"name"`
	CreatedAt   Time           `json:"created_at"`
	SizeBytes   int64          `json:"size_bytes"` // on the host's disk: memory_bytes + disk_bytes
	MemoryBytes int64          `json:"memory_bytes"`
	DiskBytes   int64          `json:"disk_bytes"`
	AgentID     string         `json:"agent_id"` // the host that has it
	Stored      bool           `json:"stored"`   // it is in the snapshot store and can be restored on any host
	PauseMS     int64          `json:"pause_ms"` // how long the sandbox was paused for it
}

// CreateSnapshot is the body of POST /v1/sandboxes/{id}/snapshots.
type CreateSnapshot struct {
	Name string `json:"name,omitempty" maxLength:"63"`
}

// ForkMode says what a fork's children inherit.
type ForkMode string

// ForkCold, the default, copies the disk and boots it. ForkWarm copies disk and
// memory, for one child that takes the parent's place on the network; the parent
// stops until the client resumes it.
const (
	ForkCold ForkMode = "cold"
	ForkWarm ForkMode = "warm"
)

// Fork is the body of POST /v1/sandboxes/{id}/fork.
type Fork struct {
	Count *int      `json:"count,omitempty" minimum:"1" maximum:"16"` // 1 to 16, default 1; at most 1 if warm
	Mode  *ForkMode `json:"mode,omitempty"`                           // default cold
}

// Forked is the answer to a fork.
type Forked struct {
	ParentID string       `json:"parent_id"`
	Mode     ForkMode     `json:"mode"`
	Children []Sandbox    `json:"children"`
	Failed   []FailedFork `json:"failed"`
	PauseMS  int64        `json:"pause_ms"` // how long the parent was paused
}

// ForkTree is the body of POST /v1/sandboxes/{id}/fork-tree.
type ForkTree struct {
	Count    *int   `json:"count,omitempty" minimum:"1" maximum:"16"` // 1 to 16, default 2
	Metadata Object `json:"metadata,omitempty"`                       // of every child, combined with the fork's own keys
}

// ForkedTree is the answer to a fork-tree: children with the parent's disk and
// memory. The call succeeds even if some children fail.
type ForkedTree struct {
	TreeID   string       `json:"tree_id"`
	ParentID string       `json:"parent_id"`
	Children []Sandbox    `json:"children"`
	Failed   []FailedFork `json:"failed"`
	PauseMS  int64        `json:"pause_ms"` // how long the parent was paused
	Stored   bool         `json:"stored"`   // the capture is in the snapshot store; an upload that failed is repeated
}

// FailedFork is a child that did not start.
type FailedFork struct {
	Index int    `json:"index"`
	Error string `json:"error"`
}

// Promote is the body of POST /v1/sandboxes/{id}/promote, on the chosen child.
type Promote struct {
	TreeID          string `json:"tree_id" minLength:"1"`
	CleanupSiblings bool   `json:"cleanup_siblings,omitempty"` // delete the other children of the tree
}

// Promoted is the chosen child, and the siblings that were deleted.
type Promoted struct {
	Promoted Sandbox  `json:"promoted"`
	Deleted  []string `json:"deleted"`
}
