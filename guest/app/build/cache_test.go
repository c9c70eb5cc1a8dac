package build

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/appapi"
)

// cacheRig is a builder whose directories are those of a guest.
func cacheRig(t *testing.T, dir string, mb int) (*builder, func() string) {
	t.Helper()
	log, err := applog.Open(filepath.Join(t.TempDir(), "log"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	b := &builder{
		Config: Config{Runner: &command.Runner{}, WorkDir: filepath.Join(dir, "app"), Cache: filepath.Join(dir, "cache"), Home: dir, LastCache: filepath.Join(dir, "last.tar")},
		in:     appapi.Build{CacheMB: mb}, log: log, out: command.NewOutput(log, nil), update: func(func(*appapi.BuildStatus)) {},
	}
	b.made.Dir = filepath.Join(b.WorkDir, "web")
	for _, d := range []string{b.made.Dir, b.Cache} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b, func() string {
		_ = b.out.Flush()
		return strings.Join(log.LastLines(100), "\n")
	}
}

func put(t *testing.T, size int, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, bytes.Repeat([]byte("x"), size), 0o444); err != nil {
			t.Fatal(err)
		}
	}
}

func exists(name string) bool { _, err := os.Lstat(name); return err == nil }

// TestCachesOfTheNextBuild: what one build keeps, the next one has: that of package
// managers before packages are installed, that of the project after.
func TestCachesOfTheNextBuild(t *testing.T) {
	dir := t.TempDir()
	b, said := cacheRig(t, dir, 1)
	npm, next, big := filepath.Join(b.Cache, "npm/_cacache/a"), filepath.Join(b.made.Dir, ".next/cache/b"), filepath.Join(b.Cache, "go/build/c")
	put(t, 100, npm, next, filepath.Join(b.made.Dir, "node_modules/left-pad/index.js"))
	put(t, 1<<20, big)
	b.keep()
	if got := strings.Join(b.made.Caches, " "); got != filepath.Join(b.made.Dir, ".next/cache")+" "+filepath.Join(b.Cache, "npm") || b.made.CacheBytes == 0 {
		t.Fatalf("kept: %s, %d bytes", got, b.made.CacheBytes)
	}
	if !strings.Contains(said(), "go is not kept: it has 1 MB, and all may have 1") {
		t.Errorf("said: %s", said())
	}
	var tar bytes.Buffer
	if err := b.made.Pack(t.Context(), b.Runner, dir, &tar); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{b.WorkDir, b.Cache} {
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
	}
	b, said = cacheRig(t, dir, 1)
	if err := os.WriteFile(b.LastCache, tar.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.restore(t.Context(), b.Cache); err != nil || !exists(npm) || exists(next) || exists(big) {
		t.Errorf("first: %v, %t, %t: %s", err, exists(npm), exists(next), said())
	}
	if err := b.restore(t.Context(), b.inProject()...); err != nil || !exists(next) || exists(filepath.Join(b.made.Dir, "node_modules")) {
		t.Errorf("then: %v, %t: %s", err, exists(next), said())
	}
	if said() != "" {
		t.Error(said())
	}
}

// TestBadCaches: caches that cannot be used leave nothing behind, and fail no build.
func TestBadCaches(t *testing.T) {
	dir := t.TempDir()
	b, _ := cacheRig(t, dir, 1)
	put(t, 100, filepath.Join(b.Cache, "npm/a"), filepath.Join(b.Cache, "pip/b"))
	b.keep()
	var tar bytes.Buffer
	if err := b.made.Pack(t.Context(), b.Runner, dir, &tar); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{"cut off": tar.Bytes()[:1100], "no tar": []byte(strings.Repeat("not a tar ", 200))} {
		t.Run(name, func(t *testing.T) {
			b, said := cacheRig(t, t.TempDir(), 1)
			put(t, 10, filepath.Join(b.Cache, "npm/half"))
			if err := os.WriteFile(b.LastCache, raw, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := b.restore(t.Context(), b.Cache); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(said(), "cannot be used: the archive is damaged") || exists(b.LastCache) || exists(filepath.Join(b.Cache, "npm")) || !exists(b.Cache) {
				t.Errorf("%s, %t, %t", said(), exists(b.LastCache), exists(filepath.Join(b.Cache, "npm")))
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.made.Pack(ctx, b.Runner, dir, &tar); err == nil {
		t.Error("what was broken off is taken for whole")
	}
	b, said := cacheRig(t, t.TempDir(), 0)
	put(t, 100, filepath.Join(b.Cache, "npm/a"))
	if b.keep(); len(b.made.Caches) > 0 {
		t.Error("something is kept where nothing may be")
	}
	if err := b.restore(t.Context(), b.Cache); err != nil || said() != "" {
		t.Errorf("without a cache: %v, %s", err, said())
	}
}
