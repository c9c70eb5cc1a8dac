package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, raw string) Bucket {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// each runs a test with a directory and with S3.
func each(t *testing.T, test func(t *testing.T, b Bucket)) {
	t.Run("directory", func(t *testing.T) { test(t, open(t, "file://"+filepath.Join(t.TempDir(), "b"))) })
	t.Run("s3", func(t *testing.T) {
		for name, value := range s3test.Credentials() {
			t.Setenv(name, value)
		}
		test(t, open(t, s3test.URL(s3test.New(t).Addr)))
	})
}

func put(t *testing.T, b Bucket, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if err := b.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
}

// walked is what a walk sees, in order.
func walked(t *testing.T, b Bucket, prefix string) []string {
	t.Helper()
	got := []string{}
	if err := b.Walk(t.Context(), prefix, func(o Object) error {
		if o.Size != int64(len(o.Key)) || time.Since(o.Written).Abs() > time.Hour {
			t.Errorf("%+v", o)
		}
		got = append(got, o.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

func TestObjectsBelowAPrefix(t *testing.T) {
	each(t, func(t *testing.T, b Bucket) {
		same(t, walked(t, b, "a/"))
		put(t, b, "a/1", "a/b/2", "a/b/3", "a/bc", "ab/4", "c")
		same(t, walked(t, b, "a/"), "a/1", "a/b/2", "a/b/3", "a/bc")
		same(t, walked(t, b, "a/b/"), "a/b/2", "a/b/3")

		var listed []string
		if err := b.List(t.Context(), "a/", "", func(o Object) error {
			if !strings.HasSuffix(o.Key, "/b") { // a directory shows its directories too
				listed = append(listed, o.Key)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		same(t, listed, "a/1", "a/bc")

		stop := errors.New("enough")
		if err := b.Walk(t.Context(), "a/", func(Object) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("a visit that fails: %v", err)
		}
		for range 2 {
			if err := b.RemoveAll(t.Context(), "a/b/"); err != nil {
				t.Fatal(err)
			}
		}
		same(t, walked(t, b, "a/"), "a/1", "a/bc")
		if err := b.RemoveAll(t.Context(), "a/"); err != nil {
			t.Fatal(err)
		}
		same(t, walked(t, b, "a/"))
		same(t, walked(t, b, "ab/"), "ab/4")
		if err := RemoveEach(t.Context(), b, []string{"c", "d", "ab/4"}); err != nil {
			t.Errorf("what is there and what is not: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := RemoveEach(ended, b, []string{"c"}); !errors.Is(err, context.Canceled) {
			t.Errorf("by somebody who is gone: %v", err)
		}
	})
}

// A page of S3 has a thousand.
func TestMoreObjectsThanAPage(t *testing.T) {
	each(t, func(t *testing.T, b Bucket) {
		const n = 1203
		var all sync.WaitGroup
		next := make(chan int)
		for range 8 {
			all.Go(func() {
				for i := range next {
					key := fmt.Sprintf("many/%02d/%04d", i%3, i)
					if err := b.Put(t.Context(), key, []byte(key)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		all.Wait()
		if got := walked(t, b, "many/"); len(got) != n || len(slices.Compact(got)) != n {
			t.Errorf("%d objects, want %d", len(got), n)
		}
		if err := b.RemoveAll(t.Context(), "many/"); err != nil {
			t.Fatal(err)
		}
		same(t, walked(t, b, "many/"))
	})
}

func TestWhatIsThereIsNotCreatedAgain(t *testing.T) {
	each(t, func(t *testing.T, b Bucket) {
		var made, refused atomic.Int64
		var winner atomic.Pointer[string]
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				content := strings.Repeat(string(rune('a'+i)), 300_000)
				switch err := Retry(t.Context(), b, func() error { return b.Create(t.Context(), "x/y", []byte(content)) }); {
				case err == nil:
					made.Add(1)
					winner.Store(&content)
				case errors.Is(err, ErrExists):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if made.Load() != 1 || refused.Load() != 7 {
			t.Errorf("%d made it, %d were refused", made.Load(), refused.Load())
		}
		got, err := Read(t.Context(), b, "x/y", 1<<20)
		if err != nil || string(got) != *winner.Load() {
			t.Errorf("%d bytes, %v: another's than the winner's", len(got), err)
		}
		if got, err := Read(t.Context(), b, "x/y", 10); err != nil || len(got) != 11 {
			t.Errorf("of a longer one: %d bytes, %v", len(got), err)
		}
		if _, err := Read(t.Context(), b, "x/z", 10); !errors.Is(err, ErrNotFound) {
			t.Errorf("of none: %v", err)
		}
		n := 0
		if err := b.Walk(t.Context(), "x/", func(Object) error { n++; return nil }); err != nil || n != 1 {
			t.Errorf("%d objects, %v", n, err)
		}
		if err := b.Sync("x", "never/made"); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatADeadWriterLeftIsNoObject(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "file://"+dir)
	put(t, b, "a/b/1")
	half := filepath.Join(dir, "a/b", ".2-123")
	young := filepath.Join(dir, "a/b", ".3-123")
	for _, path := range []string{half, young} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	for _, path := range []string{half, filepath.Join(dir, "a/b/1")} {
		if err := os.Chtimes(path, hour, hour); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	if err := b.Walk(t.Context(), "a/", func(o Object) error { seen = append(seen, o.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	same(t, seen, "a/b/1")
	if err := b.Sweep(t.Context(), "a/", time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "a/b"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := b.Sweep(t.Context(), "nothing/", time.Now()); err != nil {
		t.Error(err)
	}
	if err := b.RemoveAll(t.Context(), "a/"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// A bucket that cannot be listed is not an empty one.
func TestADirectoryThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "file://"+dir)
	put(t, b, "a/1")
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Walk(t.Context(), "f/g/", func(Object) error { return nil }); err == nil {
		t.Error("below a file, there was no error")
	}
}

// failing is a bucket that reads nothing.
type failing struct {
	Bucket
	err     error
	passing bool
	calls   int
}

func (f *failing) Passing(error) bool { return f.passing }
func (f *failing) Get(context.Context, string) (io.ReadCloser, int64, error) {
	f.calls++
	return nil, 0, f.err
}

func TestWhatMayPassIsTriedAgain(t *testing.T) {
	broken := errors.New("broken")
	for passing, want := range map[bool]int{true: attempts, false: 1} {
		f := &failing{err: broken, passing: passing}
		if _, err := Read(t.Context(), f, "x", 1); !errors.Is(err, broken) || f.calls != want {
			t.Errorf("%d calls, %v; want %d", f.calls, err, want)
		}
	}
}

// deaf is a bucket that lists nothing.
type deaf struct{ Bucket }

func (deaf) List(context.Context, string, string, func(Object) error) error { return nil }

func TestABucketIsChecked(t *testing.T) {
	each(t, func(t *testing.T, b Bucket) {
		if err := Check(t.Context(), b, "probes/"); err != nil {
			t.Error(err)
		}
		same(t, walked(t, b, "probes/"))
		if err := Check(t.Context(), deaf{b}, "probes/"); err == nil || !strings.Contains(err.Error(), "consistency") {
			t.Errorf("of one that lists nothing: %v", err)
		}
		broken := errors.New("broken")
		if err := Check(t.Context(), &failing{Bucket: b, err: broken}, "probes/"); !errors.Is(err, broken) {
			t.Errorf("of one that reads nothing: %v", err)
		}
	})
}
