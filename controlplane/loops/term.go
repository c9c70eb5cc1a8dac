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

// Term is shared by the loops of one leadership.
type Term struct {
	Config
	*jobs

	mu        sync.Mutex
	sightings map[string]sighting // of rows that contradict a heartbeat
}

// NewTerm returns the state of a new leadership.
func NewTerm(cfg Config) *Term {
	return &Term{Config: cfg, jobs: newJobs(), sightings: map[string]sighting{}}
}

// sighting records since when this leader has seen a version of a row. Times in the
// row itself are of the clock of the leader that wrote it.
type sighting struct {
	index uint64
	since time.Time
}

// Sure reports whether a heartbeat is newer than the last change of a row that
// contradicts it. An older heartbeat proves nothing.
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

// forget removes old sightings.
func (t *Term) forget(context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.sightings {
		if t.Clock().Sub(s.since) > 10*ExpiryEvery {
			delete(t.sightings, key)
		}
	}
}

// Kept returns for how much longer nothing without a row is deleted, after the
// restore of a backup.
func Kept(r raftstore.Reader) time.Duration {
	row, ok := raftstore.Get(r, record.Clusters, record.ClusterID)
	if !ok {
		return 0
	}
	return row.Keep
}

// Restored returns the index up to which rows are as a restored backup has them, for as
// long as Kept says: what they ask for may have been done since. Else it is 0.
func Restored(r raftstore.Reader) uint64 {
	row, ok := raftstore.Get(r, record.Clusters, record.ClusterID)
	if !ok || row.Keep == 0 {
		return 0
	}
	return row.CreateIndex // it was written with the backup
}

// Update runs a loop's transaction. It logs an error; the next pass tries again.
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

// chunk limits the rows that one transaction of a loop changes.
const chunk = 200

// InParts calls change for parts of rows, each in its own transaction. A part has at
// most chunk rows, and fewer if they are too large for one transaction: a single
// sandbox's row may fill a fifth of it or more. If done is not nil, it is called
// after each part.
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

// Expiry is the loop that removes the rows of a table for which due is true.
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
