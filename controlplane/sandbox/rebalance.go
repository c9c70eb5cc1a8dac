package sandbox

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Spread returns how full the hosts are that take part in a rebalancing, what moves between
// them for it, and what sleeps there and could not be moved. What is under way counts
// where it arrives.
//
// A host takes part that is up, takes new sandboxes, has a snapshot store, has had no
// trouble of late, and is not being evacuated. What sleeps there may move; again says: also
// if its last move has failed.
func (s *Sandboxes) Spread(r raftstore.Reader, again bool) (hosts []placement.Load, moving []placement.Shift, failed []*record.Sandbox) {
	return s.Flows.spread(r, again)
}

func (f *Flows) spread(r raftstore.Reader, again bool) (hosts []placement.Load, moving []placement.Shift, failed []*record.Sandbox) {
	loads := map[string]*placement.Load{}
	for _, room := range f.Hosts.Rooms(r) {
		h, known := raftstore.Get(r, record.Hosts, room.ID)
		if known && h.State == record.HostUp && h.Evacuation == nil && room.Accepting && room.Store && !room.Troubled && room.MemoryMB > 0 {
			loads[room.ID] = &placement.Load{
				ID: room.ID, Size: room.MemoryMB, FreeMB: room.FreeMB, FreeSlots: room.FreeSlots, OverheadMB: room.OverheadMB, DiskFreeMB: room.DiskFreeMB,
			}
		}
	}
	for _, s := range raftstore.All(r, record.Sandboxes) {
		host := s.HostID
		data, rebalances := moveOf(r, s)
		switch {
		case s.Status == record.SandboxDeleting:
			continue
		case rebalances:
			moving = append(moving, placement.Shift{ID: s.ID, From: data.From.HostID, To: data.To, DiskMB: sizeOf(s)})
			host = data.To
		case s.Move != nil && s.Move.To != "":
			host = s.Move.To
		}
		l := loads[host]
		if l == nil {
			continue
		}
		l.Boxes++
		l.DiskMB += sizeOf(s)
		if host != s.HostID {
			l.DiskFreeMB -= sizeOf(s)
			continue
		}
		if s.MoveError != "" && s.Status == record.SandboxHibernated {
			failed = append(failed, s)
		}
		if f.mayShift(r, s, again) {
			l.Pieces = append(l.Pieces, placement.Piece{ID: s.ID, MemoryMB: s.MemoryMB, DiskMB: sizeOf(s)})
		}
	}
	for _, v := range raftstore.All(r, record.Volumes) {
		if l := loads[v.HostID]; l != nil {
			l.DiskMB += int64(v.SizeMB)
		}
	}
	for _, h := range raftstore.All(r, record.Hosts) {
		if l := loads[h.ID]; l != nil {
			hosts = append(hosts, *l)
		}
	}
	return hosts, moving, failed
}

// sizeOf returns the MB of its host's disk that a sandbox reserves: of its own disk, and of
// its memory for when it sleeps.
func sizeOf(s *record.Sandbox) int64 { return int64(s.DiskMB) + int64(s.MemoryMB) }

// moveOf returns the data of a sandbox's move that is under way for a rebalancing.
func moveOf(r raftstore.Reader, s *record.Sandbox) (data move, ok bool) {
	if s.Move == nil {
		return data, false
	}
	fl, live := flow.Live(r, Resource.Subject(s.ID))
	ok = live && fl.Kind == kindMove && flow.Decode(fl, &data) == nil && data.rebalances() && data.To != ""
	return data, ok
}

// mayShift reports whether a rebalancing may move a sandbox: it sleeps, and nobody works on
// it.
func (f *Flows) mayShift(r raftstore.Reader, s *record.Sandbox, again bool) bool {
	if s.MoveError != "" && again {
		s = s.Clone()
		s.MoveError = ""
	}
	// Apps that sleep have no sandbox; one of theirs that sleeps all the same is theirs.
	if s.Status != record.SandboxHibernated || !mayMove(s) || s.Owner != nil && s.Owner.Type == OwnerApp {
		return false
	}
	if _, busy := flow.Live(r, Resource.Subject(s.ID)); busy {
		return false
	}
	m, owned := f.movesOf(s)
	return !owned || !m.Busy(r, s) && m.Stays(r, s) == ""
}

// rebalance begins the moves of a rebalancing, so many at a time as the operator has said,
// and ends it when there is nothing left to move. It plans anew each time, because
// sandboxes wake, fall asleep, come and go meanwhile.
func (k *keeper) rebalance(ctx context.Context) {
	view := k.Store.View()
	now, ok := rebalancing(view)
	if !ok || k.core.Hosts.Warming(view) {
		return
	}
	loads, moving, _ := k.flows.spread(view, false)
	shifts, _ := placement.Balance(loads, now.Percent, max(placement.MaxShifts-now.Moved-len(moving), 0))
	if len(shifts) == 0 {
		if len(moving) == 0 {
			k.Update(ctx, loopRebalance, func(tx *raftstore.Tx) error {
				move{Rebalance: now.Began}.countRebalance(tx, func(b *record.Rebalance) { b.Ended = tx.Now() })
				return nil
			})
		}
		return
	}
	free, under := roomOf(loads), len(moving)
	for _, shift := range shifts {
		if under >= now.AtOnce {
			return
		}
		// Sandboxes that arrive at the same time need memory at the same time, for a moment.
		if s, there := raftstore.Get(view, record.Sandboxes, shift.ID); there && free[shift.To] >= s.MemoryMB && k.beginShift(ctx, now, shift) {
			free[shift.To] -= s.MemoryMB
			under++
		}
	}
}

func roomOf(loads []placement.Load) map[string]int {
	out := map[string]int{}
	for _, l := range loads {
		out[l.ID] = l.FreeMB - l.OverheadMB
	}
	return out
}

func (k *keeper) beginShift(ctx context.Context, now *record.Rebalance, shift placement.Shift) bool {
	begun := false
	ok := k.Update(ctx, loopRebalance, func(tx *raftstore.Tx) error {
		begun = false
		b, still := rebalancing(tx)
		s, there := raftstore.Get(tx, record.Sandboxes, shift.ID)
		to, known := raftstore.Get(tx, record.Hosts, shift.To)
		if !still || !b.Began.Equal(now.Began) || !there || s.HostID != shift.From || !known || to.Draining || !k.flows.mayShift(tx, s, false) {
			return nil
		}
		begun = true
		return beginMove(tx, s, move{Rebalance: now.Began, To: shift.To})
	})
	return ok && begun
}

// rebalancing returns the rebalancing that is under way.
func rebalancing(r raftstore.Reader) (*record.Rebalance, bool) {
	c, ok := raftstore.Get(r, record.Clusters, record.ClusterID)
	if !ok || c.Rebalance == nil || !c.Rebalance.Ended.IsZero() {
		return nil, false
	}
	return c.Rebalance, true
}

// countRebalance changes the rebalancing that a sandbox moves for, if that is still under
// way, which has the next one begun.
func (m move) countRebalance(tx *raftstore.Tx, change func(*record.Rebalance)) {
	b, ok := rebalancing(tx)
	if !m.rebalances() || !ok || !b.Began.Equal(m.Rebalance) {
		return
	}
	c, _ := raftstore.Get(tx, record.Clusters, record.ClusterID)
	c = c.Clone()
	change(c.Rebalance)
	raftstore.Put(tx, record.Clusters, c)
}
