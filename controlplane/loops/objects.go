package loops

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// object is a capture or a volume that a host has and no row accounts for.
type object struct {
	agentID, id string
	volume      bool
}

// objects compares captures and volumes of the hosts with the rows, both ways.
func (l *Loops) objects(ctx context.Context) {
	sessions := l.cfg.Hosts.Sessions()
	view := l.cfg.Store.View() // after the sessions, as in inventory
	seen := map[object]bool{}
	for agentID, session := range sessions {
		for _, c := range session.Heartbeat.Captures {
			if !capturedFor(view, c.ID) {
				seen[object{agentID: agentID, id: c.ID}] = true
			}
		}
		for _, v := range session.Heartbeat.Volumes {
			// Where the row says that another host has it, this one's was of a
			// create that went on there.
			if row, ok := raftstore.Get(view, record.Volumes, v.ID); !ok || row.AgentID != agentID && row.AgentID != "" {
				seen[object{agentID: agentID, id: v.ID, volume: true}] = true
			}
		}
	}
	l.removeObjects(ctx, seen)
	l.lostSnapshots(ctx, sessions, view)
	l.storeSnapshots(ctx, sessions, view)
	l.freeVolumes(ctx, view)
}

// capturedFor reports whether a snapshot or a fork wants a capture. Hosts other
// than the snapshot's own have it because they fetched it, and keep it for the
// next time, until they want the disk for something else.
func capturedFor(r raftstore.Reader, id string) bool {
	if _, ok := raftstore.Get(r, record.Snapshots, id); ok {
		return true
	}
	_, live := flow.Live(r, fork.Subject(id))
	return live
}

// treeLives reports whether a fork-tree has a sandbox, for which what is stored of
// it stays in the snapshot store.
func treeLives(r raftstore.Reader, id string) bool {
	return len(raftstore.Find(r, record.Sandboxes, "fork_tree", id)) > 0
}

// removeObjects deletes what has had no row for a while. Volumes and snapshots
// are what people keep: a control store that was put back from a backup may not
// know the latest, and whoever did that is given time to notice.
func (l *Loops) removeObjects(ctx context.Context, seen map[object]bool) {
	now := l.cfg.Clock()
	for o := range l.objectsSince {
		if !seen[o] {
			delete(l.objectsSince, o)
		}
	}
	for o := range seen {
		since, known := l.objectsSince[o]
		if !known {
			l.objectsSince[o] = now
			since = now
		}
		grace := l.cfg.OrphanGrace
		if o.volume || strings.HasPrefix(o.id, snapshot.Prefix) {
			grace = l.cfg.KeptGrace
		}
		if l.keeping(ctx, !known, "object", o.id, o.agentID) || now.Sub(since) < grace {
			continue
		}
		what := "capture"
		if o.volume {
			what = "volume"
		}
		l.jobs.begin(job{what, o.agentID, o.id}, orphansAtOnce, func() { l.removeObject(ctx, what, o) })
	}
}

func (l *Loops) removeObject(ctx context.Context, what string, o object) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := l.cfg.Hosts.Call(ctx, o.agentID, func(ctx context.Context, c *hosts.Client) error {
		if o.volume {
			return c.DeleteVolume(ctx, o.id)
		}
		return c.DeleteCapture(ctx, o.id, !treeLives(l.cfg.Store.View(), o.id))
	})
	if err != nil {
		l.cfg.Logger.WarnContext(ctx, "object without a row could not be deleted", "what", what, "id", o.id, "agent_id", o.agentID, "error", err)
		return
	}
	l.cfg.Logger.InfoContext(ctx, "object without a row deleted", "what", what, "id", o.id, "agent_id", o.agentID)
}

// lostSnapshots marks snapshots lost that are not stored and whose host is lost
// or has them no more, and takes them up again when they are back.
func (l *Loops) lostSnapshots(ctx context.Context, sessions map[string]hosts.Session, view *raftstore.Snapshot) {
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
		there, heard := has[s.AgentID][s.ID], has[s.AgentID] != nil
		agent, known := raftstore.Get(view, record.Agents, s.AgentID)
		switch {
		case s.Status != record.ResourceReady && s.Status != record.ResourceLost:
		case s.Stored, heard && there:
			status = record.ResourceReady
		case !known, agent.State == record.AgentLost, heard && l.sure(record.Snapshots.Name, &s.Meta, sessions[s.AgentID]):
			status = record.ResourceLost
		}
		if status == s.Status {
			continue
		}
		ok := l.update(ctx, "snapshots", func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, record.Snapshots, s.ID)
			if ok && now.ModifyIndex == s.ModifyIndex {
				c := now.Clone()
				c.Status = status
				raftstore.Put(tx, record.Snapshots, c)
			}
			return nil
		})
		if ok {
			l.cfg.Logger.WarnContext(ctx, "snapshot changed with its host", "snapshot_id", s.ID, "agent_id", s.AgentID, "status", string(status))
		}
	}
}

// storeSnapshots sees to it that what is not in the snapshot store and can be
// put there is tried again: an upload failed, or the host had no store then.
func (l *Loops) storeSnapshots(ctx context.Context, sessions map[string]hosts.Session, view *raftstore.Snapshot) {
	for _, s := range raftstore.All(view, record.Snapshots) {
		host := sessions[s.AgentID]
		if !snapshot.Unstored(view, s, host) {
			continue
		}
		l.update(ctx, "snapshots", func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, record.Snapshots, s.ID)
			if !ok || !snapshot.Unstored(tx, now, host) {
				return nil
			}
			return snapshot.BeginStore(tx, flow.NewID(), now)
		})
	}
}

// freeVolumes detaches volumes from sandboxes that there are not. No
// transaction of ours leaves one; an old backup might.
func (l *Loops) freeVolumes(ctx context.Context, view *raftstore.Snapshot) {
	held := func(r raftstore.Reader, v *record.Volume) bool {
		_, ok := raftstore.Get(r, record.Sandboxes, v.AttachedTo)
		return v.AttachedTo == "" || ok
	}
	for _, v := range raftstore.All(view, record.Volumes) {
		if held(view, v) {
			continue
		}
		l.cfg.Logger.WarnContext(ctx, "volume is attached to no sandbox that there is", "volume_id", v.ID)
		l.update(ctx, "volumes", func(tx *raftstore.Tx) error {
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

// defaultKeptGrace is how long a volume or a snapshot without a row is left
// where it is, unless the configuration says otherwise.
const defaultKeptGrace = time.Hour
