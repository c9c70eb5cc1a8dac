package sandbox

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// errHostLost is the error of a sandbox whose host is lost, errRemoved of one
// whose host was removed.
const (
	errHostLost = "its host is unreachable"
	errRemoved  = "its host was removed"
)

// errBoxGone is the error of a sandbox whose host has no box of it.
const errBoxGone = "its virtual machine is gone from the host"

// failUnreachable fails what runs on hosts that are lost, or were removed, until
// they return with it. A sandbox that is starting or being deleted has a flow that
// sees to it.
func (k *keeper) failUnreachable(ctx context.Context) {
	view := k.Store.View()
	var doomed []string
	for _, s := range raftstore.All(view, record.Sandboxes) {
		if onLostHost(view, s) {
			doomed = append(doomed, s.ID)
		}
	}
	loops.InParts(ctx, k.Term, loopUnreachable, doomed, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			if s, ok := raftstore.Get(tx, record.Sandboxes, id); ok && onLostHost(tx, s) {
				unreachable(tx, s)
			}
		}
		return nil
	}, nil)
}

func onLostHost(r raftstore.Reader, s *record.Sandbox) bool {
	if s.HostID == "" || s.Status == record.SandboxStarting || !s.Status.CanBecome(record.SandboxFailed) {
		return false
	}
	a, ok := raftstore.Get(r, record.Hosts, s.HostID)
	return !ok || a.State == record.HostLost
}

// fail concludes that a sandbox has failed. No host said so, and whatever one
// says later is later.
func fail(tx *raftstore.Tx, s *record.Sandbox, reason string, unreachable bool) {
	c := s.Clone()
	c.Status, c.Error, c.HostSeq, c.Unreachable = record.SandboxFailed, reason, 0, unreachable
	raftstore.Put(tx, record.Sandboxes, c)
}

// unreachable concludes that a sandbox has failed with its host. An exclusive
// one is given up with that: its host has ended it, or will not be believed.
func unreachable(tx *raftstore.Tx, s *record.Sandbox) {
	reason := errHostLost
	if _, known := raftstore.Get(tx, record.Hosts, s.HostID); !known {
		reason = errRemoved
	}
	fail(tx, s, reason, !s.Exclusive)
}

// orphan is a box that no row accounts for.
type orphan struct {
	hostID, id string
	generation uint64
}

// inventory compares what each host reports with the rows, both ways.
func (k *keeper) inventory(ctx context.Context) {
	sessions := k.core.Hosts.Sessions()
	// After the sessions: a row is written before its box is asked for, so each
	// box reported above has its row in this view, if it has one at all.
	view := k.Store.View()
	seen := map[orphan]bool{}
	var news []hostapi.BoxState
	var drifted []*record.Sandbox
	for hostID, session := range sessions {
		for _, b := range session.Heartbeat.Boxes {
			s, ok := raftstore.Get(view, record.Sandboxes, b.ID)
			switch {
			case !accounts(s, ok, hostID, b):
				seen[orphan{hostID, b.ID, b.Generation}] = true
				continue
			case Follows(s, b):
				news = append(news, b)
			}
			if k.drifted(s, session, b) {
				drifted = append(drifted, s)
			}
		}
		if session.Heartbeat.Ready {
			k.missing(ctx, view, hostID, session.Heartbeat)
		}
	}
	k.follow(ctx, news)
	k.updateDrifted(ctx, drifted)
	k.removeOrphans(ctx, seen)
}

// drifted reports whether a host has it otherwise than the row whether a sandbox
// is persistent: a leader may have ended between telling the one and writing the
// other, and a create takes what was true when it was asked for.
func (k *keeper) drifted(s *record.Sandbox, session hosts.Session, b hostapi.BoxState) bool {
	moving := s.Status == record.SandboxStarting || s.Status == record.SandboxDeleting
	return !moving && s.Generation == b.Generation && b.Persistent != nil && *b.Persistent != s.Persistent && k.Sure(record.Sandboxes.Name, &s.Meta, session.LastSeen)
}

// updateDrifted makes hosts follow the rows.
func (k *keeper) updateDrifted(ctx context.Context, drifted []*record.Sandbox) {
	for _, s := range drifted {
		k.Begin(loops.Job{What: "persistent", Host: s.HostID, ID: s.ID}, loops.AtOnce, func() { k.updatePersistent(ctx, s) })
	}
}

func (k *keeper) updatePersistent(ctx context.Context, known *record.Sandbox) {
	s, ok := raftstore.Get(k.Store.View(), record.Sandboxes, known.ID)
	if !ok || s.ModifyIndex != known.ModifyIndex {
		return // somebody is at it
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

// follow writes down what hosts say of their boxes: what died, and what a
// leader before this one had changed and not written down.
func (k *keeper) follow(ctx context.Context, news []hostapi.BoxState) {
	var changed []*record.Sandbox
	loops.InParts(ctx, k.Term, loopInventory, news, func(tx *raftstore.Tx, part []hostapi.BoxState) error {
		changed = changed[:0]
		for _, b := range part {
			if s, ok := raftstore.Get(tx, record.Sandboxes, b.ID); ok && Follows(s, b) {
				changed = append(changed, Follow(tx, s, b))
			}
		}
		return nil
	}, func() {
		for _, s := range changed {
			if s.Status == record.SandboxFailed {
				k.Logger.WarnContext(ctx, "sandbox failed", "sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.HostID, "why", s.Error)
			}
		}
	})
}

// accounts reports whether a row wants a box where it is. A failed sandbox's
// box that still lives is one that was given up; nobody may use it any more, so
// it must not run on. One that was only unreachable is taken up again.
func accounts(s *record.Sandbox, known bool, hostID string, b hostapi.BoxState) bool {
	switch {
	case !known, s.HostID != hostID, b.Generation < s.Generation:
		return false
	case s.Status == record.SandboxFailed && !Recoverable(s):
		return b.Status == hostapi.StatusFailed || b.Status == hostapi.StatusDeleting
	}
	return true
}

// missing fails sandboxes whose host has a complete inventory without them. The
// heartbeat may be older than the box, so the host is asked once more.
func (k *keeper) missing(ctx context.Context, view *raftstore.Snapshot, hostID string, hb hostapi.Heartbeat) {
	reported := make(map[string]bool, len(hb.Boxes))
	for _, b := range hb.Boxes {
		reported[b.ID] = true
	}
	for _, s := range raftstore.Find(view, record.Sandboxes, "agent", hostID) {
		if reported[s.ID] || !mayFail(s) {
			continue
		}
		k.Begin(loops.Job{What: "missing", Host: hostID, ID: s.ID}, loops.AtOnce, func() { k.confirmMissing(ctx, s) })
	}
}

func (k *keeper) confirmMissing(ctx context.Context, s *record.Sandbox) {
	client, err := k.core.Hosts.Client(s.HostID)
	if err != nil {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	if _, err = client.GetBox(hctx, s.ID); hostapi.HasCode(err, hostapi.CodeNotFound) {
		k.failBox(ctx, s, errBoxGone)
	}
}

// mayFail reports whether a host's word that it has no box of a sandbox is news.
// One that is starting has a flow that sees to it.
func mayFail(s *record.Sandbox) bool {
	switch s.Status {
	case record.SandboxStarting:
		return false
	case record.SandboxFailed:
		return s.Unreachable
	}
	return s.Status.CanBecome(record.SandboxFailed)
}

func (k *keeper) failBox(ctx context.Context, known *record.Sandbox, reason string) {
	ok := k.Update(ctx, loopInventory, func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, known.ID)
		if ok && s.Generation == known.Generation && s.HostID == known.HostID && mayFail(s) {
			fail(tx, s, reason, false)
		}
		return nil
	})
	if ok {
		k.Logger.WarnContext(ctx, "sandbox failed", "sandbox_id", hostapi.ShortID(known.ID), "agent_id", known.HostID, "why", reason)
	}
}

// removeOrphans deletes boxes that have had no row for a while.
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
	if err := client.DeleteBox(ctx, o.id, o.generation); err != nil {
		k.Logger.WarnContext(ctx, "box without a sandbox could not be deleted", append(attrs, "error", err)...)
		return
	}
	k.Logger.InfoContext(ctx, "box without a sandbox deleted", attrs...)
}
