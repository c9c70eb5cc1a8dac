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

// ttl deletes sandboxes that have reached their end.
func (k *keeper) ttl(ctx context.Context) {
	now := k.Clock()
	for _, s := range raftstore.All(k.Store.View(), record.Sandboxes) {
		if s.ExpiresAt.IsZero() || now.Before(s.ExpiresAt) || s.Persistent || s.Status == record.SandboxDeleting {
			continue
		}
		if k.remove(ctx, "ttl", s.ID, func(s *record.Sandbox) bool {
			return !s.ExpiresAt.IsZero() && !k.Clock().Before(s.ExpiresAt) && !s.Persistent
		}) {
			k.Logger.InfoContext(ctx, "sandbox has reached its ttl", "sandbox_id", hostapi.ShortID(s.ID))
		}
	}
}

// hibernateExpired hibernates persistent sandboxes that have reached their end. One
// that is paused is resumed first: there is no other way from there. One that cannot
// be hibernated now is paused again if it was, and tried again later.
func (k *keeper) hibernateExpired(ctx context.Context) {
	now := k.Clock()
	for _, s := range raftstore.All(k.Store.View(), record.Sandboxes) {
		if !dueToHibernate(s, now) || !k.mayHibernate(s.ID, now) {
			continue
		}
		k.Begin(loops.Job{What: "hibernate", Host: s.HostID, ID: s.ID}, loops.AtOnce, func() {
			k.noteHibernation(s.ID, k.hibernate(ctx, s))
		})
	}
}

// mayHibernate reports whether a sandbox is not one that was just tried in vain.
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

// dueToHibernate reports whether a persistent sandbox that is awake has reached its end.
func dueToHibernate(s *record.Sandbox, now time.Time) bool {
	awake := s.Status == record.SandboxRunning || s.Status == record.SandboxPaused
	return awake && s.Persistent && !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// current is a row as it is now, and whether its time is over still: it may have
// waited for its turn, and its owner have given it more time meanwhile.
func (k *keeper) current(ctx context.Context, id string) (*record.Sandbox, bool) {
	view, err := k.Store.VerifiedView(ctx)
	if err != nil {
		return nil, false
	}
	s, ok := raftstore.Get(view, record.Sandboxes, id)
	return s, ok && dueToHibernate(s, k.Clock())
}

func (k *keeper) hibernate(ctx context.Context, s *record.Sandbox) bool {
	attrs := []any{"sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.HostID}
	s, due := k.current(ctx, s.ID)
	if !due {
		return false
	}
	var err error
	paused := s.Status == record.SandboxPaused
	if paused {
		s, err = k.transitions.While(ctx, s, Resume)
		if err == nil {
			if _, due := k.current(ctx, s.ID); !due {
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
		k.Logger.InfoContext(ctx, "persistent sandbox has reached its ttl and hibernates", attrs...)
	case changedByOthers(err):
	case ctx.Err() != nil: // this leadership is over
	default:
		k.Logger.WarnContext(ctx, "persistent sandbox could not be hibernated at its ttl", append(attrs, "error", err)...)
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
