package sandbox

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The errors of sandboxes whose host is lost, was removed, or no longer has the box.
const (
	errHostLost = "its host is unreachable"
	errRemoved  = "its host was removed"
	errBoxGone  = "its virtual machine is gone from the host"
)

// failUnreachable fails the sandboxes on hosts that are lost or were removed, until
// the hosts return with them. It leaves those that are starting or being deleted to
// their flows.
func (k *keeper) failUnreachable(ctx context.Context) {
	view := k.Store.View()
	var unreachableIDs []string
	for _, s := range k.onLostHosts(view) {
		if onLostHost(view, s) {
			unreachableIDs = append(unreachableIDs, s.ID)
		}
	}
	loops.InParts(ctx, k.Term, loopUnreachable, unreachableIDs, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			if s, ok := raftstore.Get(tx, record.Sandboxes, id); ok && onLostHost(tx, s) {
				unreachable(tx, s)
			}
		}
		return nil
	}, nil)
}

// wholePass is how often a pass looks for sandboxes of hosts that were removed, if no
// host's row has changed.
const wholePass = 10

// onLostHosts returns the sandboxes on hosts that are lost, and sometimes all.
func (k *keeper) onLostHosts(view *raftstore.Snapshot) (on []*record.Sandbox) {
	changed := k.hostsChanged == nil
	select {
	case <-k.hostsChanged:
		changed = true
	default:
	}
	if k.passes++; changed || k.passes%wholePass == 0 {
		k.hostsChanged = view.Changed(record.Hosts.Name)
		return raftstore.All(view, record.Sandboxes)
	}
	for _, h := range raftstore.All(view, record.Hosts) {
		if h.State == record.HostLost {
			on = append(on, raftstore.Find(view, record.Sandboxes, "agent", h.ID)...)
		}
	}
	return on
}

func onLostHost(r raftstore.Reader, s *record.Sandbox) bool {
	if s.HostID == "" || s.Status == record.SandboxStarting || !s.Status.CanBecome(record.SandboxFailed) {
		return false
	}
	a, ok := raftstore.Get(r, record.Hosts, s.HostID)
	return !ok || a.State == record.HostLost
}

// asFailed returns a sandbox as one that has failed. No host reported it, so any later
// report of a host is newer.
func asFailed(s *record.Sandbox, reason string) *record.Sandbox {
	c := s.Clone()
	c.Status, c.Error, c.HostSeq, c.Unreachable = record.SandboxFailed, reason, 0, false
	return c
}

// unreachable marks a sandbox as failed because its host is gone. An exclusive one
// is given up for good, because its host has ended it, unless its owner decides: see
// recoverable.
func unreachable(tx *raftstore.Tx, s *record.Sandbox) {
	reason := errHostLost
	if _, known := raftstore.Get(tx, record.Hosts, s.HostID); !known {
		reason = errRemoved
	}
	c := asFailed(s, reason)
	c.Unreachable, c.Lost = !s.Exclusive, record.HostLoss{HostID: s.HostID, At: tx.Now().UTC().Truncate(time.Millisecond), Why: reason}
	raftstore.Put(tx, record.Sandboxes, c)
}

// orphan is a box without a row.
type orphan struct {
	hostID, id string
	generation uint64
	archive    string // of a database's box: its archive's name
}

// inventory compares the boxes that hosts report with the rows, in both directions. It
// looks at the hosts whose boxes have changed, at those where something did not agree the
// last time, and at some of the others: see looks.
func (k *keeper) inventory(ctx context.Context) {
	sessions := k.core.Hosts.Sessions()
	// The view is taken after the sessions. A row is committed before its box is
	// created, so the view contains the row of every reported box, if there is one.
	view := k.Store.View()
	var news []hostapi.BoxState
	var drifted []*record.Sandbox
	for _, hostID := range k.looks.next(sessions) {
		session := sessions[hostID]
		found := look{version: session.BoxesVersion}
		for _, b := range session.Heartbeat.Boxes {
			s, ok := raftstore.Get(view, record.Sandboxes, b.ID)
			switch {
			case ok && movedSince(view, s, hostID, b, sessions):
				k.followMoved(ctx, hostID, b, sessions)
				found.unsettled = true
				continue
			case !accounts(s, ok, hostID, b):
				found.orphans = append(found.orphans, orphan{hostID, b.ID, b.Generation, b.Archive})
				continue
			case Follows(s, b):
				news = append(news, b)
				found.unsettled = true
			}
			if k.drifted(s, session, b) {
				drifted = append(drifted, s)
			}
			found.unsettled = found.unsettled || differs(s, b)
		}
		if session.Heartbeat.Ready && k.missing(ctx, view, hostID, session.Heartbeat) {
			found.unsettled = true
		}
		k.looks.found(hostID, found)
	}
	k.follow(ctx, news)
	k.updateDrifted(ctx, drifted)
	k.removeOrphans(ctx, k.looks.orphans())
	k.tellHosts(ctx)
}

// differs reports whether host and row disagree on whether a sandbox is persistent, which
// is not acted on at once: see drifted.
func differs(s *record.Sandbox, b hostapi.BoxState) bool {
	return b.Persistent != nil && *b.Persistent != s.Persistent
}

// drifted reports whether host and row disagree on whether a sandbox is persistent.
// A leader may have died between telling the host and committing the row, and a
// create uses the value from its beginning.
func (k *keeper) drifted(s *record.Sandbox, session hosts.Session, b hostapi.BoxState) bool {
	moving := s.Status == record.SandboxStarting || s.Status == record.SandboxDeleting
	return !moving && s.Generation == b.Generation && differs(s, b) && k.Sure(record.Sandboxes.Name, &s.Meta, session.LastSeen)
}

// updateDrifted sends the rows' values to the hosts.
func (k *keeper) updateDrifted(ctx context.Context, drifted []*record.Sandbox) {
	for _, s := range drifted {
		k.Begin(loops.Job{What: "persistent", Host: s.HostID, ID: s.ID}, loops.AtOnce, func() { k.updatePersistent(ctx, s) })
	}
}

func (k *keeper) updatePersistent(ctx context.Context, known *record.Sandbox) {
	s, ok := raftstore.Get(k.Store.View(), record.Sandboxes, known.ID)
	if !ok || s.ModifyIndex != known.ModifyIndex {
		return // another change is in progress
	}
	ctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	attrs := []any{"sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.HostID, "persistent", s.Persistent}
	err := k.core.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.UpdateBox(ctx, s.ID, hostapi.BoxUpdate{Persistent: &s.Persistent})
		return err
	})
	if err != nil {
		k.Logger.WarnContext(ctx, "host could not be told whether a sandbox is persistent", append(attrs, "error", err)...)
		return
	}
	k.Logger.InfoContext(ctx, "host is told again whether a sandbox is persistent", attrs...)
}

// follow commits what hosts report about their boxes: those that died, and changes
// that an earlier leader did not commit.
func (k *keeper) follow(ctx context.Context, news []hostapi.BoxState) {
	var changed []*record.Sandbox
	returned := map[string]*record.Sandbox{} // the rows that were unreachable, by sandbox
	loops.InParts(ctx, k.Term, loopInventory, news, func(tx *raftstore.Tx, part []hostapi.BoxState) error {
		changed = changed[:0]
		clear(returned)
		for _, b := range part {
			if s, ok := raftstore.Get(tx, record.Sandboxes, b.ID); ok && Follows(s, b) {
				if s.Unreachable {
					returned[s.ID] = s
				}
				changed = append(changed, Follow(tx, s, b))
			}
		}
		return nil
	}, func() {
		for _, s := range changed {
			if before, ok := returned[s.ID]; ok {
				k.tell(s, hostapi.NewEvent{
					Key: "returned/" + strconv.FormatUint(before.ModifyIndex, 10), Type: hostapi.EventReturned,
					Message:  "its host was unreachable, and has returned with it",
					Metadata: map[string]any{"status": string(s.Status), "lost_at": api.Time{Time: before.Lost.At}},
				})
			}
			if s.Status == record.SandboxFailed {
				k.Logger.WarnContext(ctx, "sandbox failed", "sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.HostID, "why", s.Error)
			}
		}
	})
}

// accounts reports whether a row accounts for a box. If a sandbox failed and cannot
// recover, nobody may use its box any more, so a box that still lives must end.
func accounts(s *record.Sandbox, known bool, hostID string, b hostapi.BoxState) bool {
	switch {
	case known && s.Move != nil && s.Move.To == hostID && s.Move.Generation == b.Generation:
		return true // it arrives there
	case !known, s.HostID != hostID, b.Generation < s.Generation:
		return false
	case s.Status == record.SandboxFailed && !recoverable(s):
		return b.Status == hostapi.StatusFailed || b.Status == hostapi.StatusDeleting
	}
	return true
}

// missing fails sandboxes that are not in their host's complete inventory, and reports
// whether there are any. The heartbeat may be older than the box, so the host is asked
// again first.
func (k *keeper) missing(ctx context.Context, view *raftstore.Snapshot, hostID string, hb hostapi.Heartbeat) (found bool) {
	reported := make(map[string]bool, len(hb.Boxes))
	for _, b := range hb.Boxes {
		reported[b.ID] = true
	}
	for _, s := range raftstore.Find(view, record.Sandboxes, "agent", hostID) {
		if reported[s.ID] || !mayFail(s) {
			continue
		}
		found = true
		k.Begin(loops.Job{What: "missing", Host: hostID, ID: s.ID}, loops.AtOnce, func() { k.confirmMissing(ctx, s) })
	}
	return found
}

func (k *keeper) confirmMissing(ctx context.Context, s *record.Sandbox) {
	client, err := k.core.Hosts.Client(s.HostID)
	if err != nil {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	if _, err = client.GetBox(hctx, s.ID); hostapi.HasCode(err, hostapi.CodeNotFound) && k.failBox(ctx, s, errBoxGone) {
		k.tell(s, hostapi.NewEvent{
			Key: "orphaned/" + strconv.FormatUint(s.Generation, 10), Type: hostapi.EventOrphaned, Message: errBoxGone,
			Metadata: map[string]any{"reason": errBoxGone}, WorkspaceID: s.WorkspaceID, Template: s.Template,
		})
	}
}

// mayFail reports whether a sandbox fails if its host has no box of it. One that is
// starting is left to its flow.
func mayFail(s *record.Sandbox) bool {
	switch s.Status {
	case record.SandboxStarting:
		return false
	case record.SandboxFailed:
		return s.Unreachable
	}
	return s.Status.CanBecome(record.SandboxFailed)
}

// failBox reports whether it has marked the sandbox as failed.
func (k *keeper) failBox(ctx context.Context, known *record.Sandbox, reason string) bool {
	failed := false
	ok := k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, known.ID)
		failed = ok && s.Generation == known.Generation && s.HostID == known.HostID && mayFail(s)
		if failed {
			raftstore.Put(tx, record.Sandboxes, asFailed(s, reason))
		}
		return nil
	})
	if ok = ok && failed; ok {
		k.Logger.WarnContext(ctx, "sandbox failed", "sandbox_id", hostapi.ShortID(known.ID), "agent_id", known.HostID, "why", reason)
	}
	return ok
}

// removeOrphans deletes boxes that have been without a row for OrphanGrace.
func (k *keeper) removeOrphans(ctx context.Context, seen map[orphan]bool) {
	for _, o := range k.orphans.Due(ctx, seen, func(orphan) time.Duration { return k.OrphanGrace }) {
		k.Begin(loops.Job{What: "orphan", Host: o.hostID, ID: o.id}, loops.AtOnce, func() { k.removeOrphan(ctx, o) })
	}
}

func (k *keeper) removeOrphan(ctx context.Context, o orphan) {
	client, err := k.core.Hosts.Client(o.hostID)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	attrs := []any{"sandbox_id", hostapi.ShortID(o.id), "agent_id", o.hostID, "generation", o.generation}
	remove := client.DeleteBox
	if wasDatabase(k.Store.View(), o) {
		remove = client.DeleteBoxKeepingDisk
	}
	if err := remove(ctx, o.id, o.generation); err != nil {
		k.Logger.WarnContext(ctx, "box without a sandbox could not be deleted", append(attrs, "error", err)...)
		return
	}
	k.Logger.InfoContext(ctx, "box without a sandbox deleted", attrs...)
}

// wasDatabase reports whether a box was that of a database which is still there in another
// box, by the name of its archive. The database has been restored since, and the disk may
// have commits that its archive lacks. (What a move has left is the same box, and has none.)
func wasDatabase(r raftstore.Reader, o orphan) bool {
	id, _, _ := strings.Cut(o.archive, "/")
	d, ok := raftstore.Get(r, record.Databases, id)
	return ok && d.Status != record.DatabaseDeleting && d.SandboxID != o.id
}
