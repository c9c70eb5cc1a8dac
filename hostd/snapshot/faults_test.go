package snapshot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
)

// damaged changes an object in a store's directory.
func damage(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, change(bytes.Clone(raw)))
}

func TestADamagedSnapshotIsRefusedByName(t *testing.T) {
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	chunk := func(t *testing.T, s *Store, dir string) string {
		t.Helper()
		m, err := s.Manifest(t.Context(), "snap-1")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Files {
			if f.Name == "memory-ranges" {
				return filepath.Join(dir, chunkKey(f.Chunks[len(f.Chunks)/2].SHA256))
			}
		}
		t.Fatal("no chunk of the RAM")
		return ""
	}
	manifest := func(_ *testing.T, _ *Store, dir string) string { return filepath.Join(dir, manifestsDir, "snap-1") }
	shared := func(t *testing.T, _ *Store, dir string) string { return objects(t, dir, sharedDir)[0] }
	for name, c := range map[string]struct {
		object func(*testing.T, *Store, string) string
		change func([]byte) []byte // nil: removed
		want   error
		says   string
	}{
		"a chunk is missing":           {chunk, nil, ErrIncomplete, "memory-ranges: "},
		"a chunk has a flipped bit":    {chunk, flip, ErrDamaged, "memory-ranges: "},
		"a chunk is cut":               {chunk, half, ErrDamaged, "memory-ranges: "},
		"a chunk is empty":             {chunk, func([]byte) []byte { return nil }, ErrDamaged, "memory-ranges: "},
		"a chunk is huge":              {chunk, func([]byte) []byte { return make([]byte, 2*maxStored) }, ErrDamaged, "too long"},
		"the manifest is missing":      {manifest, nil, ErrNotFound, "snap-1"},
		"the manifest has another bit": {manifest, flip, ErrDamaged, "checksum"},
		"the manifest is cut":          {manifest, half, ErrDamaged, "checksum"},
		"the manifest is empty":        {manifest, func([]byte) []byte { return nil }, ErrDamaged, "header"},
		"a later format": {manifest, func(b []byte) []byte {
			return bytes.Replace(b, []byte(manifestMagic+" 1 "), []byte(manifestMagic+" 2 "), 1)
		}, ErrOtherFormat, `"2"`},
		"another's manifest": {manifest, func([]byte) []byte {
			raw, _ := encode(manifestMagic, Manifest{ID: "snap-2", ChunkSize: ChunkSize, Files: []File{{Name: "x"}}})
			return raw
		}, ErrDamaged, "snap-2"},
		"a shared file is missing":         {shared, nil, ErrIncomplete, "build/layers/0.ext4"},
		"a shared file's manifest is cut":  {shared, half, ErrDamaged, "build/layers/0.ext4"},
		"a shared file's manifest changed": {shared, flip, ErrDamaged, "build/layers/0.ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := fileStore(t, Options{})
			keep(t, s, "snap-1", newCapture(t, 1))
			path := c.object(t, s, dir)
			if c.change == nil {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				damage(t, path, c.change)
			}
			parent := t.TempDir()
			_, err := s.Fetch(t.Context(), "snap-1", filepath.Join(parent, "x"), FetchOptions{Engine: engine})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "snap-1") {
				t.Errorf("fetch = %v, want %v that names %q", err, c.want, c.says)
			}
			leftovers(t, parent)
		})
	}
}

func TestAChunkWithOtherContentIsRefused(t *testing.T) {
	for name, content := range map[string][]byte{
		"of the same length":                 bytes.Repeat([]byte("x"), ChunkSize),
		"shorter":                            []byte("x"),
		"which unpacks to more than a chunk": make([]byte, 64*ChunkSize),
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := fileStore(t, Options{})
			keep(t, s, "snap-1", newCapture(t, 1))
			m, err := s.Manifest(t.Context(), "snap-1")
			if err != nil {
				t.Fatal(err)
			}
			sha := m.Files[2].Chunks[0].SHA256 // memory-ranges
			write(t, filepath.Join(dir, chunkKey(sha)), s.pack(content, nil))
			parent := t.TempDir()
			_, err = s.Fetch(t.Context(), "snap-1", filepath.Join(parent, "x"), FetchOptions{})
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), sha) {
				t.Errorf("fetch = %v", err)
			}
			leftovers(t, parent)
		})
	}
}

func TestAnotherEnginesSnapshotIsRefused(t *testing.T) {
	s, _ := fileStore(t, Options{})
	keep(t, s, "snap-1", newCapture(t, 1))
	parent := t.TempDir()
	_, err := s.Fetch(t.Context(), "snap-1", filepath.Join(parent, "x"), FetchOptions{Engine: "cloud-hypervisor v53.0"})
	if !errors.Is(err, ErrOtherEngine) || !strings.Contains(err.Error(), engine) || !strings.Contains(err.Error(), "v53.0") {
		t.Errorf("fetch = %v, want both engines named", err)
	}
	leftovers(t, parent)
}

func TestADamagedManifestIsReplacedByTheNextUpload(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	keep(t, s, "snap-1", c)
	for _, path := range append(objects(t, dir, manifestsDir), objects(t, dir, sharedDir)...) {
		damage(t, path, func(b []byte) []byte { return b[:10] })
	}
	if stats := keep(t, s, "snap-1", c); stats.Chunks == 0 || stats.NewChunks != 0 {
		t.Errorf("upload: %+v", stats)
	}
	dest := filepath.Join(t.TempDir(), "x")
	if _, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.same(t, dest)
}

func TestAFileThatShrinksEndsItsUpload(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	for _, path := range []string{c.Files[0].Path} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, ChunkSize/2); err != nil {
			t.Fatal(err)
		}
		// As if it had been measured before.
		if _, _, err := s.putChunk(t.Context(), f, 16*ChunkSize, 3); err == nil {
			t.Error("a chunk past the end was stored")
		}
		f.Close()
	}
	if err := os.Remove(c.Files[0].Path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Upload(t.Context(), "snap-1", c.Source); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "memory-ranges") {
		t.Errorf("upload = %v", err)
	}
	if m := objects(t, dir, manifestsDir); len(m) > 0 {
		t.Errorf("manifests are there: %v", m)
	}
}

func TestCutConnectionsAreTriedAgain(t *testing.T) {
	server := newS3(t)
	c := newCapture(t, 1)
	keep(t, open(t, s3test.URL(server.Addr), Options{}), "snap-1", c)

	t.Run("some", func(t *testing.T) {
		var n atomic.Int64
		proxy := newCutter(t, server.Addr, func() int64 {
			if n.Add(1)%4 == 0 {
				return 20 << 10 // in the middle of an answer
			}
			return -1
		})
		s := open(t, s3test.URL(proxy.Addr().String()), Options{})
		dest := filepath.Join(t.TempDir(), "x")
		if _, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{}); err != nil {
			t.Fatal(err)
		}
		c.same(t, dest)
		other := newCapture(t, 2)
		keep(t, s, "snap-2", other)
		dest = filepath.Join(t.TempDir(), "x")
		if _, err := s.Fetch(t.Context(), "snap-2", dest, FetchOptions{}); err != nil {
			t.Fatal(err)
		}
		other.same(t, dest)
	})
	t.Run("every one", func(t *testing.T) {
		var on atomic.Bool
		proxy := newCutter(t, server.Addr, func() int64 {
			if on.Load() {
				return 20 << 10
			}
			return -1
		})
		s := open(t, s3test.URL(proxy.Addr().String()), Options{})
		if _, err := s.Manifest(t.Context(), "snap-1"); err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		parent := t.TempDir()
		_, err := s.Fetch(t.Context(), "snap-1", filepath.Join(parent, "x"), FetchOptions{})
		if err == nil || errors.Is(err, ErrDamaged) || errors.Is(err, ErrIncomplete) {
			t.Errorf("fetch = %v, want an error that does not blame the snapshot", err)
		}
		leftovers(t, parent)
	})
}

func TestAFetchEndsWithItsContext(t *testing.T) {
	server := newS3(t)
	c := newCapture(t, 1)
	keep(t, open(t, s3test.URL(server.Addr), Options{}), "snap-1", c)
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	proxy := newCutter(t, server.Addr, func() int64 {
		if n.Add(1) == 8 {
			cancel()
		}
		return -1
	})
	s := open(t, s3test.URL(proxy.Addr().String()), Options{Parallel: 2})
	parent := t.TempDir()
	if _, err := s.Fetch(ctx, "snap-1", filepath.Join(parent, "x"), FetchOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("fetch = %v", err)
	}
	leftovers(t, parent)
}
