package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/tier"
)

// do sends a request as a relay would.
func (w *world) do(t *testing.T, method, route, path, more string, body io.Reader, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://guest"+route+"?path="+url.QueryEscape(path)+more, body)
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Transport().RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, raw
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entries are the names in a directory.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestPathsThatAreRefused(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(in("file"), []byte("content"), 0o644))
	must(t, os.MkdirAll(in("dir/sub"), 0o755))
	must(t, os.Symlink("loop", in("loop")))
	must(t, os.Symlink("/dev/zero", in("zero")))
	must(t, unix.Mkfifo(in("fifo"), 0o644))
	socket, err := net.Listen("unix", in("socket"))
	must(t, err)
	defer socket.Close()
	long := "/" + strings.Repeat("a/", 2047)

	for _, c := range []struct {
		name, method, route, path, more string
		status                          int
		text                            string
	}{
		{"no path", "GET", guestapi.PathFS, "", "", 400, "invalid path"},
		{"relative", "GET", guestapi.PathFS, "etc/passwd", "", 400, "invalid path"},
		{"dot dot", "GET", guestapi.PathFS, "/etc/../etc/passwd", "", 400, "invalid path"},
		{"dot dot at the end", "DELETE", guestapi.PathFS, "/etc/..", "", 400, "invalid path"},
		{"NUL", "PUT", guestapi.PathFS, "/tmp/\x00", "", 400, "invalid path"},
		{"4,096 bytes", "GET", guestapi.PathFSStat, long + "aa", "", 400, "invalid path"},
		{"4,096 bytes escaped", "GET", guestapi.PathFSStat, "/" + strings.Repeat("\xff", 4095), "", 400, "invalid path"},
		{"4,095 bytes", "GET", guestapi.PathFSStat, long[:4095], "", 404, "no such file or directory"},
		{"a long name", "PUT", guestapi.PathFS, "/tmp/" + strings.Repeat("n", 256), "", 400, "invalid path"},
		{"missing", "GET", guestapi.PathFS, in("missing"), "", 404, "no such file or directory"},
		{"missing for stat", "GET", guestapi.PathFSStat, in("missing"), "", 404, "no such file or directory"},
		{"missing for dir", "GET", guestapi.PathFSDir, in("missing"), "", 404, "no such file or directory"},
		{"missing for delete", "DELETE", guestapi.PathFS, in("missing"), "&recursive=true", 404, "no such file or directory"},
		{"get of a directory", "GET", guestapi.PathFS, dir, "", 400, "is a directory"},
		{"put of a directory", "PUT", guestapi.PathFS, dir, "", 400, "is a directory"},
		{"put of the root", "PUT", guestapi.PathFS, "/", "", 400, "is a directory"},
		{"get of a device", "GET", guestapi.PathFS, "/dev/zero", "", 400, "not a regular file"},
		{"get of a link to a device", "GET", guestapi.PathFS, in("zero"), "", 400, "not a regular file"},
		{"put of a device", "PUT", guestapi.PathFS, "/dev/null", "", 400, "not a regular file"},
		{"put of a link to a device", "PUT", guestapi.PathFS, in("zero"), "", 400, "not a regular file"},
		{"get of a pipe", "GET", guestapi.PathFS, in("fifo"), "", 400, "not a regular file"},
		{"put of a pipe", "PUT", guestapi.PathFS, in("fifo"), "", 400, "not a regular file"},
		{"get of a socket", "GET", guestapi.PathFS, in("socket"), "", 400, "not a regular file"},
		{"put of a socket", "PUT", guestapi.PathFS, in("socket"), "", 400, "not a regular file"},
		{"get of a loop", "GET", guestapi.PathFS, in("loop"), "", 400, "too many levels of symbolic links"},
		{"put of a loop", "PUT", guestapi.PathFS, in("loop"), "", 400, "too many levels of symbolic links"},
		{"put below a loop", "PUT", guestapi.PathFS, in("loop/x"), "", 400, "too many levels of symbolic links"},
		{"get below a file", "GET", guestapi.PathFS, in("file/x"), "", 400, "not a directory"},
		{"put below a file", "PUT", guestapi.PathFS, in("file/x/y"), "", 400, "not a directory"},
		{"list of a file", "GET", guestapi.PathFSDir, in("file"), "", 400, "not a directory"},
		{"make a file's directory", "POST", guestapi.PathFSDir, in("file"), "", 400, "not a directory"},
		{"delete of a full directory", "DELETE", guestapi.PathFS, in("dir"), "", 409, "directory not empty"},
		{"delete of the root", "DELETE", guestapi.PathFS, "/", "&recursive=true", 400, "invalid path"},
		{"delete of the root, unclean", "DELETE", guestapi.PathFS, "//.", "&recursive=true", 400, "invalid path"},
		{"delete of a mount", "DELETE", guestapi.PathFS, "/proc", "", 409, "device or resource busy"},
		{"delete of a kernel's file", "DELETE", guestapi.PathFS, "/proc/self/status", "", 403, "permission denied"},
		{"put of a kernel's file", "PUT", guestapi.PathFS, "/proc/sys/kernel/berth-test", "", 403, "permission denied"},
		{"a wrong mode", "PUT", guestapi.PathFS, in("new"), "&mode=9", 400, "invalid mode"},
		{"a mode too large", "PUT", guestapi.PathFS, in("new"), "&mode=17777", 400, "invalid mode"},
		{"a wrong flag", "DELETE", guestapi.PathFS, in("file"), "&recursive=perhaps", 400, "invalid recursive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, raw := w.do(t, c.method, c.route, c.path, c.more, strings.NewReader("x"))
			var told guestapi.Error
			if err := json.Unmarshal(raw, &told); err != nil || resp.StatusCode != c.status || told.Error != c.text {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, raw, c.status, c.text)
			}
			if c.text == "invalid path" && told.Detail == "" {
				t.Error("it does not say why")
			}
		})
	}
	if got := fmt.Sprint(entries(t, dir)); got != "[dir fifo file loop socket zero]" {
		t.Errorf("the directory now has %s", got)
	}
}

func TestFileIsReadAsItIs(t *testing.T) {
	w := start(t)
	path := filepath.Join(t.TempDir(), "file")
	modified := time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, size := range []int{0, 1, 64 << 10, 64<<10 + 1, 300 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			must(t, os.WriteFile(path, data, 0o644))
			must(t, os.Chtimes(path, modified, modified))
			resp, got := w.do(t, "GET", guestapi.PathFS, path, "", nil)
			if resp.StatusCode != 200 || !bytes.Equal(got, data) || resp.ContentLength != int64(size) ||
				resp.Header.Get("Content-Type") != "application/octet-stream" || resp.Header.Get("Last-Modified") != "Tue, 04 Mar 2025 05:06:07 GMT" {
				t.Errorf("GET: %d bytes, %d %v", len(got), resp.StatusCode, resp.Header)
			}
			head, got := w.do(t, "HEAD", guestapi.PathFS, path, "", nil)
			if head.StatusCode != 200 || len(got) != 0 || head.ContentLength != int64(size) || head.Header.Get("ETag") != resp.Header.Get("ETag") {
				t.Errorf("HEAD: %d bytes, %d %v", len(got), head.StatusCode, head.Header)
			}
			if size < 10 {
				return
			}
			part, got := w.do(t, "GET", guestapi.PathFS, path, "", nil, "Range", "bytes=3-9", "If-Range", resp.Header.Get("ETag"))
			if part.StatusCode != 206 || string(got) != "3456789" || part.Header.Get("Content-Range") != fmt.Sprintf("bytes 3-9/%d", size) {
				t.Errorf("range: %d %q %v", part.StatusCode, got, part.Header)
			}
			if part, got := w.do(t, "GET", guestapi.PathFS, path, "", nil, "Range", "Bytes=3-9"); part.StatusCode != 206 || string(got) != "3456789" {
				t.Errorf("range in capitals: %d %q", part.StatusCode, got)
			}
			for _, bad := range []string{"bytes=9999999-", "bytes=9-3", "bytes=x", "bytes=-"} {
				none, _ := w.do(t, "GET", guestapi.PathFS, path, "", nil, "Range", bad)
				if none.StatusCode != http.StatusRequestedRangeNotSatisfiable || none.Header.Get("Content-Range") != fmt.Sprintf("bytes */%d", size) {
					t.Errorf("%s: %d %v", bad, none.StatusCode, none.Header)
				}
			}
			for _, other := range []string{"lines=1-2", "items=0-", "bytes", "=0-1", ""} {
				whole, got := w.do(t, "GET", guestapi.PathFS, path, "", nil, "Range", other)
				if whole.StatusCode != 200 || !bytes.Equal(got, data) || whole.Header.Get("Content-Range") != "" {
					t.Errorf("%q: %d, %d bytes, %v", other, whole.StatusCode, len(got), whole.Header)
				}
			}
			if same, _ := w.do(t, "GET", guestapi.PathFS, path, "", nil, "If-None-Match", resp.Header.Get("ETag")); same.StatusCode != http.StatusNotModified {
				t.Errorf("the same again: %d", same.StatusCode)
			}
		})
	}
}

func TestKernelsOwnFilesAreRead(t *testing.T) {
	w := start(t)
	for _, path := range []string{"/proc/self/status", "/proc/kallsyms", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/cmdline"} {
		want, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // not every kernel has each
		}
		must(t, err)
		content, size, err := w.client.ReadFile(t.Context(), path)
		must(t, err)
		got, err := io.ReadAll(content)
		must(t, err)
		must(t, content.Close())
		if len(got) == 0 || len(got) < len(want)/2 {
			t.Errorf("%s: %d bytes, size %d; here %d", path, len(got), size, len(want))
		}
		if head, _ := w.do(t, "HEAD", guestapi.PathFS, path, "", nil); head.StatusCode != 200 {
			t.Errorf("HEAD of %s: %d", path, head.StatusCode)
		}
	}
}

func TestFileIsWrittenWhole(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "new dir", "färbe")
	data := bytes.Repeat([]byte("\x00\xff"), 1<<20)
	for _, c := range []struct {
		mode, want string
		status     int
		data       []byte
		perm       uint32
	}{
		{"", "", 201, data, 0o644}, {"&mode=750", "", 204, []byte("short"), 0o750}, {"&mode=04755", "", 204, nil, 0o4755},
	} {
		resp, raw := w.do(t, "PUT", guestapi.PathFS, path, c.mode, bytes.NewReader(c.data))
		if resp.StatusCode != c.status || len(raw) != 0 {
			t.Errorf("got %d %q", resp.StatusCode, raw)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, c.data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if st.Mode&0o7777 != c.perm {
			t.Errorf("mode %o", st.Mode)
		}
	}
	if names := entries(t, filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left %v", names)
	}
	// A body of unknown length.
	created, err := w.client.WriteFile(t.Context(), path, 0o600, struct{ io.Reader }{strings.NewReader("chunks")}, -1)
	if got, _ := os.ReadFile(path); err != nil || created || string(got) != "chunks" {
		t.Errorf("got %q, %v %v", got, created, err)
	}
}

func TestFileIsWrittenThroughLinks(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(in("a/b"), 0o755))
	must(t, os.WriteFile(in("a/target"), []byte("old"), 0o600))
	must(t, os.Symlink("b", in("a/c")))
	must(t, os.Symlink(in("a/c/../target"), in("first"))) // b/.. is a, and c/.. as well
	must(t, os.Symlink("first", in("second")))
	must(t, os.Symlink("later/one", in("dangling")))
	must(t, os.Symlink("a/", in("directory")))
	must(t, os.Symlink(guestapi.RunDir+"/etc/no-such-file", in("identity")))
	for _, c := range []struct {
		link, file string
		created    bool
	}{{"second", "a/target", false}, {"dangling", "later/one", true}, {"identity", "identity", false}} {
		data := "new by " + c.link
		created, err := w.client.WriteFile(t.Context(), in(c.link), 0o644, strings.NewReader(data), int64(len(data)))
		got, readErr := os.ReadFile(in(c.file))
		if err != nil || readErr != nil || created != c.created || string(got) != data {
			t.Errorf("%s: %v, created %v, %q %v", c.link, err, created, got, readErr)
		}
		st, err := os.Lstat(in(c.link))
		must(t, err)
		if isLink := st.Mode()&os.ModeSymlink != 0; isLink == (c.link == "identity") {
			t.Errorf("%s is now %v", c.link, st.Mode())
		}
	}
	if resp, raw := w.do(t, "PUT", guestapi.PathFS, in("directory"), "", strings.NewReader("x")); resp.StatusCode != 400 {
		t.Errorf("a link to a directory: %d %s", resp.StatusCode, raw)
	}
}

func TestReplacedFileKeepsItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root gives files away")
		return
	}
	w := start(t)
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, []byte("old"), 0o600))
	must(t, os.Chown(path, 1234, 2345))
	must(t, w.client.PutFile(t.Context(), path, 0o640, []byte("new")))
	st, err := w.client.Stat(t.Context(), path)
	if err != nil || st.UID != 1234 || st.GID != 2345 || st.Mode != "0640" || st.SizeBytes != 3 {
		t.Errorf("got %+v, %v", st, err)
	}
}

func TestInterruptedUploadLeavesTheOldFile(t *testing.T) {
	w := start(t)
	for name, request := range map[string]string{
		"of known length":   "Content-Length: 1000000\r\n\r\nhalf",
		"in chunks":         "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"in broken chunks":  "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense\r\n",
		"by a new identity": "Content-Length: 1000000\r\n\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			must(t, os.WriteFile(path, []byte("old"), 0o644))
			conn, err := net.Dial("tcp", w.addr)
			must(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "PUT "+guestapi.PathFS+"?path="+path+" HTTP/1.1\r\nHost: guest\r\n"+request)
			must(t, err)
			switch name {
			case "in broken chunks":
				answer, err := io.ReadAll(conn)
				if err != nil || !strings.Contains(string(answer), `{"error":"upload interrupted"}`) {
					t.Errorf("got %q, %v", answer, err)
				}
			case "by a new identity":
				await(t, "the upload", func() bool { return openFiles(dir) > 0 })
				_, err := w.client.Identity(t.Context(), testIdentity(1))
				must(t, err)
			default:
				await(t, "the upload", func() bool { return openFiles(dir) > 0 })
				conn.Close()
			}
			await(t, "its end", func() bool { return openFiles(dir) == 0 })
			if got, err := os.ReadFile(path); err != nil || string(got) != "old" || len(entries(t, dir)) != 1 {
				t.Errorf("got %q, %v, with %v", got, err, entries(t, dir))
			}
		})
	}
}

// openFiles counts this process's descriptors of files in a directory, also of
// those that have no name there.
func openFiles(dir string) int {
	fds, _ := os.ReadDir("/proc/self/fd")
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}

func TestListingAndMakingDirectories(t *testing.T) {
	w := start(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		must(t, w.client.MakeDir(t.Context(), dir))
	}
	if d, err := w.client.ReadDir(t.Context(), dir); err != nil || len(d.Entries) != 0 || d.Entries == nil || d.Path != dir {
		t.Errorf("an empty one: %+v, %v", d, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "z"), []byte("zz"), 0o640))
	must(t, os.Mkdir(filepath.Join(dir, "m"), 0o711))
	must(t, os.Symlink("/nowhere", filepath.Join(dir, "a")))
	must(t, unix.Mkfifo(filepath.Join(dir, "p"), 0o600))
	modified := time.Date(2025, 1, 2, 3, 4, 5, 60_000_000, time.UTC)
	must(t, os.Chtimes(filepath.Join(dir, "z"), modified, modified))
	d, err := w.client.ReadDir(t.Context(), dir+"/./")
	must(t, err)
	var got []string
	for _, e := range d.Entries {
		got = append(got, e.Name+" "+e.Type+" "+e.Mode+" "+e.Target)
		one, err := w.client.Stat(t.Context(), e.Path)
		if err != nil || one != e {
			t.Errorf("stat says %+v, %v, the listing %+v", one, err, e)
		}
	}
	if s := strings.Join(got, ","); s != "a symlink 0777 /nowhere,m dir 0711 ,p other 0600 ,z file 0640 " {
		t.Errorf("got %s", s)
	}
	if _, raw := w.do(t, "GET", guestapi.PathFSStat, filepath.Join(dir, "z"), "", nil); !strings.Contains(string(raw), `"modified_at":"2025-01-02T03:04:05.060Z"`) {
		t.Errorf("got %s", raw)
	}
	if st, err := w.client.Stat(t.Context(), "/"); err != nil || st.Name != "/" || st.Type != "dir" {
		t.Errorf("the root: %+v, %v", st, err)
	}
}

// File systems keep times that RFC 3339 has not.
func TestAFilesTimeCanAlwaysBeRead(t *testing.T) {
	for at, want := range map[time.Time]string{
		time.Unix(1_700_000_000, 60_000_000).UTC(): "2023-11-14T22:13:20.060Z",
		time.Unix(300_000_000_000, 0).UTC():        "9999-12-31T23:59:59.999Z",
		time.Unix(253_402_300_799, 0).UTC():        "9999-12-31T23:59:59.000Z",
		time.Unix(-62_135_596_801, 0).UTC():        "0001-01-01T00:00:00.000Z",
		time.Unix(-300_000_000_000, 0).UTC():       "0001-01-01T00:00:00.000Z",
	} {
		raw, err := json.Marshal(onWire(guestapi.FileStat{Name: "x", ModifiedAt: at}))
		var read guestapi.FileStat
		if err == nil {
			err = json.Unmarshal(raw, &read)
		}
		if err != nil || read.Name != "x" || !strings.Contains(string(raw), `"modified_at":"`+want+`"`) {
			t.Errorf("%v: %s, %v, want %s", at, raw, err, want)
		}
	}
}

func TestRemoving(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(in("tree/"+strings.Repeat("deep/", 200)), 0o755))
	for i := range 3000 {
		must(t, os.WriteFile(in(fmt.Sprintf("tree/%d", i)), nil, 0o644))
	}
	must(t, os.WriteFile(in("kept"), nil, 0o644))
	must(t, os.Symlink(dir, in("tree/out")))
	must(t, os.Symlink(in("kept"), in("link")))
	must(t, os.Mkdir(in("empty"), 0o755))
	for _, path := range []string{"link", "empty"} {
		must(t, w.client.Remove(t.Context(), in(path), false))
	}
	must(t, w.client.Remove(t.Context(), in("tree"), true))
	if got := fmt.Sprint(entries(t, dir)); got != "[kept]" {
		t.Errorf("left %s", got)
	}
	must(t, w.client.Remove(t.Context(), in("kept"), true))
	var refused *guestclient.Error
	if err := w.client.Remove(t.Context(), in("kept"), true); !errors.As(err, &refused) || refused.Status != 404 || refused.Body.Error != "no such file or directory" {
		t.Errorf("again: %v", err)
	}
}

// pattern gives bytes that repeat late.
type pattern uint64

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		*p = *p*6364136223846793005 + 1442695040888963407
		b[i] = byte(*p >> 56)
	}
	return len(b), nil
}

// TestLargeFilesTakeNoMemory streams a file in and out and watches the heap of
// agent and client together.
func TestLargeFilesTakeNoMemory(t *testing.T) {
	const size = 128 << 20
	w := start(t)
	path := filepath.Join(t.TempDir(), "large")
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	watch, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for watch.Err() == nil {
			runtime.ReadMemStats(&now)
			most.Store(max(most.Load(), now.HeapInuse))
			<-tick.C
		}
	}()
	sent := sha256.New()
	body := io.TeeReader(io.LimitReader(new(pattern), size), sent)
	created, err := w.client.WriteFile(t.Context(), path, 0o644, body, size)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	content, n, err := w.client.ReadFile(t.Context(), path)
	must(t, err)
	received := sha256.New()
	if _, err := io.Copy(received, content); err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	content.Close()
	stop()
	<-watched
	if got, want := received.Sum(nil), sent.Sum(nil); !bytes.Equal(got, want) {
		t.Errorf("read %x, sent %x", got, want)
	}
	if grown := int64(most.Load()) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("the heap grew by %d MB", grown>>20)
	}
}

func TestUploadThatDoesNotFit(t *testing.T) {
	tier.Root(t)
	w := start(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	path := filepath.Join(dir, "file")
	must(t, os.WriteFile(path, []byte("old"), 0o644))
	for _, size := range []int64{8 << 20, -1, 1 << 60} {
		_, err := w.client.WriteFile(t.Context(), path, 0o644, io.LimitReader(endless{}, 8<<20), size)
		var refused *guestclient.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusInsufficientStorage || refused.Body.Error != "no space left on device" {
			t.Errorf("%d: got %v", size, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "old" || len(entries(t, dir)) != 1 {
			t.Errorf("%d: %q, %v, with %v", size, got, err, entries(t, dir))
		}
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, c := range []struct{ method, route, path string }{
		{"PUT", guestapi.PathFS, path}, {"DELETE", guestapi.PathFS, path}, {"POST", guestapi.PathFSDir, path + "2"},
	} {
		if resp, raw := w.do(t, c.method, c.route, c.path, "", strings.NewReader("x")); resp.StatusCode != 403 || !strings.Contains(string(raw), "read-only") {
			t.Errorf("%s on a read-only file system: %d %s", c.method, resp.StatusCode, raw)
		}
	}
}
