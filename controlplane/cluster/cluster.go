// Package cluster contains the operator's use cases: replicas and their store,
// hosts, and join tokens.
package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config configures Cluster.
type Config struct {
	// CAFingerprint returns the fingerprint of the CA that signs.
	CAFingerprint func() string

	// Kept is for how long after a restore hosts keep what has no row.
	Kept time.Duration

	// Missing counts the sealed values of a backup by the keys that this replica has not;
	// nil: it has all.
	Missing func(r raftstore.Reader) map[string]int

	// Events has the events that belong to no sandbox.
	Events EventStore

	// Evacuated returns what an evacuation makes of a sandbox: it moves, it waits for its
	// turn or for something else to end, or why it stays.
	Evacuated func(r raftstore.Reader, s *record.Sandbox) (moving, waiting bool, why string)

	// A new replica votes once it has been heard and has had every record for StableAfter.
	// A voter that was silent for DeadAfter loses its place to a new one; 0: never.
	StableAfter, DeadAfter time.Duration

	// Spread returns how full the hosts are that take part in a rebalancing, what moves
	// between them for it, and what could not be moved; again: as if it had not been tried.
	Spread func(r raftstore.Reader, again bool) (hosts []placement.Load, moving []placement.Shift, failed []*record.Sandbox)

	// AskPeer asks another replica for its own status.
	AskPeer func(ctx context.Context, address string) (api.RaftStatus, error)
}

// EventStore returns the events of a host that belong to no sandbox.
type EventStore interface {
	Unowned(ctx context.Context, hostID string, since time.Time, limit int) ([]hostapi.Event, error)
}

// Cluster contains the operator's use cases. They require Caller.Admin, which
// httpapi checks for the whole route group.
type Cluster struct {
	core *core.Core
	cfg  Config

	// members is held while members are changed, and while the leader decides on that.
	members sync.Mutex
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Cluster { return &Cluster{core: c, cfg: cfg} }

// peerPatience limits how long a replica that does not answer delays the status.
const peerPatience = 500 * time.Millisecond

// RaftStatus returns this replica's view of the cluster; any replica answers. It
// asks the others for their status, because only they know what they have applied.
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

// LocalStatus returns what this replica knows by itself.
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

// Agents returns a page of the hosts, newest first.
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
	return core.Each(rows, func(row *record.Host) api.Agent { return s.show(view, row, sessions) }), next, nil
}

// show converts a host's row and session to the public type.
func (s *Cluster) show(r raftstore.Reader, row *record.Host, sessions map[string]hosts.Session) api.Agent {
	out := api.Agent{
		ID: row.ID, Address: row.Address, State: string(row.State), Draining: row.Draining, CreatedAt: api.Time{Time: row.CreatedAt},
		Sandboxes: len(raftstore.Find(r, record.Sandboxes, "agent", row.ID)), Templates: []api.AgentTemplate{}, Evacuation: s.evacuation(r, row),
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
	out.Versions = api.AgentVersions{Hostd: hb.Versions.Hostd, Engine: hb.Versions.ShortEngine(), Kernel: hb.Versions.Kernel}
	out.Templates = core.Each(hb.Templates, func(t hostapi.TemplateState) api.AgentTemplate {
		return api.AgentTemplate{Name: t.Name, BuildID: t.BuildID, Status: t.Status, Error: core.OrNull(t.Error)}
	})
	return out
}

// DrainAgent keeps new sandboxes away from a host.
func (s *Cluster) DrainAgent(ctx context.Context, id string) (api.Agent, error) {
	return s.setDraining(ctx, id, true)
}

// UndrainAgent allows new sandboxes on a host again.
func (s *Cluster) UndrainAgent(ctx context.Context, id string) (api.Agent, error) {
	return s.setDraining(ctx, id, false)
}

// AgentEvents returns the events of a host that belong to no workspace's sandbox,
// such as recover.unmanaged, oldest first, from this replica's event store.
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
		if row.Draining != draining || !draining && row.Evacuation != nil {
			row = row.Clone()
			row.Draining = draining
			if !draining {
				row.Evacuation = nil // what is under way stays, unless it has arrived
			}
			raftstore.Put(tx, record.Hosts, row)
		}
		out = s.show(tx.Snapshot(), row, sessions)
		return nil
	})
	return out, err
}

// RemoveAgent removes a host. It refuses one that is up and has sandboxes, or
// volumes or snapshots that exist nowhere else. A lost host is removed with all of
// them.
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

// The validity of join tokens.
const (
	defaultJoinTTL = time.Hour
	maxJoinTTL     = 24 * time.Hour
)

// CreateJoinToken creates a token with which one host can join, once.
func (s *Cluster) CreateJoinToken(ctx context.Context, in api.CreateJoinToken, i core.Idempotency) (api.JoinToken, error) {
	ttl := defaultJoinTTL
	if t := in.TTLSeconds; t != nil {
		if *t < 1 || *t > int64(maxJoinTTL.Seconds()) {
			return api.JoinToken{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", int(maxJoinTTL.Seconds()))
		}
		ttl = time.Duration(*t) * time.Second
	}
	return core.Once(ctx, s.core, core.Caller{UserID: core.ByOperator}, "POST /v1/admin/join-tokens", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.JoinToken, error) {
			row, ok := raftstore.Get(view, record.JoinTokens, key.ResourceID)
			if !ok {
				return api.JoinToken{}, core.ErrKeyGone("join token")
			}
			secret, err := s.core.OpenAnswer(key.Result, joinTokenContext(row.ID))
			if err != nil {
				return api.JoinToken{}, apierror.As(err)
			}
			return s.joinToken(row, secret), nil
		},
		func(keyID string) (api.JoinToken, error) { return s.createJoinToken(ctx, ttl, i, keyID) })
}

func joinTokenContext(id string) string { return "join-token/" + id }

func (s *Cluster) createJoinToken(ctx context.Context, ttl time.Duration, i core.Idempotency, keyID string) (out api.JoinToken, err error) {
	secret := "bjt_" + core.RandomText(40)
	id := hosts.JoinTokenID(secret)
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row := &record.JoinToken{Meta: record.Meta{ID: id}, ExpiresAt: tx.Now().Add(ttl)}
		raftstore.Put(tx, record.JoinTokens, row)
		out = s.joinToken(row, secret)
		return core.ClaimAnswer(tx, s.core, i, keyID, id, out)
	})
	return out, err
}

func (s *Cluster) joinToken(row *record.JoinToken, secret string) api.JoinToken {
	out := api.JoinToken{Token: secret, CASHA256: s.cfg.CAFingerprint(), Peers: []string{}, ExpiresAt: api.Time{Time: row.ExpiresAt}}
	for _, p := range s.core.Store.Status().Peers {
		out.Peers = append(out.Peers, p.Address)
	}
	return out
}

// kept counts what would be lost with a host: volumes, and snapshots that are not
// stored.
func kept(r raftstore.Reader, hostID string) int {
	n := len(raftstore.Find(r, record.Volumes, "agent", hostID))
	for _, s := range raftstore.Find(r, record.Snapshots, "agent", hostID) {
		if !s.Stored {
			n++
		}
	}
	return n
}
