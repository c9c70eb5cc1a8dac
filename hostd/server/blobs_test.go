package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berth-cloud/berth/hostd/blob"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

func blobsIn(t *testing.T, dir string, limit int64) *blob.Store {
	t.Helper()
	b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: filepath.Join(dir, "bucket")})
	must(t, err)
	s, err := blob.Open(blob.Config{Bucket: b, Spool: filepath.Join(dir, "spool"), Room: func() (int64, error) { return 1 << 40, nil }, Limit: limit})
	must(t, err)
	return s
}

// files are those below a directory, by their names.
func filesBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
		return err
	}))
	return names
}

func TestBlobsThroughTheClient(t *testing.T) {
	dir := t.TempDir()
	const limit = 4 << 20
	l := goLive(t, func(c *Config) { c.Blobs = blobsIn(t, dir, limit) })

	content := strings.Repeat("berth", 100_000)
	for _, want := range []string{content, "", "short"} {
		info, err := l.PutBlob(t.Context(), "a.b_c-1", strings.NewReader(want))
		must(t, err)
		if info.SizeBytes != int64(len(want)) {
			t.Errorf("%+v", info)
		}
		body, size, err := l.GetBlob(t.Context(), "a.b_c-1")
		must(t, err)
		got, err := io.ReadAll(body)
		body.Close()
		if err != nil || string(got) != want || size != int64(len(want)) {
			t.Errorf("%d bytes of %d, %v; want %d", len(got), size, err, len(want))
		}
	}
	if _, err := l.PutBlob(t.Context(), "large", strings.NewReader(strings.Repeat("x", limit+1))); !hostapi.HasCode(err, hostapi.CodeTooLarge) {
		t.Errorf("too large: %v", err)
	}
	broken := errors.New("source broke off")
	if _, err := l.PutBlob(t.Context(), "half", io.MultiReader(strings.NewReader(content), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a source that breaks off: %v", err)
	}
	for _, name := range []string{"large", "half"} {
		if _, _, err := l.GetBlob(t.Context(), name); !hostapi.HasCode(err, hostapi.CodeNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	await(t, "only the whole blob is left", func() bool { return fmt.Sprint(filesBelow(t, dir)) == "[a.b_c-1]" })
	must(t, l.DeleteBlob(t.Context(), "a.b_c-1"))
	must(t, l.DeleteBlob(t.Context(), "a.b_c-1"))
	if left := filesBelow(t, dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// A connection that ends in the middle of a body leaves nothing, whether its length was
// announced or not.
func TestBlobsOfCutConnections(t *testing.T) {
	dir := t.TempDir()
	h := New(Config{
		Boxes: struct{ Boxes }{}, Blobs: blobsIn(t, dir, 0), ObserveTerm: func(string, uint64) error { return nil },
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	}).handler()
	ended := make(chan struct{}, 1)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		r.TLS = verified("replica:r1")
		h.ServeHTTP(w, r)
	})}
	go srv.Serve(lis)
	t.Cleanup(func() { must(t, srv.Close()) })
	for _, framing := range []string{"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
		conn, err := net.Dial("tcp", lis.Addr().String())
		must(t, err)
		_, err = fmt.Fprintf(conn, "PUT %s/cut HTTP/1.1\r\nHost: h\r\n%s: 1\r\n%s", hostapi.PathBlobs, hostapi.HeaderTerm, framing)
		must(t, err)
		await(t, "the host has begun", func() bool { return len(filesBelow(t, dir)) == 1 })
		must(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && resp.StatusCode < http.StatusBadRequest {
			t.Errorf("answered %s", resp.Status)
		}
		<-ended
		conn.Close()
		if left := filesBelow(t, dir); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// A deposed leader changes no blob, and a name is no path.
func TestBlobsAreFenced(t *testing.T) {
	dir := t.TempDir()
	h := New(Config{
		Boxes: struct{ Boxes }{}, Blobs: blobsIn(t, dir, 0), ObserveTerm: func(string, uint64) error { return ledger.ErrStaleTerm },
		Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	}).handler()
	for _, method := range []string{http.MethodPut, http.MethodDelete} {
		if status, body := serveHTTP(h, method, hostapi.PathBlobs+"/b", "content"); status != http.StatusConflict || !strings.Contains(body, string(hostapi.CodeStaleTerm)) {
			t.Errorf("%s: %d %s", method, status, body)
		}
	}
	if status, _ := serveHTTP(h, http.MethodGet, hostapi.PathBlobs+"/b", ""); status != http.StatusNotFound {
		t.Errorf("a read is fenced: %d", status)
	}
	for _, name := range []string{"..%2Fx", "%2E%2E", ".x", "-x", "a%00", "Blob", "a%2Fb", strings.Repeat("x", maxObjectID+1)} {
		for _, method := range []string{http.MethodPut, http.MethodGet, http.MethodDelete} {
			if status, body := serveHTTP(h, method, hostapi.PathBlobs+"/"+name, "content"); status != http.StatusBadRequest {
				t.Errorf("%s %s: %d %s", method, name, status, body)
			}
		}
	}
	if left := filesBelow(t, dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
