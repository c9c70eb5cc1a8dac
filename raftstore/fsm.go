package raftstore

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore/record"
)

// fsm applies log entries to the tables. Raft calls its methods from one
// goroutine at a time. What it does depends on the entry and the state alone.
type fsm struct {
	set   *tableSet
	watch *watches
	db    *memdb.MemDB
	index uint64
	gen   uint64

	failOnce sync.Once
	failure  error         // set before failed is closed
	failed   chan struct{} // closed when an entry could not be understood

	counters *counters
	restored atomic.Int64 // bytes of snapshots that were read
}

// outcome is what became of one transaction of an entry.
type outcome struct {
	index uint64
	err   error // nil, errStale or *ConflictError
}

func newFSM(set *tableSet, c *counters) (*fsm, error) {
	db, err := set.newDB()
	if err != nil {
		return nil, err
	}
	f := &fsm{set: set, db: db, failed: make(chan struct{}), counters: c}
	f.watch = newWatches(newState(db, 0, 0))
	return f, nil
}

// view is the current state of this replica.
func (f *fsm) view() *Snapshot {
	return &Snapshot{state: f.watch.current.Load(), set: f.set, watch: f.watch}
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM: one in-memory transaction and one
// publication for all entries of a batch. The answer to an entry is []outcome,
// or an error when this replica has stopped.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	if f.hasFailed() {
		for i := range answers {
			answers[i] = f.failure
		}
		return answers
	}
	b := f.beginBatch()
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		if f.hasFailed() {
			answers[i] = f.failure
			continue
		}
		outcomes, err := f.applyEntry(b, l)
		if err != nil {
			f.fail(fmt.Errorf("%w: log entry %d: %w", ErrFailed, l.Index, err))
			answers[i] = f.failure
			continue
		}
		f.index = l.Index
		answers[i] = outcomes
	}
	b.w.Commit()
	f.publish(b.touched)
	return answers
}

// batch is the work on some entries, on the way from one published state to
// the next. Reading through a memdb transaction that writes makes it copy its
// nodes anew, so what the batch has not changed is read from before it.
type batch struct {
	w       *memdb.Txn
	base    *memdb.Txn
	rows    map[rowKey]*stored // changed in this batch; nil: deleted
	touched map[string]bool    // tables changed in this batch
}

func (f *fsm) beginBatch() *batch {
	return &batch{
		w: f.db.Txn(true), base: f.watch.current.Load().txn,
		rows: map[rowKey]*stored{}, touched: map[string]bool{},
	}
}

func (b *batch) row(t *table, id string) *stored {
	if s, ok := b.rows[rowKey{t.name, id}]; ok {
		return s
	}
	return t.row(b.base, id)
}

// listing is what listings of a table are read from.
func (b *batch) listing(t *table) *memdb.Txn {
	if b.touched[t.name] {
		return b.w
	}
	return b.base
}

func (b *batch) remove(t *table, s *stored) {
	mustWrite(b.w.Delete(t.name, s))
	b.note(t, s.meta.ID, nil)
}

func (b *batch) insert(t *table, s *stored) {
	mustWrite(b.w.Insert(t.name, s))
	b.note(t, s.meta.ID, s)
}

func (b *batch) note(t *table, id string, s *stored) {
	b.rows[rowKey{t.name, id}] = s
	b.touched[t.name] = true
}

func (f *fsm) publish(touched map[string]bool) {
	f.gen++
	f.watch.publish(newState(f.db, f.index, f.gen), touched)
}

// fail stops this replica: nothing is applied any more and no snapshot is
// taken, so that what it has stays what the log said up to here.
func (f *fsm) fail(err error) {
	f.failOnce.Do(func() {
		f.failure = err
		close(f.failed)
	})
}

func (f *fsm) hasFailed() bool {
	select {
	case <-f.failed:
		return true
	default:
		return false
	}
}

// applyEntry applies the transactions of one entry, in order. An error means
// that the entry is not understood and that none of it was applied.
func (f *fsm) applyEntry(b *batch, l *raft.Log) ([]outcome, error) {
	if l.Index <= f.index {
		return nil, fmt.Errorf("%w: the state is at %d already", errMalformed, f.index)
	}
	txns, err := decodeEntry(l.Data)
	if err != nil {
		return nil, err
	}
	// Everything is decoded before anything is applied: an entry that this
	// replica cannot understand must not be applied in part.
	changes := make([][]change, len(txns))
	for i := range txns {
		if changes[i], err = f.prepare(&txns[i]); err != nil {
			return nil, err
		}
	}
	out := make([]outcome, len(txns))
	for i := range txns {
		out[i] = outcome{index: l.Index, err: f.applyTxn(b, l.Index, &txns[i], changes[i])}
		f.counters.applied(out[i].err)
	}
	return out, nil
}

// change is an operation with its table and its decoded row.
type change struct {
	*op
	t      *table
	before *stored
	after  *stored
}

func (f *fsm) prepare(t *txn) ([]change, error) {
	out := make([]change, len(t.ops))
	for i := range t.ops {
		o := &t.ops[i]
		c := change{op: o, t: f.set.byName[o.table]}
		if c.t == nil {
			return nil, fmt.Errorf("%w: unknown table %q", errMalformed, o.table)
		}
		if o.kind == opPut {
			var err error
			// The payload is copied: it points into the entry, which would stay
			// in memory for as long as the row does.
			if c.after, err = c.t.load(nextMeta(nil, o.id, 0, t.time), bytes.Clone(o.payload)); err != nil {
				return nil, fmt.Errorf("%w: %w", errMalformed, err)
			}
		}
		out[i] = c
	}
	for i := range t.ranges {
		g := &t.ranges[i]
		tab := f.set.byName[g.table]
		if tab == nil {
			return nil, fmt.Errorf("%w: unknown table %q", errMalformed, g.table)
		}
		if _, ok := tab.index(g.index); !ok && g.index != "" {
			return nil, fmt.Errorf("%w: unknown index %q of table %q", errMalformed, g.index, g.table)
		}
	}
	return out, nil
}

// applyTxn checks everything and then changes everything, or nothing. The
// in-memory transaction is shared by a batch and cannot be rolled back, so no
// change is made before the last check.
func (f *fsm) applyTxn(b *batch, index uint64, t *txn, changes []change) error {
	for i := range changes {
		c := &changes[i]
		c.before = b.row(c.t, c.id)
		var have uint64
		if c.before != nil {
			have = c.before.meta.ModifyIndex
		}
		if have != c.ifIndex {
			return errStale
		}
	}
	for i := range t.ranges {
		if !f.rangeHolds(b, &t.ranges[i]) {
			return errStale
		}
	}
	if err := f.checkUnique(b, changes); err != nil {
		return err
	}
	// Rows give up their unique keys before others take them: two rows may
	// swap a key in one transaction.
	for i := range changes {
		c := &changes[i]
		if c.before != nil && (c.kind == opDelete || c.kind == opPut && c.releasesUnique()) {
			b.remove(c.t, c.before)
		}
	}
	for i := range changes {
		c := &changes[i]
		if c.kind == opPut {
			c.after.setMeta(nextMeta(c.before, c.id, index, t.time))
			b.insert(c.t, c.after)
		}
	}
	return nil
}

func (s *stored) setMeta(m record.Meta) {
	s.meta = m
	*s.row.RowMeta() = m
}

func (f *fsm) rangeHolds(b *batch, g *rangeGuard) bool {
	t := f.set.byName[g.table]
	w := b.listing(t)
	var rows []*stored
	if g.index == "" {
		rows = t.all(w)
	} else {
		ix, _ := t.index(g.index)
		rows = t.rows(w, ix, g.value)
	}
	return rangeGuardOf(t, g.index, g.value, rows) == *g
}

// checkUnique refuses a key that another row has, unless that row is changed
// by the same transaction and then has it no more.
func (f *fsm) checkUnique(b *batch, changes []change) error {
	type claim struct {
		table string
		index int
		key   string
	}
	var claims map[claim]string
	rewritten := func(table, id string) bool {
		for i := range changes {
			c := &changes[i]
			if c.kind != opCheckRow && c.id == id && c.table == table {
				return true
			}
		}
		return false
	}
	for i := range changes {
		c := &changes[i]
		if c.kind != opPut {
			continue
		}
		for n, ix := range c.t.indexes {
			if !ix.unique {
				continue
			}
			for _, key := range c.after.keys[n] {
				holder := ""
				if h := c.t.holderOf(b.listing(c.t), n, key); h != nil && h.meta.ID != c.id && !rewritten(c.table, h.meta.ID) {
					holder = h.meta.ID
				}
				k := claim{c.table, n, string(key)}
				if other, taken := claims[k]; taken {
					holder = other
				}
				if holder != "" {
					return &ConflictError{Table: c.table, Index: ix.name, Key: indexValue(key), ID: c.id, HolderID: holder}
				}
				if claims == nil {
					claims = map[claim]string{}
				}
				claims[k] = c.id
			}
		}
	}
	return nil
}

// releasesUnique reports whether the new version lacks a unique key that the
// stored one has.
func (c *change) releasesUnique() bool {
	for n, ix := range c.t.indexes {
		if !ix.unique {
			continue
		}
		for _, key := range c.before.keys[n] {
			if !containsKey(c.after.keys[n], key) {
				return true
			}
		}
	}
	return false
}

// mustWrite stops on an error of memdb's, which after the checks above can
// only be a fault of this package.
func mustWrite(err error) {
	if err != nil {
		panic(fmt.Sprintf("raftstore: in-memory database: %v", err))
	}
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.hasFailed() {
		return nil, f.failure
	}
	return &fsmSnapshot{f.view(), f.counters}, nil
}

// Restore implements raft.FSM. The new state is complete before it replaces
// the old one.
func (f *fsm) Restore(r io.ReadCloser) error {
	db, index, err := readSnapshot(counted{r, &f.restored}, f.set)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	f.db, f.index = db, index
	touched := map[string]bool{}
	for _, t := range f.set.sorted {
		touched[t.name] = true
	}
	f.publish(touched)
	f.counters.restores.Add(1)
	return nil
}
