package raftstore

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// state is the whole of the replicated data after one log entry. It never
// changes once it is published.
type state struct {
	txn   *memdb.Txn // for reading; safe for concurrent use
	index uint64     // Raft index of the last entry in it
	gen   uint64     // rises with each state of this process, also across a restore
}

// row finds a row by id.
func (t *table) row(txn *memdb.Txn, id string) *stored {
	obj, err := txn.First(t.name, idIndex, []byte(id))
	if err != nil || obj == nil {
		mustRead(err)
		return nil
	}
	return obj.(*stored)
}

// rows lists the rows under one value of an index, ordered by id.
func (t *table) rows(txn *memdb.Txn, ix int, value string) []*stored {
	if t.indexes[ix].unique {
		if s := t.holder(txn, ix, value); s != nil {
			return []*stored{s}
		}
		return nil
	}
	it, err := txn.Get(t.name, t.indexes[ix].name, appendIndexPrefix(nil, value))
	return collect(it, err)
}

// upTo lists the rows under the values of an index up to one, ordered by them.
func (t *table) upTo(txn *memdb.Txn, ix int, value string) (rows []*stored) {
	last := appendIndexPrefix(nil, value)
	it, err := txn.LowerBound(t.name, t.indexes[ix].name, []byte{})
	mustRead(err)
	for obj := it.Next(); obj != nil; obj = it.Next() {
		s := obj.(*stored)
		if key := s.keys[ix][0]; bytes.Compare(key, last) > 0 && !bytes.HasPrefix(key, last) {
			break
		}
		rows = append(rows, s)
	}
	return rows
}

// all lists every row, ordered by id.
func (t *table) all(txn *memdb.Txn) []*stored {
	it, err := txn.Get(t.name, idIndex)
	return collect(it, err)
}

// holder is the row that has a value of a unique index.
func (t *table) holder(txn *memdb.Txn, ix int, value string) *stored {
	return t.holderOf(txn, ix, appendIndexPrefix(nil, value))
}

func (t *table) holderOf(txn *memdb.Txn, ix int, key []byte) *stored {
	obj, err := txn.First(t.name, t.indexes[ix].name, key)
	if err != nil || obj == nil {
		mustRead(err)
		return nil
	}
	return obj.(*stored)
}

func collect(it memdb.ResultIterator, err error) []*stored {
	mustRead(err)
	var out []*stored
	for obj := it.Next(); obj != nil; obj = it.Next() {
		out = append(out, obj.(*stored))
	}
	return out
}

// mustRead stops on an error of memdb's, which for a table and an index of its
// own schema can only be a fault of this package.
func mustRead(err error) {
	if err != nil && !errors.Is(err, memdb.ErrNotFound) {
		panic(fmt.Sprintf("raftstore: in-memory database: %v", err))
	}
}
