package raftstore

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore/record"
)

// item is a row with every kind of index.
type item struct {
	record.Meta
	Name  string   `json:"name,omitempty"`  // unique where it is not empty
	Group string   `json:"group,omitempty"` // not unique
	Tags  []string `json:"tags,omitempty"`  // not unique, several
	Value string   `json:"value,omitempty"`
}

func (i *item) clone() *item { c := *i; c.Tags = append([]string(nil), i.Tags...); return &c }

var (
	items  = itemTable("items")
	others = itemTable("others")
)

func itemTable(name string) record.Table[*item] {
	return record.Table[*item]{
		Name: name,
		New:  func() *item { return &item{} },
		Indexes: []record.Index[*item]{
			{Name: "name", Unique: true, Keys: func(i *item) []string {
				if i.Name == "" {
					return nil
				}
				return []string{i.Name}
			}},
			{Name: "group", Keys: func(i *item) []string { return []string{i.Group} }},
			{Name: "tag", Keys: func(i *item) []string { return i.Tags }},
		},
	}
}

func itemTables() []AnyTable { return []AnyTable{Register(items), Register(others)} }

// tb is what testing and rapid have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rig is a state machine fed by hand.
type rig struct {
	t     tb
	fsm   *fsm
	index uint64
	log   []*raft.Log // everything applied
}

func newRig(t tb, tables ...AnyTable) *rig {
	t.Helper()
	if len(tables) == 0 {
		tables = itemTables()
	}
	set, err := newTableSet(tables)
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFSM(set, &counters{})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, fsm: f}
}

// at is a moment of the tests' clock.
func at(second int64) time.Time { return time.Unix(1_700_000_000+second, 0).UTC() }

// begin starts a transaction on the present state.
func (r *rig) begin() *Tx { return newTx(r.fsm.view(), at(int64(r.index))) }

// commit applies transactions in one entry.
func (r *rig) commit(txs ...*Tx) []error {
	r.t.Helper()
	b := appendEntryHeader(nil, len(txs))
	for _, tx := range txs {
		if tx.err != nil {
			r.t.Fatal(tx.err)
		}
		b = appendTxn(b, tx.effects())
	}
	outcomes, ok := r.apply(b).([]outcome)
	if !ok {
		r.t.Fatalf("entry refused: %v", r.fsm.failure)
	}
	errs := make([]error, len(txs))
	for i, o := range outcomes {
		if errs[i] = o.err; o.err == nil {
			txs[i].settle(o.index)
		}
	}
	return errs
}

func (r *rig) apply(data []byte) any {
	r.index++
	l := &raft.Log{Index: r.index, Type: raft.LogCommand, Data: data}
	r.log = append(r.log, l)
	return r.fsm.Apply(l)
}

// do runs a transaction that must succeed.
func (r *rig) do(fn func(tx *Tx)) {
	r.t.Helper()
	tx := r.begin()
	fn(tx)
	if err := r.commit(tx)[0]; err != nil {
		r.t.Fatal(err)
	}
}

// snapshot writes the state.
func (r *rig) snapshot() []byte {
	r.t.Helper()
	var b bytes.Buffer
	if _, err := writeSnapshot(&b, r.fsm.view()); err != nil {
		r.t.Fatal(err)
	}
	return b.Bytes()
}

func (r *rig) restore(snapshot []byte) error {
	err := r.fsm.Restore(nopCloser{bytes.NewReader(snapshot)})
	if err == nil {
		r.index = r.fsm.index
	}
	return err
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

func ids(rows []*item) (out []string) {
	for _, r := range rows {
		out = append(out, r.ID)
	}
	return out
}

func put(id, name, group string, tags ...string) func(tx *Tx) {
	return func(tx *Tx) {
		Put(tx, items, &item{Meta: record.Meta{ID: id}, Name: name, Group: group, Tags: tags})
	}
}

func conflictOf(t testing.TB, err error) *ConflictError {
	t.Helper()
	var c *ConflictError
	if !errors.As(err, &c) || !errors.Is(err, ErrConflict) {
		t.Fatalf("not a conflict: %v", err)
	}
	return c
}
