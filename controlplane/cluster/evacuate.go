package cluster

import (
	"context"
	"errors"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	defaultAtOnce = 4
	maxAtOnce     = 64
	maxStays      = 100 // in an answer
)

// Agent returns one host.
func (s *Cluster) Agent(ctx context.Context, id string) (api.Agent, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Agent{}, err
	}
	row, ok := raftstore.Get(view, record.Hosts, id)
	if !ok {
		return api.Agent{}, apierror.NotFound()
	}
	return s.show(view, row, s.core.Hosts.Sessions()), nil
}

// errNoStore refuses an evacuation, because everything moves by the snapshot store.
var errNoStore = &apierror.Error{
	Code: apierror.EConflict, Message: "agent has no snapshot store",
	Detail: "what is on a host moves by the snapshot store: configure one (BERTH_SNAPSHOT_STORE) on this host and the others",
}

// EvacuateAgent drains a host and begins to move what sleeps or can sleep on it to other
// hosts. Again, it tries again what could not be moved.
func (s *Cluster) EvacuateAgent(ctx context.Context, id string, in api.EvacuateAgent) (api.Agent, error) {
	atOnce := defaultAtOnce
	if in.AtOnce != nil {
		if atOnce = *in.AtOnce; atOnce < 1 || atOnce > maxAtOnce {
			return api.Agent{}, apierror.Invalid("invalid at_once", "at_once must be from 1 to %d", maxAtOnce)
		}
	}
	sessions := s.core.Hosts.Sessions()
	if session, heard := sessions[id]; heard && !session.Heartbeat.Store {
		return api.Agent{}, errNoStore
	} else if !heard {
		if _, known := raftstore.Get(s.core.Store.View(), record.Hosts, id); !known {
			return api.Agent{}, apierror.NotFound()
		}
		return api.Agent{}, apierror.Unreachable("the host has not been heard", errors.New("no session"))
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Agent{}, err
	}
	if err := s.tryAgain(ctx, raftstore.Find(view, record.Sandboxes, "agent", id)); err != nil {
		return api.Agent{}, err
	}
	var out api.Agent
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Hosts, id)
		if !ok {
			return apierror.NotFound()
		}
		row = row.Clone()
		row.Draining = true
		if row.Evacuation == nil {
			row.Evacuation = &record.Evacuation{Began: tx.Now()}
		}
		row.Evacuation.AtOnce, row.Evacuation.Failed = atOnce, 0
		raftstore.Put(tx, record.Hosts, row)
		out = s.show(tx.Snapshot(), row, sessions)
		return nil
	})
	return out, err
}

// tryAgain forgets why sandboxes could not be moved, in as many transactions as it takes:
// there may be a thousand, and a single row may fill a fifth of one.
func (s *Cluster) tryAgain(ctx context.Context, failed []*record.Sandbox) error {
	err := s.core.Store.Update(ctx, func(tx *raftstore.Tx) error {
		for _, known := range failed {
			if b, ok := raftstore.Get(tx, record.Sandboxes, known.ID); ok && b.MoveError != "" {
				b = b.Clone()
				b.MoveError = ""
				raftstore.Put(tx, record.Sandboxes, b)
			}
		}
		return nil
	})
	if half := len(failed) / 2; half > 0 && errors.Is(err, raftstore.ErrTooLarge) {
		if err := s.tryAgain(ctx, failed[:half]); err != nil {
			return err
		}
		return s.tryAgain(ctx, failed[half:])
	}
	return core.StoreError(err)
}

// evacuation shows how far a host has been emptied.
func (s *Cluster) evacuation(r raftstore.Reader, row *record.Host) *api.AgentEvacuation {
	if row.Evacuation == nil {
		return nil
	}
	out := &api.AgentEvacuation{
		BeganAt: api.Time{Time: row.Evacuation.Began}, AtOnce: row.Evacuation.AtOnce, Moved: row.Evacuation.Moved, Stays: []api.AgentStay{},
	}
	stay := func(kind, id, workspaceID, reason string) {
		out.Staying++
		if len(out.Stays) < maxStays {
			out.Stays = append(out.Stays, api.AgentStay{Kind: kind, ID: id, WorkspaceID: workspaceID, Reason: reason})
		}
	}
	for _, b := range raftstore.Find(r, record.Sandboxes, "agent", row.ID) {
		switch moving, waiting, why := s.cfg.Evacuated(r, b); {
		case moving:
			out.Moving++
		case waiting:
			out.Waiting++
		default:
			stay("sandbox", hostapi.ShortID(b.ID), b.WorkspaceID, why)
		}
	}
	// It is not empty before what moves here from other hosts has arrived elsewhere.
	out.Waiting += len(raftstore.Find(r, record.Sandboxes, "arriving", row.ID))
	for _, v := range raftstore.Find(r, record.Volumes, "agent", row.ID) {
		stay("volume", v.ID, v.WorkspaceID, "volumes stay on their host")
	}
	for _, snap := range raftstore.Find(r, record.Snapshots, "agent", row.ID) {
		if !snap.Stored {
			stay("snapshot", snap.ID, snap.WorkspaceID, "it is not in the snapshot store yet")
		}
	}
	out.Done = out.Moving == 0 && out.Waiting == 0
	return out
}
