package audit

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Loops give entries their places, and keep the log within its bounds.
func (l *Log) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{
		{
			Name: "audit places", Pass: func(ctx context.Context) { l.place(ctx, t) },
			Wake: func() <-chan struct{} { return t.Store.View().Changed(record.AuditEntries.Name) },
		},
		{Name: "audit bounds", Every: loops.ExpiryEvery, Pass: func(ctx context.Context) { l.prune(ctx, t) }},
	}
}

// place appends the entries that have no place yet to their chains, in the order in which
// they were committed, and logs them: whoever collects logs has a copy that nobody who
// changes the store can reach.
func (l *Log) place(ctx context.Context, t *loops.Term) {
	rows := raftstore.Find(t.Store.View(), record.AuditEntries, "pending", "yes")
	slices.SortFunc(rows, func(a, b *record.AuditEntry) int {
		// What came by one entry of Raft's log is placed in the order of lists, newest first.
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), strings.Compare(b.ID, a.ID))
	})
	var placed []*record.AuditEntry
	loops.InParts(ctx, t, "audit places", rows, func(tx *raftstore.Tx, part []*record.AuditEntry) error {
		placed = placed[:0]
		chains := map[string]*record.AuditChain{}
		for _, seen := range part {
			row, ok := raftstore.Get(tx, record.AuditEntries, seen.ID)
			if !ok || row.Sequence != 0 {
				continue
			}
			chain := chains[row.Chain]
			if chain == nil {
				chain = chainOf(tx, row.Chain)
				chains[row.Chain] = chain
			}
			e := row.Clone()
			e.Sequence, e.Previous = chain.Sequence+1, chain.Hash
			e.Hash = show(e).Digest()
			chain.Sequence, chain.Hash = e.Sequence, e.Hash
			raftstore.Put(tx, record.AuditEntries, e)
			placed = append(placed, e)
		}
		put(tx, chains)
		return nil
	}, func() {
		for _, e := range placed {
			t.Logger.LogAttrs(ctx, slog.LevelInfo, "audit entry", slog.String("chain", e.Chain), slog.Uint64("sequence", e.Sequence),
				slog.Time("at", e.Time), slog.String("actor_type", e.ActorType), slog.String("actor_id", e.ActorID), slog.String("action", e.Action),
				slog.String("resource", e.Resource), slog.String("request_id", e.RequestID), slog.String("outcome", e.Outcome),
				slog.String("cause", e.Error), slog.String("previous", e.Previous), slog.String("hash", e.Hash))
		}
	})
}

// chainOf returns a chain to be changed; one without a row begins.
func chainOf(tx *raftstore.Tx, id string) *record.AuditChain {
	if row, ok := raftstore.Get(tx, record.AuditChains, id); ok {
		return row.Clone()
	}
	return &record.AuditChain{Meta: record.Meta{ID: id}}
}

func put(tx *raftstore.Tx, chains map[string]*record.AuditChain) {
	for _, chain := range chains {
		raftstore.Put(tx, record.AuditChains, chain)
	}
}

// prune removes the oldest entries of chains that are too long, and then, while there are
// too many in all, of the longest chains of workspaces that are gone, of others, and of
// operators, in this order: who makes and deletes workspaces, or has many, erases no trace
// of anybody else that way. A chain always loses its beginning, so what is left can be
// verified.
func (l *Log) prune(ctx context.Context, t *loops.Term) {
	view := t.Store.View()
	total, over := 0, false
	for _, c := range raftstore.All(view, record.AuditChains) {
		n := int(c.Sequence - c.Pruned)
		total += min(n, l.cfg.MaxPerWorkspace)
		over = over || n > l.cfg.MaxPerWorkspace
	}
	if !over && total <= l.cfg.Max {
		return
	}
	rows := slices.DeleteFunc(raftstore.All(view, record.AuditEntries), func(e *record.AuditEntry) bool { return e.Sequence == 0 })
	rank := func(e *record.AuditEntry) int {
		if e.Chain == record.AuditOperators {
			return 2
		}
		if _, there := raftstore.Get(view, record.Workspaces, e.Chain); there {
			return 1
		}
		return 0
	}
	left, last := map[string]int{}, map[string]uint64{}
	for _, e := range rows {
		left[e.Chain]++
		last[e.Chain] = max(last[e.Chain], e.Sequence)
	}
	// after is how long a chain is without what is before an entry in it.
	after := func(e *record.AuditEntry) uint64 { return last[e.Chain] - e.Sequence }
	slices.SortFunc(rows, func(a, b *record.AuditEntry) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(after(b), after(a)), cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.Sequence, b.Sequence))
	})
	excess := total - l.cfg.Max
	var gone []*record.AuditEntry
	for _, e := range rows {
		switch {
		case left[e.Chain] > l.cfg.MaxPerWorkspace:
		case excess > 0:
			excess--
		default:
			continue
		}
		left[e.Chain]--
		gone = append(gone, e)
	}
	loops.InParts(ctx, t, "audit bounds", gone, func(tx *raftstore.Tx, part []*record.AuditEntry) error {
		chains := map[string]*record.AuditChain{}
		for _, seen := range part {
			chain := chains[seen.Chain]
			if chain == nil {
				chain = chainOf(tx, seen.Chain)
				chains[seen.Chain] = chain
			}
			if seen.Sequence != chain.Pruned+1 {
				continue // another pass was here, or the part before this one was not written
			}
			raftstore.Delete(tx, record.AuditEntries, seen.ID)
			chain.Pruned, chain.PrunedHash = seen.Sequence, seen.Hash
		}
		for id, chain := range chains {
			if _, there := raftstore.Get(tx, record.Workspaces, id); !there && id != record.AuditOperators && chain.Pruned == chain.Sequence {
				raftstore.Delete(tx, record.AuditChains, id) // nothing is left of the workspace
				delete(chains, id)
			}
		}
		put(tx, chains)
		return nil
	}, nil)
}
