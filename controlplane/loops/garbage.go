package loops

import (
	"context"
	"time"
)

// Garbage tracks things without a row, and since when each has been seen.
type Garbage[K comparable] struct {
	term     *Term
	describe func(K) (what, id, hostID string)
	since    map[K]time.Time
}

// NewGarbage returns an empty Garbage. describe returns what may be logged about a
// thing.
func NewGarbage[K comparable](t *Term, describe func(K) (what, id, hostID string)) *Garbage[K] {
	return &Garbage[K]{term: t, describe: describe, since: map[K]time.Time{}}
}

// Due records what a pass has seen without a row, forgets what it has not seen, and
// returns what has been seen for longer than its grace. For some time after a backup
// was restored it returns nothing, because the backup lacks the newest rows.
func (g *Garbage[K]) Due(ctx context.Context, seen map[K]bool, grace func(K) time.Duration) (due []K) {
	now := g.term.Clock()
	for k := range g.since {
		if !seen[k] {
			delete(g.since, k)
		}
	}
	keep := Kept(g.term.Store.View()) > 0
	for k := range seen {
		since, known := g.since[k]
		if !known {
			g.since[k] = now
			since = now
		}
		if keep && !known {
			what, id, hostID := g.describe(k)
			g.term.Logger.WarnContext(ctx, "what the restored backup does not know is kept for now", "what", what, "id", id, "agent_id", hostID)
		}
		if !keep && now.Sub(since) >= grace(k) {
			due = append(due, k)
		}
	}
	return due
}
