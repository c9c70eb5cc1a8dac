package loops

import (
	"context"
	"slices"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flows/sandbox"
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
			return !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt) && !s.Persistent
		}) {
			l.cfg.Logger.InfoContext(ctx, "sandbox has reached its ttl", "sandbox_id", hostapi.ShortID(s.ID))
		}
	}
}

// strays deletes sandboxes that are on their way somewhere with no flow to take
// them there. No transaction of ours leaves one; an old backup might.
func (l *Loops) strays(ctx context.Context) {
	view := l.cfg.Store.View()
	stray := func(r raftstore.Reader, s *record.Sandbox) bool {
		if s.Status != record.SandboxStarting && s.Status != record.SandboxDeleting {
			return false
		}
		_, live := flow.Live(r, sandbox.Subject(s.ID))
		return !live
	}
	for _, s := range raftstore.All(view, record.Sandboxes) {
		if !stray(view, s) {
			continue
		}
		l.cfg.Logger.WarnContext(ctx, "sandbox is in transition without a flow", "sandbox_id", hostapi.ShortID(s.ID), "status", string(s.Status))
		l.update(ctx, "strays", func(tx *raftstore.Tx) error {
			s, ok := raftstore.Get(tx, record.Sandboxes, s.ID)
			if !ok || !stray(tx, s) {
				return nil
			}
			_, err := sandbox.BeginDelete(tx, sandbox.NewFlowID(), s, "")
			return err
		})
	}
}

func (l *Loops) remove(ctx context.Context, what, id string, still func(*record.Sandbox) bool) bool {
	return l.update(ctx, what, func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if !ok || s.Status == record.SandboxDeleting || !still(s) {
			return nil
		}
		_, err := sandbox.BeginDelete(tx, sandbox.NewFlowID(), s, "")
		return err
	})
}

// expiredRows removes idempotency keys and join tokens that are of no more use.
func (l *Loops) expiredRows(ctx context.Context) {
	now := l.cfg.Clock()
	view := l.cfg.Store.View()
	var keys, tokens []string
	for _, k := range raftstore.All(view, record.IdempotencyKeys) {
		if !now.Before(k.ExpiresAt) {
			keys = append(keys, k.ID)
		}
	}
	for _, t := range raftstore.All(view, record.JoinTokens) {
		if !now.Before(t.ExpiresAt) {
			tokens = append(tokens, t.ID)
		}
	}
	for part := range slices.Chunk(keys, chunk) {
		l.update(ctx, "expired rows", func(tx *raftstore.Tx) error {
			for _, id := range part {
				if k, ok := raftstore.Get(tx, record.IdempotencyKeys, id); ok && !now.Before(k.ExpiresAt) {
					raftstore.Delete(tx, record.IdempotencyKeys, id)
				}
			}
			return nil
		})
	}
	for part := range slices.Chunk(tokens, chunk) {
		l.update(ctx, "expired rows", func(tx *raftstore.Tx) error {
			for _, id := range part {
				raftstore.Delete(tx, record.JoinTokens, id)
			}
			return nil
		})
	}
}
