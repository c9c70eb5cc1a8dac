package raftstore

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/berth-cloud/berth/raftstore/record"
)

// script is a transaction as data: what it reads, and which rows it then
// writes. What it writes depends on all that it read, so that a run on another
// state than the one it is applied to shows.
type script struct {
	reads  []read
	writes []write
}

type read struct {
	kind  string // get, group, tag, name, all, or snap for an unguarded get
	value string
}

type write struct {
	id     string
	remove bool
	name   string
	group  string
	tags   []string
}

var (
	someID    = rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
	someName  = rapid.SampledFrom([]string{"", "", "n1", "n2", "n3"})
	someGroup = rapid.SampledFrom([]string{"", "g1", "g2"})
	someTags  = rapid.SliceOfN(rapid.SampledFrom([]string{"t1", "t2"}), 0, 2)
)

var someScript = rapid.Custom(func(t *rapid.T) script {
	var s script
	for range rapid.IntRange(0, 3).Draw(t, "reads") {
		r := read{kind: rapid.SampledFrom([]string{"get", "get", "group", "tag", "name", "all"}).Draw(t, "kind")}
		switch r.kind {
		case "get":
			r.value = someID.Draw(t, "id")
		case "group":
			r.value = someGroup.Draw(t, "group")
		case "tag":
			r.value = rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "tag")
		case "name":
			r.value = rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "name")
		}
		s.reads = append(s.reads, r)
	}
	for range rapid.IntRange(1, 3).Draw(t, "writes") {
		s.writes = append(s.writes, write{
			id: someID.Draw(t, "id"), remove: rapid.IntRange(0, 3).Draw(t, "remove") == 0,
			name: someName.Draw(t, "name"), group: someGroup.Draw(t, "group"), tags: someTags.Draw(t, "tags"),
		})
	}
	return s
})

// run is a script against the store.
func (s script) run(tx *Tx) {
	seen := sha256.New()
	note := func(rows ...*item) {
		for _, i := range rows {
			fmt.Fprintf(seen, "%s=%s;", i.ID, i.Value)
		}
	}
	for _, r := range s.reads {
		switch r.kind {
		case "get":
			if i, ok := Get(tx, items, r.value); ok {
				note(i)
			}
		case "all":
			note(All(tx, items)...)
		default:
			note(Find(tx, items, r.kind, r.value)...)
		}
	}
	sum := fmt.Sprintf("%x", seen.Sum(nil)[:4])
	for _, w := range s.writes {
		if w.remove {
			Delete(tx, items, w.id)
			continue
		}
		Put(tx, items, &item{Meta: record.Meta{ID: w.id}, Name: w.name, Group: w.group, Tags: w.tags, Value: sum})
	}
}

// model is the plainest store that could be right: one transaction at a time.
type model map[string]item

func (m model) list(match func(item) bool) (out []item) {
	for _, i := range m {
		if match(i) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b item) int { return cmpString(a.ID, b.ID) })
	return out
}

func cmpString(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) }

// run is a script against the model. It returns the next state, or an error
// when two rows would have one name.
func (m model) run(s script) (model, error) {
	seen := sha256.New()
	for _, r := range s.reads {
		rows := m.list(func(i item) bool {
			switch r.kind {
			case "get":
				return i.ID == r.value
			case "group":
				return i.Group == r.value
			case "tag":
				return slices.Contains(i.Tags, r.value)
			case "name":
				return i.Name == r.value
			}
			return true
		})
		for _, i := range rows {
			fmt.Fprintf(seen, "%s=%s;", i.ID, i.Value)
		}
	}
	sum := fmt.Sprintf("%x", seen.Sum(nil)[:4])
	next := model{}
	for id, i := range m {
		next[id] = i
	}
	for _, w := range s.writes {
		delete(next, w.id)
		if !w.remove {
			next[w.id] = item{Meta: record.Meta{ID: w.id}, Name: w.name, Group: w.group, Tags: w.tags, Value: sum}
		}
	}
	names := map[string]bool{}
	for _, i := range next {
		if i.Name != "" && names[i.Name] {
			return nil, ErrConflict
		}
		names[i.Name] = true
	}
	return next, nil
}

// checkAgainst compares state and model through every way of reading.
func (m model) checkAgainst(t *rapid.T, v *Snapshot) {
	same := func(what string, got []*item, want []item) {
		var plain []item
		for _, i := range got {
			c := *i.clone()
			c.Meta = record.Meta{ID: i.ID}
			if len(c.Tags) == 0 {
				c.Tags = nil
			}
			plain = append(plain, c)
		}
		for n := range want {
			if len(want[n].Tags) == 0 {
				want[n].Tags = nil
			}
		}
		if d := cmp.Diff(want, plain); d != "" {
			t.Fatalf("%s (-model +store):\n%s", what, d)
		}
	}
	same("all", All(v, items), m.list(func(item) bool { return true }))
	for _, g := range []string{"", "g1", "g2"} {
		same("group "+g, Find(v, items, "group", g), m.list(func(i item) bool { return i.Group == g }))
	}
	for _, tag := range []string{"t1", "t2"} {
		same("tag "+tag, Find(v, items, "tag", tag), m.list(func(i item) bool { return slices.Contains(i.Tags, tag) }))
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		same("name "+n, Find(v, items, "name", n), m.list(func(i item) bool { return i.Name == n }))
	}
}

// Transactions start on states of different ages, several share an entry, and
// some are refused. Those that are not must have done what they would have
// done alone, one after the other in the order of the log.
func TestTransactionsAreSerialisable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(t)
		m := model{}
		views := []*Snapshot{r.fsm.view()}
		for range rapid.IntRange(1, 25).Draw(t, "entries") {
			n := rapid.IntRange(1, 3).Draw(t, "transactions")
			scripts := make([]script, n)
			txs := make([]*Tx, n)
			for i := range n {
				scripts[i] = someScript.Draw(t, "script")
				age := rapid.IntRange(0, min(3, len(views)-1)).Draw(t, "age")
				txs[i] = newTx(views[len(views)-1-age], at(int64(r.index)))
				scripts[i].run(txs[i])
			}
			for i, err := range r.commit(txs...) {
				next, merr := m.run(scripts[i])
				switch {
				case err == nil && merr != nil:
					t.Fatalf("applied, though two rows have one name: %+v", scripts[i])
				case err == nil:
					m = next
				case errors.Is(err, ErrConflict) && merr == nil:
					t.Fatalf("refused, though no two rows would have one name: %v", err)
				case errors.Is(err, errStale) && n == 1 && txs[i].base == views[len(views)-1]:
					t.Fatal("refused, though nothing has changed")
				}
			}
			m.checkAgainst(t, r.fsm.view())
			views = append(views, r.fsm.view())
		}
	})
}

// A log has one meaning: however it is cut into batches, and wherever a
// snapshot is taken and restored, the state is the same to the byte.
func TestReplicasAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(t)
		views := []*Snapshot{r.fsm.view()}
		entries := rapid.IntRange(1, 20).Draw(t, "entries")
		cut := rapid.IntRange(0, entries).Draw(t, "snapshot after")
		var snapshot []byte
		for n := range entries {
			if n == cut {
				snapshot = r.snapshot()
			}
			txs := make([]*Tx, rapid.IntRange(1, 3).Draw(t, "transactions"))
			for i := range txs {
				age := rapid.IntRange(0, min(2, len(views)-1)).Draw(t, "age")
				txs[i] = newTx(views[len(views)-1-age], at(int64(n)))
				someScript.Draw(t, "script").run(txs[i])
			}
			r.commit(txs...)
			views = append(views, r.fsm.view())
		}
		if snapshot == nil {
			snapshot = r.snapshot()
		}
		want := r.snapshot()

		batched := newRig(t)
		for rest := r.log; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "batch")
			batched.fsm.ApplyBatch(rest[:n])
			rest = rest[n:]
		}
		if !bytes.Equal(batched.snapshot(), want) {
			t.Fatalf("in batches:\n%s", cmp.Diff(dump(r.fsm.view()), dump(batched.fsm.view())))
		}

		restored := newRig(t)
		if err := restored.restore(snapshot); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(restored.snapshot(), snapshot) {
			t.Fatal("a restored state writes another snapshot")
		}
		after := slices.DeleteFunc(slices.Clone(r.log), func(l *raft.Log) bool { return l.Index <= restored.fsm.index })
		if len(after) > 0 {
			restored.fsm.ApplyBatch(after)
		}
		if !bytes.Equal(restored.snapshot(), want) {
			t.Fatalf("from a snapshot:\n%s", cmp.Diff(dump(r.fsm.view()), dump(restored.fsm.view())))
		}
	})
}
