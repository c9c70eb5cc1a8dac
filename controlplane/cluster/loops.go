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
)

// Loops are what keeps the cluster true: a host unheard for a lease is lost, the
// time after a restore passes, and join tokens expire.
func (s *Cluster) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{
		{Name: loopLost, Pass: func(ctx context.Context) { s.lostHosts(ctx, t) }},
		{Name: loopRestore, Run: func(ctx context.Context) { countDown(ctx, t) }},
		loops.Expiry(t, record.JoinTokens, func(now time.Time, token *record.JoinToken) bool { return !now.Before(token.ExpiresAt) }),
	}
}

// lostHosts concludes which hosts are lost. What was on them their things see to.
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
