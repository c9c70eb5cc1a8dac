package image

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-cloud/berth/tier"
)

// sparseFile makes a sparse file of the size with these pages of data.
func sparseFile(t testing.TB, path string, size int64, pages map[int64]byte) {
	t.Helper()
	if err := sparse(path, size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n, b := range pages {
		if _, err := f.WriteAt(bytes.Repeat([]byte{b}, page), n*page); err != nil {
			t.Fatal(err)
		}
	}
}

func blocksOf(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return allocated(st)
}

func TestCloneCopiesDataAndKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	const size = 64 << 20
	sparseFile(t, src, size+100, map[int64]byte{0: 1, 1: 2, 7: 3, 4000: 4, size/page - 1: 5})
	if err := CloneOverlay(src, dst); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Error("the clone differs")
	}
	if n := blocksOf(t, dst); n > 1<<20 {
		t.Errorf("the clone takes %d bytes", n)
	}
}

func TestCloneOverAFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	sparseFile(t, src, page, nil)
	if err := os.WriteFile(dst, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := CloneOverlay(src, dst); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
	if raw, err := os.ReadFile(dst); err != nil || string(raw) != "mine" {
		t.Errorf("the file was touched: %q, %v", raw, err)
	}
}

func TestCloneOfNothing(t *testing.T) {
	dir := t.TempDir()
	if err := CloneOverlay(filepath.Join(dir, "none"), filepath.Join(dir, "dst")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "dst")); err == nil {
		t.Error("half a clone is left")
	}
}

func TestZeroPagesBecomeHolesAndNothingChanges(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		path := filepath.Join(dir, "f")
		_ = os.Remove(path)
		pages := rapid.IntRange(1, 600).Draw(r, "pages")
		tail := rapid.IntRange(0, page-1).Draw(r, "tail")
		data := make([]byte, pages*page+tail)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		full := 0
		for i := range pages {
			if rng.IntN(2) == 0 {
				data[i*page+rng.IntN(page)] = 1
				full++
			}
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			r.Fatal(err)
		}
		before, err := identify(t.Context(), path, true)
		if err != nil {
			r.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			r.Fatal(err)
		}
		defer f.Close()
		if err := punchZeros(f); err != nil {
			r.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			r.Fatal(err)
		}
		if !bytes.Equal(data, got) {
			r.Fatal("the content changed")
		}
		// The file system's own tree of extents counts as the file's, too.
		if n, own := blocksOf(t, path), 8; n > int64(full+own)*page {
			r.Fatalf("%d bytes are allocated for %d pages", n, full)
		}
		after, err := identify(t.Context(), path, true)
		if err != nil || before != after {
			r.Fatalf("the digest changed with the holes: %v, %v, %v", before, after, err)
		}
	})
}

func TestSparseDigestTellsContentAndPlace(t *testing.T) {
	dir := t.TempDir()
	digests := map[string]string{}
	for name, pages := range map[string]map[int64]byte{
		"empty": nil, "one": {3: 1}, "moved": {4: 1}, "other": {3: 2}, "more": {3: 1, 4: 1},
	} {
		path := filepath.Join(dir, name)
		sparseFile(t, path, 1<<20, pages)
		id, err := identify(t.Context(), path, true)
		if err != nil {
			t.Fatal(err)
		}
		if twin, ok := digests[id.SHA256]; ok {
			t.Errorf("%s and %s have one digest", name, twin)
		}
		digests[id.SHA256] = name
	}
}

func needMke2fs(t *testing.T) {
	t.Helper()
	tier.Program(t, "/sbin/mke2fs")
}

func TestEmptyOverlayTakesNearlyNothing(t *testing.T) {
	needMke2fs(t)
	path := filepath.Join(t.TempDir(), "overlay")
	if err := makeOverlay(t.Context(), path, DefaultDiskMB); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() != DefaultDiskMB<<20 || allocated(st) > 1<<20 {
		t.Errorf("size %d, allocated %d", st.Size(), allocated(st))
	}
	if out, err := exec.Command("/sbin/e2fsck", "-fn", path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
}

func TestImageHoldsTheTree(t *testing.T) {
	needMke2fs(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		name := filepath.Join(root, "a", "b", string(rune('a'+i%26))+string(rune('a'+i/26)))
		if err := os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, i*37), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(root, "a", "b", "aa"), filepath.Join(root, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a/b/aa", filepath.Join(root, "soft")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "image")
	if err := makeImage(t.Context(), root, image); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/sbin/e2fsck", "-fn", image).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	out, err := exec.Command("/sbin/debugfs", "-R", "cat /a/b/ba", image).Output()
	if err != nil || !bytes.Equal(out, bytes.Repeat([]byte{1}, 37)) {
		t.Errorf("a file of the image holds %q, %v", out, err)
	}
}

func BenchmarkCloneOverlay(b *testing.B) {
	dir := b.TempDir()
	seed := filepath.Join(dir, "seed")
	if err := makeOverlay(b.Context(), seed, DefaultDiskMB); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		dst := filepath.Join(dir, "clone")
		if err := CloneOverlay(seed, dst); err != nil {
			b.Fatal(err)
		}
		_ = os.Remove(dst)
	}
}
