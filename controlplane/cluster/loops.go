package cluster

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The names of the loops.
const (
	loopLost    = "lost hosts"
	loopRestore = "time after a restore"
	loopVotes   = "votes of replicas"
)

// Loops returns the loops of the cluster. They declare hosts lost that have been
// silent for a lease, count down the time after a restore, decide which replicas vote,
// and remove expired join tokens.
func (s *Cluster) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{
		{Name: loopLost, Pass: func(ctx context.Context) { s.lostHosts(ctx, t) }},
		{Name: loopRestore, Run: func(ctx context.Context) { countDown(ctx, t) }},
		{Name: loopVotes, Pass: newVotes(s, t).pass},
		loops.Expiry(t, record.JoinTokens, func(now time.Time, token *record.JoinToken) bool { return !now.Before(token.ExpiresAt) }),
	}
}

// lostHosts marks hosts as lost. The loops of resources handle what was on them.
func (s *Cluster) lostHosts(ctx context.Context, t *loops.Term) {
	for _, id := range s.core.Hosts.Overdue(raftstore.All(s.core.Store.View(), record.Hosts)) {
		s.core.Logger.WarnContext(ctx, "host is lost", "agent_id", id)
		t.Update(ctx, loopLost, func(tx *raftstore.Tx) error {
			if a, ok := raftstore.Get(tx, record.Hosts, id); ok && a.State == record.HostUp {
				c := a.Clone()
				c.State = record.HostLost
				raftstore.Put(tx, record.Hosts, c)
			}
			return nil
		})
	}
}
