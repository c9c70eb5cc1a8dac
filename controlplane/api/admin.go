package api

// RaftStatus is the control store as one replica sees it.
type RaftStatus struct {
	NodeID            string     `json:"node_id"` // of the replica that answered
	State             string     `json:"state"`   // "leader", "follower", "candidate" or "shutdown"
	LeaderID          string     `json:"leader_id"`
	LeaderAddress     string     `json:"leader_address"`
	Term              uint64     `json:"term"`
	CommitIndex       uint64     `json:"commit_index"`
	AppliedIndex      uint64     `json:"applied_index"`
	LastLogIndex      uint64     `json:"last_log_index"`
	LastSnapshotIndex uint64     `json:"last_snapshot_index"`
	LastContactMS     int64      `json:"last_contact_ms"` // since the leader was last heard; 0 on the leader, -1 if never
	Peers             []RaftPeer `json:"peers"`
}

// RaftPeer is one member of the control store.
type RaftPeer struct {
	ID            string `json:"id"`
	Address       string `json:"address"` // host:port of its peer port
	Voter         bool   `json:"voter"`
	Healthy       bool   `json:"healthy"`
	LastContactMS int64  `json:"last_contact_ms"` // -1 if the answering replica does not know
	AppliedIndex  uint64 `json:"applied_index"`   // 0 if the answering replica does not know
}

// AddPeer is the body of POST /v1/admin/raft/peers.
type AddPeer struct {
	ID      string `json:"id"`
	Address string `json:"address"` // host:port of its peer port
}

// TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership.
type TransferLeadership struct {
	To string `json:"to,omitempty"` // a peer's id; default: the most up-to-date one
}

// Agent is one host with its capacity and health.
type Agent struct {
	ID         string          `json:"id"`
	Address    string          `json:"address"` // host:port of its HTTPS API
	State      string          `json:"state"`   // "up" or "lost"
	Ready      bool            `json:"ready"`   // it has sent a heartbeat, and its inventory is complete
	Draining   bool            `json:"draining"`
	LastSeenAt *Time           `json:"last_seen_at"` // last heartbeat; null if the current leader has received none
	Capacity   AgentCapacity   `json:"capacity"`
	Versions   AgentVersions   `json:"versions"`
	Templates  []AgentTemplate `json:"templates"`
	Sandboxes  int             `json:"sandboxes"` // placed on it
	// Evacuation is how far the host has been emptied; null unless it is being evacuated.
	Evacuation *AgentEvacuation `json:"evacuation"`
	CreatedAt  Time             `json:"created_at"`
}

// EvacuateAgent is the body of POST /v1/admin/agents/{id}/evacuate.
type EvacuateAgent struct {
	AtOnce *int `json:"at_once,omitempty" minimum:"1" maximum:"64"` // sandboxes that move at a time; default 4
}

// AgentEvacuation is how far a host has been emptied.
type AgentEvacuation struct {
	BeganAt Time `json:"began_at"`
	AtOnce  int  `json:"at_once"`
	Done    bool `json:"done"`    // nothing moves or waits any more; what stays is in Stays
	Moved   int  `json:"moved"`   // sandboxes that are on other hosts now
	Moving  int  `json:"moving"`  // sandboxes under way
	Waiting int  `json:"waiting"` // sandboxes whose turn has not come, or that are being created or deleted
	Staying int  `json:"staying"` // what does not move
	// Stays has the first hundred of those.
	Stays []AgentStay `json:"stays"`
}

// AgentStay is something that stays on a host that is evacuated.
type AgentStay struct {
	Kind        string `json:"kind"` // "sandbox", "volume" or "snapshot"
	ID          string `json:"id"`   // of a sandbox its beginning, because the whole is a credential
	WorkspaceID string `json:"workspace_id"`
	Reason      string `json:"reason"`
}

// Rebalance is the body of POST /v1/admin/rebalance.
type Rebalance struct {
	DryRun  bool `json:"dry_run,omitempty"`                            // only tell what would move
	AtOnce  *int `json:"at_once,omitempty" minimum:"1" maximum:"64"`   // sandboxes that move at a time, of all hosts; default 4
	Percent *int `json:"percent,omitempty" minimum:"5" maximum:"1000"` // hosts may differ by less than this, of an even share; default 20
}

// Rebalancing is how even hosts are, and how far the last rebalancing has come.
type Rebalancing struct {
	DryRun  bool  `json:"dry_run"`
	BeganAt *Time `json:"began_at"` // null if there was none, or it was given up
	EndedAt *Time `json:"ended_at"`
	Done    bool  `json:"done"` // nothing moves or waits any more
	AtOnce  int   `json:"at_once"`
	Percent int   `json:"percent"`
	Planned int   `json:"planned"` // sandboxes to be moved, as it was when it began
	Moved   int   `json:"moved"`   // sandboxes that are on other hosts now
	Moving  int   `json:"moving"`  // sandboxes under way
	Waiting int   `json:"waiting"` // sandboxes whose turn has not come
	Failed  int   `json:"failed"`  // sandboxes that could not be moved
	// Hosts has those that take part.
	Hosts []RebalancedHost `json:"hosts"`
	// Moves has the first hundred that are under way, or wait for their turn.
	Moves []RebalanceMove `json:"moves"`
	// Stays has the first hundred that could not be moved, and why.
	Stays []AgentStay `json:"stays"`
}

// RebalancedHost is how full a host is that takes part in a rebalancing. A sandbox that is
// under way counts where it arrives.
type RebalancedHost struct {
	ID         string `json:"id"`
	Sandboxes  int    `json:"sandboxes"`
	DiskMB     int64  `json:"disk_mb"`     // reserved by sandboxes, their saved memory and volumes
	Share      int    `json:"share"`       // in percent of an even share, by the hosts' memory
	ShareAfter int    `json:"share_after"` // once what waits has moved
}

// RebalanceMove is a move to another host.
type RebalanceMove struct {
	Kind        string `json:"kind"` // "sandbox" or "database"
	ID          string `json:"id"`   // of a sandbox its beginning, because the whole is a credential
	WorkspaceID string `json:"workspace_id"`
	From        string `json:"from"`
	To          string `json:"to"`
	DiskMB      int64  `json:"disk_mb"`
	State       string `json:"state"` // "moving" or "waiting"
}

// AgentTemplate is one template on one host.
type AgentTemplate struct {
	Name    string  `json:"name"`
	BuildID string  `json:"build_id"` // digest of all inputs of the build
	Status  string  `json:"status"`   // "building", "ready" or "failed"
	Error   *string `json:"error"`    // why it failed
}

// AgentCapacity is a host's capacity, and how much of it is in use.
type AgentCapacity struct {
	CPUs          int   `json:"cpus"`
	MemoryMB      int   `json:"memory_mb"`
	ReservedMB    int   `json:"reserved_mb"` // the most that all its sandboxes may use
	Slots         int   `json:"slots"`       // network slots: the most sandboxes it can hold
	SlotsUsed     int   `json:"slots_used"`
	DiskFreeBytes int64 `json:"disk_free_bytes"`
}

// AgentVersions are the versions that a host's stored states depend on.
type AgentVersions struct {
	Hostd  string `json:"hostd"`
	Engine string `json:"engine"`
	Kernel string `json:"kernel"`
}

// CreateJoinToken is the body of POST /v1/admin/join-tokens.
type CreateJoinToken struct {
	TTLSeconds *int64 `json:"ttl_seconds,omitempty" minimum:"1" maximum:"86400"` // default one hour, at most 24 hours
}

// JoinToken lets one host join the cluster, once.
type JoinToken struct {
	Token     string `json:"token"`
	ExpiresAt Time   `json:"expires_at"`

	// The other arguments of "hostd join".
	CASHA256 string   `json:"ca_sha256"` // fingerprint of the cluster's CA, hex
	Peers    []string `json:"peers"`     // host:port of each replica's peer port
}
