package controlplane

import (
	"context"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/rotation"
	"github.com/berth-cloud/berth/nodecert"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/settings"
	"github.com/berth-cloud/berth/timescale"
)

// trusted reports whether the holder of a certificate still belongs to the cluster.
// A certificate may be valid for longer than a membership lasts. A host must have a row,
// and a certificate that is no older: one of the same id may have been removed. A replica
// or a router must not have been removed; a replica that this one does not know is
// trusted, because it may be the leader that will announce it, and routers are known by
// their certificates alone.
func (s *Server) trusted(id pki.Identity, leaf *x509.Certificate) bool {
	switch id.Role {
	case pki.RoleHost:
		row, ok := raftstore.Get(s.store.View(), record.Hosts, id.Name)
		return ok && !pki.SignedAt(leaf).Before(row.CreatedAt.Add(-joinTakes))
	case pki.RoleReplica:
		row, ok := raftstore.Get(s.store.View(), record.Clusters, record.ClusterID)
		return !ok || !slices.Contains(row.Removed, id.Name) || s.store.IsMember(id.Name)
	case pki.RoleRouter:
		row, ok := raftstore.Get(s.store.View(), record.Clusters, record.ClusterID)
		return !ok || !slices.Contains(row.RemovedRouters, id.Name)
	}
	return true
}

// joinTakes is more than passes between the signing of a host's certificate and the commit
// of its row. Both have the clock of the leader.
const joinTakes = time.Minute

// renewer replaces this replica's certificate before it expires, or when another CA signs. A
// replica has the CA's key, so it asks nobody: an expired certificate, too, is replaced at the
// next start.
func (s *Server) renewer() *nodecert.Renewer {
	return &nodecert.Renewer{
		Certificate: s.me.node.Certificate(), Clock: time.Now, Jitter: rand.Float64, Log: s.log, Wake: s.caRead,
		Remedy: "see the error: ca.key in BERTH_PKI_DIR signs certificates",
		Ask: func(_ context.Context, csr []byte) ([]byte, error) {
			return s.me.ca.RenewCSR(csr, s.me.node.Leaf(), time.Now())
		},
		Authorities: func(context.Context, nodecert.Known) (nodecert.Authorities, error) { return s.me.ca.Authorities(), nil },
	}
}

// The intervals at which a replica without a leader asks whether it was removed, and at
// which it says so again.
const (
	askRemovedEvery = 5 * time.Second
	sayRemovedEvery = time.Minute
)

// askLimit limits how long another replica may take to answer.
var askLimit = timescale.Limit(2 * time.Second)

// watchRemoval logs, until ctx ends, that this replica was removed and what to do. The
// others do not talk to it any more, so that Raft itself only says that nobody answers.
func (s *Server) watchRemoval(ctx context.Context) {
	tick := time.NewTicker(askRemovedEvery)
	defer tick.Stop()
	var said time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		removed := s.wasRemoved(ctx)
		s.removed.Store(removed)
		if removed && (said.IsZero() || time.Since(said) >= sayRemovedEvery) {
			said = time.Now()
			s.log.ErrorContext(ctx, "this replica was removed from the cluster: it serves nothing and counts for nothing", "remedy",
				"if its place is taken, stop it for good (systemctl disable --now berth-controlplane) and remove its data; "+
					"to have it back: berth raft add-peer "+s.me.id+" "+s.me.advertise)
		}
		if !removed {
			said = time.Time{}
		}
	}
}

// wasRemoved reports whether this replica was a member once and is none any more. It has
// heard so itself, or another replica says so; a leader that is heard proves the contrary.
func (s *Server) wasRemoved(ctx context.Context) bool {
	st := s.store.Status()
	if st.LeaderID != "" || len(st.Peers) == 0 {
		return false
	}
	if !slices.ContainsFunc(st.Peers, func(p raftstore.Peer) bool { return p.ID == s.me.id }) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var removed atomic.Bool
	var wg sync.WaitGroup
	for _, address := range s.otherReplicas() {
		wg.Go(func() {
			if _, err := s.askPeer(ctx, address); errors.Is(err, errRemoved) {
				removed.Store(true)
			}
		})
	}
	wg.Wait()
	return removed.Load()
}

// followCA reads the files of the CA again, every so often, until ctx ends. Files that cannot
// be used change nothing.
func (s *Server) followCA(ctx context.Context) {
	settings.Follow(ctx, settingsEvery, func() (bool, error) { return s.me.ca.Reload(s.cfg.PKIDir) },
		func() {
			s.log.InfoContext(ctx, "the files of the CA have changed", "authorities", s.me.ca.IDs(), "signs", s.me.ca.Signs())
			select {
			case s.caRead <- struct{}{}:
			default:
			}
		},
		func(err error) {
			s.log.ErrorContext(ctx, "the files of the CA cannot be used; it stays as it was", "dir", s.cfg.PKIDir, "error", err)
		})
}

// rotation is what this replica knows of an exchange of the CA.
func (s *Server) rotation() rotation.Status {
	known := nodecert.Known{Trusts: s.me.node.Certificate().Trust().Kept(), Issuer: s.me.node.Certificate().KeptIssuer()}
	out := rotation.Status{Replica: s.me.id, Signs: s.me.ca.Signs(), Trusts: known.Trusts, Issuer: known.Issuer, Hosts: []string{}, UpMS: s.told.Up()}
	for _, p := range s.store.Status().Peers {
		out.Replicas = append(out.Replicas, pki.Member{ID: p.ID, Address: p.Address})
	}
	view := s.store.View()
	for _, h := range raftstore.All(view, record.Hosts) {
		out.Hosts = append(out.Hosts, h.ID)
	}
	var removed []string
	if row, ok := raftstore.Get(view, record.Clusters, record.ClusterID); ok {
		removed = row.RemovedRouters
	}
	out.Told = s.told.All(func(id pki.Identity) bool {
		return id.Role == pki.RoleHost && slices.Contains(out.Hosts, id.Name) || id.Role == pki.RoleRouter && !slices.Contains(removed, id.Name)
	})
	return out
}

// recheckEvery is the interval at which connections of removed members are closed.
const recheckEvery = time.Second

// watchMembers closes the connections of removed members until ctx ends.
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
