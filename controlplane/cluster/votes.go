package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// votes gives newcomers their votes and takes those of dead replicas, for one leadership.
// The idea is raft-autopilot's, with one difference: a dead voter stays until another
// replica is there to take its place, because nobody else knows how many there should be.
//
// It counts time by its own passes and from the beginning of the leadership. So a leader
// that has just begun, or was frozen for an hour, takes nobody for dead.
type votes struct {
	cluster *Cluster
	term    *loops.Term

	last    time.Time // of the pass before
	lastLog uint64    // the leader's last entry then
	seen    map[string]*seen
}

// seen is what the leader has seen of a replica.
type seen struct {
	contact time.Time     // what Raft said last
	silent  time.Duration // since it was heard
	steady  time.Duration // for how long it was heard, without a pause of heardWithin
	current time.Duration // for how long it also had every entry of the pass before
	told    string        // what was logged of it
	noted   bool          // its removal is in the audit log
	pledged bool          // its vote is in the audit log
}

// heardWithin is how long a replica may be silent and count as there. Raft sends a
// heartbeat each tenth of BERTH_RAFT_TIMEOUT.
var heardWithin = timescale.Limit(5 * time.Second)

// changeLimit limits how long a pass waits for a change of members.
var changeLimit = timescale.Limit(10 * time.Second)

// longestPause is the most time that one pass counts.
const longestPause = 3 * time.Second

func newVotes(s *Cluster, t *loops.Term) *votes {
	return &votes{cluster: s, term: t, seen: map[string]*seen{}}
}

// pass makes at most one change, so that the next one sees what came of it.
func (v *votes) pass(ctx context.Context) {
	v.cluster.members.Lock()
	defer v.cluster.members.Unlock()
	st := v.term.Store.Status()
	if st.State != "leader" {
		return
	}
	v.look(st)
	all := v.judge(st)
	do, id := decide(all)
	v.tell(ctx, all, do)
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	switch do {
	case promote:
		v.promote(ctx, st, id)
	case remove:
		v.remove(ctx, st, id)
	}
}

// look counts for how long each replica has been heard or silent.
func (v *votes) look(st raftstore.Status) {
	now := v.term.Clock()
	var step time.Duration
	if !v.last.IsZero() {
		step = min(max(0, now.Sub(v.last)), longestPause)
	}
	members := map[string]bool{}
	for _, p := range st.Peers {
		members[p.ID] = true
		s := v.seen[p.ID]
		if s == nil {
			v.seen[p.ID] = &seen{contact: p.LastContact}
			continue
		}
		s.pledged = s.pledged && !p.Voter
		if p.ID == st.NodeID || p.LastContact.After(s.contact) {
			s.contact, s.silent, s.noted = p.LastContact, 0, false
			s.steady += step
		} else if s.silent += step; s.silent < heardWithin {
			s.steady += step
		} else {
			s.steady = 0
		}
		if s.steady > 0 && p.LastLogIndex >= v.lastLog {
			s.current += step
		} else {
			s.current = 0
		}
	}
	for id := range v.seen {
		if !members[id] {
			delete(v.seen, id)
		}
	}
	v.last, v.lastLog = now, st.LastLogIndex
}

// member is what decide knows of a replica.
type member struct {
	id     string
	voter  bool
	heard  bool // lately
	stable bool // it was heard for long enough, and just now; a newcomer also has every entry
	dead   bool // it was silent for long enough
}

func (v *votes) judge(st raftstore.Status) []member {
	cfg := v.cluster.cfg
	out := make([]member, 0, len(st.Peers))
	for _, p := range st.Peers {
		s := v.seen[p.ID]
		long := s.steady
		if !p.Voter {
			long = s.current
		}
		heard := s.silent < heardWithin
		out = append(out, member{
			id: p.ID, voter: p.Voter, heard: heard,
			stable: s.silent == 0 && !s.contact.IsZero() && long > 0 && long >= cfg.StableAfter,
			dead:   !heard && cfg.DeadAfter > 0 && s.silent >= cfg.DeadAfter,
		})
	}
	return out
}

type change int

const (
	nothing change = iota
	promote
	remove
)

// decide returns the next change. Nothing changes without a stable newcomer, nor unless a
// majority of the voters is heard. No change lowers the number of voters that may be lost
// beyond those that are silent:
//
//   - A vote for a newcomer raises the majority, if the number of voters is odd. So it has
//     to wait until every voter is stable, or its place is free.
//   - The end of a dead voter makes a place free. The majority does not rise, and those
//     that are heard stay.
func decide(all []member) (do change, id string) {
	voters, heard, stable := 0, 0, 0
	newcomer, dead := "", ""
	for _, m := range all {
		switch {
		case m.voter:
			voters++
			if m.heard {
				heard++
			}
			if m.stable {
				stable++
			}
			if m.dead && dead == "" {
				dead = m.id
			}
		case m.stable && newcomer == "":
			newcomer = m.id
		}
	}
	switch {
	case newcomer == "" || heard <= voters/2:
		return nothing, ""
	case voters%2 == 0 || stable == voters:
		return promote, newcomer
	case dead != "":
		return remove, dead
	}
	return nothing, ""
}

// tell logs what an operator has to know and cannot see from the members alone, once.
func (v *votes) tell(ctx context.Context, all []member, do change) {
	waits := do == nothing && slices.ContainsFunc(all, func(m member) bool { return !m.voter && m.stable })
	for _, m := range all {
		s, say := v.seen[m.id], ""
		switch {
		case m.voter && m.dead:
			say = "dead"
		case m.voter && !m.heard && waits:
			say = "awaited"
		}
		if say == "" || say == s.told {
			if m.heard {
				s.told = ""
			}
			continue
		}
		s.told = say
		if say == "dead" {
			v.term.Logger.WarnContext(ctx, "a replica that votes is dead", "replica_id", m.id, "silent", s.silent,
				"remedy", "bring it back, or add another: berth raft add-peer; it takes its place")
		} else {
			v.term.Logger.WarnContext(ctx, "a new replica waits for its vote, because another is silent", "replica_id", m.id, "silent", s.silent,
				"limit", v.cluster.cfg.DeadAfter, "remedy", "bring it back, or give its place away: berth raft remove-peer "+m.id)
		}
	}
}

// promote gives a newcomer its vote.
func (v *votes) promote(ctx context.Context, st raftstore.Status, id string) {
	i := slices.IndexFunc(st.Peers, func(p raftstore.Peer) bool { return p.ID == id })
	// This comes first: if the leader dies in between, no other writes it.
	if s := v.seen[id]; !s.pledged {
		if !v.term.Update(ctx, loopVotes, func(tx *raftstore.Tx) error {
			putAudit(tx, st.NodeID, "promotePeer", id)
			return nil
		}) {
			return
		}
		s.pledged = true
	}
	if err := v.term.Store.AddVoter(ctx, raftstore.Server{ID: id, Address: st.Peers[i].Address}); err != nil {
		v.term.Logger.WarnContext(ctx, "a new replica did not get its vote", "replica_id", id, "error", err)
		return
	}
	v.term.Logger.InfoContext(ctx, "a new replica votes from now on", "replica_id", id)
}

// remove removes a dead voter, whose place a newcomer takes with the next pass.
func (v *votes) remove(ctx context.Context, st raftstore.Status, id string) {
	s := v.seen[id]
	if !v.term.Update(ctx, loopVotes, func(tx *raftstore.Tx) error {
		setRemoved(tx, id, true)
		if !s.noted {
			putAudit(tx, st.NodeID, "removePeer", id)
		}
		return nil
	}) {
		return
	}
	s.noted = true
	if err := v.term.Store.RemovePeer(ctx, id); err != nil {
		v.term.Logger.WarnContext(ctx, "a dead replica was not removed", "replica_id", id, "error", err)
		return
	}
	v.term.Logger.WarnContext(ctx, "a dead replica was removed: another takes its place", "replica_id", id, "silent", s.silent)
}

// putAudit writes that the leader did something with another replica.
func putAudit(tx *raftstore.Tx, leader, action, id string) {
	core.PutAudit(tx, record.AuditEntry{
		Chain: record.AuditOperators, ActorType: core.ActorReplica, ActorID: leader, Action: action, Resource: "raft/peers/" + id, Outcome: core.OutcomeOK,
	})
}
