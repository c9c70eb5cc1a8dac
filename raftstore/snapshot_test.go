package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/raftstore/record"
)

// fill sets every field of a row, however deep, to something that is not zero.
func fill(t testing.TB, v reflect.Value, path string) {
	t.Helper()
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 11, 20, 12, 46, 7, len(path)*1000, time.UTC)))
		return
	}
	if v.Type().PkgPath() == "encoding/json" && v.Type().Name() == "RawMessage" {
		v.SetBytes(fmt.Appendf(nil, `{"of":%q}`, path))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(len(path)))
	case reflect.Uint64, reflect.Uint32:
		v.SetUint(uint64(len(path)))
	case reflect.Float64:
		v.SetFloat(float64(len(path)) + 0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), path)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(path))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, path+".key")
		fill(t, e, path+".value")
		v.SetMapIndex(k, e)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	default:
		t.Fatalf("%s: no value for a %s; teach fill about it", path, v.Type())
	}
}

func filled(t testing.TB, tab *table) record.Row {
	row := tab.fresh()
	fill(t, reflect.ValueOf(row).Elem(), tab.name)
	return row
}

func TestEveryRecordSurvivesLogAndSnapshot(t *testing.T) {
	r := newRig(t, RecordTables()...)
	want := map[string]record.Row{}
	r.do(func(tx *Tx) {
		for _, tab := range r.fsm.set.sorted {
			want[tab.name] = filled(t, tab)
			tab.check = nil // what a status is does not matter here
			tx.put(tab, want[tab.name])
		}
	})
	restored := newRig(t, RecordTables()...)
	if err := restored.restore(r.snapshot()); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*Snapshot{r.fsm.view(), restored.fsm.view()} {
		for _, tab := range v.set.sorted {
			got := v.get(tab, want[tab.name].RowMeta().ID)
			if got == nil {
				t.Errorf("%s: no row", tab.name)
			} else if d := cmp.Diff(want[tab.name], got.row); d != "" {
				t.Errorf("%s: a field is lost (-put +read):\n%s", tab.name, d)
			}
		}
	}
	if dump(restored.fsm.view()) != dump(r.fsm.view()) {
		t.Error("the restored state is another one")
	}
	if restored.fsm.view().Index() != r.fsm.view().Index() {
		t.Error("the restored state has another index")
	}
}

// A table added to package record must be added to these tests.
func TestEveryTableIsTested(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "record/tables.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(f, func(n ast.Node) bool {
		if _, inside := n.(*ast.FuncLit); inside {
			return false // what an index has of its own is no table
		}
		if v, ok := n.(*ast.ValueSpec); ok {
			declared += len(v.Names)
		}
		return true
	})
	if n := len(RecordTables()); n != declared {
		t.Errorf("%d tables are tested, %d are declared", n, declared)
	}
}

func TestDamagedSnapshotIsRefusedAndChangesNothing(t *testing.T) {
	src := newRig(t)
	src.do(put("a", "n", "g", "t"))
	src.do(put("b", "m", "g"))
	src.do(func(tx *Tx) { Put(tx, others, &item{Meta: record.Meta{ID: "a"}, Value: "v"}) })
	good := src.snapshot()

	r := newRig(t)
	r.do(put("old", "old", "old"))
	before := dump(r.fsm.view())
	refuse := func(what string, b []byte) {
		t.Helper()
		if err := r.restore(b); !errors.Is(err, ErrBadBackup) {
			t.Errorf("%s: %v", what, err)
		}
		if dump(r.fsm.view()) != before || r.fsm.view().Index() != 1 {
			t.Fatalf("%s: the old state is gone", what)
		}
	}
	for n := range good {
		refuse(fmt.Sprintf("cut at %d", n), good[:n])
		bad := bytes.Clone(good)
		bad[n] ^= 0x40
		refuse(fmt.Sprintf("bit flipped at %d", n), bad)
	}
	refuse("bytes after the end", append(bytes.Clone(good), 0))
	unheard := newRig(t, Register(itemTable("unheard-of")))
	unheard.do(func(tx *Tx) { Put(tx, itemTable("unheard-of"), &item{Meta: record.Meta{ID: "a"}}) })
	refuse("another table set", unheard.snapshot())
	if err := r.fsm.Restore(failing{}); err == nil || dump(r.fsm.view()) != before {
		t.Errorf("a reader that fails: %v", err)
	}
	// It still works, and takes a good one.
	r.do(put("new", "", ""))
	if err := r.restore(good); err != nil {
		t.Fatal(err)
	}
	if dump(r.fsm.view()) != dump(src.fsm.view()) {
		t.Error("the restored state is another one")
	}
	r.do(put("c", "", ""))
}

type failing struct{ nopCloser }

func (failing) Read([]byte) (int, error) { return 0, iotest.ErrTimeout }

// A replica that is a version behind follows as long as what it does not know
// is not used.
func TestSnapshotDoesNotNameEmptyTables(t *testing.T) {
	newer := newRig(t, append(itemTables(), Register(itemTable("unheard-of")))...)
	newer.do(put("a", "n", "g"))
	r := newRig(t)
	if err := r.restore(newer.snapshot()); err != nil {
		t.Fatal(err)
	}
	if dump(r.fsm.view()) != dump(newer.fsm.view()) {
		t.Error("the restored state is another one")
	}
}

func TestSnapshotOfFewerTablesLeavesTheOthersEmpty(t *testing.T) {
	old := newRig(t, Register(others)).snapshot()
	r := newRig(t)
	r.do(put("a", "", ""))
	if err := r.restore(old); err != nil {
		t.Fatal(err)
	}
	if got := All(r.fsm.view(), items); len(got) != 0 {
		t.Errorf("rows left: %v", ids(got))
	}
}
