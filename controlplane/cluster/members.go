package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// AddPeer adds a replica, which votes once it is stable (see votes), or changes the address
// of a member.
func (s *Cluster) AddPeer(ctx context.Context, in api.AddPeer) error {
	switch {
	case in.ID == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "id is required"}
	case in.Address == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "address is required"}
	}
	if err := (pki.Member{ID: in.ID, Address: in.Address}).Validate(); err != nil {
		return apierror.Invalid("invalid peer", "%s", err)
	}
	core.Concerns(ctx, "raft/peers/"+in.ID)
	s.members.Lock()
	defer s.members.Unlock()
	if err := addable(s.core.Store.Status(), in); err != nil {
		return err
	}
	if err := s.core.Announce(ctx); err != nil {
		return err
	}
	// This comes first, so that no replica refuses the new member.
	if err := s.remember(ctx, in.ID, false); err != nil {
		return err
	}
	return memberError(s.core.Store.AddNonvoter(ctx, raftstore.Server{ID: in.ID, Address: in.Address}))
}

// addable refuses what Raft would refuse once the replica is trusted again, which nothing would
// take back, and another address of a voter on which a majority depends: if it is a wrong one,
// the change is never committed, and nobody can lead any more.
func addable(st raftstore.Status, in api.AddPeer) error {
	for _, p := range st.Peers {
		switch {
		case p.ID != in.ID && p.Address == in.Address:
			return &apierror.Error{
				Code: apierror.EConflict, Message: "another replica has this address",
				Detail: fmt.Sprintf("replica %s has it: to give it away, remove that one first (berth raft remove-peer %s)", p.ID, p.ID),
			}
		case p.ID == in.ID && p.ID != st.NodeID && p.Voter && p.Address != in.Address && st.State == "leader":
			if heard, silent := heardWithout(st, p.ID); heard <= (heard+len(silent)+1)/2 {
				return noMajority("if "+p.ID+" were not reached by it", silent)
			}
		}
	}
	return nil
}

// removable refuses the removal of a voter after which no majority would be heard. It is those
// that stay who commit it: it never would be, and nobody could lead any more.
func removable(st raftstore.Status, p raftstore.Peer) error {
	if !p.Voter || st.State != "leader" { // who does not lead has heard nobody, and removes nobody
		return nil
	}
	if heard, silent := heardWithout(st, p.ID); heard <= (heard+len(silent))/2 {
		return noMajority("without "+p.ID, silent)
	}
	return nil
}

// heardWithout returns how many voters other than one the leader has heard lately, itself
// included, and who of them is silent.
func heardWithout(st raftstore.Status, id string) (heard int, silent []string) {
	for _, p := range st.Peers {
		switch {
		case !p.Voter || p.ID == id:
		case p.ID == st.NodeID || time.Since(p.LastContact) < heardWithin: // both are of the system's clock
			heard++
		default:
			silent = append(silent, p.ID)
		}
	}
	return heard, silent
}

func noMajority(when string, silent []string) error {
	detail := when + " there would be none: add another replica first"
	if names := strings.Join(silent, " and "); names != "" {
		detail = fmt.Sprintf("%s there would be none, as long as %s is not heard: bring %s back, or remove it first", when, names, names)
	}
	return &apierror.Error{Code: apierror.EConflict, Message: "no majority of the replicas would be left", Detail: detail}
}

// remember records whether a replica has been removed.
func (s *Cluster) remember(ctx context.Context, id string, removed bool) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		setRemoved(tx, id, removed)
		return nil
	})
}

// setRemoved records whether a replica has been removed.
func setRemoved(tx *raftstore.Tx, id string, removed bool) {
	row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
	switch {
	case !ok && !removed, ok && slices.Contains(row.Removed, id) == removed:
		return
	case !ok:
		row = NewRow(0)
	default:
		row = row.Clone()
	}
	row.Removed = slices.DeleteFunc(row.Removed, func(r string) bool { return r == id })
	if removed {
		row.Removed = append(row.Removed, id)
	}
	raftstore.Put(tx, record.Clusters, row)
}

// NewRow returns the row of a new cluster, or of one restored from a backup, which
// needs keep.
func NewRow(keep time.Duration) *record.Cluster {
	return &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "cl-" + core.RandomText(24), Keep: keep}
}

// RemovePeer removes a member. If the replica is not a member, the error is not
// found.
func (s *Cluster) RemovePeer(ctx context.Context, id string) error {
	s.members.Lock()
	defer s.members.Unlock()
	st := s.core.Store.Status()
	i := slices.IndexFunc(st.Peers, func(p raftstore.Peer) bool { return p.ID == id })
	switch {
	case i < 0:
		return apierror.NotFound()
	case st.Peers[i].Voter && st.Voters() == 1:
		return &apierror.Error{Code: apierror.EConflict, Message: "the last replica cannot be removed"}
	}
	if err := removable(st, st.Peers[i]); err != nil {
		return err
	}
	// This comes first, because a leader that has removed itself cannot write any
	// more. A replica that is still a member is trusted all the same.
	if err := s.remember(ctx, id, true); err != nil {
		return err
	}
	if err := s.core.Announce(ctx); err != nil { // unless that has written the entry: a restored backup may have the name
		return err
	}
	return memberError(s.core.Store.RemovePeer(ctx, id))
}

// maxRemovedRouters limits the names that are remembered.
const maxRemovedRouters = 1000

// RemoveRouter refuses the certificates of a router of databases from now on, for ever: a
// router is known by its certificate alone, so one that is to come back gets another name.
func (s *Cluster) RemoveRouter(ctx context.Context, name string) error {
	if err := pki.ValidName(name); err != nil {
		return apierror.NotFound()
	}
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
		switch {
		case !ok:
			row = NewRow(0)
		case slices.Contains(row.RemovedRouters, name):
			return nil
		case len(row.RemovedRouters) >= maxRemovedRouters:
			return &apierror.Error{Code: apierror.EConflict, Message: "too many routers were removed", Detail: "a new router may have a new name: there is no need to remove one that never runs again"}
		default:
			row = row.Clone()
		}
		row.RemovedRouters = append(row.RemovedRouters, name)
		raftstore.Put(tx, record.Clusters, row)
		return nil
	})
}

// TransferLeadership transfers the leadership to a member, or to any.
func (s *Cluster) TransferLeadership(ctx context.Context, in api.TransferLeadership) error {
	if in.To != "" {
		core.Concerns(ctx, "raft/peers/"+in.To)
	}
	if err := s.core.Announce(ctx); err != nil { // afterwards this replica does not lead
		return err
	}
	return memberError(s.core.Store.TransferLeadership(ctx, in.To))
}

func memberError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrUnknownPeer):
		return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no voter has this id", Err: err}
	case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrLeadershipLost), errors.Is(err, raftstore.ErrClosed):
		return core.StoreError(err)
	}
	return apierror.Unavailable("the membership was not changed", err)
}
