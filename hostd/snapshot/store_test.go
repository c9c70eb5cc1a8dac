package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
	"github.com/berth-cloud/berth/tier"
)

// stores are the kinds of store that every test runs on.
func stores(t *testing.T, test func(t *testing.T, url, dir string)) {
	t.Run("directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "store")
		test(t, "file://"+dir, dir)
	})
	t.Run("S3 server", func(t *testing.T) {
		s := newS3(t)
		test(t, s3test.URL(s.Addr), s.Dir)
	})
}

func TestASnapshotComesBackAsItWas(t *testing.T) {
	stores(t, func(t *testing.T, url, _ string) {
		s := open(t, url, Options{})
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := newCapture(t, 1)
		stats := keep(t, s, "snap-1", c)
		if stats.NewChunks == 0 || stats.NewChunks != stats.Chunks {
			t.Errorf("first upload: %+v", stats)
		}
		if there, err := s.Has(t.Context(), "snap-1"); err != nil || !there {
			t.Errorf("has = %v, %v", there, err)
		}
		var ids []string
		if err := s.List(t.Context(), func(id string) error { ids = append(ids, id); return nil }); err != nil || strings.Join(ids, " ") != "snap-1" {
			t.Errorf("list = %v, %v", ids, err)
		}
		// Another host, with an empty cache.
		dest := filepath.Join(t.TempDir(), "fetched")
		m, err := open(t, url, Options{}).Fetch(t.Context(), "snap-1", dest, FetchOptions{Engine: engine})
		if err != nil {
			t.Fatal(err)
		}
		if m.Labels["template"] != "base" || m.Kernel != "6.12" {
			t.Errorf("manifest = %+v", m)
		}
		c.same(t, dest)
	})
}

func TestAStoreIsOneClusters(t *testing.T) {
	stores(t, func(t *testing.T, url, _ string) {
		first, second := open(t, url, Options{}), open(t, url, Options{})
		for range 2 {
			if err := first.Claim(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
		}
		if err := second.Claim(t.Context(), "two"); !errors.Is(err, ErrForeign) {
			t.Errorf("another cluster's: %v", err)
		}
		if err := second.Claim(t.Context(), "one"); err != nil {
			t.Errorf("by another host: %v", err)
		}
		if err := first.Claim(t.Context(), ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("by nobody: %v", err)
		}
	})
}

// An empty store lists nothing and reports no error; a missing store is an error,
// not an empty store.
func TestAStoreThatHasNothingYet(t *testing.T) {
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{})
		if there, err := s.Has(t.Context(), "snap-1"); err != nil || there {
			t.Errorf("has = %v, %v", there, err)
		}
		if ids, more, err := s.Page(t.Context(), "", 10); err != nil || len(ids) > 0 || more {
			t.Errorf("page = %v, %v, %v", ids, more, err)
		}
		if _, err := s.Manifest(t.Context(), "snap-1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("manifest: %v", err)
		}
		if err := s.Delete(t.Context(), "snap-1"); err != nil {
			t.Errorf("delete: %v", err)
		}
		if c, err := s.Collect(t.Context()); err != nil || c != (Collected{}) {
			t.Errorf("collect = %+v, %v", c, err)
		}
		if !strings.HasPrefix(url, "file:") {
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), "snap-1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("delete from a store that is not there: %v", err)
		}
	})
}

func TestAStoreIsListedInPages(t *testing.T) {
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{})
		if ids, more, err := s.Page(t.Context(), "", 2); len(ids) != 0 || more || err != nil {
			t.Errorf("an empty one: %v, %v, %v", ids, more, err)
		}
		c := newCapture(t, 1)
		for _, id := range []string{"b", "a-1", "a", "tpl-0", "c"} {
			keep(t, s, id, c)
		}
		write(t, filepath.Join(dir, manifestsDir, "Not_an_id"), []byte("x"))
		var all, sizes []string
		for after, more := "", true; more; {
			var ids []string
			var err error
			if ids, more, err = s.Page(t.Context(), after, 2); err != nil || len(ids) == 0 {
				t.Fatalf("after %q: %v, %v", after, ids, err)
			}
			all, sizes, after = append(all, ids...), append(sizes, strconv.Itoa(len(ids))), ids[len(ids)-1]
		}
		if got := strings.Join(all, " "); got != "a a-1 b c tpl-0" || strings.Join(sizes, " ") != "2 2 1" {
			t.Errorf("pages of %v: %s", sizes, got)
		}
		if ids, more, err := s.Page(t.Context(), "a-1", 3); strings.Join(ids, " ") != "b c tpl-0" || more || err != nil {
			t.Errorf("the last page, which is full: %v, %v, %v", ids, more, err)
		}
		if _, _, err := s.Page(t.Context(), "../chunks", 2); !errors.Is(err, ErrInvalid) {
			t.Errorf("after what is no id: %v", err)
		}
	})
}

func TestWhatTheStoreHasIsNotStoredAgain(t *testing.T) {
	stores(t, func(t *testing.T, url, _ string) {
		s := open(t, url, Options{})
		first := keep(t, s, "snap-1", newCapture(t, 1))
		other := keep(t, s, "snap-2", newCapture(t, 2))
		if other.NewChunks == 0 || other.NewChunks > other.Chunks-4 {
			t.Errorf("a capture of which a part is the same: %+v after %+v", other, first)
		}
		copied := keep(t, s, "snap-3", newCapture(t, 1))
		if copied.NewChunks != 0 || copied.NewBytes != 0 {
			t.Errorf("a capture that is the same: %+v", copied)
		}
		again := keep(t, s, "snap-1", newCapture(t, 1))
		if again.Chunks != 0 {
			t.Errorf("a snapshot that is there: %+v", again)
		}
	})
}

func TestFilesThatTheHostHasAreNotFetched(t *testing.T) {
	s, _ := fileStore(t, Options{})
	c := newCapture(t, 1)
	keep(t, s, "snap-1", c)
	// The image must not be needed from the store.
	if err := s.remove(t.Context(), sharedDir+c.Shared[0].SHA256); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(c.dir, "fetched") // on the same file system
	_, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{Shared: func(f SharedFile) (string, bool) {
		if f.SHA256 != c.Shared[0].SHA256 || f.Size != c.Shared[0].Size {
			t.Errorf("asked for %+v", f)
		}
		return c.Shared[0].Path, true
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.same(t, dest)
	a, errA := os.Stat(filepath.Join(dest, c.Shared[0].Name))
	b, errB := os.Stat(c.Shared[0].Path)
	if errors.Join(errA, errB) != nil || !os.SameFile(a, b) {
		t.Errorf("the image was copied: %v %v", errA, errB)
	}

	dest = filepath.Join(c.dir, "without")
	if _, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{Shared: func(SharedFile) (string, bool) { return "", false }}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dest, "build")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not needed: %v", err)
	}
}

func TestAnUploadThatWasCutOffGoesOn(t *testing.T) {
	tier.Slow(t)
	stores(t, func(t *testing.T, url, dir string) {
		s := open(t, url, Options{Parallel: 2})
		c := newCapture(t, 1)
		// Long after the others, so that there is a middle to cut it off in.
		const chunks = 150
		big := sparse(t, filepath.Join(c.dir, "big"), chunks*ChunkSize)
		for i := range int64(chunks) {
			if _, err := big.WriteAt([]byte(strconv.FormatInt(i, 10)), i*ChunkSize); err != nil {
				t.Fatal(err)
			}
		}
		c.Files = append(c.Files, LocalFile{Name: "big", Path: big.Name()})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			for ctx.Err() == nil {
				if len(objects(t, dir, chunksDir)) > 60 {
					cancel()
				}
				<-look.C
			}
		}()
		_, _, err := s.Upload(ctx, "snap-1", c.Source)
		cancel()
		<-watching
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("upload = %v", err)
		}
		if there, err := s.Has(t.Context(), "snap-1"); err != nil || there {
			t.Errorf("has = %v, %v", there, err)
		}
		if _, err := s.Fetch(t.Context(), "snap-1", filepath.Join(t.TempDir(), "x"), FetchOptions{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("fetch = %v", err)
		}
		stats := keep(t, s, "snap-1", c)
		if stats.NewChunks == stats.Chunks || stats.NewChunks == 0 {
			t.Errorf("the second try: %+v", stats)
		}
		dest := filepath.Join(t.TempDir(), "fetched")
		if _, err := s.Fetch(t.Context(), "snap-1", dest, FetchOptions{}); err != nil {
			t.Fatal(err)
		}
		c.same(t, dest)
	})
}

func TestBadRequestsAreRefused(t *testing.T) {
	s, dir := fileStore(t, Options{})
	c := newCapture(t, 1)
	for name, id := range map[string]string{
		"empty": "", "a path": "../x", "capitals": "Snap", "too long": strings.Repeat("x", 65), "an option": "-x",
	} {
		t.Run("id "+name, func(t *testing.T) {
			_, _, err := s.Upload(t.Context(), id, c.Source)
			_, fetchErr := s.Fetch(t.Context(), id, filepath.Join(t.TempDir(), "x"), FetchOptions{})
			_, hasErr := s.Has(t.Context(), id)
			for call, err := range map[string]error{"upload": err, "fetch": fetchErr, "has": hasErr, "delete": s.Delete(t.Context(), id)} {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("%s = %v", call, err)
				}
			}
		})
	}
	for name, change := range map[string]func(*Source){
		"no files":              func(s *Source) { s.Files, s.Shared = nil, nil },
		"a name twice":          func(s *Source) { s.Files = append(s.Files, s.Files[0]) },
		"a name that goes up":   func(s *Source) { s.Files = []LocalFile{{Name: "../x", Path: s.Files[0].Path}} },
		"an absolute name":      func(s *Source) { s.Files = []LocalFile{{Name: "/x", Path: s.Files[0].Path}} },
		"a file that is a dir":  func(s *Source) { s.Files = []LocalFile{{Name: "x", Path: filepath.Dir(s.Files[0].Path)}} },
		"a digest that is none": func(s *Source) { s.Shared[0].SHA256 = "../../x" },
		"another size":          func(s *Source) { s.Shared[0].Size++ },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapture(t, 1)
			change(&c.Source)
			if _, _, err := s.Upload(t.Context(), "snap-1", c.Source); !errors.Is(err, ErrInvalid) {
				t.Errorf("upload = %v", err)
			}
		})
	}
	if m := objects(t, dir, manifestsDir); len(m) > 0 {
		t.Errorf("manifests are there: %v", m)
	}
}

func TestStoresThatCannotBeAreNamed(t *testing.T) {
	for name, url := range map[string]string{
		"no scheme": "/var/lib/x", "two slashes": "file://var/lib", "another service": "gs://bucket", "no URL": "file://%zz",
		"unknown option": "file:///tmp/x?colour=red",
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := Open(t.Context(), url, Options{}); err == nil {
				s.Close()
				t.Error("it was opened")
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		for name, value := range s3test.Credentials() {
			t.Setenv(name, value)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := open(t, s3test.URL(s3test.FreeAddress(t)), Options{})
		cancel()
		if err := s.Check(ctx); err == nil {
			t.Error("the check passed")
		}
	})
}

func TestAFetchDoesNotReplaceWhatIsThere(t *testing.T) {
	s, _ := fileStore(t, Options{})
	c := newCapture(t, 1)
	keep(t, s, "snap-1", c)
	if _, err := s.Fetch(t.Context(), "snap-1", c.dir, FetchOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("fetch = %v", err)
	}
	refused := errors.New("the disk is too small")
	parent := t.TempDir()
	_, err := s.Fetch(t.Context(), "snap-1", filepath.Join(parent, "x"), FetchOptions{Admit: func(m *Manifest) error {
		if m.Bytes() <= 0 || m.Bytes() > 60*ChunkSize {
			t.Errorf("bytes = %d", m.Bytes())
		}
		return refused
	}})
	if !errors.Is(err, refused) {
		t.Errorf("fetch = %v", err)
	}
	leftovers(t, parent)
}
