package server

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

func at(path string) url.Values { return url.Values{"path": {path}} }

func TestFiles(t *testing.T) {
	l := goLive(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "file")
	do := func(method, sub string, query url.Values, header http.Header, body io.Reader) (*http.Response, string, error) {
		t.Helper()
		resp, err := l.FS(t.Context(), method, id, sub, query, header, body)
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		return resp, string(raw), err
	}
	resp, _, err := do("PUT", hostapi.FSFile, at(path), nil, strings.NewReader("hello, file"))
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("put = %v, %v", resp, err)
	}
	resp, _, err = do("PUT", hostapi.FSFile, at(path), http.Header{"Content-Length": {"5"}}, strings.NewReader("HELLO"))
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatalf("put again = %v, %v", resp, err)
	}
	resp, got, err := do("GET", hostapi.FSFile, at(path), nil, nil)
	if err != nil || got != "HELLO" || resp.ContentLength != 5 || resp.Header.Get("Last-Modified") == "" || resp.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("get = %q, %v, %v", got, resp.Header, err)
	}
	resp, got, err = do("GET", hostapi.FSFile, at(path), http.Header{"Range": {"bytes=1-2"}}, nil)
	if err != nil || got != "EL" || resp.StatusCode != http.StatusPartialContent || resp.Header.Get("Content-Range") != "bytes 1-2/5" {
		t.Errorf("get a range = %q, %v, %v", got, resp, err)
	}
	var past *hostapi.Error
	_, _, err = do("GET", hostapi.FSFile, at(path), http.Header{"Range": {"bytes=5-"}}, nil)
	if !errors.As(err, &past) || past.Code != hostapi.CodeGuestSays || past.HTTPStatus != 416 || past.ContentRange != "bytes */5" ||
		past.Message != "invalid range" || past.Detail != "the file is 5 bytes long" {
		t.Errorf("get past the end = %+v", err)
	}
	resp, got, err = do("GET", hostapi.FSFile, at(path), http.Header{"Range": {"lines=1-2"}}, nil)
	if err != nil || got != "HELLO" || resp.StatusCode != http.StatusOK {
		t.Errorf("get lines = %q, %v, %v", got, resp, err)
	}
	_, got, err = do("GET", hostapi.FSStat, at(path), nil, nil)
	if err != nil || !strings.Contains(got, `"size_bytes":5`) {
		t.Errorf("stat = %q, %v", got, err)
	}
	_, got, err = do("GET", hostapi.FSDir, at(filepath.Join(dir, "sub")), nil, nil)
	if err != nil || !strings.Contains(got, `"name":"file"`) {
		t.Errorf("dir = %q, %v", got, err)
	}
	if resp, _, err = do("POST", hostapi.FSDir, at(filepath.Join(dir, "a", "b")), nil, nil); err != nil || resp.StatusCode != http.StatusCreated {
		t.Errorf("make a directory = %v, %v", resp, err)
	}
	if resp, _, err = do("PUT", hostapi.FSFile, at(filepath.Join(dir, "empty")), nil, strings.NewReader("")); err != nil || resp.StatusCode != http.StatusCreated {
		t.Errorf("put nothing = %v, %v", resp, err)
	}
	if resp, _, err = do("DELETE", hostapi.FSFile, at(path), nil, nil); err != nil || resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete = %v, %v", resp, err)
	}

	for name, c := range map[string]struct {
		method string
		path   string
		status int
	}{
		"a file that is not there": {"GET", path, 404},
		"a directory":              {"GET", dir, 400},
		"a relative path":          {"GET", "x", 400},
		"onto a directory":         {"PUT", dir, 400},
	} {
		_, _, err := do(c.method, hostapi.FSFile, at(c.path), nil, strings.NewReader("x"))
		var e *hostapi.Error
		if !errors.As(err, &e) || e.Code != hostapi.CodeGuestSays || e.HTTPStatus != c.status || e.Message == "" {
			t.Errorf("%s: %+v, want the guest's %d", name, err, c.status)
		}
	}
}

// brokenReader fails after some bytes.
type brokenReader struct{ left int }

var errBroken = errors.New("the caller's disk broke")

func (b *brokenReader) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errBroken
	}
	n := min(len(p), b.left)
	b.left -= n
	return n, nil
}

func TestAnUploadThatBreaksOffLeavesTheOldFile(t *testing.T) {
	for name, header := range map[string]http.Header{
		"its length is known": {"Content-Length": {strconv.Itoa(8 << 20)}}, "its length is not known": nil,
	} {
		t.Run(name, func(t *testing.T) {
			l := goLive(t)
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			must(t, os.WriteFile(path, []byte("old"), 0o600))
			if _, err := l.FS(t.Context(), "PUT", id, hostapi.FSFile, at(path), header, &brokenReader{left: 4 << 20}); !errors.Is(err, errBroken) {
				t.Errorf("put = %v, want the reader's error", err)
			}
			// The refused upload leaves nothing beside the old file.
			await(t, "the end of the upload", func() bool {
				entries, err := os.ReadDir(dir)
				return err == nil && len(entries) == 1
			})
			if raw, err := os.ReadFile(path); err != nil || string(raw) != "old" {
				t.Errorf("the file holds %d bytes, %v", len(raw), err)
			}
		})
	}
}

func TestADownloadThatBreaksOffIsNotWhole(t *testing.T) {
	l := goLive(t)
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, 1<<30))
	resp, err := l.FS(t.Context(), "GET", id, hostapi.FSFile, at(path), nil, nil)
	must(t, err)
	defer resp.Body.Close()
	_, err = io.CopyN(io.Discard, resp.Body, 1<<20)
	must(t, err)
	l.world.VMM(id).Die(syscall.SIGKILL)
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("the rest of %d bytes ended in order", n)
	}
}

// TestLargeFilesNeedNoMemory sends a file in and out: every process on the way
// is in this one.
func TestLargeFilesNeedNoMemory(t *testing.T) {
	size := int64(96 << 20)
	if tier.HasRoot() {
		size = 384 << 20
	}
	l := goLive(t)
	path := filepath.Join(t.TempDir(), "file")
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	quit, watched := make(chan struct{}), make(chan uint64, 1)
	go func() {
		var most uint64
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapInuse)
			select {
			case <-quit:
				watched <- most
				return
			case <-tick.C:
			}
		}
	}()
	sent, got := sha256.New(), sha256.New()
	body := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{3}), size), sent)
	resp, err := l.FS(t.Context(), "PUT", id, hostapi.FSFile, at(path), http.Header{"Content-Length": {strconv.FormatInt(size, 10)}}, body)
	must(t, err)
	resp.Body.Close()
	resp, err = l.FS(t.Context(), "GET", id, hostapi.FSFile, at(path), nil, nil)
	must(t, err)
	n, err := io.Copy(got, resp.Body)
	must(t, err)
	resp.Body.Close()
	close(quit)
	if most := <-watched; most > before.HeapInuse+48<<20 {
		t.Errorf("the heap grew from %d to %d MiB", before.HeapInuse>>20, most>>20)
	}
	if n != size || string(sent.Sum(nil)) != string(got.Sum(nil)) {
		t.Errorf("%d of %d bytes came back, or others", n, size)
	}
}
