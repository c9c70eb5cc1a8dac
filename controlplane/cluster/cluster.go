// Package cluster is the operator's: the replicas and their store, the hosts, and
// who may join them.
package cluster

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config is what the operator's use cases need beside the core.
type Config struct {
	CAFingerprint string

	// Kept is for how long after a restore nothing is deleted that hosts have and
	// no row accounts for.
	Kept time.Duration

	// Events has what hosts found that belongs to no sandbox.
	Events EventStore

	// AskPeer asks another replica for its own status.
	AskPeer func(ctx context.Context, address string) (api.RaftStatus, error)
}

// EventStore answers what happened on a host that belongs to no sandbox.
type EventStore interface {
	Unowned(ctx context.Context, hostID string, since time.Time, limit int) ([]hostapi.Event, error)
}

// Cluster are the operator's use cases. Every one needs Caller.Admin, which
// httpapi checks for the whole route group.
type Cluster struct {
	core *core.Core
	cfg  Config
}

// New makes the use cases.
func New(c *core.Core, cfg Config) *Cluster { return &Cluster{core: c, cfg: cfg} }

// peerPatience bounds how long one replica that does not answer delays the status.
const peerPatience = 500 * time.Millisecond

// RaftStatus is this replica's view; any replica answers. The others are asked
// how they are, since only they know what they have applied.
func (s *Cluster) RaftStatus(ctx context.Context) (api.RaftStatus, error) {
	out := s.LocalStatus()
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range out.Peers {
		p := &out.Peers[i]
		if p.ID == out.NodeID {
			p.LastContactMS, p.AppliedIndex, p.Healthy = out.LastContactMS, out.AppliedIndex, out.LeaderID != ""
			continue
		}
		wg.Go(func() {
			st, err := s.cfg.AskPeer(ctx, p.Address)
			if err != nil || st.NodeID != p.ID {
				return
			}
			p.LastContactMS, p.AppliedIndex = st.LastContactMS, st.AppliedIndex
			p.Healthy = st.LeaderID != "" && st.LeaderID == out.LeaderID
		})
	}
	wg.Wait()
	return out, nil
}

// LocalStatus is what this replica knows without asking anyone.
func (s *Cluster) LocalStatus() api.RaftStatus {
	st := s.core.Store.Status()
	out := api.RaftStatus{
		NodeID: st.NodeID, State: st.State, LeaderID: st.LeaderID, LeaderAddress: st.LeaderAddress, Term: st.Term,
		CommitIndex: st.CommitIndex, AppliedIndex: st.AppliedIndex, LastLogIndex: st.LastLogIndex,
		LastSnapshotIndex: st.LastSnapshotIndex, LastContactMS: -1, Peers: []api.RaftPeer{},
	}
	switch {
	case st.State == "leader":
		out.LastContactMS = 0
	case !st.LastContact.IsZero():
		out.LastContactMS = max(0, s.core.Clock().Sub(st.LastContact)).Milliseconds()
	}
	for _, p := range st.Peers {
		out.Peers = append(out.Peers, api.RaftPeer{ID: p.ID, Address: p.Address, Voter: p.Voter, LastContactMS: -1})
	}
	return out
}

// AddPeer adds a voter, or gives one another address.
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
	// First: whoever hears of the member must not refuse it.
	if err := s.remember(ctx, in.ID, false); err != nil {
		return err
	}
	return memberError(s.core.Store.AddVoter(ctx, raftstore.Server{ID: in.ID, Address: in.Address}))
}

// remember notes that a replica is removed, or is no more.
func (s *Cluster) remember(ctx context.Context, id string, removed bool) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
		switch {
		case !ok && !removed, ok && slices.Contains(row.Removed, id) == removed:
			return nil
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
		return nil
	})
}

// NewRow is the row of a cluster that begins, or begins anew from a
// backup, which keep is for.
func NewRow(keep time.Duration) *record.Cluster {
	return &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "cl-" + core.RandomText(24), Keep: keep}
}

// RemovePeer removes a member. One that is none is not found.
func (s *Cluster) RemovePeer(ctx context.Context, id string) error {
	known, others := false, 0
	for _, p := range s.core.Store.Status().Peers {
		if p.ID == id {
			known = true
		} else {
			others++
		}
	}
	switch {
	case !known:
		return apierror.NotFound()
	case others == 0:
		return &apierror.Error{Code: apierror.EConflict, Message: "the last replica cannot be removed"}
	}
	// First: a leader that removes itself writes nothing afterwards. Who is a
	// member still is trusted all the same.
	if err := s.remember(ctx, id, true); err != nil {
		return err
	}
	return memberError(s.core.Store.RemovePeer(ctx, id))
}

// TransferLeadership gives the leadership to a member, or to any.
func (s *Cluster) TransferLeadership(ctx context.Context, in api.TransferLeadership) error {
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

// Backup writes a whole copy of the control store.
func (s *Cluster) Backup(ctx context.Context, w io.Writer) error {
	if _, err := s.core.Current(ctx); err != nil {
		return err
	}
	return s.core.Store.Backup(w)
}

// Restore puts a backup in place of the control store's content.
func (s *Cluster) Restore(ctx context.Context, r io.Reader) error {
	row := NewRow(s.cfg.Kept)
	if now, ok := raftstore.Get(s.core.Store.View(), record.Clusters, record.ClusterID); ok {
		row.Removed = slices.Clone(now.Removed) // of this cluster's replicas the backup knows nothing
	}
	err := s.core.Store.RestoreBackup(ctx, r, raftstore.Amend(record.Clusters, row))
	if errors.Is(err, raftstore.ErrBadBackup) {
		return &apierror.Error{Code: apierror.EInvalid, Message: "invalid backup", Detail: "it is damaged, incomplete or not a backup", Err: err}
	}
	var own *apierror.Error
	if errors.As(err, &own) { // of the reader: the body was too large or ended early
		return own
	}
	return core.StoreError(err)
}

// AcceptRestore ends the time after a restore in which nothing is deleted that
// hosts have and the backup does not know.
func (s *Cluster) AcceptRestore(ctx context.Context) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if row, ok := raftstore.Get(tx, record.Clusters, record.ClusterID); ok && row.Keep > 0 {
			row = row.Clone()
			row.Keep = 0
			raftstore.Put(tx, record.Clusters, row)
		}
		return nil
	})
}

// Agents lists every host, by id.
func (s *Cluster) Agents(ctx context.Context, o core.ListOptions) (page []api.Agent, next string, err error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(raftstore.All(view, record.Hosts), o)
	if err != nil {
		return nil, "", err
	}
	sessions := s.core.Hosts.Sessions()
	return core.Each(rows, func(row *record.Host) api.Agent { return show(view, row, sessions) }), next, nil
}

// show converts what is known of a host for the operator.
func show(r raftstore.Reader, row *record.Host, sessions map[string]hosts.Session) api.Agent {
	out := api.Agent{
		ID: row.ID, Address: row.Address, State: string(row.State), Draining: row.Draining, CreatedAt: api.Time{Time: row.CreatedAt},
		Sandboxes: len(raftstore.Find(r, record.Sandboxes, "agent", row.ID)), Templates: []api.AgentTemplate{},
	}
	session, heard := sessions[row.ID]
	if !heard {
		return out
	}
	hb := session.Heartbeat
	out.LastSeenAt, out.Ready = api.NewTime(session.LastSeen), hb.Ready
	out.Draining = out.Draining || hb.Draining
	out.Capacity = api.AgentCapacity{
		CPUs: hb.Capacity.CPUs, MemoryMB: hb.Capacity.MemoryMB, ReservedMB: hb.Capacity.ReservedMB + session.ReservedMB,
		Slots: hb.Capacity.Slots, SlotsUsed: hb.Capacity.SlotsUsed, DiskFreeBytes: hb.Capacity.DiskFreeBytes,
	}
	out.Versions = api.AgentVersions{Hostd: hb.Versions.Hostd, Engine: hb.Versions.Engine, Kernel: hb.Versions.Kernel}
	out.Templates = core.Each(hb.Templates, func(t hostapi.TemplateState) api.AgentTemplate {
		return api.AgentTemplate{Name: t.Name, BuildID: t.BuildID, Status: t.Status, Error: core.OrNull(t.Error)}
	})
	return out
}

// DrainAgent keeps new sandboxes off a host.
func (s *Cluster) DrainAgent(ctx context.Context, id string) (api.Agent, error) {
	return s.setDraining(ctx, id, true)
}

// UndrainAgent lets new sandboxes on a host again.
func (s *Cluster) UndrainAgent(ctx context.Context, id string) (api.Agent, error) {
	return s.setDraining(ctx, id, false)
}

// AgentEvents returns what a host told that belongs to no workspace's sandbox,
// such as recover.unmanaged, oldest first, as this replica's event store has it.
func (s *Cluster) AgentEvents(ctx context.Context, id string, q api.EventQuery) ([]api.Event, error) {
	if _, ok := raftstore.Get(s.core.Store.View(), record.Hosts, id); !ok {
		return nil, apierror.NotFound()
	}
	tail := core.DefaultEventTail
	switch {
	case q.Tail != nil:
		tail = *q.Tail
	case !q.Since.IsZero():
		tail = core.MaxEventTail
	}
	found, err := s.cfg.Events.Unowned(ctx, id, q.Since, tail)
	if err != nil {
		return nil, core.EventStoreError(err)
	}
	return core.Each(found, core.Event), nil
}

func (s *Cluster) setDraining(ctx context.Context, id string, draining bool) (api.Agent, error) {
	var out api.Agent
	sessions := s.core.Hosts.Sessions()
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Hosts, id)
		if !ok {
			return apierror.NotFound()
		}
		if row.Draining != draining {
			row = row.Clone()
			row.Draining = draining
			raftstore.Put(tx, record.Hosts, row)
		}
		out = show(tx.Snapshot(), row, sessions)
		return nil
	})
	return out, err
}

// RemoveAgent forgets a host. One that is up and still has sandboxes, volumes or
// snapshots that are nowhere else is kept; what a lost one had may be deleted
// without it.
func (s *Cluster) RemoveAgent(ctx context.Context, id string) error {
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Hosts, id)
		if !ok {
			return apierror.NotFound()
		}
		if n := len(raftstore.Find(tx, record.Sandboxes, "agent", id)); n > 0 && row.State == record.HostUp {
			return &apierror.Error{Code: apierror.EConflict, Message: "agent has sandboxes", Detail: "drain it and delete them first", Fields: map[string]any{"sandboxes": n}}
		}
		if n := kept(tx, id); n > 0 && row.State == record.HostUp {
			return &apierror.Error{
				Code: apierror.EConflict, Message: "agent has volumes or snapshots", Detail: "they are on this host alone: delete them first",
				Fields: map[string]any{"volumes_and_snapshots": n},
			}
		}
		raftstore.Delete(tx, record.Hosts, id)
		return nil
	})
	if err != nil {
		return err
	}
	s.core.Hosts.Forget(id)
	return nil
}

// How long a join token is valid.
const (
	defaultJoinTTL = time.Hour
	maxJoinTTL     = 24 * time.Hour
)

// CreateJoinToken makes a one-time token with which one host can join.
func (s *Cluster) CreateJoinToken(ctx context.Context, in api.CreateJoinToken) (api.JoinToken, error) {
	ttl := defaultJoinTTL
	if t := in.TTLSeconds; t != nil {
		if *t < 1 || *t > int64(maxJoinTTL.Seconds()) {
			return api.JoinToken{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", int(maxJoinTTL.Seconds()))
		}
		ttl = time.Duration(*t) * time.Second
	}
	secret := "bjt_" + core.RandomText(40)
	out := api.JoinToken{Token: secret, CASHA256: s.cfg.CAFingerprint, Peers: []string{}}
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		out.ExpiresAt = api.Time{Time: tx.Now().Add(ttl)}
		raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: hosts.JoinTokenID(secret)}, ExpiresAt: out.ExpiresAt.Time})
		return nil
	})
	if err != nil {
		return api.JoinToken{}, err
	}
	for _, p := range s.core.Store.Status().Peers {
		out.Peers = append(out.Peers, p.Address)
	}
	return out, nil
}

// kept counts what would be lost with a host: its volumes, and the snapshots
// that are not stored.
func kept(r raftstore.Reader, hostID string) int {
	n := len(raftstore.Find(r, record.Volumes, "agent", hostID))
	for _, s := range raftstore.Find(r, record.Snapshots, "agent", hostID) {
		if !s.Stored {
			n++
		}
	}
	return n
}
