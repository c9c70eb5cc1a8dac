package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var aDigest = strings.Repeat("0a", 32)

func goodManifest() Manifest {
	return Manifest{
		ID: "snap-1", Meta: Meta{Engine: engine}, ChunkSize: ChunkSize,
		Files: []File{
			{Name: "config.json", Content: Content{Size: 10, Chunks: []Chunk{{0, aDigest}}}},
			{Name: "memory-ranges", Content: Content{Size: 5 * ChunkSize, Chunks: []Chunk{{1, aDigest}, {4, aDigest}}}},
		},
		Shared: []SharedFile{{Name: "build/layers/0.ext4", SHA256: aDigest, Size: 7}},
	}
}

func TestImpossibleManifestsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Manifest){
		"no files":                 func(m *Manifest) { m.Files, m.Shared = nil, nil },
		"too many files":           func(m *Manifest) { m.Files = make([]File, maxFiles+1) },
		"a name that goes up":      func(m *Manifest) { m.Files[0].Name = "../config.json" },
		"an absolute name":         func(m *Manifest) { m.Files[0].Name = "/etc/passwd" },
		"the directory itself":     func(m *Manifest) { m.Files[0].Name = "." },
		"a name with NUL":          func(m *Manifest) { m.Files[0].Name = "a\x00b" },
		"a long name":              func(m *Manifest) { m.Files[0].Name = strings.Repeat("x", maxName+1) },
		"a name twice":             func(m *Manifest) { m.Files[0].Name = m.Files[1].Name },
		"a file in a file":         func(m *Manifest) { m.Files[0].Name = m.Files[1].Name + "/x" },
		"a shared name twice":      func(m *Manifest) { m.Shared[0].Name = m.Files[1].Name },
		"a negative size":          func(m *Manifest) { m.Files[0].Size = -1 },
		"a size that is too large": func(m *Manifest) { m.Files[0].Size = maxSize + 1 },
		"a chunk past the end":     func(m *Manifest) { m.Files[1].Chunks[1].Index = 5 },
		"a chunk before the start": func(m *Manifest) { m.Files[1].Chunks[0].Index = -1 },
		"chunks out of order":      func(m *Manifest) { m.Files[1].Chunks[0].Index = 4 },
		"a chunk without a digest": func(m *Manifest) { m.Files[0].Chunks[0].SHA256 = "" },
		"a digest that is a path":  func(m *Manifest) { m.Files[0].Chunks[0].SHA256 = "../" + aDigest[3:] },
		"a shared file likewise":   func(m *Manifest) { m.Shared[0].SHA256 = "../" + aDigest[3:] },
		"chunks of no size":        func(m *Manifest) { m.ChunkSize = 0 },
		"chunks that are too big":  func(m *Manifest) { m.ChunkSize = 2 * ChunkSize },
		"an odd size of chunks":    func(m *Manifest) { m.ChunkSize = ChunkSize - 1 },
		"an id that is a path":     func(m *Manifest) { m.ID = "../x" },
	} {
		t.Run(name, func(t *testing.T) {
			m := goodManifest()
			change(&m)
			raw, err := encode(manifestMagic, m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parseManifest(raw); !errors.Is(err, ErrDamaged) {
				t.Errorf("parse = %v", err)
			}
		})
	}
}

func TestAManifestComesBackAsItWas(t *testing.T) {
	m := goodManifest()
	raw, err := encode(manifestMagic, m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseManifest(raw)
	m.Digest = digest(raw)
	if diff := cmp.Diff(m, got); err != nil || diff != "" {
		t.Errorf("parse: %v\n%s", err, diff)
	}
	// Any truncation or addition is detected.
	for i := range raw {
		if _, err := parseManifest(raw[:i]); err == nil {
			t.Fatalf("%d bytes of %d were taken", i, len(raw))
		}
	}
	if _, err := parseManifest(append(raw, ' ')); err == nil {
		t.Error("a byte more was taken")
	}
}

// TestFormatOfTheStore reads a manifest written by the first release with this
// format: existing stores must stay readable.
func TestFormatOfTheStore(t *testing.T) {
	for name, parse := range map[string]func([]byte) error{
		"snapshot-1": func(b []byte) error { _, err := parseManifest(b); return err },
		"shared-1":   func(b []byte) error { _, err := parseShared(b); return err },
	} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := parse(raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	for _, m := range []Manifest{goodManifest(), {}} {
		raw, err := encode(manifestMagic, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[bytes.IndexByte(raw, '\n')+1:])
	}
	f.Add([]byte("berth-snapshot 2 00\n{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		// Once unchanged and once with a matching checksum, to get past the check.
		for _, raw := range [][]byte{raw, sealed(raw)} {
			m, err := parseManifest(raw)
			if err != nil {
				if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrOtherFormat) {
					t.Errorf("error without a name: %v", err)
				}
				continue
			}
			for _, file := range m.Files {
				if !filepath.IsLocal(file.Name) {
					t.Errorf("name %q", file.Name)
				}
				for _, c := range file.Chunks {
					if n := chunkLen(file.Size, c.Index, int64(m.ChunkSize)); n <= 0 || n > ChunkSize {
						t.Errorf("chunk %d of %d bytes has %d", c.Index, file.Size, n)
					}
				}
			}
			again, err := encode(manifestMagic, m)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := parseManifest(again); err != nil || !cmp.Equal(m, back) {
				t.Errorf("it does not come back: %v", err)
			}
		}
	})
}

func sealed(body []byte) []byte {
	raw, _ := encode(manifestMagic, rawJSON(body))
	return raw
}

// rawJSON is inserted into a document unchanged.
type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// TestAnyFileComesBack tests sizes around pages and chunks, and data at any offset.
func TestAnyFileComesBack(t *testing.T) {
	s, _ := fileStore(t, Options{})
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		dir := t.TempDir()
		size := rapid.OneOf(rapid.Int64Range(0, 3*page), rapid.Int64Range(ChunkSize-2, ChunkSize+2), rapid.Int64Range(0, 4*ChunkSize)).Draw(rt, "size")
		f := sparse(t, filepath.Join(dir, "f"), size)
		for range rapid.IntRange(0, 5).Draw(rt, "writes") {
			if size == 0 {
				break
			}
			at := rapid.Int64Range(0, size-1).Draw(rt, "at")
			length := min(size-at, rapid.Int64Range(1, 3*page).Draw(rt, "length"))
			value := rapid.Byte().Draw(rt, "value")
			if _, err := f.WriteAt(bytes.Repeat([]byte{value}, int(length)), at); err != nil {
				rt.Fatal(err)
			}
		}
		id := fmt.Sprintf("snap-%d", n)
		if _, _, err := s.Upload(t.Context(), id, Source{Files: []LocalFile{{Name: "f", Path: f.Name()}}}); err != nil {
			rt.Fatal(err)
		}
		dest := filepath.Join(dir, "fetched")
		if _, err := s.Fetch(t.Context(), id, dest, FetchOptions{}); err != nil {
			rt.Fatal(err)
		}
		want, err := os.ReadFile(f.Name())
		if err != nil {
			rt.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dest, "f")); err != nil || !bytes.Equal(got, want) {
			rt.Errorf("a file of %d bytes comes back with %d, %v", len(want), len(got), err)
		}
	})
}
