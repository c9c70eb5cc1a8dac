package httpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

func TestFileAnswers(t *testing.T) {
	r := newRig(t)
	target := "/v1/sandboxes/" + testID + "/fs?path=/a%20b"
	var asked http.Header
	answer := func(status int, body string, header ...string) {
		r.streams.read = func(path string, h http.Header) (*sandbox.File, error) {
			if path != "/a b" {
				t.Errorf("path %q", path)
			}
			asked = h
			f := &sandbox.File{Status: status, Header: http.Header{"Content-Type": {typeBytes}}, Body: io.NopCloser(strings.NewReader(body))}
			for i := 0; i < len(header); i += 2 {
				f.Header.Set(header[i], header[i+1])
			}
			return f, nil
		}
	}
	answer(200, "hello", "Content-Length", "5", "Last-Modified", "Fri, 20 Nov 2026 13:05:09 GMT")
	w := r.call(http.MethodGet, target, "tenant", "", "Range", "bytes=0-1")
	if w.Code != 200 || w.Body.String() != "hello" || w.Header().Get("Content-Length") != "5" || w.Header().Get("Last-Modified") == "" ||
		w.Header().Get("Content-Type") != typeBytes || asked.Get("Range") != "bytes=0-1" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	w = r.call(http.MethodHead, target, "tenant", "")
	if w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Content-Length") != "5" {
		t.Errorf("HEAD: %d %v %s", w.Code, w.Header(), w.Body)
	}
	answer(206, "el", "Content-Range", "bytes 1-2/5", "Content-Length", "2")
	if w = r.call(http.MethodGet, target, "tenant", ""); w.Code != 206 || w.Header().Get("Content-Range") != "bytes 1-2/5" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	answer(304, "")
	if w = r.call(http.MethodGet, target, "tenant", ""); w.Code != 304 || w.Body.Len() != 0 {
		t.Errorf("%d", w.Code)
	}
	for _, e := range []*apierror.Error{
		{Code: apierror.EInvalid, Message: "is a directory"}, {Code: apierror.ENotFound, Message: "no such file or directory"},
		{Code: apierror.EForbidden, Message: "permission denied"}, {Code: apierror.ERange, Message: "invalid range"},
	} {
		r.streams.read = func(string, http.Header) (*sandbox.File, error) { return nil, e }
		if w = r.call(http.MethodGet, target, "tenant", ""); w.Code != statusOf[e.Code] || errorOf(t, w).Error != e.Message {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

// The refusal of a range states the file's length.
func TestRangeThatCannotBe(t *testing.T) {
	r := newRig(t)
	r.streams.read = func(string, http.Header) (*sandbox.File, error) {
		return nil, &apierror.Error{Code: apierror.ERange, Message: "invalid range", ContentRange: "bytes */5"}
	}
	w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/fs?path=/a", "tenant", "", "Range", "bytes=7-")
	if got := w.Header().Get("Content-Range"); w.Code != 416 || got != "bytes */5" || errorOf(t, w).Error != "invalid range" {
		t.Errorf("%d %q %s", w.Code, got, w.Body)
	}
}

// A download that breaks off must not look complete.
func TestBrokenDownload(t *testing.T) {
	r := newRig(t)
	r.streams.read = func(string, http.Header) (*sandbox.File, error) {
		broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), &brokenReader{})
		return &sandbox.File{Status: 200, Header: http.Header{}, Body: io.NopCloser(broken)}, nil
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server().URL+"/v1/sandboxes/"+testID+"/fs?path=/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer tenant")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the download ended without an error")
	}
}

type brokenReader struct{}

func (*brokenReader) Read([]byte) (int, error) { return 0, errors.New("the host has gone") }

func TestUploads(t *testing.T) {
	r := newRig(t)
	base := "/v1/sandboxes/" + testID + "/fs?path=/a"
	for i, c := range []struct {
		isNew  bool
		status int
	}{{true, 201}, {false, 204}} {
		r.streams.write = func(path, mode string, body io.Reader, size int64) (bool, error) {
			got, err := io.ReadAll(body)
			if path != "/a" || mode != "0600" || string(got) != "content" || size != []int64{7, -1}[i] || err != nil {
				t.Errorf("%s %s %q %d, %v", path, mode, got, size, err)
			}
			return c.isNew, nil
		}
		req := request(t, http.MethodPut, base+"&mode=0600", "tenant", "content")
		if i == 1 {
			req.ContentLength = -1
		}
		if w := r.send(req); w.Code != c.status || w.Body.Len() != 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	// An empty file is a file.
	r.streams.write = func(_, _ string, body io.Reader, size int64) (bool, error) {
		got, err := io.ReadAll(body)
		if len(got) != 0 || size != 0 || err != nil {
			t.Errorf("%q %d, %v", got, size, err)
		}
		return true, nil
	}
	if w := r.call(http.MethodPut, base, "tenant", ""); w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	r.streams.write = func(string, string, io.Reader, int64) (bool, error) {
		return false, &apierror.Error{Code: apierror.EInsufficient, Message: "no space left on device"}
	}
	if w := r.call(http.MethodPut, base, "tenant", "x"); w.Code != 507 || errorOf(t, w).Error != "no space left on device" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An upload may take long, but not stall; the use case then sees an error and not
// the end of the file.
func TestUploadThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.streams.write = func(_, _ string, body io.Reader, _ int64) (bool, error) {
			_, err := io.Copy(io.Discard, body)
			if err == nil {
				t.Error("the body ended well")
			}
			return false, fmt.Errorf("ask the host: %w", err)
		}
		conn := r.onPipe(t)
		start := time.Now()
		fmt.Fprintf(conn, "PUT /v1/sandboxes/%s/fs?path=/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nContent-Length: 9\r\n\r\n1234", testID)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 408 || time.Since(start) != stallTimeout {
			t.Errorf("%+v, %v after %s", resp, err, time.Since(start))
		}
		conn.Close()
		synctest.Wait()
	})
}

func TestFilesByPath(t *testing.T) {
	r := newRig(t)
	at := time.Date(2026, 11, 20, 13, 5, 9, 412e6, time.UTC)
	st := api.FileStat{Path: "/l", Name: "l", Type: "symlink", SizeBytes: 3, Mode: "0777", UID: 1, GID: 2, ModifiedAt: api.Time{Time: at}, Target: "/t"}
	r.streams.stat = func(string) (api.FileStat, error) { return st, nil }
	r.streams.list = func(string, func(api.FileStat) error) error { return nil }
	var removed []string
	r.streams.remove = func(path string, recursive bool) error {
		removed = append(removed, fmt.Sprint(path, recursive))
		return nil
	}
	r.streams.mkdir = func(path string) error { return nil }
	base := "/v1/sandboxes/" + testID + "/fs"
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/stat?path=/l", "", 200, `{"path":"/l","name":"l","type":"symlink","size_bytes":3,"mode":"0777","uid":1,"gid":2,"modified_at":"2026-11-20T13:05:09.412Z","target":"/t"}`},
		{"GET", "/dir?path=/d", "", 200, `{"path":"/d","entries":[]}`},
		{"POST", "/dir?path=/d", "{}", 201, ""},
		{"DELETE", "?path=/d", "", 204, ""},
		{"DELETE", "?path=/d&recursive=true", "", 204, ""},
		{"DELETE", "?path=/d&recursive=maybe", "", 400, `{"detail":"recursive is true or false","error":"invalid recursive"}`},
		{"DELETE", "?path=/d&recursive=", "", 400, `{"detail":"recursive is true or false","error":"invalid recursive"}`},
		{"PUT", "?path=/d&mode=", "x", 400, `{"detail":"mode is octal, such as 0644","error":"invalid mode"}`},
		{"GET", "/stat?path=/a&path=/b", "", 400, `{"detail":"path is given more than once","error":"invalid path"}`},
		{"GET", "/stat?path=%zz", "", 400, `{"detail":"the query string is malformed","error":"invalid query"}`},
		{"PATCH", "?path=/a", "{}", 405, `{"error":"method not allowed"}`},
	} {
		w := r.call(c.method, base+c.target, "tenant", c.body)
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, w.Body)
		}
	}
	if fmt.Sprint(removed) != "[/dfalse /dtrue]" {
		t.Errorf("%v", removed)
	}
}

func TestPorts(t *testing.T) {
	r := newRig(t)
	r.streams.ports = func() ([]api.Port, error) { return nil, nil }
	r.streams.addPort = func(in api.AddPort) (api.Port, error) {
		return api.Port{Port: in.Port, Protocol: "tcp", Label: in.Label}, nil
	}
	r.streams.delPort = func(port int) error { return nil }
	base := "/v1/sandboxes/" + testID + "/ports"
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "", "", 200, `[]`},
		{"POST", "", `{"port":80,"label":"web"}`, 201, `{"port":80,"protocol":"tcp","process":"","url":"","label":"web"}`},
		{"POST", "", `{"port":"80"}`, 400, `{"detail":"port must be an integer, not string","error":"invalid json"}`},
		{"DELETE", "?port=80", "", 204, ""},
		{"DELETE", "", "", 400, `{"detail":"the query parameter port says which","error":"port required"}`},
		{"DELETE", "?port=0", "", 400, `{"detail":"port must be an integer from 1 to 65535","error":"invalid port"}`},
		{"DELETE", "?port=65536", "", 400, `{"detail":"port must be an integer from 1 to 65535","error":"invalid port"}`},
	} {
		w := r.call(c.method, base+c.target, "tenant", c.body)
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, w.Body)
		}
	}
}

func TestLifecycleRoutes(t *testing.T) {
	r := newRig(t)
	for _, verb := range []string{"pause", "resume", "hibernate", "wake"} {
		r.lifecycle.transition = func(name, id string) (api.Sandbox, error) {
			if name != verb || id != testID {
				t.Errorf("%s of %s", name, id)
			}
			return testSandbox(), nil
		}
		if w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/"+verb, "tenant", "{}"); w.Code != 200 {
			t.Errorf("%s: %d %s", verb, w.Code, w.Body)
		}
	}
	ttl := int64(60)
	r.lifecycle.get = func(string) (api.Lifecycle, error) {
		return api.Lifecycle{Status: "hibernated", TTLSeconds: &ttl, Persistent: true}, nil
	}
	w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/lifecycle", "tenant", "")
	if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != `{"status":"hibernated","ttl_seconds":60,"expires_at":null,"persistent":true}` {
		t.Errorf("%d %s", w.Code, got)
	}
	var got api.PatchLifecycle
	r.lifecycle.patch = func(_ string, in api.PatchLifecycle) (api.Lifecycle, error) {
		got = in
		return api.Lifecycle{Status: "running"}, nil
	}
	call := func(body string) int {
		return r.call(http.MethodPatch, "/v1/sandboxes/"+testID+"/lifecycle", "tenant", body).Code
	}
	if call(`{"ttl_seconds":60}`) != 200 || got.TTLSeconds.Value == nil || *got.TTLSeconds.Value != 60 || got.Persistent.Set {
		t.Errorf("%+v", got)
	}
	if call(`{"ttl_seconds":null,"persistent":false}`) != 200 || !got.TTLSeconds.Set || got.TTLSeconds.Value != nil || got.Persistent.Value == nil || *got.Persistent.Value {
		t.Errorf("%+v", got)
	}
	if call(`{"persistent":true}`) != 200 || got.TTLSeconds.Set || !*got.Persistent.Value {
		t.Errorf("%+v", got)
	}
	for body, detail := range map[string]string{
		`{"ttl_seconds":"60"}`: "ttl_seconds must be an integer, not string", `{"ttl_seconds":1.5}`: "ttl_seconds must be an integer, not number 1.5",
		`{"persistent":1}`: "persistent must be true or false, not number", ``: "the body is empty; send {} where there is nothing to say",
	} {
		w := r.call(http.MethodPatch, "/v1/sandboxes/"+testID+"/lifecycle", "tenant", body, "Content-Type", "application/json")
		if e := errorOf(t, w); w.Code != 400 || e.Error != "invalid json" || e.Detail != detail {
			t.Errorf("%s: %d %+v", body, w.Code, e)
		}
	}
}
