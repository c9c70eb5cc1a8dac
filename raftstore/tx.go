package raftstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// Tx is a transaction under way: one attempt of the function given to Update.
// It must not be used after that function has returned, nor by two goroutines.
//
// Everything that is read through it is guarded: if a row that Get returned
// (or did not find), or a listing of Find or All, has changed when the
// transaction is applied, nothing is written and the function runs again. What
// is read through Snapshot is not guarded.
type Tx struct {
	base   *Snapshot
	now    time.Time
	rows   map[rowKey]*touch
	order  []*touch // as the rows were first touched
	ranges []rangeGuard
	err    error
	trace  string
}

type rowKey struct{ table, id string }

// touch is what a transaction knows of one row that it has read or written.
type touch struct {
	t     *table
	id    string
	base  *stored // what the snapshot has; nil: nothing
	wrote bool
	after *stored // what it wrote; nil: a delete
}

func newTx(base *Snapshot, now time.Time) *Tx {
	return &Tx{base: base, now: now, rows: make(map[rowKey]*touch, 4)}
}

// Now is the transaction's time, by the leader's clock: the rows it puts are
// stamped with it.
func (tx *Tx) Now() time.Time { return tx.now }

// Trace names the span for which the transaction runs, for what it begins; "" for none.
func (tx *Tx) Trace() string { return tx.trace }

// Snapshot is the state that the transaction started from. What is read
// through it is neither guarded nor does it show the transaction's own writes:
// for choices that may be a little out of date, such as the least loaded host.
func (tx *Tx) Snapshot() *Snapshot { return tx.base }

// Put inserts a row or replaces the one with its id. The row's Meta is set
// (CreatedAt, UpdatedAt and CreateIndex at once, the indexes of this write when
// Update returns), and the row is stored as it is now: changing it afterwards
// changes nothing. A mistake (no id, a row that was not cloned, a status that
// may not follow the row's, a row that JSON cannot carry) makes Update fail with
// nothing written.
func Put[T record.Row](tx *Tx, t record.Table[T], row T) { tx.put(mustTable(tx, t.Name), row) }

// Delete removes a row. That there is none is no error.
func Delete[T record.Row](tx *Tx, t record.Table[T], id string) {
	to := tx.touch(mustTable(tx, t.Name), id)
	to.wrote, to.after = true, nil
}

func (tx *Tx) put(t *table, row record.Row) {
	m := row.RowMeta()
	if m.ID == "" {
		tx.fail(fmt.Errorf("put into %s: row without an id", t.name))
		return
	}
	to := tx.touch(t, m.ID)
	meta := nextMeta(to.base, m.ID, 0, tx.now)
	if to.base != nil {
		if to.base.row == row {
			tx.fail(fmt.Errorf("put into %s: row %s is the stored one; clone it before changing it", t.name, m.ID))
			return
		}
		meta.ModifyIndex = to.base.meta.ModifyIndex
	}
	if err := tx.check(to, row); err != nil {
		tx.fail(fmt.Errorf("put into %s: row %s: %w", t.name, m.ID, err))
		return
	}
	payload, err := encodeRow(row)
	*m = meta
	if err != nil {
		tx.fail(fmt.Errorf("put into %s: encode row %s: %w", t.name, m.ID, err))
		return
	}
	// The other replicas will decode these bytes; what cannot be decoded must
	// never reach them.
	after, err := t.load(meta, payload)
	if err != nil {
		tx.fail(fmt.Errorf("put into %s: row %s: %w", t.name, m.ID, err))
		return
	}
	after.row = row
	to.wrote, to.after = true, after
}

// check asks the table whether the row may take the place of the one that the
// transaction sees.
func (tx *Tx) check(to *touch, row record.Row) error {
	if to.t.check == nil {
		return nil
	}
	var before record.Row
	if now := to.current(); now != nil {
		before = now.row
	}
	return to.t.check(before, row)
}

// nextMeta is the Meta of a row put by an entry: the same on the leader, before
// the index is known, and on every replica when it is applied. Time does not
// run backwards for a row, whatever the clocks of successive leaders say.
func nextMeta(before *stored, id string, index uint64, now time.Time) record.Meta {
	m := record.Meta{ID: id, CreatedAt: now, UpdatedAt: now, CreateIndex: index, ModifyIndex: index}
	if before != nil {
		m.CreatedAt = before.meta.CreatedAt
		m.CreateIndex = before.meta.CreateIndex
		if m.UpdatedAt.Before(before.meta.UpdatedAt) {
			m.UpdatedAt = before.meta.UpdatedAt
		}
	}
	return m
}

func (tx *Tx) fail(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *Tx) touch(t *table, id string) *touch {
	k := rowKey{t.name, id}
	to := tx.rows[k]
	if to == nil {
		to = &touch{t: t, id: id, base: tx.base.get(t, id)}
		tx.rows[k] = to
		tx.order = append(tx.order, to)
	}
	return to
}

func (to *touch) current() *stored {
	if to.wrote {
		return to.after
	}
	return to.base
}

func (tx *Tx) tables() *tableSet { return tx.base.set }

func (tx *Tx) get(t *table, id string) *stored { return tx.touch(t, id).current() }

func (tx *Tx) find(t *table, ix int, value string) []*stored {
	rows := tx.base.find(t, ix, value)
	tx.guard(t, t.indexes[ix].name, value, rows)
	return tx.overlay(t, rows, func(s *stored) bool { return s.listedUnder(t, ix, value) })
}

func (tx *Tx) all(t *table) []*stored {
	rows := tx.base.all(t)
	tx.guard(t, "", "", rows)
	return tx.overlay(t, rows, func(*stored) bool { return true })
}

// guard pins what a listing returned from the snapshot.
func (tx *Tx) guard(t *table, index, value string, rows []*stored) {
	g := rangeGuardOf(t, index, value, rows)
	if !slices.Contains(tx.ranges, g) {
		tx.ranges = append(tx.ranges, g)
	}
}

func rangeGuardOf(t *table, index, value string, rows []*stored) rangeGuard {
	g := rangeGuard{table: t.name, index: index, value: value, count: uint64(len(rows))}
	for _, s := range rows {
		g.max = max(g.max, s.meta.ModifyIndex)
	}
	return g
}

// overlay shows a listing with the transaction's own writes in it.
func (tx *Tx) overlay(t *table, rows []*stored, match func(*stored) bool) []*stored {
	var mine []*touch
	for _, to := range tx.order {
		if to.wrote && to.t == t {
			mine = append(mine, to)
		}
	}
	if len(mine) == 0 {
		return rows
	}
	rows = slices.DeleteFunc(rows, func(s *stored) bool {
		to := tx.rows[rowKey{t.name, s.meta.ID}]
		return to != nil && to.wrote
	})
	for _, to := range mine {
		if to.after != nil && match(to.after) {
			rows = append(rows, to.after)
		}
	}
	slices.SortFunc(rows, func(a, b *stored) int { return strings.Compare(a.meta.ID, b.meta.ID) })
	return rows
}

// Writes reports whether the transaction has written anything yet.
func (tx *Tx) Writes() bool { return tx.writes() }

// writes reports whether there is anything to log.
func (tx *Tx) writes() bool {
	return slices.ContainsFunc(tx.order, func(to *touch) bool {
		return to.wrote && (to.after != nil || to.base != nil)
	})
}

// effects is what goes into the log.
func (tx *Tx) effects() *txn {
	out := &txn{time: tx.now, ops: make([]op, 0, len(tx.order)), ranges: tx.ranges}
	for _, to := range tx.order {
		o := op{kind: opCheckRow, table: to.t.name, id: to.id}
		if to.base != nil {
			o.ifIndex = to.base.meta.ModifyIndex
		}
		switch {
		case to.wrote && to.after != nil:
			o.kind, o.payload = opPut, to.after.payload
		case to.wrote && to.base != nil:
			o.kind = opDelete
		case to.id == "":
			continue // no row can have it, so nothing can change
		}
		out.ops = append(out.ops, o)
	}
	return out
}

// settle completes the Meta of the rows the caller has put, once the index of
// the write is known.
func (tx *Tx) settle(index uint64) {
	for _, to := range tx.order {
		if to.wrote && to.after != nil {
			m := to.after.row.RowMeta()
			m.ModifyIndex = index
			if to.base == nil {
				m.CreateIndex = index
			}
		}
	}
}

var errStale = errors.New("a row read by the transaction has changed")
