package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ttl deletes sandboxes that have expired.
func (k *keeper) ttl(ctx context.Context) {
	now := k.Clock()
	for _, s := range raftstore.UpTo(k.Store.View(), record.Sandboxes, "expires", record.SandboxExpiry(now)) {
		if s.ExpiresAt.IsZero() || now.Before(s.ExpiresAt) || s.Persistent || s.Owner != nil || s.Status == record.SandboxDeleting {
			continue
		}
		if k.remove(ctx, "ttl", s.ID, func(s *record.Sandbox) bool {
			return !s.ExpiresAt.IsZero() && !k.Clock().Before(s.ExpiresAt) && !s.Persistent && s.Owner == nil
		}) {
			k.Logger.InfoContext(ctx, "sandbox has reached its ttl", "sandbox_id", hostapi.ShortID(s.ID))
		}
	}
}

// hibernateExpired hibernates persistent sandboxes that have expired. A paused one
// must be resumed first. If the hibernation fails, the sandbox is paused again if it
// was, and the next attempt is later.
func (k *keeper) hibernateExpired(ctx context.Context) {
	now := k.Clock()
	var due []loops.Job
	for _, s := range raftstore.UpTo(k.Store.View(), record.Sandboxes, "expires", record.SandboxExpiry(now)) {
		if dueToHibernate(s, now) && k.mayHibernate(s.ID, now) {
			due = append(due, hibernation(s))
		}
	}
	k.BeginInTurn(due, loops.AtOnce, func(is loops.Job) {
		k.noteHibernation(is.ID, k.hibernate(ctx, is, "it has reached its ttl", func(_ raftstore.Reader, s *record.Sandbox) bool { return dueToHibernate(s, k.Clock()) }))
	})
}

func hibernation(s *record.Sandbox) loops.Job {
	return loops.Job{What: "hibernate", Host: s.HostID, Workspace: s.WorkspaceID, ID: s.ID}
}

// mayHibernate reports whether no attempt to hibernate the sandbox has failed
// recently.
func (k *keeper) mayHibernate(id string, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !now.Before(k.notBefore[id])
}

func (k *keeper) noteHibernation(id string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.notBefore, id)
	if !ok {
		k.notBefore[id] = k.Clock().Add(k.hibernateRetry)
	}
}

// dueToHibernate reports whether a sandbox is persistent, awake and expired.
func dueToHibernate(s *record.Sandbox, now time.Time) bool {
	awake := s.Status == record.SandboxRunning || s.Status == record.SandboxPaused
	return awake && s.Persistent && s.Owner == nil && !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// hibernatePaused hibernates the sandboxes of workspaces that have spent their month's
// free credit. Those of apps and databases are their owners'.
func (k *keeper) hibernatePaused(ctx context.Context) {
	now := k.Clock()
	view := k.Store.View()
	var due []loops.Job
	for _, w := range raftstore.Find(view, record.Workspaces, "paused", "yes") {
		for _, s := range raftstore.Find(view, record.Sandboxes, "workspace", w.ID) {
			if runsPaused(view, s) && k.mayHibernate(s.ID, now) {
				due = append(due, hibernation(s))
			}
		}
	}
	k.BeginInTurn(due, loops.AtOnce, func(is loops.Job) {
		k.noteHibernation(is.ID, k.hibernate(ctx, is, "its workspace is paused", runsPaused))
	})
}

// runsPaused reports whether a sandbox uses compute though its workspace is paused.
func runsPaused(r raftstore.Reader, s *record.Sandbox) bool {
	if s.Owner != nil || s.Status != record.SandboxRunning && s.Status != record.SandboxPaused {
		return false
	}
	w, ok := raftstore.Get(r, record.Workspaces, s.WorkspaceID)
	return ok && !w.PausedAt.IsZero()
}

// current returns the current row, and whether it is still due to hibernate: while the
// job waited for its turn, the owner may have extended the time to live.
func (k *keeper) current(ctx context.Context, id string, due func(raftstore.Reader, *record.Sandbox) bool) (*record.Sandbox, bool) {
	view, err := k.Store.VerifiedView(ctx)
	if err != nil {
		return nil, false
	}
	s, ok := raftstore.Get(view, record.Sandboxes, id)
	return s, ok && due(view, s)
}

func (k *keeper) hibernate(ctx context.Context, is loops.Job, why string, still func(raftstore.Reader, *record.Sandbox) bool) bool {
	attrs := []any{"sandbox_id", hostapi.ShortID(is.ID), "agent_id", is.Host, "why", why}
	s, due := k.current(ctx, is.ID, still)
	if !due {
		return false
	}
	var err error
	paused := s.Status == record.SandboxPaused
	if paused {
		s, err = k.transitions.While(ctx, s, Resume)
		if err == nil {
			if _, due := k.current(ctx, s.ID, still); !due {
				_, err = k.transitions.While(ctx, s, Pause)
				return err == nil
			}
		}
	}
	if err == nil {
		_, err = k.transitions.While(ctx, s, Hibernate)
		if paused && err != nil && !changedByOthers(err) {
			_, perr := k.transitions.While(ctx, s, Pause)
			err = errors.Join(err, perr)
		}
	}
	switch {
	case err == nil:
		k.Logger.InfoContext(ctx, "sandbox is hibernated", attrs...)
	case changedByOthers(err):
	case ctx.Err() != nil: // the leadership has ended
	default:
		k.Logger.WarnContext(ctx, "sandbox could not be hibernated", append(attrs, "error", err)...)
	}
	return err == nil
}

func changedByOthers(err error) bool {
	var illegal *IllegalError
	return errors.As(err, &illegal) || errors.Is(err, ErrGone)
}

func (k *keeper) remove(ctx context.Context, what, id string, still func(*record.Sandbox) bool) bool {
	begun := false
	ok := k.Update(ctx, what, func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if begun = ok && s.Status != record.SandboxDeleting && still(s); !begun {
			return nil
		}
		_, err := Resource.BeginDelete(tx, flow.NewID(), s, "")
		return err
	})
	return ok && begun
}
