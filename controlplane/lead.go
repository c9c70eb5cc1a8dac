package controlplane

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// lead does the leader's work. ctx ends with the leadership.
func (s *Server) lead(ctx context.Context) {
	term, ok := s.ownTerm(ctx)
	if !ok || !s.named(ctx) {
		return
	}
	s.log.InfoContext(ctx, "leading", "term", term)
	work := []func(context.Context){s.engine.Run, s.loops.Run}
	if s.acme != nil {
		work = append(work, s.acme.Run)
	}
	s.hosts.LeadWhile(ctx, term, work...)
	s.log.InfoContext(ctx, "no longer leading", "term", term)
}

// ownTerm returns the term in which this replica leads. Raft's current term could
// already be a successor's, and hosts obey the highest term that they have seen.
func (s *Server) ownTerm(ctx context.Context) (uint64, bool) {
	for ctx.Err() == nil {
		term := s.store.Term()
		_, err := s.store.VerifiedView(ctx)
		if err == nil && s.store.Term() == term {
			return term, true
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return 0, false
}

// named ensures that the cluster has a name before the leader calls hosts.
func (s *Server) named(ctx context.Context) bool {
	for ctx.Err() == nil {
		err := s.store.Update(ctx, func(tx *raftstore.Tx) error {
			for _, id := range []string{record.ClusterID, record.OriginID} {
				if _, ok := raftstore.Get(tx, record.Clusters, id); !ok {
					row := cluster.NewRow(0)
					row.ID = id
					raftstore.Put(tx, record.Clusters, row)
				}
			}
			return nil
		})
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}
