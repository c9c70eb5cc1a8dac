package snapshot

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
)

// benchRAM is the RAM of a guest with 512 MB, of which 116 MB are touched in runs of
// a few pages; half of that compresses well, as memory does.
func benchRAM(b *testing.B) (path string, touched int64) {
	b.Helper()
	path = filepath.Join(b.TempDir(), "memory-ranges")
	f := sparse(b, path, 512<<20)
	r := rand.New(rand.NewPCG(1, 1))
	for touched < 116<<20 {
		run := make([]byte, (1+r.IntN(32))*page)
		fill(r, run[:len(run)/2])
		copy(run[len(run)/2:], fmt.Sprintf("%0*d", len(run)/2, touched))
		if _, err := f.WriteAt(run, r.Int64N(512<<20-int64(len(run)))/page*page); err != nil {
			b.Fatal(err)
		}
		touched += int64(len(run))
	}
	return path, touched
}

func BenchmarkUpload(b *testing.B) {
	path, touched := benchRAM(b)
	src := Source{Files: []LocalFile{{Name: "memory-ranges", Path: path}}}
	b.Run("new", func(b *testing.B) {
		b.SetBytes(touched)
		for range b.N {
			b.StopTimer()
			s, _ := fileStore(b, Options{})
			b.StartTimer()
			if _, _, err := s.Upload(b.Context(), "snap", src); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("known", func(b *testing.B) {
		s, _ := fileStore(b, Options{})
		b.SetBytes(touched)
		for i := range b.N + 1 {
			if i == 1 {
				b.ResetTimer()
			}
			if _, _, err := s.Upload(b.Context(), fmt.Sprint("snap-", i), src); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("S3", func(b *testing.B) {
		server := newS3(b)
		s := open(b, s3test.URL(server.Addr), Options{})
		b.SetBytes(touched)
		for i := range b.N {
			b.StopTimer()
			if err := os.RemoveAll(filepath.Join(server.Dir, chunksDir)); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if _, _, err := s.Upload(b.Context(), fmt.Sprint("snap-", i), src); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkFetch(b *testing.B) {
	path, touched := benchRAM(b)
	src := Source{Files: []LocalFile{{Name: "memory-ranges", Path: path}}}
	run := func(b *testing.B, s *Store) {
		if _, _, err := s.Upload(b.Context(), "snap", src); err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		b.SetBytes(touched)
		b.ResetTimer()
		for i := range b.N {
			if _, err := s.Fetch(b.Context(), "snap", filepath.Join(dir, fmt.Sprint(i)), FetchOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("directory", func(b *testing.B) {
		s, _ := fileStore(b, Options{})
		run(b, s)
	})
	b.Run("S3", func(b *testing.B) {
		server := newS3(b)
		run(b, open(b, s3test.URL(server.Addr), Options{}))
	})
}
