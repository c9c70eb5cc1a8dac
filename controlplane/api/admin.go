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
	LastContactMS     int64      `json:"last_contact_ms"` // since the leader was heard; 0 on the leader, -1 never
	Peers             []RaftPeer `json:"peers"`
}

// RaftPeer is one member of the control store.
type RaftPeer struct {
	ID            string `json:"id"`
	Address       string `json:"address"` // host:port of its peer port
	Voter         bool   `json:"voter"`
	Healthy       bool   `json:"healthy"`
	LastContactMS int64  `json:"last_contact_ms"` // -1 where the answering replica does not know
	AppliedIndex  uint64 `json:"applied_index"`   // 0 where the answering replica does not know
}

// AddPeer is the body of POST /v1/admin/raft/peers.
type AddPeer struct {
	ID      string `json:"id"`
	Address string `json:"address"` // host:port of its peer port
}

// TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership.
type TransferLeadership struct {
	To string `json:"to,omitempty"` // a peer's id; default: the most up to date
}

// Agent is one host with its capacity and health.
type Agent struct {
	ID         string          `json:"id"`
	Address    string          `json:"address"` // host:port of its HTTPS API
	State      string          `json:"state"`   // "up" or "lost"
	Ready      bool            `json:"ready"`   // heard of, and its inventory is complete
	Draining   bool            `json:"draining"`
	LastSeenAt *Time           `json:"last_seen_at"` // last heartbeat; null when none since the leader changed
	Capacity   AgentCapacity   `json:"capacity"`
	Versions   AgentVersions   `json:"versions"`
	Templates  []AgentTemplate `json:"templates"`
	Sandboxes  int             `json:"sandboxes"` // placed on it
	CreatedAt  Time            `json:"created_at"`
}

// AgentTemplate is one template on one host.
type AgentTemplate struct {
	Name    string  `json:"name"`
	BuildID string  `json:"build_id"` // digest of everything it was built from
	Status  string  `json:"status"`   // "building", "ready" or "failed"
	Error   *string `json:"error"`    // why it failed
}

// AgentCapacity is what a host may give and what is given.
type AgentCapacity struct {
	CPUs          int   `json:"cpus"`
	MemoryMB      int   `json:"memory_mb"`
	ReservedMB    int   `json:"reserved_mb"` // worst case of all sandboxes on it
	Slots         int   `json:"slots"`       // network slots: the most sandboxes it can hold
	SlotsUsed     int   `json:"slots_used"`
	DiskFreeBytes int64 `json:"disk_free_bytes"`
}

// AgentVersions are what a host's stored states are bound to.
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

	// What "hostd join" needs beside the token.
	CASHA256 string   `json:"ca_sha256"` // fingerprint of the cluster's CA, hex
	Peers    []string `json:"peers"`     // host:port of each replica's peer port
}
