package controlplane

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// trusted reports whether who shows a certificate of the cluster is of it still.
// A certificate lives for years; a member for as long as it is one. A host is one
// that has an agent. A replica that this one has never heard of is trusted: it
// may be the leader who tells of it. One that was removed is not.
func (s *Server) trusted(id pki.Identity) bool {
	switch id.Role {
	case pki.RoleHost:
		_, ok := raftstore.Get(s.store.View(), record.Hosts, id.Name)
		return ok
	case pki.RoleReplica:
		row, ok := raftstore.Get(s.store.View(), record.Clusters, record.ClusterID)
		return !ok || !slices.Contains(row.Removed, id.Name) || s.store.IsMember(id.Name)
	}
	return true
}

// recheckEvery is how soon the connections of a removed member are cut.
const recheckEvery = time.Second

// watchMembers cuts off who is removed, until ctx ends.
func (s *Server) watchMembers(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.port.Recheck()
		}
	}
}
