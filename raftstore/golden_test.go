package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/raftstore/record"
)

var update = flag.Bool("update", false, "write the golden files of the format written today")

// goldenSet is the newest directory below testdata/golden. There is a new one
// for each version of a format, and whenever the same format carries more:
// tables that there were not, or fields.
const goldenSet = 8

// The files below testdata/golden/v<N> were written by the code of their time,
// and must be readable for ever: never change those of a set that has been
// released, add a directory for the next one. In v1 snapshots name every table,
// also those without a row.
//
//	entry-*.bin   log entries, to be applied in the order of their names
//	outcomes.txt  what became of each of their transactions
//	snapshot.bin  the state after them
//	state.txt     the same, readable
func TestGoldenFiles(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	dirs, err := filepath.Glob("testdata/golden/v*")
	if err != nil || len(dirs) != goldenSet {
		t.Fatalf("directories %v: %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			file := func(name string) string {
				b, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			replayed := newRig(t, RecordTables()...)
			names, _ := filepath.Glob(filepath.Join(dir, "entry-*.bin"))
			var outcomes []byte
			for _, name := range names {
				outcomes = appendOutcomes(t, outcomes, replayed.apply([]byte(file(filepath.Base(name)))))
			}
			if d := cmp.Diff(file("outcomes.txt"), string(outcomes)); d != "" {
				t.Errorf("outcomes (-golden +now):\n%s", d)
			}
			restored := newRig(t, RecordTables()...)
			if err := restored.restore([]byte(file("snapshot.bin"))); err != nil {
				t.Fatal(err)
			}
			for what, r := range map[string]*rig{"log": replayed, "snapshot": restored} {
				if d := cmp.Diff(file("state.txt"), dump(r.fsm.view())); d != "" {
					t.Errorf("state from the %s (-golden +now):\n%s", what, d)
				}
				checkKnownFields(t, r.fsm.view())
			}
		})
	}
}

// checkKnownFields fails when a field that is in old payloads has gone from
// the row type: its values would silently be read as absent.
func checkKnownFields(t *testing.T, v *Snapshot) {
	t.Helper()
	for _, tab := range v.set.sorted {
		for _, s := range tab.all(v.txn) {
			d := json.NewDecoder(bytes.NewReader(s.payload))
			d.DisallowUnknownFields()
			if err := d.Decode(tab.fresh()); err != nil {
				t.Errorf("%s: %v", tab.name, err)
			}
		}
	}
}

func appendOutcomes(t *testing.T, b []byte, answer any) []byte {
	t.Helper()
	outcomes, ok := answer.([]outcome)
	if !ok {
		t.Fatalf("entry refused: %v", answer)
	}
	for _, o := range outcomes {
		var c *ConflictError
		switch {
		case errors.As(o.err, &c):
			b = fmt.Appendf(b, "%d conflict: %s.%s %q of %s held by %s\n", o.index, c.Table, c.Index, c.Key, c.ID, c.HolderID)
		case errors.Is(o.err, errStale):
			b = fmt.Appendf(b, "%d stale\n", o.index)
		default:
			b = fmt.Appendf(b, "%d applied\n", o.index)
		}
	}
	return b
}

// goldenEntries has every kind of operation and every outcome, over a row of
// every table with every field set.
func goldenEntries(t *testing.T, r *rig) [][]byte {
	first := r.begin()
	for _, tab := range r.fsm.set.sorted {
		tab.check = nil // what a status is does not matter here
		first.put(tab, filled(t, tab))
	}
	r.commit(first)

	second := r.begin()
	a, _ := Get(second, record.Hosts, "agents.Meta.ID")
	a = clone(a)
	a.Draining, a.State = false, record.HostLost
	Put(second, record.Hosts, a)
	Get(second, record.Workspaces, "not there")
	Find(second, record.Sandboxes, "workspace", "sandboxes.WorkspaceID")
	All(second, record.Users)
	r.commit(second)

	stale, conflict, removal := r.begin(), r.begin(), r.begin()
	Get(stale, record.Workspaces, "w2")
	Put(stale, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "w3"}})
	Put(conflict, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "k2"}, Prefix: "api_keys.Prefix"})
	Delete(removal, record.Flows, "flows.Meta.ID")
	early := r.begin()
	Put(early, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "w2"}, Name: "üñ\u2028\"<&>"})
	r.commit(early, stale, conflict, removal)

	var out [][]byte
	for _, l := range r.log {
		out = append(out, l.Data)
	}
	return out
}

func clone[T any](p *T) *T { c := *p; return &c }

func writeGolden(t *testing.T) {
	dir := fmt.Sprintf("testdata/golden/v%d", goldenSet)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, RecordTables()...)
	entries := goldenEntries(t, r)
	again := newRig(t, RecordTables()...)
	var outcomes []byte
	for i, e := range entries {
		write(fmt.Sprintf("entry-%d.bin", i+1), e)
		outcomes = appendOutcomes(t, outcomes, again.apply(e))
	}
	write("outcomes.txt", outcomes)
	write("snapshot.bin", r.snapshot())
	write("state.txt", []byte(dump(r.fsm.view())))
}

// What is written today is what the newest golden files have, to the byte.
func TestGoldenFilesAreWrittenTheSame(t *testing.T) {
	r := newRig(t, RecordTables()...)
	for i, l := range goldenFiles(t, fmt.Sprintf("../v%d/entry-*.bin", goldenSet)) {
		r.apply(l)
		txns, err := decodeEntry(l)
		if err != nil {
			t.Fatal(err)
		}
		b := appendEntryHeader(nil, len(txns))
		for i := range txns {
			b = appendTxn(b, &txns[i])
		}
		if !bytes.Equal(b, l) {
			t.Errorf("entry %d is encoded differently", i+1)
		}
	}
	if want := goldenFiles(t, fmt.Sprintf("../v%d/snapshot.bin", goldenSet)); !slices.Equal(r.snapshot(), want[0]) {
		t.Error("the snapshot is encoded differently")
	}
}
