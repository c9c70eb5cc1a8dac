package hostapi

import (
	"strings"
	"time"
)

// Routes of a control-plane replica's peer port that a host calls. Any replica
// answers PathJoin; PathHeartbeat is the leader's, and another replica answers
// it 421 with a NotLeader body.
const (
	PathJoin      = "/internal/v1/join"      // POST Join (no client certificate) → Joined
	PathHeartbeat = "/internal/v1/heartbeat" // POST Heartbeat → HeartbeatReply
	PathRenew     = "/internal/v1/renew"     // POST Renew → Renewed; every replica answers
	// PathHeartbeatPart is PathHeartbeat for what has changed alone: POST HeartbeatPart →
	// HeartbeatReply, or 409 CodeHeartbeatGap. An older leader refuses it with 403.
	PathHeartbeatPart = "/internal/v1/heartbeat/part"
	PathEvents        = "/internal/v1/events" // POST EventBatch → EventCursor; every replica takes it for itself
)

// Join trades a one-time token and a certificate request for a host certificate.
type Join struct {
	Token  string `json:"token"`
	HostID string `json:"agent_id"`
	CSR    string `json:"csr"` // PEM
}

// Joined carries the certificate, its subject's common name "host:<agent_id>".
type Joined struct {
	Certificate string   `json:"certificate"` // PEM
	CA          string   `json:"ca"`          // PEM
	Peers       []string `json:"peers"`       // host:port of every replica
}

// Heartbeat is a host's whole state. It is sent every interval, and at once
// when a box's state changes.
type Heartbeat struct {
	HostID    string          `json:"agent_id"`
	Address   string          `json:"address"` // host:port of its HTTPS API
	BootID    string          `json:"boot_id"` // of this run of the daemon
	Sequence  uint64          `json:"sequence"`
	StartedAt time.Time       `json:"started_at"`
	Ready     bool            `json:"ready"` // adoption is over and Boxes is complete
	Draining  bool            `json:"draining"`
	Capacity  Capacity        `json:"capacity"`
	Versions  Versions        `json:"versions"`
	Templates []TemplateState `json:"templates"`
	// Sources are the definitions that this host can build by itself.
	Sources  []TemplateSource `json:"sources,omitempty"`
	Boxes    []BoxState       `json:"boxes"`
	Captures []CaptureState   `json:"captures,omitempty"`
	Volumes  []VolumeState    `json:"volumes,omitempty"`
	Store    bool             `json:"store,omitempty"` // it has a snapshot store
}

// MaxHeartbeat bounds a heartbeat's body, in bytes: a larger one is refused. A box
// takes about 100 of them, and its error.
const MaxHeartbeat = 8 << 20

// maxErrors bounds the errors of all boxes in a heartbeat together, in bytes. JSON
// may make six of one.
const maxErrors = 1 << 20

// ShortenErrors keeps what is said of boxes and databases that fail within bounds:
// their guests may have a say in it, and must not keep their host from being heard.
func (hb *Heartbeat) ShortenErrors() {
	var said []*string
	for i := range hb.Boxes {
		b := &hb.Boxes[i]
		texts := []*string{&b.Error}
		if d := b.Database; d != nil {
			texts = append(texts, &d.Error, &d.Archive.Error, &d.Volume.Reason)
			if d.Restore != nil {
				texts = append(texts, &d.Restore.Error)
			}
		}
		for _, text := range texts {
			if *text != "" {
				said = append(said, text)
			}
		}
	}
	for _, text := range said {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxErrors/len(said))], "")
	}
}

// CaptureState is the part of a Capture that a heartbeat tells.
type CaptureState struct {
	ID     string `json:"id"`
	Stored bool   `json:"stored,omitempty"`
}

// VolumeState is the part of a Volume that a heartbeat tells.
type VolumeState struct {
	ID        string `json:"id"`
	UsedBytes int64  `json:"used_bytes"`
}

// Capacity is what the host may give and what is given. Reserved counts the
// worst case: every box's whole memory and the engine's own.
type Capacity struct {
	CPUs             int   `json:"cpus"`
	MemoryMB         int   `json:"memory_mb"`
	ReservedMB       int   `json:"reserved_mb"`
	Slots            int   `json:"slots"`
	SlotsUsed        int   `json:"slots_used"`
	DiskFreeBytes    int64 `json:"disk_free_bytes"`
	OverheadMBPerBox int   `json:"overhead_mb_per_box"` // admission adds this to a box's memory
	// DiskStalledMS is how long the disk has been at work on a write that has not
	// ended.
	DiskStalledMS int64 `json:"disk_stalled_ms,omitempty"`
}

// Versions are what a stored state is bound to.
type Versions struct {
	Hostd string `json:"hostd"`
	// Engine is "cloud-hypervisor v53.0+cpu-…:…", with what the host's processor has, or
	// "chvemu v…+qemu-…".
	Engine string `json:"engine"`
	Kernel string `json:"kernel"`
}

// ShortEngine is Engine as people read it.
func (v Versions) ShortEngine() string {
	short, _, _ := strings.Cut(v.Engine, ":")
	return short
}

// TemplateState is one template on this host.
type TemplateState struct {
	Name      string    `json:"name"`
	BuildID   string    `json:"build_id"`         // digest of its content
	Build     string    `json:"build,omitempty"`  // which of the control plane's builds it is; empty: made by hand
	Stored    bool      `json:"stored,omitempty"` // in the snapshot store
	Status    string    `json:"status"`           // building, ready, failed
	Error     string    `json:"error,omitempty"`
	CPU       int       `json:"cpu"`
	MemoryMB  int       `json:"memory_mb"`
	DiskMB    int       `json:"disk_mb"`
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// TemplateSource is a definition of the host's operator.
type TemplateSource struct {
	Name     string `json:"name"`
	From     string `json:"from,omitempty"`  // the template that it is made from
	Recipe   string `json:"recipe"`          // digest of the definition and of what goes into every template
	Ahead    bool   `json:"ahead,omitempty"` // to be built before anybody asks for it
	CPU      int    `json:"cpu"`
	MemoryMB int    `json:"memory_mb"`
	DiskMB   int    `json:"disk_mb"`
}

// BoxState is the part of a Box that a heartbeat tells.
type BoxState struct {
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	Status     Status `json:"status"`
	Seq        uint64 `json:"seq"`
	Persistent *bool  `json:"persistent,omitempty"` // nil: a host that does not tell
	Error      string `json:"error,omitempty"`

	Archive  string         `json:"archive,omitempty"`  // of a database's box: its archive's name
	Database *DatabaseState `json:"database,omitempty"` // of a database's box that runs
}

// State is what a heartbeat tells of the box.
func (b *Box) State() BoxState {
	return BoxState{
		ID: b.ID, Generation: b.Generation, Status: b.Status, Seq: b.Seq, Persistent: &b.Persistent, Error: b.Error, Archive: b.Archive,
	}
}

// HeartbeatReply tells the host how it stands.
type HeartbeatReply struct {
	Cluster         string   `json:"cluster,omitempty"` // see HeaderCluster
	Term            uint64   `json:"term"`
	IntervalSeconds float64  `json:"interval_seconds"`
	LeaseSeconds    float64  `json:"lease_seconds"` // the host is lost when this long unheard
	Peers           []string `json:"peers"`
	// RemovedRouters are the names of routers of databases that may not call any more.
	RemovedRouters []string `json:"removed_routers,omitempty"`
	// Replicas are the ids of the members: no other replica may call the host.
	// Empty: a leader that does not tell.
	Replicas []string `json:"replicas,omitempty"`
}

// NotLeader says where the leader's peer port is; empty while there is none.
type NotLeader struct {
	LeaderID      string `json:"leader_id"`
	LeaderAddress string `json:"leader_address"`
}
