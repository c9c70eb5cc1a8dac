package usage

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// credits warns workspaces, pauses those that have spent their month's free credit, and
// lifts the pause of those that have not any more: they were upgraded, or a month began.
// What runs is stopped by the loops of what it is, which follow Workspace.PausedAt.
func (k *keeper) credits(ctx context.Context) {
	view := k.Store.View()
	now := k.Clock()
	var news []string
	for _, w := range raftstore.All(view, record.Workspaces) {
		if k.news(view, w, now) {
			news = append(news, w.ID)
		}
	}
	type change struct {
		id     string
		paused bool
	}
	var changes []change
	loops.InParts(ctx, k.Term, loopCredit, news, func(tx *raftstore.Tx, part []string) error {
		changes = changes[:0]
		for _, id := range part {
			w, ok := raftstore.Get(tx, record.Workspaces, id)
			if !ok || !k.news(tx, w, tx.Now()) {
				continue
			}
			if err := k.conclude(tx, w); err != nil {
				return err
			}
			if after, _ := raftstore.Get(tx, record.Workspaces, id); after.PausedAt.IsZero() != w.PausedAt.IsZero() {
				changes = append(changes, change{id, !after.PausedAt.IsZero()})
			}
		}
		return nil
	}, func() {
		for _, c := range changes {
			k.Logger.InfoContext(ctx, "workspace is paused or goes on, by its month's free credit", "workspace_id", c.id, "paused", c.paused)
		}
	})
}

// news reports whether something is to be concluded of a workspace's month.
func (k *keeper) news(r raftstore.Reader, w *record.Workspace, now time.Time) bool {
	m := k.core.Tiers.Month(r, w, now)
	if m.Exhausted() == w.PausedAt.IsZero() {
		return true
	}
	if !m.Nearly() {
		return false
	}
	u, ok := raftstore.Get(r, record.Usages, record.UsageID(w.ID, record.MonthOf(now)))
	return !ok || u.WarnedAt.IsZero() || m.Exhausted() && u.ExhaustedAt.IsZero()
}

// conclude tells a workspace what it has to know, once each in a month, and pauses it or
// lets it go on: in one transaction, so that whoever leads, all of it happens or none.
func (k *keeper) conclude(tx *raftstore.Tx, w *record.Workspace) error {
	now := tx.Now()
	m := k.core.Tiers.Month(tx, w, now)
	row := usageOf(tx, w.ID, record.MonthOf(now))
	tell := func(at *time.Time, t api.WebhookEventType) error {
		if !at.IsZero() {
			return nil
		}
		*at = now.UTC()
		return webhook.Enqueue(tx, w.ID, t, api.WebhookQuota{
			CreditUSD: m.Credit.USD(), CostUSDUsed: m.Used.USD(), PeriodEnd: api.Time{Time: limits.NextMonth(now)},
		})
	}
	if m.Nearly() {
		if err := tell(&row.WarnedAt, api.WebhookQuotaWarning); err != nil {
			return err
		}
		if m.Exhausted() {
			if err := tell(&row.ExhaustedAt, api.WebhookQuotaExhausted); err != nil {
				return err
			}
		}
		raftstore.Put(tx, record.Usages, row)
	}
	if m.Exhausted() == w.PausedAt.IsZero() {
		c := w.Clone()
		c.PausedAt = time.Time{}
		if m.Exhausted() {
			c.PausedAt = now.UTC()
		}
		raftstore.Put(tx, record.Workspaces, c)
	}
	return nil
}
