package loops

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Term is what the loops of one leadership share.
type Term struct {
	Config
	*jobs

	mu        sync.Mutex
	sightings map[string]sighting // of rows that a heartbeat does not agree with
}

// NewTerm begins a term.
func NewTerm(cfg Config) *Term {
	return &Term{Config: cfg, jobs: newJobs(), sightings: map[string]sighting{}}
}

// sighting is since when this leader has seen a row as it is. Times in the rows
// are of whichever leader wrote them, by its clock.
type sighting struct {
	index uint64
	since time.Time
}

// Sure reports whether a heartbeat that was heard at some time is younger than the
// last change of a row that it does not agree with: of an older one nothing
// follows.
func (t *Term) Sure(table string, row *record.Meta, heard time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := table + "/" + row.ID
	s, ok := t.sightings[key]
	if !ok || s.index != row.ModifyIndex {
		s = sighting{index: row.ModifyIndex, since: t.Clock()}
		t.sightings[key] = s
	}
	return heard.Sub(s.since) > t.OrphanGrace
}

// forget drops the sightings of rows that were agreed on long since.
func (t *Term) forget(context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.sightings {
		if t.Clock().Sub(s.since) > 10*ExpiryEvery {
			delete(t.sightings, key)
		}
	}
}

// Kept is how much longer nothing without a row is deleted, after a backup was
// restored.
func Kept(r raftstore.Reader) time.Duration {
	row, ok := raftstore.Get(r, record.Clusters, record.ClusterID)
	if !ok {
		return 0
	}
	return row.Keep
}

// Update runs a transaction of a loop. One that fails is logged and left to the
// next pass.
func (t *Term) Update(ctx context.Context, loop string, fn func(tx *raftstore.Tx) error) bool {
	err := t.Store.Update(ctx, fn)
	if err != nil {
		t.failed(ctx, loop, err)
	}
	return err == nil
}

func (t *Term) failed(ctx context.Context, loop string, err error) {
	if ctx.Err() == nil {
		t.Logger.WarnContext(ctx, "loop could not write", "loop", loop, "error", err)
	}
}

// chunk bounds how many rows one transaction of a loop changes.
const chunk = 200

// InParts has change write rows, in transactions of at most chunk of them, and of
// fewer where those are too large for one: with what its workspace has given it a
// sandbox's row may take a fifth of it, and more. done, if there is one, is called
// after each.
func InParts[T any](ctx context.Context, t *Term, loop string, rows []T, change func(tx *raftstore.Tx, part []T) error, done func()) {
	for part := range slices.Chunk(rows, chunk) {
		err := t.Store.Update(ctx, func(tx *raftstore.Tx) error { return change(tx, part) })
		switch {
		case err == nil && done != nil:
			done()
		case err == nil:
		case errors.Is(err, raftstore.ErrTooLarge) && len(part) > 1:
			InParts(ctx, t, loop, part[:len(part)/2], change, done)
			InParts(ctx, t, loop, part[len(part)/2:], change, done)
		default:
			t.failed(ctx, loop, err)
		}
	}
}

// Expiry is the loop that removes the rows of a table that are due, then and when
// they are written.
func Expiry[T record.Row](t *Term, table record.Table[T], due func(now time.Time, row T) bool) Loop {
	name := "expired " + table.Name
	return Loop{Name: name, Every: ExpiryEvery, Pass: func(ctx context.Context) {
		now := t.Clock()
		var ids []string
		for _, row := range raftstore.All(t.Store.View(), table) {
			if due(now, row) {
				ids = append(ids, row.RowMeta().ID)
			}
		}
		InParts(ctx, t, name, ids, func(tx *raftstore.Tx, part []string) error {
			for _, id := range part {
				if row, ok := raftstore.Get(tx, table, id); ok && due(now, row) {
					raftstore.Delete(tx, table, id)
				}
			}
			return nil
		}, nil)
	}}
}
