package sandbox

import (
	"context"
	"slices"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// movedSince reports whether a sandbox has moved since the backup was made that the control
// store was restored from: another host than its row's has a later box of it, and its row's
// host has none.
func movedSince(r raftstore.Reader, s *record.Sandbox, hostID string, b hostapi.BoxState, sessions map[string]hosts.Session) bool {
	switch {
	case s.HostID == hostID, b.Generation <= s.Generation, s.Move != nil, loops.Kept(r) == 0:
		return false
	case s.Status == record.SandboxStarting, s.Status == record.SandboxDeleting:
		return false
	case b.Status != hostapi.StatusRunning && b.Status != hostapi.StatusPaused && b.Status != hostapi.StatusHibernated:
		return false
	}
	if _, under := flow.Live(r, Resource.Subject(s.ID)); under {
		return false
	}
	last, heard := sessions[s.HostID]
	if !heard {
		_, known := raftstore.Get(r, record.Hosts, s.HostID)
		return !known // a host that is away may have it
	}
	return last.Heartbeat.Ready && !slices.ContainsFunc(last.Heartbeat.Boxes, func(b hostapi.BoxState) bool { return b.ID == s.ID })
}

// followMoved has the row of a sandbox follow its box.
func (k *keeper) followMoved(ctx context.Context, hostID string, b hostapi.BoxState, sessions map[string]hosts.Session) {
	moved := false
	ok := k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
		moved = false
		s, known := raftstore.Get(tx, record.Sandboxes, b.ID)
		if !known || !movedSince(tx, s, hostID, b, sessions) {
			return nil
		}
		c := s.Clone()
		c.HostID, c.Generation, c.HostSeq = hostID, b.Generation, b.Seq
		c.Status, c.Error, c.Unreachable = record.SandboxStatus(b.Status), "", false
		raftstore.Put(tx, record.Sandboxes, c)
		moved = true
		return nil
	})
	if ok && moved {
		k.Logger.WarnContext(ctx, "sandbox has moved since the backup that was restored", "sandbox_id", hostapi.ShortID(b.ID), "agent_id", hostID, "generation", b.Generation)
	}
}
