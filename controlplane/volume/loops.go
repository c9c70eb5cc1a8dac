package volume

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// loopInventory is the name of the loop that compares hosts with rows.
const loopInventory = "volume inventory"

// keeper contains the loops of volumes in one term.
type keeper struct {
	*loops.Term
	core    *core.Core
	orphans *loops.Garbage[orphan]
}

// orphan is a volume on a host without a row.
type orphan struct{ hostID, id string }

// Loops returns the loops of volumes. They delete volumes without a row from hosts,
// and detach volumes from sandboxes that no longer exist.
func (s *Volumes) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{Term: t, core: s.core, orphans: loops.NewGarbage(t, func(o orphan) (what, id, hostID string) {
		return "object", o.id, o.hostID
	})}
	return []loops.Loop{
		{Name: loopInventory, Pass: k.inventory},
		resource.Strays(t, Resource, func(_ raftstore.Reader, v *record.Volume) bool { return v.AttachedTo == "" }),
	}
}

// inventory compares the volumes on hosts with the rows.
func (k *keeper) inventory(ctx context.Context) {
	sessions := k.core.Hosts.Sessions()
	// The view is taken after the sessions. A row is committed before its volume is
	// created, so the view contains the row of every reported volume, if there is
	// one.
	view := k.Store.View()
	seen := map[orphan]bool{}
	for hostID, session := range sessions {
		for _, v := range session.Heartbeat.Volumes {
			// If the row names another host, this one has the volume from a create
			// that continued there.
			if row, ok := raftstore.Get(view, record.Volumes, v.ID); !ok || row.HostID != hostID && row.HostID != "" {
				seen[orphan{hostID: hostID, id: v.ID}] = true
			}
		}
	}
	// A control store that was restored from a backup may lack the newest volumes,
	// and the operator needs time to notice.
	for _, o := range k.orphans.Due(ctx, seen, func(orphan) time.Duration { return k.KeptGrace }) {
		k.Begin(loops.Job{What: "volume", Host: o.hostID, ID: o.id}, loops.AtOnce, func() { k.remove(ctx, o) })
	}
	k.freeVolumes(ctx, view)
}

func (k *keeper) remove(ctx context.Context, o orphan) {
	ctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	err := k.core.Hosts.Call(ctx, o.hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteVolume(ctx, o.id) })
	if err != nil {
		k.Logger.WarnContext(ctx, "object without a row could not be deleted", "what", "volume", "id", o.id, "agent_id", o.hostID, "error", err)
		return
	}
	k.Logger.InfoContext(ctx, "object without a row deleted", "what", "volume", "id", o.id, "agent_id", o.hostID)
}

// freeVolumes detaches volumes from sandboxes that do not exist. No transaction
// leaves such a row; an old backup might.
func (k *keeper) freeVolumes(ctx context.Context, view *raftstore.Snapshot) {
	held := func(r raftstore.Reader, v *record.Volume) bool {
		_, ok := raftstore.Get(r, record.Sandboxes, v.AttachedTo)
		return v.AttachedTo == "" || ok
	}
	for _, v := range raftstore.All(view, record.Volumes) {
		if held(view, v) {
			continue
		}
		k.Logger.WarnContext(ctx, "volume is attached to no sandbox that there is", "volume_id", v.ID)
		k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, record.Volumes, v.ID)
			if ok && !held(tx, now) {
				c := now.Clone()
				c.AttachedTo = ""
				raftstore.Put(tx, record.Volumes, c)
			}
			return nil
		})
	}
}
