package hostapi

import "time"

// A capture is a box's disk, and its memory unless it was not asked for, as
// they were at one moment: what a snapshot and a fork start their boxes from.

// After says what becomes of the captured box.
type After string

// AfterResume lets it run on as soon as what must stand still was copied.
const AfterResume After = "resume"

// CaptureSpec asks for one capture. The same id again answers with the capture
// that is there. A box that is leaving (BoxUpdate.Leaving) sleeps: its capture is what
// it was saved as, with its memory, and its identity.
type CaptureSpec struct {
	BoxID      string `json:"box_id"`
	Generation uint64 `json:"generation"` // of the box
	Memory     bool   `json:"memory"`     // without it, disk alone, after a flush of the guest's file systems
	After      After  `json:"after,omitempty"`
	// Transient is for a fork: the capture need not survive a reboot of the
	// host, so nobody waits until it is on disk.
	Transient bool `json:"transient,omitempty"`
}

// Capture is a complete one.
type Capture struct {
	ID          string    `json:"id"`
	BoxID       string    `json:"box_id"`
	WorkspaceID string    `json:"workspace_id"`
	Template    string    `json:"template"`
	BuildID     string    `json:"build_id"`
	Engine      string    `json:"engine"`
	CPU         int       `json:"cpu"`
	MemoryMB    int       `json:"memory_mb"`
	DiskMB      int       `json:"disk_mb"`
	Memory      bool      `json:"memory"`
	MemoryBytes int64     `json:"memory_bytes"` // on this host's disk
	DiskBytes   int64     `json:"disk_bytes"`
	PauseMS     int64     `json:"pause_ms"` // how long the box stood still
	Stored      bool      `json:"stored"`   // it is in the snapshot store, so any host can start from it
	CreatedAt   time.Time `json:"created_at"`

	// Manifest is the SHA-256 of the object that says in the snapshot store what
	// the capture is made of. Only the answer to StoreCapture has it.
	Manifest string `json:"manifest,omitempty"`
}

// StoredPage is a part of what is in the snapshot store, whichever host put it
// there: ids of captures, and names of builds (StoredBuild), in their order.
type StoredPage struct {
	IDs  []string `json:"ids"`
	More bool     `json:"more,omitempty"` // there are more, after the last of these
}

// MaxStoredPage bounds the ids of one StoredPage.
const MaxStoredPage = 1000

// VolumeSpec asks for one volume.
type VolumeSpec struct {
	WorkspaceID string `json:"workspace_id"`
	SizeMB      int    `json:"size_mb"`
}

// Volume is a file system that outlives boxes.
type Volume struct {
	ID          string    `json:"id"`
	WorkspaceID string    `json:"workspace_id"`
	SizeMB      int       `json:"size_mb"`
	UsedBytes   int64     `json:"used_bytes"` // on this host's disk
	AttachedTo  string    `json:"attached_to,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
}

// Port is a TCP or UDP port that something in the guest listens on.
type Port struct {
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`          // "tcp" or "udp"
	Address  string `json:"address,omitempty"` // it is bound to
	Process  string `json:"process,omitempty"` // its name, where it is known
	PID      int    `json:"pid,omitempty"`
}
