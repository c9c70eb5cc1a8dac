package sandbox

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// evacuate begins the moves of sandboxes away from hosts that are evacuated, so many at
// a time as the operator has said. A host that is lost is left alone until it returns.
func (k *keeper) evacuate(ctx context.Context) {
	view := k.Store.View()
	for _, h := range raftstore.All(view, record.Hosts) {
		if h.Evacuation == nil || h.State != record.HostUp {
			continue
		}
		rows := raftstore.Find(view, record.Sandboxes, "agent", h.ID)
		under := 0
		for _, s := range rows {
			if s.Move != nil {
				under++
			}
		}
		for _, s := range rows {
			if under >= h.Evacuation.AtOnce {
				break
			}
			if !mayMove(s) {
				continue
			}
			if k.beginMove(ctx, h.ID, s.ID) {
				under++
			}
		}
	}
}

func (k *keeper) beginMove(ctx context.Context, hostID, id string) bool {
	begun := false
	ok := k.Update(ctx, loopEvacuate, func(tx *raftstore.Tx) error {
		begun = false
		h, known := raftstore.Get(tx, record.Hosts, hostID)
		s, there := raftstore.Get(tx, record.Sandboxes, id)
		if !known || h.Evacuation == nil || !there || s.HostID != hostID || !mayMove(s) {
			return nil
		}
		if _, busy := flow.Live(tx, Resource.Subject(id)); busy {
			return nil // the end of its last move
		}
		if m, owned := k.flows.movesOf(s); owned && m.Busy(tx, s) {
			return nil
		}
		begun = true
		return beginMove(tx, s, move{Evacuation: h.Evacuation.Began})
	})
	return ok && begun
}

// Evacuated returns what an evacuation makes of a sandbox: it moves, it waits (for its
// turn, for a create or delete to end, or for its owner), or why it stays.
func (s *Sandboxes) Evacuated(r raftstore.Reader, row *record.Sandbox) (moving, waiting bool, why string) {
	why = whyStays(row)
	if m, owned := s.Flows.movesOf(row); owned && why == "" {
		why = m.Stays(r, row)
	}
	switch {
	case row.Move != nil:
		return true, false, ""
	case row.Status == record.SandboxStarting, row.Status == record.SandboxDeleting:
		return false, true, ""
	case why != "":
		return false, false, why
	}
	return false, true, ""
}

// mayMove reports whether an evacuation moves a sandbox when its turn comes.
func mayMove(s *record.Sandbox) bool {
	awake := s.Status == record.SandboxRunning || s.Status == record.SandboxHibernated
	return awake && s.Move == nil && whyStays(s) == "" && !replaced(s)
}

// replaced reports whether a sandbox is not moved because its owner starts another one
// elsewhere, which takes its place.
func replaced(s *record.Sandbox) bool {
	return s.Owner != nil && s.Owner.Type == OwnerApp && s.Status == record.SandboxRunning
}

// Replaced counts a sandbox of an evacuated host that another has taken the place of.
func Replaced(tx *raftstore.Tx, s *record.Sandbox) {
	count(tx, s.HostID, func(e *record.Evacuation) { e.Moved++ })
}

// NotReplaced notes why none has: its owner tries no more until the host is evacuated
// again.
func NotReplaced(tx *raftstore.Tx, s *record.Sandbox, why string) {
	c := s.Clone()
	c.MoveError = why
	raftstore.Put(tx, record.Sandboxes, c)
	count(tx, s.HostID, func(e *record.Evacuation) { e.Failed++ })
}

// whyStays returns why a sandbox does not move, and what the operator or its owner can
// do about it; "" if it may move.
func whyStays(s *record.Sandbox) string {
	switch {
	case len(s.Volumes) > 0:
		return "the volume " + s.Volumes[0].Name + " is attached, and volumes stay on their host"
	case s.Status == record.SandboxPaused:
		return "it is paused: resume or hibernate it"
	case s.Status == record.SandboxFailed && s.Owner != nil && s.Owner.Type == OwnerDatabase:
		return "it has failed: fail the database " + s.Owner.ID + " over"
	case s.Status == record.SandboxFailed:
		return "it has failed"
	}
	return s.MoveError
}
