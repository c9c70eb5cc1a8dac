package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/timescale"
)

// Config says how a replica is opened. Only ID, Dir, Tables and one of
// StreamLayer and Transport must be set.
type Config struct {
	// ID names this replica for ever; it must never be reused with an empty Dir
	// without removing it from the cluster first.
	ID string

	// Dir holds the log (raft.db) and the snapshots. It is made if need be, and
	// only one process can have it open.
	Dir string

	Tables []AnyTable

	// StreamLayer carries Raft's connections; its Addr is this replica's address
	// in the cluster. The store closes it. Transport replaces it and the code
	// above it, for tests.
	StreamLayer raft.StreamLayer
	Transport   raft.Transport

	// HeartbeatTimeout is how long a follower waits for the leader before it
	// calls an election; ElectionTimeout is how long a candidate waits for votes.
	// Both are randomised up to twice their value. Default 500 ms: a killed
	// leader is replaced in less than 1 s at the median, against 2 to 3 s with the
	// library's 1 s. The leader sends a heartbeat every tenth of it, which leaves
	// nine to be lost before anyone votes: with 300 ms, two processors that guests
	// kept busy cost a leader every few minutes.
	HeartbeatTimeout time.Duration
	ElectionTimeout  time.Duration

	// LeaderLease is how long a leader goes on without hearing from a majority.
	// Default: HeartbeatTimeout. Stepping down sooner gains nothing, since the
	// others do not replace it sooner, and costs a needless election whenever
	// the machine stalls.
	LeaderLease time.Duration

	// CommitInterval is how soon a follower learns of a commit when nothing else
	// is written. Default 50 ms.
	CommitInterval time.Duration

	// RPCTimeout bounds one dial, read or write between replicas. Default 3 s.
	RPCTimeout time.Duration

	// DiskTimeout is how long one write of the log may take before this replica
	// leads no more: it falls silent, and the others elect another. Default 5 s,
	// or ten times HeartbeatTimeout where that is more: a busy disk is no reason.
	DiskTimeout time.Duration
	diskFault   func() // for tests: called before each write

	// SnapshotThreshold is the number of log entries after which a snapshot is
	// taken, looked at every SnapshotInterval; TrailingLogs entries are kept
	// behind it so that a follower that was away for a while needs no snapshot.
	// Defaults 8192, 60 s, 10240. SnapshotRetain old snapshots are kept (2).
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
	SnapshotRetain    int

	// CloseTimeout bounds how long Close waits for leadership to move and for
	// transactions under way. Default 3 s.
	CloseTimeout time.Duration

	Logger *slog.Logger     // default slog.Default()
	Clock  func() time.Time // default time.Now; only the leader's is used
}

const (
	maxEntryBytes = 256 << 10 // of the transactions put into one entry, beyond the first
	maxTxnBytes   = 512 << 10 // raft.SuggestedMaxDataSize: larger entries delay heartbeats
)

func (c Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.HeartbeatTimeout, 500*time.Millisecond)
	def(&c.ElectionTimeout, c.HeartbeatTimeout)
	def(&c.LeaderLease, c.HeartbeatTimeout)
	def(&c.CommitInterval, 50*time.Millisecond)
	def(&c.RPCTimeout, timescale.Limit(3*time.Second))
	def(&c.DiskTimeout, max(5*time.Second, 10*c.HeartbeatTimeout))
	def(&c.SnapshotInterval, time.Minute)
	def(&c.CloseTimeout, 3*time.Second)
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 8192
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 10240
	}
	if c.SnapshotRetain == 0 {
		c.SnapshotRetain = 2
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	switch {
	case c.ID == "":
		return c, errors.New("raftstore config: no ID")
	case c.Dir == "":
		return c, errors.New("raftstore config: no Dir")
	case (c.StreamLayer == nil) == (c.Transport == nil):
		return c, errors.New("raftstore config: exactly one of StreamLayer and Transport")
	}
	if err := raft.ValidateConfig(c.raftConfig(nil)); err != nil {
		return c, fmt.Errorf("raftstore config: %w", err)
	}
	return c, nil
}

func (c Config) raftConfig(notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.ID)
	rc.HeartbeatTimeout = c.HeartbeatTimeout
	rc.ElectionTimeout = c.ElectionTimeout
	rc.LeaderLeaseTimeout = c.LeaderLease
	rc.CommitTimeout = c.CommitInterval
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.SnapshotInterval = c.SnapshotInterval
	rc.TrailingLogs = c.TrailingLogs
	rc.NotifyCh = notify
	rc.NoLegacyTelemetry = true
	// A replica that is removed stays a silent follower until it is stopped.
	rc.ShutdownOnRemove = false
	rc.Logger = newHCLog(c.Logger)
	return rc
}
