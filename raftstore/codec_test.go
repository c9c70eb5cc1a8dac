package raftstore

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestEntryRoundTrip(t *testing.T) {
	text := rapid.String()
	rapid.Check(t, func(t *rapid.T) {
		var want []txn
		var b []byte
		n := rapid.IntRange(1, 4).Draw(t, "transactions")
		b = appendEntryHeader(b, n)
		for range n {
			tx := txn{time: at(rapid.Int64Range(-1<<33, 1<<32).Draw(t, "time")), ops: []op{}}
			ids := rapid.SliceOfNDistinct(rapid.StringN(1, 20, -1), 0, 4, rapid.ID).Draw(t, "ids")
			for _, id := range ids {
				o := op{
					kind:    rapid.SampledFrom([]opKind{opPut, opDelete, opCheckRow}).Draw(t, "kind"),
					table:   text.Draw(t, "table"),
					id:      id,
					ifIndex: rapid.Uint64().Draw(t, "index"),
				}
				if o.kind == opPut {
					o.payload = rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
				}
				tx.ops = append(tx.ops, o)
			}
			for range rapid.IntRange(0, 2).Draw(t, "ranges") {
				tx.ranges = append(tx.ranges, rangeGuard{
					text.Draw(t, "table"), text.Draw(t, "index"), text.Draw(t, "value"), rapid.Uint64().Draw(t, "count"), rapid.Uint64().Draw(t, "max"),
				})
			}
			b = appendTxn(b, &tx)
			want = append(want, tx)
		}
		got, err := decodeEntry(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(txn{}, op{}, rangeGuard{})); d != "" {
			t.Fatal(d)
		}
		// Every proper beginning of an entry is refused.
		if _, err := decodeEntry(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); !errors.Is(err, errMalformed) {
			t.Fatalf("a truncated entry: %v", err)
		}
	})
}

func goldenFiles(t testing.TB, pattern string) [][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "golden", "*", pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no golden files %s: %v", pattern, err)
	}
	var out [][]byte
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// FuzzEntry feeds the decoder of log entries and, behind it, Apply.
func FuzzEntry(f *testing.F) {
	for _, b := range goldenFiles(f, "entry-*.bin") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		txns, err := decodeEntry(data)
		if err == nil {
			// What is accepted means one thing only.
			b := appendEntryHeader(nil, len(txns))
			for i := range txns {
				b = appendTxn(b, &txns[i])
			}
			again, err := decodeEntry(b)
			if err != nil {
				t.Fatalf("what was decoded does not decode again: %v", err)
			}
			if d := cmp.Diff(txns, again, cmp.AllowUnexported(txn{}, op{}, rangeGuard{})); d != "" {
				t.Fatal(d)
			}
		} else if !errors.Is(err, errMalformed) {
			t.Fatalf("error %v", err)
		}
		r := newRig(t, RecordTables()...)
		_ = r.apply(data)
		s := r.snapshot()
		if r.fsm.hasFailed() {
			return
		}
		if err := newRig(t, RecordTables()...).restore(s); err != nil {
			t.Fatalf("a state that cannot be restored: %v", err)
		}
	})
}

// FuzzSnapshot feeds the reader of snapshots, also with damage that the
// checksum agrees with.
func FuzzSnapshot(f *testing.F) {
	for _, b := range goldenFiles(f, "snapshot.bin") {
		f.Add(b, false)
		f.Add(b[:len(b)-sha256.Size], true)
	}
	f.Add([]byte(snapshotMagic+"\x01\x00\x00"+"\x00\x00\x00\x00\x00\x00\x00\x00"), true)
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal {
			sum := sha256.Sum256(data)
			data = append(data, sum[:]...)
		}
		r := newRig(t, RecordTables()...)
		if err := r.restore(data); err != nil {
			if !errors.Is(err, ErrBadBackup) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := newRig(t, RecordTables()...)
		if err := again.restore(r.snapshot()); err != nil {
			t.Fatalf("what was accepted cannot be restored again: %v", err)
		}
		if dump(r.fsm.view()) != dump(again.fsm.view()) {
			t.Fatal("restored again, it is another state")
		}
	})
}
