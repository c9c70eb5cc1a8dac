package raftstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Server is a replica and the address of its stream layer.
type Server struct {
	ID      string
	Address string
}

// Bootstrap makes this replica, if it has no state at all, begin a cluster of
// the given voters; otherwise it does nothing. Every first member may call it,
// with the same servers.
func (s *Store) Bootstrap(servers []Server) error {
	if s.raft.LastIndex() > 0 {
		return nil
	}
	var conf raft.Configuration
	for _, srv := range servers {
		conf.Servers = append(conf.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(srv.ID), Address: raft.ServerAddress(srv.Address),
		})
	}
	err := s.waits.call(s.ctx, func() error { return s.raft.BootstrapCluster(conf).Error() })
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// AddNonvoter adds a replica that gets every record and has no vote, or changes the
// address of a member, which keeps its vote if it has one, on the leader. So a replica
// that is still empty, or never comes, does not count for the majority.
func (s *Store) AddNonvoter(ctx context.Context, srv Server) error {
	err := s.waits.call(ctx, func() error {
		return s.raft.AddNonvoter(raft.ServerID(srv.ID), raft.ServerAddress(srv.Address), 0, 0).Error()
	})
	return s.changeError("add replica "+srv.ID, err)
}

// AddVoter adds a replica with a vote, gives a member its vote, or changes the address
// of one, on the leader.
func (s *Store) AddVoter(ctx context.Context, srv Server) error {
	err := s.waits.call(ctx, func() error {
		return s.raft.AddVoter(raft.ServerID(srv.ID), raft.ServerAddress(srv.Address), 0, 0).Error()
	})
	return s.changeError("add replica "+srv.ID, err)
}

// RemovePeer takes a replica out, on the leader; that it is not in is no
// error. A leader that removes itself steps down.
func (s *Store) RemovePeer(ctx context.Context, id string) error {
	err := s.waits.call(ctx, func() error { return s.raft.RemoveServer(raft.ServerID(id), 0, 0).Error() })
	return s.changeError("remove replica "+id, err)
}

// ErrUnknownPeer means that no voter has the id.
var ErrUnknownPeer = errors.New("no such replica")

// TransferLeadership hands leadership to a voter, or to the one whose log is
// the longest when id is empty.
func (s *Store) TransferLeadership(ctx context.Context, id string) error {
	transfer := func() raft.Future { return s.raft.LeadershipTransfer() }
	if id != "" {
		address, ok := s.voter(id)
		if !ok {
			return fmt.Errorf("transfer leadership to %s: %w", id, ErrUnknownPeer)
		}
		if id == s.cfg.ID && s.IsLeader() {
			return nil
		}
		transfer = func() raft.Future { return s.raft.LeadershipTransferToServer(raft.ServerID(id), address) }
	}
	err := s.waits.call(ctx, func() error { return transfer().Error() })
	return s.changeError("transfer leadership", err)
}

// IsMember reports whether a replica is in the cluster, as far as this one knows.
func (s *Store) IsMember(id string) bool {
	for _, srv := range s.raft.GetConfiguration().Configuration().Servers {
		if srv.ID == raft.ServerID(id) {
			return true
		}
	}
	return false
}

func (s *Store) voter(id string) (raft.ServerAddress, bool) {
	for _, srv := range s.raft.GetConfiguration().Configuration().Servers {
		if srv.ID == raft.ServerID(id) && srv.Suffrage == raft.Voter {
			return srv.Address, true
		}
	}
	return "", false
}

// gone is why the store takes no work.
func (s *Store) gone() error {
	if err := s.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return ErrClosed
}

// changeError keeps "certainly not done" apart from "unknown", as Update does.
func (s *Store) changeError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%s: %w", what, ErrNotLeader)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("%s: %w: %w", what, ErrLeadershipLost, err)
	case errors.Is(err, errNoWait):
		return fmt.Errorf("%s: %w", what, s.gone())
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// Barrier returns when this replica, the leader, has applied everything that
// was committed before the call.
func (s *Store) Barrier(ctx context.Context) error {
	return s.changeError("barrier", s.waits.call(ctx, func() error { return s.raft.Barrier(0).Error() }))
}
