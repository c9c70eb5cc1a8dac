package raftstore

import (
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Status is what one replica knows of itself and of the cluster.
type Status struct {
	NodeID            string
	State             string // "leader", "follower", "candidate" or "shutdown"
	LeaderID          string // empty when unknown
	LeaderAddress     string
	Term              uint64
	CommitIndex       uint64
	AppliedIndex      uint64
	LastLogIndex      uint64
	LastSnapshotIndex uint64
	LastContact       time.Time // with the leader; zero: never; on the leader: now
	Peers             []Peer    // every member, this one included
	Counters          Counters
}

// Peer is a member of the cluster.
type Peer struct {
	ID, Address  string
	Voter        bool
	LastContact  time.Time // known to the leader alone, zero elsewhere
	LastLogIndex uint64    // of the peer, as of LastContact
}

// Voters returns how many members have a vote.
func (st Status) Voters() int {
	n := 0
	for _, p := range st.Peers {
		if p.Voter {
			n++
		}
	}
	return n
}

// Counters count since the store was opened.
type Counters struct {
	Updates        uint64 // transactions that were written
	UpdateNanos    uint64 // time those took, in all
	Failed         uint64 // transactions that ended in an error
	Retries        uint64 // attempts that found what they had read changed
	Entries        uint64 // log entries proposed; Updates may share one
	Verifications  uint64 // rounds that proved leadership for reads
	Applied        uint64 // transactions applied by this replica
	AppliedStale   uint64 // refused because a guard did not hold
	AppliedUnique  uint64 // refused by a unique index
	Snapshots      uint64
	SnapshotBytes  int64 // size of the last one
	Restores       uint64
	LeadershipWon  uint64
	LeadershipLost uint64
}

type counters struct {
	updates, updateNanos, failures, retries, entries atomic.Uint64
	verifications, applies, stale, unique            atomic.Uint64
	snapshots, restores, leaderWins, leaderLosses    atomic.Uint64
	snapshotBytes                                    atomic.Int64
}

func (c *counters) updated(err error, took time.Duration) {
	if err != nil {
		c.failures.Add(1)
		return
	}
	c.updates.Add(1)
	c.updateNanos.Add(uint64(took))
}

func (c *counters) applied(err error) {
	switch {
	case err == nil:
		c.applies.Add(1)
	case errors.Is(err, errStale):
		c.stale.Add(1)
	default:
		c.unique.Add(1)
	}
}

func (c *counters) read() Counters {
	return Counters{
		Updates: c.updates.Load(), UpdateNanos: c.updateNanos.Load(), Failed: c.failures.Load(),
		Retries: c.retries.Load(), Entries: c.entries.Load(), Verifications: c.verifications.Load(),
		Applied: c.applies.Load(), AppliedStale: c.stale.Load(), AppliedUnique: c.unique.Load(),
		Snapshots: c.snapshots.Load(), SnapshotBytes: c.snapshotBytes.Load(), Restores: c.restores.Load(),
		LeadershipWon: c.leaderWins.Load(), LeadershipLost: c.leaderLosses.Load(),
	}
}

var stateNames = map[raft.RaftState]string{
	raft.Leader: "leader", raft.Follower: "follower", raft.Candidate: "candidate", raft.Shutdown: "shutdown",
}

// Status reports on this replica.
func (s *Store) Status() Status {
	leader, address := s.Leader()
	st := Status{
		NodeID: s.cfg.ID, State: stateNames[s.raft.State()], LeaderID: leader, LeaderAddress: address,
		Term: s.Term(), CommitIndex: s.raft.CommitIndex(), AppliedIndex: s.raft.AppliedIndex(),
		LastLogIndex: s.raft.LastIndex(), LastContact: s.raft.LastContact(), Counters: s.counters.read(),
	}
	// The library gives this number in no other way.
	st.LastSnapshotIndex, _ = strconv.ParseUint(s.raft.Stats()["last_snapshot_index"], 10, 64)
	leading := st.State == "leader"
	if leading {
		st.LastContact = time.Now()
	}
	for _, srv := range s.raft.GetConfiguration().Configuration().Servers {
		p := Peer{ID: string(srv.ID), Address: string(srv.Address), Voter: srv.Suffrage == raft.Voter}
		switch {
		case p.ID == s.cfg.ID:
			p.LastContact, p.LastLogIndex = st.LastContact, st.LastLogIndex
		case leading:
			if a := s.acks.peer(srv.ID); a.term == st.Term {
				p.LastContact, p.LastLogIndex = a.sent, a.lastLog
			}
		}
		st.Peers = append(st.Peers, p)
	}
	return st
}

// Leader is the id and address of the leader as far as this replica knows;
// both are empty when it knows of none.
func (s *Store) Leader() (id, address string) {
	a, i := s.raft.LeaderWithID()
	return string(i), string(a)
}

// Term is the current Raft term.
func (s *Store) Term() uint64 { return s.raft.CurrentTerm() }
