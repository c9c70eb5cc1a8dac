package blob

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/bucket/s3test"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const plenty = 1 << 40

// world is a store with its bucket.
type world struct {
	*Store
	bucket bucket.Bucket
	room   int64
}

func open(t *testing.T, raw string, limit int64) *world {
	t.Helper()
	u, err := url.Parse(raw)
	must(t, err)
	b, err := bucket.Open(t.Context(), u)
	must(t, err)
	w := &world{bucket: b, room: plenty}
	w.Store, err = Open(Config{
		Bucket: b, Spool: filepath.Join(t.TempDir(), "spool"), Room: func() (int64, error) { return w.room, nil }, Limit: limit,
	})
	must(t, err)
	return w
}

// each runs a test with a directory and with S3.
func each(t *testing.T, limit int64, test func(t *testing.T, w *world)) {
	t.Run("directory", func(t *testing.T) { test(t, open(t, "file://"+filepath.Join(t.TempDir(), "b"), limit)) })
	t.Run("s3", func(t *testing.T) {
		for name, value := range s3test.Credentials() {
			t.Setenv(name, value)
		}
		test(t, open(t, s3test.URL(s3test.New(t).Addr), limit))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holds checks what is there under a name; want "" is nothing.
func (w *world) holds(t *testing.T, name, want string) {
	t.Helper()
	body, size, err := w.Get(t.Context(), name)
	if want == "" {
		if !errors.Is(err, hosterr.ErrNotFound) {
			t.Errorf("%s is there: %v", name, err)
		}
		return
	}
	must(t, err)
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil || string(got) != want || size != int64(len(want)) {
		t.Errorf("%s holds %.40q (%d bytes, said to be %d), %v; want %.40q", name, got, len(got), size, err, want)
	}
}

// spoolEmpty checks that no upload has left anything.
func (w *world) spoolEmpty(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(w.cfg.Spool)
	if err != nil || len(left) > 0 {
		t.Errorf("the spool holds %v, %v", left, err)
	}
}

func TestABlobIsKeptReplacedAndDeleted(t *testing.T) {
	each(t, 0, func(t *testing.T, w *world) {
		large := strings.Repeat("0123456789abcdef", (roomStep+4096)/16) // more than one step
		for _, content := range []string{"first", large, "x"} {
			info, err := w.Put(t.Context(), "src-1", -1, strings.NewReader(content))
			must(t, err)
			if info.SizeBytes != int64(len(content)) || len(info.SHA256) != 64 {
				t.Errorf("%+v", info)
			}
			w.holds(t, "src-1", content)
		}
		info, err := w.Put(t.Context(), "empty", 0, strings.NewReader(""))
		must(t, err)
		if info.SHA256 != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
			t.Errorf("the sum of nothing is %s", info.SHA256)
		}
		must(t, w.Delete(t.Context(), "src-1"))
		w.holds(t, "src-1", "")
		must(t, w.Delete(t.Context(), "src-1"))
		w.spoolEmpty(t)
	})
}

func TestWhatIsRefusedOrCutOffLeavesTheOldBlob(t *testing.T) {
	const limit = 1000
	each(t, limit, func(t *testing.T, w *world) {
		whole := strings.Repeat("w", limit)
		_, err := w.Put(t.Context(), "b", limit, strings.NewReader(whole))
		must(t, err)
		tooLarge := func(err error) bool { return hostapi.HasCode(err, hostapi.CodeTooLarge) }
		unread := func() io.Reader { return iotest.ErrReader(errors.New("was read")) }
		is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
		for name, c := range map[string]struct {
			length int64
			body   func() io.Reader
			room   int64
			want   func(error) bool
		}{
			"announced as too large": {limit + 1, unread, plenty, tooLarge},
			"too large after all":    {-1, func() io.Reader { return strings.NewReader(whole + "!") }, plenty, tooLarge},
			"endless":                {-1, func() io.Reader { return endless{} }, plenty, tooLarge},
			"cut off": {-1, func() io.Reader {
				return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))
			}, plenty, is(hosterr.ErrInvalid)},
			"more than the disk has":  {500, unread, 500, is(hosterr.ErrNoDisk)},
			"a disk with no room":     {-1, unread, 0, is(hosterr.ErrNoDisk)},
			"a disk that is overfull": {-1, unread, -5 << 20, is(hosterr.ErrNoDisk)},
		} {
			w.room = c.room
			for _, blob := range []string{"b", "new"} {
				if _, err := w.Put(t.Context(), blob, c.length, c.body()); !c.want(err) {
					t.Errorf("%s: %v", name, err)
				}
			}
			w.holds(t, "b", whole)
			w.holds(t, "new", "")
			w.spoolEmpty(t)
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A disk that fills while a blob is read is noticed before it is full.
func TestRoomIsLookedAtOnTheWay(t *testing.T) {
	w := open(t, "file://"+filepath.Join(t.TempDir(), "b"), 0)
	body := io.MultiReader(bytes.NewReader(make([]byte, roomStep)), then(func() { w.room = 0 }), endless{})
	if _, err := w.Put(t.Context(), "b", -1, body); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("%v", err)
	}
	w.spoolEmpty(t)
}

// then calls itself when it is read, and is empty.
type then func()

func (f then) Read([]byte) (int, error) { f(); return 0, io.EOF }

func TestLeftoversGo(t *testing.T) {
	dir := t.TempDir()
	spool := filepath.Join(dir, "spool")
	must(t, os.MkdirAll(spool, 0o700))
	must(t, os.WriteFile(filepath.Join(spool, "blob-1"), []byte("half"), 0o600))
	b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: filepath.Join(dir, "b")})
	must(t, err)
	s, err := Open(Config{Bucket: b, Spool: spool, Room: func() (int64, error) { return plenty, nil }})
	must(t, err)
	w := &world{Store: s, bucket: b}
	w.spoolEmpty(t)

	_, err = s.Put(t.Context(), "whole", -1, strings.NewReader("whole"))
	must(t, err)
	half := filepath.Join(dir, "b", "blobs", ".whole-123")
	must(t, os.WriteFile(half, []byte("wh"), 0o600))
	must(t, s.Sweep(t.Context(), time.Now()))
	if _, err := os.Stat(half); err != nil {
		t.Errorf("what another may still write is gone: %v", err)
	}
	must(t, s.Sweep(t.Context(), time.Now().Add(halfTime+time.Hour)))
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("what nobody writes any more is left: %v", err)
	}
	w.holds(t, "whole", "whole")
}

// Whoever keeps a blob is told whether other hosts have it.
func TestABlobOfOneHostAlone(t *testing.T) {
	w := open(t, "file://"+filepath.Join(t.TempDir(), "b"), 0)
	for _, local := range []bool{false, true} {
		w.cfg.Local = local
		if info, err := w.Put(t.Context(), "src-1", -1, strings.NewReader("x")); err != nil || info.Local != local {
			t.Errorf("%+v, %v, want %t", info, err, local)
		}
	}
}
