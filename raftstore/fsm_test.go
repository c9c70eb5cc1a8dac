package raftstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMetaIsSetByTheEntry(t *testing.T) {
	r := newRig(t)
	first := &item{Meta: record.Meta{ID: "a", CreateIndex: 99, ModifyIndex: 99, CreatedAt: at(-5)}, Value: "1"}
	r.index = 6
	r.do(func(tx *Tx) { Put(tx, items, first) })
	want := record.Meta{ID: "a", CreatedAt: at(6), UpdatedAt: at(6), CreateIndex: 7, ModifyIndex: 7}
	got, _ := Get(r.fsm.view(), items, "a")
	if got.Meta != want {
		t.Errorf("after insert %+v", got.Meta)
	}
	if first.Meta != want {
		t.Errorf("the caller's row has %+v", first.Meta)
	}
	second := got.clone()
	r.do(func(tx *Tx) { Put(tx, items, second) })
	want.UpdatedAt, want.ModifyIndex = at(7), 8
	if got, _ = Get(r.fsm.view(), items, "a"); got.Meta != want || second.Meta != want {
		t.Errorf("after update %+v, the caller's row %+v", got.Meta, second.Meta)
	}
	// A new leader whose clock is behind.
	tx := newTx(r.fsm.view(), at(-100))
	third := got.clone()
	Put(tx, items, third)
	r.commit(tx)
	want.ModifyIndex = 9
	if got, _ = Get(r.fsm.view(), items, "a"); got.Meta != want || third.Meta != want {
		t.Errorf("after update by a slow clock %+v, the caller's row %+v", got.Meta, third.Meta)
	}
}

func TestGuardsRefuseWhatChanged(t *testing.T) {
	setup := func(t *testing.T) *rig {
		r := newRig(t)
		r.do(put("a", "na", "g1", "x"))
		r.do(put("b", "nb", "g1", "y"))
		r.do(put("c", "nc", "g2", "y"))
		return r
	}
	write := put("z", "", "z")
	change := func(id string) func(tx *Tx) {
		return func(tx *Tx) {
			i, _ := Get(tx, items, id)
			c := i.clone()
			c.Value += "!"
			Put(tx, items, c)
		}
	}
	remove := func(id string) func(tx *Tx) { return func(tx *Tx) { Delete(tx, items, id) } }
	get := func(id string) func(tx *Tx) { return func(tx *Tx) { Get(tx, items, id) } }
	find := func(ix, v string) func(tx *Tx) { return func(tx *Tx) { Find(tx, items, ix, v) } }
	all := func(tx *Tx) { All(tx, items) }
	for name, c := range map[string]struct {
		read, between func(tx *Tx)
		stale         bool
	}{
		"row read, changed":                   {get("a"), change("a"), true},
		"row read, deleted":                   {get("a"), remove("a"), true},
		"row read, another changed":           {get("a"), change("b"), false},
		"absent row read, inserted":           {get("q"), put("q", "", ""), true},
		"group listed, member changed":        {find("group", "g1"), change("a"), true},
		"group listed, member deleted":        {find("group", "g1"), remove("b"), true},
		"group listed, member added":          {find("group", "g1"), put("q", "", "g1"), true},
		"group listed, other group changed":   {find("group", "g1"), change("c"), false},
		"empty group listed, member added":    {find("group", "g9"), put("q", "", "g9"), true},
		"tag listed, member added":            {find("tag", "y"), put("q", "", "", "y"), true},
		"tag listed, other tag added":         {find("tag", "y"), put("q", "", "", "x"), false},
		"unique name looked up, taken":        {find("name", "nq"), put("q", "nq", ""), true},
		"unique name looked up, row changed":  {find("name", "na"), change("a"), true},
		"unique name looked up, other insert": {find("name", "na"), put("q", "nq", ""), false},
		"all listed, row added":               {all, put("q", "", ""), true},
		"all listed, other table changed": {all, func(tx *Tx) {
			Put(tx, others, &item{Meta: record.Meta{ID: "a"}})
		}, false},
		"write over a change":                     {put("a", "", ""), change("a"), true},
		"write over a deletion":                   {put("a", "", ""), remove("a"), true},
		"delete over a change":                    {remove("a"), change("a"), true},
		"delete over a deletion":                  {remove("a"), remove("a"), true},
		"delete of what was not there, inserted":  {remove("q"), put("q", "", ""), true},
		"read through Snapshot, changed":          {func(tx *Tx) { Get(tx.Snapshot(), items, "a"); All(tx.Snapshot(), items) }, change("a"), false},
		"own write listed, nothing else happened": {func(tx *Tx) { write(tx); Find(tx, items, "group", "z") }, change("a"), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := setup(t)
			tx := r.begin()
			c.read(tx)
			write(tx)
			r.do(c.between)
			before := dump(r.fsm.view())
			err := r.commit(tx)[0]
			if stale := errors.Is(err, errStale); stale != c.stale {
				t.Fatalf("outcome %v", err)
			}
			if _, written := Get(r.fsm.view(), items, "z"); written == c.stale {
				t.Errorf("row written: %v", written)
			}
			if after := dump(r.fsm.view()); c.stale && after != before {
				t.Errorf("a refused transaction changed something:\n%s", cmp.Diff(before, after))
			}
		})
	}
}

func TestTransactionsOfOneEntryDoNotSeeEachOther(t *testing.T) {
	r := newRig(t)
	r.do(put("a", "", ""))
	one, two, three := r.begin(), r.begin(), r.begin()
	for _, tx := range []*Tx{one, two} {
		i, _ := Get(tx, items, "a")
		c := i.clone()
		c.Value += "+"
		Put(tx, items, c)
	}
	Put(three, items, &item{Meta: record.Meta{ID: "b"}})
	errs := r.commit(one, two, three)
	if errs[0] != nil || !errors.Is(errs[1], errStale) || errs[2] != nil {
		t.Errorf("outcomes %v", errs)
	}
	if i, _ := Get(r.fsm.view(), items, "a"); i.Value != "+" {
		t.Errorf("value %q", i.Value)
	}
}

func TestUniqueIndex(t *testing.T) {
	setup := func(t *testing.T) *rig {
		r := newRig(t)
		r.do(put("a", "na", ""))
		r.do(put("b", "nb", ""))
		return r
	}
	for name, c := range map[string]struct {
		tx       func(tx *Tx)
		conflict *ConflictError
		names    map[string]string // name → id afterwards
	}{
		"taken":             {put("c", "na", ""), &ConflictError{Table: "items", Index: "name", Key: "na", ID: "c", HolderID: "a"}, nil},
		"own name again":    {put("a", "na", "g"), nil, map[string]string{"na": "a", "nb": "b"}},
		"no name":           {put("c", "", ""), nil, map[string]string{"na": "a", "nb": "b"}},
		"another table":     {func(tx *Tx) { Put(tx, others, &item{Meta: record.Meta{ID: "c"}, Name: "na"}) }, nil, map[string]string{"na": "a", "nb": "b"}},
		"given up and free": {put("a", "nz", ""), nil, map[string]string{"nz": "a", "nb": "b", "na": ""}},
		"taken over from a deleted row": {func(tx *Tx) { put("c", "na", "")(tx); Delete(tx, items, "a") },
			nil, map[string]string{"na": "c", "nb": "b"}},
		"swapped": {func(tx *Tx) { put("a", "nb", "")(tx); put("b", "na", "")(tx) },
			nil, map[string]string{"na": "b", "nb": "a"}},
		"moved along": {func(tx *Tx) { put("a", "nb", "")(tx); put("b", "nc", "")(tx) },
			nil, map[string]string{"na": "", "nb": "a", "nc": "b"}},
		"twice in one transaction": {func(tx *Tx) { put("c", "nx", "")(tx); put("d", "nx", "")(tx) },
			&ConflictError{Table: "items", Index: "name", Key: "nx", ID: "d", HolderID: "c"}, nil},
		"holder rewritten with the name": {func(tx *Tx) { put("a", "na", "g")(tx); put("c", "na", "")(tx) },
			&ConflictError{Table: "items", Index: "name", Key: "na", ID: "c", HolderID: "a"}, nil},
		"a name with NUL is another name": {put("c", "na\x00", ""), nil, map[string]string{"na": "a", "na\x00": "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := setup(t)
			before := dump(r.fsm.view())
			tx := r.begin()
			c.tx(tx)
			err := r.commit(tx)[0]
			if c.conflict != nil {
				if got := conflictOf(t, err); *got != *c.conflict {
					t.Errorf("conflict %+v", got)
				}
				if dump(r.fsm.view()) != before {
					t.Error("a refused transaction changed something")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for name, id := range c.names {
				var want []string
				if id != "" {
					want = []string{id}
				}
				if got := ids(Find(r.fsm.view(), items, "name", name)); !slices.Equal(got, want) {
					t.Errorf("%q is held by %v, not %v", name, got, want)
				}
			}
		})
	}
}

func TestListingsAreOrderedAndExact(t *testing.T) {
	r := newRig(t)
	// Ids and values that would run into each other if keys were only joined.
	for _, c := range [][2]string{{"b", "g"}, {"a", "g"}, {"a\x00", "g"}, {"x", "g\x00"}, {"\x00y", "g"}, {"y", "g\x01"}, {"ü/é", "g"}, {"z", ""}} {
		r.do(put(c[0], "", c[1], "t", "t", c[1]))
	}
	v := r.fsm.view()
	for value, want := range map[string][]string{
		"g": {"\x00y", "a", "a\x00", "b", "ü/é"}, "g\x00": {"x"}, "g\x01": {"y"}, "": {"z"}, "h": nil,
	} {
		if got := ids(Find(v, items, "group", value)); !slices.Equal(got, want) {
			t.Errorf("group %q: %q", value, got)
		}
	}
	if got := ids(Find(v, items, "tag", "t")); len(got) != 8 || !slices.IsSorted(got) {
		t.Errorf("tag t: %q", got)
	}
	for value, want := range map[string][]string{
		"": {"z"}, "f": {"z"}, "g": {"z", "\x00y", "a", "a\x00", "b", "ü/é"}, "g\x00": {"z", "\x00y", "a", "a\x00", "b", "ü/é", "x"},
		"h": {"z", "\x00y", "a", "a\x00", "b", "ü/é", "x", "y"},
	} {
		if got := ids(UpTo(v, items, "group", value)); !slices.Equal(got, want) {
			t.Errorf("up to group %q: %q", value, got)
		}
	}
	if got := ids(All(v, items)); len(got) != 8 || !slices.IsSorted(got) {
		t.Errorf("all: %q", got)
	}
}

func TestWhatIsNotUnderstoodStopsTheReplica(t *testing.T) {
	good := func(r *rig) []byte {
		tx := r.begin()
		put("x", "", "")(tx)
		return appendTxn(appendEntryHeader(nil, 1), tx.effects())
	}
	entry := func(t *txn) []byte { return appendTxn(appendEntryHeader(nil, 1), t) }
	for name, make := range map[string]func(r *rig) []byte{
		"empty":             func(*rig) []byte { return nil },
		"unknown version":   func(r *rig) []byte { b := good(r); b[0] = 2; return b },
		"no transactions":   func(*rig) []byte { return []byte{1, 0} },
		"truncated":         func(r *rig) []byte { b := good(r); return b[:len(b)-1] },
		"bytes after":       func(r *rig) []byte { return append(good(r), 0) },
		"unknown table":     func(*rig) []byte { return entry(&txn{ops: []op{{kind: opCheckRow, table: "gone", id: "a"}}}) },
		"unknown operation": func(*rig) []byte { return entry(&txn{ops: []op{{kind: 77, table: "items", id: "a"}}}) },
		"unknown index":     func(*rig) []byte { return entry(&txn{ranges: []rangeGuard{{table: "items", index: "gone"}}}) },
		"range in no table": func(*rig) []byte { return entry(&txn{ranges: []rangeGuard{{table: "gone"}}}) },
		"row is not JSON": func(*rig) []byte {
			return entry(&txn{ops: []op{{kind: opPut, table: "items", id: "a", payload: []byte("{")}}})
		},
		"row of other shape": func(*rig) []byte {
			return entry(&txn{ops: []op{{kind: opPut, table: "items", id: "a", payload: []byte(`{"value":7}`)}}})
		},
		"row without id": func(*rig) []byte { return entry(&txn{ops: []op{{kind: opDelete, table: "items"}}}) },
		"row twice": func(*rig) []byte {
			return entry(&txn{ops: []op{{kind: opCheckRow, table: "items", id: "a"}, {kind: opCheckRow, table: "items", id: "a"}}})
		},
		"second transaction bad": func(r *rig) []byte {
			b := good(r)
			b[1] = 2
			return append(b, 0xff)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.do(put("a", "", ""))
			before := dump(r.fsm.view())
			data := make(r)
			answers := r.fsm.ApplyBatch([]*raft.Log{
				{Index: 2, Type: raft.LogCommand, Data: data},
				{Index: 3, Type: raft.LogConfiguration},
				{Index: 4, Type: raft.LogCommand, Data: good(r)},
			})
			err, _ := answers[0].(error)
			if !errors.Is(err, ErrFailed) || !errors.Is(err, errMalformed) || answers[2] == nil {
				t.Errorf("answers %v", answers)
			}
			if !r.fsm.hasFailed() || r.fsm.index != 1 {
				t.Errorf("failed %v at %d", r.fsm.hasFailed(), r.fsm.index)
			}
			if after := dump(r.fsm.view()); after != before {
				t.Errorf("something was applied:\n%s", cmp.Diff(before, after))
			}
			if _, err := r.fsm.Snapshot(); !errors.Is(err, ErrFailed) {
				t.Errorf("snapshot of a failed replica: %v", err)
			}
		})
	}
}

func TestAnOldEntryStopsTheReplica(t *testing.T) {
	r := newRig(t)
	r.do(put("a", "", ""))
	r.index = 0
	tx := r.begin()
	put("b", "", "")(tx)
	if err, _ := r.apply(appendTxn(appendEntryHeader(nil, 1), tx.effects())).(error); !errors.Is(err, ErrFailed) {
		t.Errorf("answer %v", err)
	}
}

func TestWatch(t *testing.T) {
	r := newRig(t)
	r.do(put("a", "", ""))
	old := r.fsm.view()
	both, one, two := old.Changed("items", "others"), old.Changed("items"), old.Changed("others")
	if old.Changed("others", "items") != both {
		t.Error("two channels for one set of tables")
	}
	isOpen := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return false
		default:
			return true
		}
	}
	if !isOpen(both) || !isOpen(one) || !isOpen(two) {
		t.Error("told of a change that the snapshot has")
	}
	r.do(put("b", "", ""))
	if isOpen(both) || isOpen(one) || !isOpen(two) {
		t.Error("told of the wrong table")
	}
	if isOpen(old.Changed("items")) || !isOpen(r.fsm.view().Changed("items")) {
		t.Error("a snapshot is not told by what came after it")
	}
	stale := r.begin()
	Get(stale, items, "b")
	put("c", "", "")(stale)
	r.do(func(tx *Tx) { Delete(tx, items, "b") })
	now := r.fsm.view().Changed("items")
	r.commit(stale)
	if !isOpen(now) {
		t.Error("told of a transaction that was refused")
	}
	if err := r.restore(r.snapshot()); err != nil {
		t.Fatal(err)
	}
	if isOpen(now) || isOpen(two) {
		t.Error("not told of a restore")
	}
	if got := len(r.fsm.watch.waiting); got != 0 {
		t.Errorf("%d waiters left", got)
	}
}

func TestPayloadKeepsFieldsThisVersionDoesNotKnow(t *testing.T) {
	r := newRig(t)
	payload := `{"value":"v","from_the_future":{"a":1}}`
	r.apply(appendTxn(appendEntryHeader(nil, 1), &txn{time: time.Unix(9, 0), ops: []op{{kind: opPut, table: "items", id: "a", payload: []byte(payload)}}}))
	two := newRig(t)
	if err := two.restore(r.snapshot()); err != nil {
		t.Fatal(err)
	}
	if got := two.fsm.view().get(two.fsm.set.byName["items"], "a"); string(got.payload) != payload {
		t.Errorf("payload %s", got.payload)
	}
}
