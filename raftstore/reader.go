package raftstore

import (
	"fmt"

	"github.com/hashicorp/go-memdb"

	"github.com/berth-cloud/berth/raftstore/record"
)

// Reader is a consistent view of the tables: a *Snapshot, or a *Tx, which also
// sees its own writes. A row that a Reader returns is shared and must not be
// changed; Clone it first.
type Reader interface {
	get(t *table, id string) *stored
	find(t *table, ix int, value string) []*stored
	all(t *table) []*stored
	tables() *tableSet
}

// Get finds a row by id.
func Get[T record.Row](r Reader, t record.Table[T], id string) (T, bool) {
	s := r.get(mustTable(r, t.Name), id)
	if s == nil {
		var none T
		return none, false
	}
	return s.row.(T), true
}

// Find lists the rows that an index has under a value, ordered by id.
func Find[T record.Row](r Reader, t record.Table[T], index, value string) []T {
	tab := mustTable(r, t.Name)
	ix, ok := tab.index(index)
	if !ok {
		panic(fmt.Sprintf("raftstore: table %s has no index %q", t.Name, index))
	}
	return rowsOf[T](r.find(tab, ix, value))
}

// UpTo lists the rows whose value in an index is at most value, in the order of the
// values. A row has one value there, or none. It reads a snapshot alone: a transaction
// notes what it has read by values, not by ranges.
func UpTo[T record.Row](s *Snapshot, t record.Table[T], index, value string) []T {
	tab := mustTable(s, t.Name)
	ix, ok := tab.index(index)
	if !ok {
		panic(fmt.Sprintf("raftstore: table %s has no index %q", t.Name, index))
	}
	return rowsOf[T](tab.upTo(s.txn, ix, value))
}

// All lists every row of a table, ordered by id.
func All[T record.Row](r Reader, t record.Table[T]) []T {
	return rowsOf[T](r.all(mustTable(r, t.Name)))
}

func rowsOf[T record.Row](in []*stored) []T {
	out := make([]T, len(in))
	for i, s := range in {
		out[i] = s.row.(T)
	}
	return out
}

// mustTable stops on a table that the store was not opened with, which is a
// fault of the program and not of its input.
func mustTable(r Reader, name string) *table {
	t := r.tables().byName[name]
	if t == nil {
		panic(fmt.Sprintf("raftstore: table %q is not registered", name))
	}
	return t
}

// Snapshot is the state of this replica at one moment. It stays as it is for
// as long as it is held.
type Snapshot struct {
	*state
	set   *tableSet
	watch *watches
}

// Index is the Raft index of the last change that the snapshot contains.
func (s *Snapshot) Index() uint64 { return s.index }

// Changed returns a channel that is closed when one of the tables has changed
// after this snapshot, at once if it already has.
func (s *Snapshot) Changed(tables ...string) <-chan struct{} {
	for _, name := range tables {
		mustTable(s, name)
	}
	return s.watch.changed(s.gen, tables)
}

func (s *Snapshot) get(t *table, id string) *stored               { return t.row(s.txn, id) }
func (s *Snapshot) find(t *table, ix int, value string) []*stored { return t.rows(s.txn, ix, value) }
func (s *Snapshot) all(t *table) []*stored                        { return t.all(s.txn) }
func (s *Snapshot) tables() *tableSet                             { return s.set }

func newState(db *memdb.MemDB, index, gen uint64) *state {
	return &state{txn: db.Snapshot().Txn(false), index: index, gen: gen}
}
