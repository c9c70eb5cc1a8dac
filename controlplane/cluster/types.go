package cluster

import "time"

// RaftStatus is one replica's view of the control store's cluster.
type RaftStatus struct {
	NodeID            string
	State             string // leader, follower, candidate, shutdown
	LeaderID          string
	LeaderAddress     string
	Term              uint64
	CommitIndex       uint64
	AppliedIndex      uint64
	LastLogIndex      uint64
	LastSnapshotIndex uint64
	LastContact       time.Duration // since the leader was heard; 0 on the leader, -1 never
	Peers             []RaftPeer
}

// RaftPeer is one member, this replica included.
type RaftPeer struct {
	ID           string
	Address      string
	Voter        bool
	Healthy      bool          // answered just now and knows the same leader
	LastContact  time.Duration // the peer's own, since it heard the leader; -1 unknown
	AppliedIndex uint64        // 0 when it did not answer
}

// Agent is one host.
type Agent struct {
	ID            string
	Address       string
	State         string // up, lost
	Draining      bool
	Ready         bool // it heartbeats and its inventory is complete
	CreatedAt     time.Time
	LastSeen      time.Time // zero when this leader has not heard it
	CPUs          int
	MemoryMB      int
	ReservedMB    int // as the host counts, plus what this leader has placed and the host not yet reported
	Slots         int
	SlotsUsed     int
	DiskFreeBytes int64
	Sandboxes     int // rows placed on it
	Versions      AgentVersions
	Templates     []AgentTemplate
}

// AgentVersions are what stored states on a host are bound to.
type AgentVersions struct {
	Hostd, Engine, Kernel string
}

// AgentTemplate is one template on one host.
type AgentTemplate struct {
	Name, BuildID, Status, Error string
}

// JoinToken lets one host join, once.
type JoinToken struct {
	Token     string // shown only here; the store keeps a digest
	ExpiresAt time.Time
	CASHA256  string // fingerprint of the cluster CA, for hostd join --ca-sha256
	Peers     []string
}
