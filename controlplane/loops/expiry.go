package loops

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ttl deletes sandboxes whose time has come.
func (l *Loops) ttl(ctx context.Context) {
	now := l.cfg.Clock()
	for _, s := range raftstore.All(l.cfg.Store.View(), record.Sandboxes) {
		if s.ExpiresAt.IsZero() || now.Before(s.ExpiresAt) || s.Persistent || s.Status == record.SandboxDeleting {
			continue
		}
		if l.remove(ctx, "ttl", s.ID, func(s *record.Sandbox) bool {
			return !s.ExpiresAt.IsZero() && !l.cfg.Clock().Before(s.ExpiresAt) && !s.Persistent
		}) {
			l.cfg.Logger.InfoContext(ctx, "sandbox has reached its ttl", "sandbox_id", hostapi.ShortID(s.ID))
		}
	}
}

// rest hibernates persistent sandboxes whose time has come. One that is paused
// runs on for a moment first: there is no other way from there. One that cannot
// be hibernated now is paused again if it was, and tried again.
func (l *Loops) rest(ctx context.Context) {
	now := l.cfg.Clock()
	for _, s := range raftstore.All(l.cfg.Store.View(), record.Sandboxes) {
		if !restless(s, now) || !l.mayRest(s.ID, now) {
			continue
		}
		l.jobs.begin(job{"rest", s.AgentID, s.ID}, restsAtOnce, func() {
			l.rested(s.ID, l.hibernate(ctx, s))
		})
	}
}

// mayRest reports whether a sandbox is not one that was just tried in vain.
func (l *Loops) mayRest(id string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !now.Before(l.notYet[id])
}

func (l *Loops) rested(id string, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.notYet, id)
	if !well {
		l.notYet[id] = l.cfg.Clock().Add(l.cfg.RestPause)
	}
}

// restsAtOnce bounds how many hibernations the loop has under way on a host: each
// writes a guest's memory to its disk.
const restsAtOnce = 8

// restless reports whether the time of a persistent sandbox that is awake is over.
func restless(s *record.Sandbox, now time.Time) bool {
	awake := s.Status == record.SandboxRunning || s.Status == record.SandboxPaused
	return awake && s.Persistent && !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}

// current is a row as it is now, and whether its time is over still: it may have
// waited for its turn, and its owner have given it more time meanwhile.
func (l *Loops) current(ctx context.Context, id string) (*record.Sandbox, bool) {
	view, err := l.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return nil, false
	}
	s, ok := raftstore.Get(view, record.Sandboxes, id)
	return s, ok && restless(s, l.cfg.Clock())
}

func (l *Loops) hibernate(ctx context.Context, s *record.Sandbox) bool {
	attrs := []any{"sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.AgentID}
	s, due := l.current(ctx, s.ID)
	if !due {
		return false
	}
	var err error
	paused := s.Status == record.SandboxPaused
	if paused {
		s, err = l.cfg.Moves.While(ctx, s, sandbox.Resume)
		if err == nil {
			if _, due := l.current(ctx, s.ID); !due {
				_, err = l.cfg.Moves.While(ctx, s, sandbox.Pause)
				return err == nil
			}
		}
	}
	if err == nil {
		_, err = l.cfg.Moves.While(ctx, s, sandbox.Hibernate)
		if paused && err != nil && !movedByOthers(err) {
			_, perr := l.cfg.Moves.While(ctx, s, sandbox.Pause)
			err = errors.Join(err, perr)
		}
	}
	switch {
	case err == nil:
		l.cfg.Logger.InfoContext(ctx, "persistent sandbox has reached its ttl and hibernates", attrs...)
	case movedByOthers(err):
	case ctx.Err() != nil: // this leadership is over
	default:
		l.cfg.Logger.WarnContext(ctx, "persistent sandbox could not be hibernated at its ttl", append(attrs, "error", err)...)
	}
	return err == nil
}

func movedByOthers(err error) bool {
	var illegal *sandbox.IllegalError
	return errors.As(err, &illegal) || errors.Is(err, sandbox.ErrGone)
}

// strays deletes what is on its way somewhere with no flow to take it there.
func (l *Loops) strays(ctx context.Context) {
	strays(ctx, l, sandbox.Resource, func(r raftstore.Reader, s *record.Sandbox) bool {
		if s.StartedBy == "" {
			return true
		}
		_, live := flow.Live(r, s.StartedBy)
		return !live
	})
	strays(ctx, l, snapshot.Resource, func(raftstore.Reader, *record.Snapshot) bool { return true })
	strays(ctx, l, volume.Resource, func(_ raftstore.Reader, v *record.Volume) bool { return v.AttachedTo == "" })
}

func strays[T record.Row](ctx context.Context, l *Loops, kind *resource.Kind[T], may func(raftstore.Reader, T) bool) {
	view := l.cfg.Store.View()
	for _, row := range raftstore.All(view, kind.Table) {
		if !kind.Stray(view, row) || !may(view, row) {
			continue
		}
		id := row.RowMeta().ID
		l.cfg.Logger.WarnContext(ctx, "resource is in transition without a flow", "kind", kind.Name, "id", hostapi.ShortID(id))
		l.update(ctx, "strays", func(tx *raftstore.Tx) error {
			now, ok := raftstore.Get(tx, kind.Table, id)
			if !ok || !kind.Stray(tx, now) || !may(tx, now) {
				return nil
			}
			_, err := kind.BeginDelete(tx, flow.NewID(), now, "")
			return err
		})
	}
}

func (l *Loops) remove(ctx context.Context, what, id string, still func(*record.Sandbox) bool) bool {
	begun := false
	ok := l.update(ctx, what, func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if begun = ok && s.Status != record.SandboxDeleting && still(s); !begun {
			return nil
		}
		_, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), s, "")
		return err
	})
	return ok && begun
}

// apiKeyShown is how long lists show an API key that has expired.
const apiKeyShown = 30 * 24 * time.Hour

// expiredRows removes idempotency keys, outcomes of flows, join tokens and API
// keys that are of no more use.
func (l *Loops) expiredRows(ctx context.Context) {
	l.forgetRows()
	now := l.cfg.Clock()
	removeRows(ctx, l, record.IdempotencyKeys, func(k *record.IdempotencyKey) bool { return !now.Before(k.ExpiresAt) })
	removeRows(ctx, l, record.Outcomes, func(o *record.Outcome) bool { return now.Sub(o.CreatedAt) >= flow.OutcomeKept })
	removeRows(ctx, l, record.JoinTokens, func(t *record.JoinToken) bool { return !now.Before(t.ExpiresAt) })
	removeRows(ctx, l, record.APIKeys, func(k *record.APIKey) bool {
		return !k.ExpiresAt.IsZero() && now.Sub(k.ExpiresAt) >= apiKeyShown
	})
}

// removeRows removes the rows of a table that are due, then and when they are
// written.
func removeRows[T record.Row](ctx context.Context, l *Loops, table record.Table[T], due func(T) bool) {
	var ids []string
	for _, row := range raftstore.All(l.cfg.Store.View(), table) {
		if due(row) {
			ids = append(ids, row.RowMeta().ID)
		}
	}
	inParts(ctx, l, "expired rows", ids, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			if row, ok := raftstore.Get(tx, table, id); ok && due(row) {
				raftstore.Delete(tx, table, id)
			}
		}
		return nil
	}, nil)
}
