package raftstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-memdb"

	"github.com/berth-cloud/berth/raftstore/record"
)

// AnyTable is a table of any row type, ready to be opened; Register makes it.
type AnyTable struct{ t *table }

// Register prepares a record table for Config.Tables. The index functions must
// depend on nothing but the row: every replica calls them for itself.
func Register[T record.Row](t record.Table[T]) AnyTable {
	tab := &table{name: t.Name, fresh: func() record.Row { return t.New() }}
	if t.Check != nil {
		tab.check = func(before, after record.Row) error {
			old, _ := before.(T)
			return t.Check(old, after.(T))
		}
	}
	for _, ix := range t.Indexes {
		keys := ix.Keys
		tab.indexes = append(tab.indexes, index{
			name:   ix.Name,
			unique: ix.Unique,
			keys:   func(r record.Row) []string { return keys(r.(T)) },
		})
	}
	return AnyTable{tab}
}

type table struct {
	name    string
	fresh   func() record.Row
	check   func(before, after record.Row) error // nil: every row is good
	indexes []index                              // in the order of their declaration
}

type index struct {
	name   string
	unique bool
	keys   func(record.Row) []string
}

func (t *table) index(name string) (int, bool) {
	i := slices.IndexFunc(t.indexes, func(ix index) bool { return ix.name == name })
	return i, i >= 0
}

// stored is one row as the state holds it. The payload is the truth: it is
// what the log carried and what snapshots carry on, so that a replica whose
// row type lacks a field still keeps it. The decoded row and the keys are
// derived, once.
type stored struct {
	meta    record.Meta
	payload []byte // JSON without the meta fields, or with some that are ignored
	row     record.Row
	id      []byte
	keys    [][][]byte // per index of the table, as memdb holds them
}

// encodeRow makes the payload of a row. The entry has the id, the time and the
// index of the row already, so its Meta is left out; it is zero afterwards.
func encodeRow(row record.Row) ([]byte, error) {
	*row.RowMeta() = record.Meta{}
	b, err := json.Marshal(row)
	if err != nil {
		return nil, err
	}
	if rest, ok := bytes.CutPrefix(b, zeroMeta); ok {
		if rest[0] == ',' {
			rest = rest[1:]
		}
		return append([]byte{'{'}, rest...), nil
	}
	return b, nil
}

// zeroMeta is how the JSON of a row with no Meta begins.
var zeroMeta = func() []byte {
	b, err := json.Marshal(record.Meta{})
	if err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b, []byte{'}'})
}()

// load decodes a payload into a row with the given identity and history.
func (t *table) load(meta record.Meta, payload []byte) (*stored, error) {
	row := t.fresh()
	if err := json.Unmarshal(payload, row); err != nil {
		return nil, fmt.Errorf("decode row of %s: %w", t.name, err)
	}
	*row.RowMeta() = meta
	s := &stored{meta: meta, payload: payload, row: row, id: []byte(meta.ID)}
	s.keys = make([][][]byte, len(t.indexes))
	for i, ix := range t.indexes {
		s.keys[i] = ix.encode(ix.keys(row), s.id)
	}
	return s, nil
}

// encode turns index values into memdb keys: the escaped value, a terminator,
// and for an index that is not unique the id, so that rows under one value are
// ordered by id. A value given twice is one key.
func (ix index) encode(values []string, id []byte) [][]byte {
	if len(values) == 0 {
		return nil
	}
	out := make([][]byte, 0, len(values))
	for _, v := range values {
		k := appendIndexPrefix(make([]byte, 0, len(v)+2+len(id)), v)
		if !ix.unique {
			k = append(k, id...)
		}
		if !containsKey(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// appendIndexPrefix escapes NUL so that no value is a prefix of another one's
// key and the order of the values is kept.
func appendIndexPrefix(b []byte, value string) []byte {
	for {
		i := strings.IndexByte(value, 0)
		if i < 0 {
			b = append(b, value...)
			return append(b, 0, 1)
		}
		b = append(b, value[:i]...)
		b = append(b, 0, 0xff)
		value = value[i+1:]
	}
}

// listedUnder reports whether an index has the row under a value.
func (s *stored) listedUnder(t *table, ix int, value string) bool {
	return containsKey(s.keys[ix], t.indexes[ix].encode([]string{value}, s.id)[0])
}

func containsKey(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// indexValue is the value that a key of a unique index stands for.
func indexValue(key []byte) string {
	return strings.ReplaceAll(string(key[:len(key)-2]), "\x00\xff", "\x00")
}

// tableSet is every table of a store.
type tableSet struct {
	byName map[string]*table
	sorted []*table // by name
	schema *memdb.DBSchema
}

func newTableSet(tables []AnyTable) (*tableSet, error) {
	ts := &tableSet{byName: map[string]*table{}, schema: &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}}
	for _, at := range tables {
		t := at.t
		if t == nil || t.name == "" {
			return nil, fmt.Errorf("table without a name")
		}
		if ts.byName[t.name] != nil {
			return nil, fmt.Errorf("table %s is registered twice", t.name)
		}
		if k := reflect.TypeOf(t.fresh()).Kind(); k != reflect.Pointer {
			return nil, fmt.Errorf("table %s: rows must be pointers, not %s", t.name, k)
		}
		schema := &memdb.TableSchema{Name: t.name, Indexes: map[string]*memdb.IndexSchema{
			idIndex: {Name: idIndex, Unique: true, Indexer: idIndexer{}},
		}}
		for i, ix := range t.indexes {
			// memdb reads a "_prefix" at the end of a name as a kind of query.
			if ix.name == "" || ix.name == idIndex || strings.HasSuffix(ix.name, "_prefix") || schema.Indexes[ix.name] != nil {
				return nil, fmt.Errorf("table %s: bad index name %q", t.name, ix.name)
			}
			// Unique to memdb whatever the index: the id is part of the key
			// already where several rows may share a value.
			schema.Indexes[ix.name] = &memdb.IndexSchema{
				Name: ix.name, Unique: true, AllowMissing: true, Indexer: keyIndexer(i),
			}
		}
		ts.byName[t.name] = t
		ts.sorted = append(ts.sorted, t)
		ts.schema.Tables[t.name] = schema
	}
	if len(ts.sorted) == 0 {
		return nil, fmt.Errorf("no tables")
	}
	slices.SortFunc(ts.sorted, func(a, b *table) int { return strings.Compare(a.name, b.name) })
	return ts, nil
}

// newDB makes an empty database. A snapshot of a memdb is writable and, unlike
// the database it comes from, does not track every changed node for watches;
// the store has its own watches, one a table.
func (ts *tableSet) newDB() (*memdb.MemDB, error) {
	db, err := memdb.NewMemDB(ts.schema)
	if err != nil {
		return nil, fmt.Errorf("make in-memory database: %w", err)
	}
	return db.Snapshot(), nil
}

// idIndex is the name memdb demands for the primary index.
const idIndex = "id"

type idIndexer struct{}

func (idIndexer) FromObject(obj any) (bool, []byte, error) {
	return true, obj.(*stored).id, nil
}

func (idIndexer) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

// keyIndexer is the position of an index in its table.
type keyIndexer int

func (k keyIndexer) FromObject(obj any) (bool, [][]byte, error) {
	keys := obj.(*stored).keys[k]
	return len(keys) > 0, keys, nil
}

func (keyIndexer) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }
