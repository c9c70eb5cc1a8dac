package pgarchive

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
)

func BenchmarkArchive(b *testing.B) {
	content := segment(1)
	f := walFile(seg(1), content)
	b.Run("put WAL", func(b *testing.B) {
		s := New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b")))
		a := open(b, s, first, key)
		b.SetBytes(pgapi.SegmentBytes)
		n := uint64(0)
		for b.Loop() {
			n++
			f.Name = seg(n)
			if _, err := a.PutWAL(b.Context(), f, bytes.NewReader(content)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get WAL", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		putWAL(b, a, seg(1), content)
		b.SetBytes(pgapi.SegmentBytes)
		for b.Loop() {
			if _, _, err := a.WAL(b.Context(), seg(1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get a base backup", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		stream := long()
		backup(b, a, "a", 1, 1, time.Now(), stream)
		b.SetBytes(int64(len(stream)))
		for b.Loop() {
			if err := a.Backup(b.Context(), "a", io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("info of a week", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		const segments = 7 * 24 * 60
		for n := range uint64(segments) {
			stub(b, a, n+1, at(int(n)))
		}
		for day := range 7 {
			backup(b, a, string(rune('a'+day)), uint64(day*1440+2), uint64(day*1440+2), at(day*1440+3), []byte("x"))
		}
		for b.Loop() {
			if _, err := a.Info(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
