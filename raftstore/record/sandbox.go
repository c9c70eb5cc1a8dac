package record

import (
	"encoding/json"
	"slices"
	"time"
)

// SandboxStatus is the status of a sandbox.
type SandboxStatus string

// A sandbox is starting from its create until its guest has confirmed its identity.
// Deleting is never undone; its last step removes the row.
const (
	SandboxStarting   SandboxStatus = "starting"
	SandboxRunning    SandboxStatus = "running"
	SandboxPaused     SandboxStatus = "paused"
	SandboxHibernated SandboxStatus = "hibernated"
	SandboxFailed     SandboxStatus = "failed"
	SandboxDeleting   SandboxStatus = "deleting"
)

// CanBecome reports whether the state table lets next follow s.
func (s SandboxStatus) CanBecome(next SandboxStatus) bool {
	return s != next && sandboxTransitions.allow(s, next)
}

// Owner is the app or database that manages a sandbox.
type Owner struct {
	Type string `json:"type"` // "app" or "database"
	ID   string `json:"id"`
}

// VolumeMount is a volume attached to a sandbox.
type VolumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mount_path"`
}

// PreviewMode says who may see a sandbox's ports by its preview URL.
type PreviewMode string

// The id in a preview's host name is the credential, unless a token is asked for.
const (
	PreviewPublic PreviewMode = "public"
	PreviewToken  PreviewMode = "token"
)

// SandboxPort is a port that the client named.
type SandboxPort struct {
	Port  int    `json:"port"`
	Label string `json:"label,omitempty"`
}

// Sandbox is one microVM workload.
type Sandbox struct {
	Meta
	WorkspaceID string        `json:"workspace_id"`
	Status      SandboxStatus `json:"status"`
	Error       string        `json:"error,omitempty"` // why it failed
	// Unreachable says that it failed only because its host was silent for a lease:
	// it gets its status back when the host returns with it.
	Unreachable bool `json:"unreachable,omitempty"`
	// Lost is the last time that it failed because of its host, of which its history tells.
	Lost HostLoss `json:"lost,omitzero"`
	// Exclusive says that it must never run twice: once unreachable it is given up,
	// and a host that hears no leader ends it.
	Exclusive bool            `json:"exclusive,omitempty"`
	Template  string          `json:"template"`
	Metadata  json.RawMessage `json:"metadata,omitempty"` // the client's object, as it came
	EnvRef
	CPU        int    `json:"cpu"`
	MemoryMB   int    `json:"memory_mb"`
	DiskMB     int    `json:"disk_mb"`
	HostID     string `json:"agent_id,omitempty"` // empty until placed
	Generation uint64 `json:"generation"`         // raised at each placement
	Owner      *Owner `json:"owner,omitempty"`

	FromSnapshot string        `json:"from_snapshot,omitempty"`
	ForkedFrom   string        `json:"forked_from,omitempty"`
	Volumes      []VolumeMount `json:"volumes,omitempty"`

	// TemplateKey is the name under which hosts keep the template; empty: Template.
	TemplateKey string `json:"template_key,omitempty"`
	// BuildID is the template's build that it is started from.
	BuildID string `json:"build_id,omitempty"`
	// HostSeq is the Seq of the host's report that Status comes from: an older report
	// is ignored.
	HostSeq uint64 `json:"host_seq,omitempty"`
	// ForkTree is the id of the fork-tree it is a child of.
	ForkTree string `json:"fork_tree,omitempty"`
	// StartedBy is the subject of the flow that starts it, if that is not its own;
	// empty once it has started.
	StartedBy string        `json:"started_by,omitempty"`
	Preview   PreviewMode   `json:"preview,omitempty"` // empty: public
	Ports     []SandboxPort `json:"ports,omitempty"`   // registered by the client

	// Move is its move to another host, while that is under way. It does not wake then.
	Move *Move `json:"move,omitempty"`
	// MoveTried is the highest generation that a move has placed elsewhere in vain.
	MoveTried uint64 `json:"move_tried,omitempty"`
	// MoveError is why the last move left it where it is.
	MoveError string `json:"move_error,omitempty"`

	StartedAt  time.Time `json:"started_at,omitzero"`
	TTLSeconds *int64    `json:"ttl_seconds,omitempty"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	Persistent bool      `json:"persistent,omitempty"`
}

// HostLoss is the loss of a host with a sandbox.
type HostLoss struct {
	HostID string    `json:"agent_id"`
	At     time.Time `json:"at"`
	Why    string    `json:"why"`
}

// Move is where a sandbox that leaves its host may have a box already.
type Move struct {
	To         string `json:"to,omitempty"` // a host; empty until one is chosen
	Generation uint64 `json:"generation,omitempty"`
	// Asleep says that its owner has hibernated it since the move began, so that it is not
	// woken at the end.
	Asleep bool `json:"asleep,omitempty"`
}

// SandboxExpiry is a time as the index "expires" has it.
func SandboxExpiry(t time.Time) string { return WebhookDue(t) }

// expires is when it is to be deleted, or to hibernate, because its time to live is over;
// empty: never, or it sleeps already.
func (s *Sandbox) expires() string {
	awake := s.Status == SandboxRunning || s.Status == SandboxPaused
	if s.ExpiresAt.IsZero() || s.Owner != nil || s.Status == SandboxDeleting || s.Persistent && !awake {
		return ""
	}
	return SandboxExpiry(s.ExpiresAt)
}

// Clone returns a deep copy.
func (s *Sandbox) Clone() *Sandbox {
	c := *s
	c.Metadata = slices.Clone(s.Metadata)
	c.EnvRef = s.EnvRef.clone()
	c.Volumes = slices.Clone(s.Volumes)
	c.Ports = slices.Clone(s.Ports)
	if s.Move != nil {
		m := *s.Move
		c.Move = &m
	}
	if s.Owner != nil {
		o := *s.Owner
		c.Owner = &o
	}
	if s.TTLSeconds != nil {
		t := *s.TTLSeconds
		c.TTLSeconds = &t
	}
	return &c
}
