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

// keeper keeps true, in one term, what must hold of volumes.
type keeper struct {
	*loops.Term
	core    *core.Core
	orphans *loops.Garbage[orphan]
}

// orphan is a volume that a host has and no row accounts for.
type orphan struct{ hostID, id string }

// Loops are what keeps volumes true: hosts hold none without a row, and none is
// attached to a sandbox that is gone.
func (s *Volumes) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{Term: t, core: s.core, orphans: loops.NewGarbage(t, func(o orphan) (what, id, hostID string) {
		return "object", o.id, o.hostID
	})}
	return []loops.Loop{
		{Name: loopInventory, Pass: k.inventory},
		resource.Strays(t, Resource, func(_ raftstore.Reader, v *record.Volume) bool { return v.AttachedTo == "" }),
	}
}

// inventory compares volumes of the hosts with the rows.
func (k *keeper) inventory(ctx context.Context) {
	sessions := k.core.Hosts.Sessions()
	// After the sessions: a row is written before its volume is asked for, so each
	// that is reported above has its row in this view, if it has one at all.
	view := k.Store.View()
	seen := map[orphan]bool{}
	for hostID, session := range sessions {
		for _, v := range session.Heartbeat.Volumes {
			// Where the row says that another host has it, this one's was of a
			// create that went on there.
			if row, ok := raftstore.Get(view, record.Volumes, v.ID); !ok || row.HostID != hostID && row.HostID != "" {
				seen[orphan{hostID: hostID, id: v.ID}] = true
			}
		}
	}
	// Volumes are what people keep: a control store that was put back from a backup
	// may not know the latest, and whoever did that is given time to notice.
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

// freeVolumes detaches volumes from sandboxes that there are not. No
// transaction of ours leaves one; an old backup might.
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
