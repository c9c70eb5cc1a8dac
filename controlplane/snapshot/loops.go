package snapshot

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// loopInventory is the name of the loop that compares hosts with rows.
const loopInventory = "snapshot inventory"

// Claim says which captures on hosts, and which objects in the snapshot store,
// another kind of resource needs. The rest is removed.
type Claim struct {
	// Capture reports whether a capture is needed. Hosts that fetched a copy of it
	// keep the copy until they need the disk space.
	Capture func(r raftstore.Reader, id string) bool
	// Stored returns a function that reports whether the object with an id is needed
	// in the snapshot store.
	Stored func(r raftstore.Reader) func(id string) bool
}

// own reports whether a capture is a snapshot's.
func own(r raftstore.Reader, id string) bool {
	_, ok := raftstore.Get(r, record.Snapshots, id)
	return ok
}

// captured reports whether anything needs a capture.
func (s *Snapshots) captured(r raftstore.Reader, id string) bool {
	for _, c := range s.cfg.Claims {
		if c.Capture != nil && c.Capture(r, id) {
			return true
		}
	}
	return own(r, id)
}

// stored returns a function that reports whether anything needs an object in the
// snapshot store.
func (s *Snapshots) stored(r raftstore.Reader) func(id string) bool {
	wanted := []func(id string) bool{func(id string) bool { return own(r, id) }}
	for _, c := range s.cfg.Claims {
		if c.Stored != nil {
			wanted = append(wanted, c.Stored(r))
		}
	}
	return func(id string) bool {
		return slices.ContainsFunc(wanted, func(wants func(string) bool) bool { return wants(id) })
	}
}

// keeper contains the loops of snapshots in one term.
type keeper struct {
	*loops.Term
	core     *core.Core
	things   *Snapshots
	captures *loops.Garbage[capture]
	copies   *loops.Garbage[string] // in the snapshot store
}

// capture identifies a capture on a host.
type capture struct{ hostID, id string }

// Loops returns the loops of snapshots. They remove captures and stored objects that
// nothing needs, mark snapshots that exist only on a lost host as lost, and upload
// those that are not stored yet.
func (s *Snapshots) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{
		Term: t, core: s.core, things: s,
		captures: loops.NewGarbage(t, func(c capture) (what, id, hostID string) { return "object", c.id, c.hostID }),
		copies:   loops.NewGarbage(t, func(id string) (what, _, hostID string) { return "stored copy", id, "" }),
	}
	return []loops.Loop{
		{Name: loopInventory, Pass: k.inventory},
		{Name: "snapshot store", Every: max(t.Every, t.KeptGrace/storedLooks), Pass: k.collect},
		resource.Strays(t, Resource, nil),
	}
}

// inventory compares the captures on hosts with the rows, in both directions.
func (k *keeper) inventory(ctx context.Context) {
	sessions := k.core.Hosts.Sessions()
	// The view is taken after the sessions. A row is committed before its capture is
	// created, so the view contains the row of every reported capture, if there is
	// one.
	view := k.Store.View()
	seen := map[capture]bool{}
	for hostID, session := range sessions {
		for _, c := range session.Heartbeat.Captures {
			if !k.things.captured(view, c.ID) {
				seen[capture{hostID: hostID, id: c.ID}] = true
			}
		}
	}
	k.removeCaptures(ctx, seen)
	k.lostSnapshots(ctx, sessions, view)
	k.storeSnapshots(ctx, sessions, view)
}

// removeCaptures deletes captures that have been without a row for a while.
// Snapshots have a longer grace: a control store that was restored from a backup may
// lack the newest ones, and the operator needs time to notice.
func (k *keeper) removeCaptures(ctx context.Context, seen map[capture]bool) {
	grace := func(c capture) time.Duration {
		if strings.HasPrefix(c.id, Prefix) {
			return k.KeptGrace
		}
		return k.OrphanGrace
	}
	for _, c := range k.captures.Due(ctx, seen, grace) {
		k.Begin(loops.Job{What: "capture", Host: c.hostID, ID: c.id}, loops.AtOnce, func() { k.removeCapture(ctx, c) })
	}
}

func (k *keeper) removeCapture(ctx context.Context, c capture) {
	ctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	err := k.core.Hosts.Call(ctx, c.hostID, func(ctx context.Context, client *hosts.Client) error {
		return client.DeleteCapture(ctx, c.id, !k.things.stored(k.Store.View())(c.id))
	})
	if err != nil {
		k.Logger.WarnContext(ctx, "object without a row could not be deleted", "what", "capture", "id", c.id, "agent_id", c.hostID, "error", err)
		return
	}
	k.Logger.InfoContext(ctx, "object without a row deleted", "what", "capture", "id", c.id, "agent_id", c.hostID)
}

// lostSnapshots marks snapshots as lost that are not stored and whose host is lost
// or no longer has them, and as ready when they are back.
func (k *keeper) lostSnapshots(ctx context.Context, sessions map[string]hosts.Session, view *raftstore.Snapshot) {
	has := map[string]map[string]bool{} // of hosts whose inventory is complete
	for id, session := range sessions {
		if !session.Heartbeat.Ready {
			continue
		}
		has[id] = map[string]bool{}
		for _, c := range session.Heartbeat.Captures {
			has[id][c.ID] = true
		}
	}
	for _, s := range raftstore.All(view, record.Snapshots) {
		status := s.Status
		there, heard := has[s.HostID][s.ID], has[s.HostID] != nil
		agent, known := raftstore.Get(view, record.Hosts, s.HostID)
		switch {
		case s.Status != record.ResourceReady && s.Status != record.ResourceLost:
		case s.Stored, heard && there:
			status = record.ResourceReady
		case !known, agent.State == record.HostLost, heard && k.Sure(record.Snapshots.Name, &s.Meta, sessions[s.HostID].LastSeen):
			status = record.ResourceLost
		}
		if status == s.Status {
			continue
		}
		ok := k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, record.Snapshots, s.ID)
			if ok && now.ModifyIndex == s.ModifyIndex {
				c := now.Clone()
				c.Status = status
				raftstore.Put(tx, record.Snapshots, c)
			}
			return nil
		})
		if ok {
			k.Logger.WarnContext(ctx, "snapshot changed with its host", "snapshot_id", s.ID, "agent_id", s.HostID, "status", string(status))
		}
	}
}

// storeSnapshots begins the upload of snapshots that are not stored although they
// could be, because an upload failed or the host had no store before.
func (k *keeper) storeSnapshots(ctx context.Context, sessions map[string]hosts.Session, view *raftstore.Snapshot) {
	for _, s := range raftstore.All(view, record.Snapshots) {
		host := sessions[s.HostID]
		if !unstored(view, s, host) {
			continue
		}
		k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, record.Snapshots, s.ID)
			if !ok || !unstored(tx, now, host) {
				return nil
			}
			return beginStore(tx, flow.NewID(), now)
		})
	}
}
