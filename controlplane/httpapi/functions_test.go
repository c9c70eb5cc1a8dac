package httpapi

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// fakeFunctions has one function, "app-1", and notes what it is asked.
type fakeFunctions struct {
	*fakeApps
	created api.CreateFunction
	patched api.PatchFunction
	key     core.Idempotency
	files   map[string]string
	archive string
	take    func(r io.Reader) error // nil: an archive is kept
	never   bool                    // it was never deployed
}

func fakeFunction(id string) (api.Function, error) {
	if id != "app-1" {
		return api.Function{}, apierror.NotFound()
	}
	return api.Function{ID: id, Name: "n", Runtime: api.RuntimeNode, Status: api.AppRunning, TimeoutSeconds: 30, Env: map[string]string{}}, nil
}

func (f *fakeFunctions) Create(_ context.Context, _ core.Caller, in api.CreateFunction, i core.Idempotency) (api.Function, error) {
	f.created, f.key = in, i
	return fakeFunction("app-1")
}

func (f *fakeFunctions) Get(_ context.Context, _ core.Caller, id string) (api.Function, error) {
	return fakeFunction(id)
}

func (f *fakeFunctions) List(context.Context, core.Caller, core.ListOptions) ([]api.Function, string, error) {
	one, err := fakeFunction("app-1")
	return []api.Function{one}, "next", err
}

func (f *fakeFunctions) Patch(_ context.Context, _ core.Caller, id string, in api.PatchFunction) (api.Function, error) {
	f.patched = in
	return fakeFunction(id)
}

func (f *fakeFunctions) DeployFiles(_ context.Context, _ core.Caller, id string, files map[string]string, _ core.Idempotency) (api.Deployment, error) {
	f.files = maps.Clone(files)
	return f.deployment(id, "dep-1")
}

func (f *fakeFunctions) DeployArchive(_ context.Context, _ core.Caller, id string, tarball io.Reader, _ core.Idempotency) (api.Deployment, error) {
	if f.take != nil {
		return api.Deployment{}, f.take(tarball)
	}
	raw, err := io.ReadAll(tarball)
	if err != nil {
		return api.Deployment{}, err
	}
	f.archive = string(raw)
	return f.deployment(id, "dep-1")
}

func (f *fakeFunctions) Invocable(_ context.Context, _ core.Caller, id string) error {
	if f.never {
		return &apierror.Error{Code: apierror.ENotFound, Message: "no code deployed yet"}
	}
	_, err := fakeFunction(id)
	return err
}

func TestFunctionRoutes(t *testing.T) {
	r := newRig(t)
	r.functions.lines = []sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "called"}}}
	const one = "/v1/functions/app-1"
	for _, c := range []struct {
		method, target, body string
		status               int
		has                  string
	}{
		{"POST", "/v1/functions", `{"name":"n","runtime":"node","env":{"A":"b"},"timeout_seconds":5}`, 201, `"runtime":"node"`},
		{"POST", "/v1/functions", ``, 411, ``},
		{"POST", "/v1/functions", `{"name":7}`, 400, `name must be a string`},
		{"POST", "/v1/functions", `{"name":"n","runtime":["node"]}`, 400, `runtime must be a string`},
		{"GET", "/v1/functions", ``, 200, `[{"id":"app-1"`},
		{"GET", one, ``, 200, `"last_invoked_at":null`},
		{"GET", "/v1/functions/no", ``, 404, `"not found"`},
		{"PATCH", one, `{"timeout_seconds":null,"env":{"B":"c"}}`, 200, `"id":"app-1"`},
		{"PATCH", one, `{"timeout_seconds":"1"}`, 400, `timeout_seconds must be an integer`},
		{"DELETE", one, ``, 204, ``},
		{"DELETE", "/v1/functions/no", ``, 404, `"not found"`},
		{"POST", one + "/deploy", `{"files":{"handler.mjs":"x"}}`, 202, `"status":"queued"`},
		{"POST", one + "/deploy", `{}`, 400, `"files is required"`},
		{"POST", one + "/deploy", `{"files":null}`, 400, `"files is required"`},
		{"POST", one + "/deploy", `{"files":["a"]}`, 400, `{"detail":"files must be an object whose values are strings, not array","error":"invalid json"}`},
		{"POST", one + "/deploy", `{"files":{"a":1}}`, 400, `files.a must be a string`},
		{"POST", one + "/deploy", ``, 411, ``},
		{"POST", "/v1/functions/no/deploy", `{"files":{"a":"b"}}`, 404, `"not found"`},
		{"GET", one + "/deploys", ``, 200, `[{"id":"dep-1"`},
		{"GET", one + "/deploys/dep-1", ``, 200, `"phases":[]`},
		{"GET", one + "/deploys/dep-2", ``, 404, `"not found"`},
		{"POST", one + "/deploys/dep-1/cancel", `{}`, 200, `"id":"dep-1"`},
		{"GET", one + "/deploys/dep-1/logs", ``, 200, "event: end\n"},
		{"POST", one + "/rollback", `{"deployment_id":"dep-0"}`, 202, `"id":"dep-1"`},
		{"GET", one + "/logs?tail=2", ``, 200, "line\nline\n"},
		{"GET", one + "/logs?tail=0", ``, 400, `"invalid tail"`},
		{"GET", one + "/logs?follow=1", ``, 200, "event: stdout\ndata: {"},
		{"GET", one + "/env", ``, 200, `[]`},
		{"PUT", one + "/env/A_1", `{"value":"","secret":true}`, 200, `{"key":"A_1","value":""`},
		{"DELETE", one + "/env/A_2", ``, 204, ``},
	} {
		w := r.call(c.method, c.target, "tenant", c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.target, c.body, w.Code, w.Body, c.status, c.has)
		}
	}
	f := r.functions
	if f.created.Name != "n" || f.created.Runtime != api.RuntimeNode || *f.created.TimeoutSeconds != 5 || f.created.Env["A"] != "b" {
		t.Errorf("created with %+v", f.created)
	}
	if p := f.patched; p.Name.Set || !p.TimeoutSeconds.Set || p.TimeoutSeconds.Value != nil || (*p.Env.Value)["B"] != "c" {
		t.Errorf("patched with %+v", p)
	}
	if f.rolledBack.DeploymentID != "dep-0" || strings.Join(f.keys, " ") != "A_1 A_2" || len(r.apps.keys) > 0 || r.apps.rolledBack.DeploymentID != "" {
		t.Errorf("%+v", f)
	}
	if r.call("POST", "/v1/functions", "tenant", `{"name":"n","runtime":"node"}`, api.HeaderIdempotencyKey, "k"); f.key.Key != "k" {
		t.Errorf("the key is %+v", f.key)
	}
}

// What is an object is files, however it is declared; anything else is an archive.
func TestCodeIsFilesOrAnArchive(t *testing.T) {
	r := newRig(t)
	send := func(contentType, body string, length int64) *httptest.ResponseRecorder {
		r.functions.files, r.functions.archive = nil, ""
		req := httptest.NewRequest("POST", "/v1/functions/app-1/deploy", strings.NewReader(body))
		req.ContentLength = length
		req.Header.Set("Authorization", "Bearer tenant")
		req.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		r.api.ServeHTTP(w, req)
		return w
	}
	const files = `{"files":{"a":"b"}}`
	for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded", ""} {
		if w := send(contentType, files, int64(len(files))); w.Code != 202 || r.functions.files["a"] != "b" || r.functions.archive != "" {
			t.Errorf("%q: %d %s, files %v", contentType, w.Code, w.Body, r.functions.files)
		}
	}
	for _, contentType := range []string{"application/gzip", "application/octet-stream", "application/x-www-form-urlencoded"} {
		if w := send(contentType, "\x1f\x8btarball", -1); w.Code != 202 || r.functions.archive != "\x1f\x8btarball" {
			t.Errorf("%q: %d %s, archive %q", contentType, w.Code, w.Body, r.functions.archive)
		}
	}
	if w := send("application/gzip", "", maxCode+1); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("announced as too large: %d %s", w.Code, w.Body)
	}
	if w := send("application/json", strings.Repeat(" ", maxCodeBody+1), -1); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("files that are too large: %d %s", w.Code, w.Body)
	}
	r.functions.take = func(io.Reader) error { return apierror.Invalid("invalid code", "there is no handler.py at its top") }
	if w := send("application/gzip", "\x1f\x8b", -1); w.Code != 400 || !strings.Contains(w.Body.String(), "there is no handler.py") {
		t.Errorf("refused: %d %s", w.Code, w.Body)
	}
}

func TestInvocationsArePassedOn(t *testing.T) {
	var asked []string
	r := newRig(t, func(c *Config) {
		c.Invoke = func(id, rest string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				asked = append(asked, strings.Join([]string{req.Method, id, rest, req.URL.RawQuery, string(body)}, " "))
				w.WriteHeader(http.StatusTeapot)
			})
		}
	})
	const to = "/v1/functions/app-1/invoke"
	call := func(method, target, bearer, body string) int {
		asked = nil
		req := httptest.NewRequest(method, target, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+bearer)
		w := httptest.NewRecorder()
		r.api.ServeHTTP(w, req)
		return w.Code
	}
	for _, c := range []struct{ method, target, body, want string }{
		{"POST", to, "b", "POST app-1   b"}, {"GET", to + "?x=1", "", "GET app-1  x=1 "}, {"GET", to + "/", "", "GET app-1   "},
		{"PUT", to, "c", "PUT app-1   c"}, {"PROPFIND", to, "p", "PROPFIND app-1   p"},
		{"POST", to + "/a%2Fb/invoke/", "b", "POST app-1 a%2Fb/invoke/  b"}, {"PUT", to + "/x", "c", "PUT app-1 x  c"}, {"PATCH", to + "/x", "p", "PATCH app-1 x  p"},
		{"DELETE", to + "/x", "", "DELETE app-1 x  "}, {"OPTIONS", to + "/x", "", "OPTIONS app-1 x  "}, {"HEAD", to + "/x", "", "HEAD app-1 x  "},
		{"PROPFIND", to + "/a%2Fb/", "p", "PROPFIND app-1 a%2Fb/  p"},
	} {
		if status := call(c.method, c.target, "tenant", c.body); status != http.StatusTeapot || len(asked) != 1 || asked[0] != c.want {
			t.Errorf("%s %s: %d, it was asked %q, want %q", c.method, c.target, status, asked, c.want)
		}
	}
	// To invoke is no reading, whatever the method.
	for _, c := range []struct {
		method, target, bearer string
		status                 int
	}{
		{"GET", to, "viewer", 403}, {"GET", to + "/x", "viewer", 403}, {"GET", "/v1/functions/no/invoke/x", "tenant", 404}, {"GET", "/v1/functions/%2e%2e/invoke", "tenant", 404},
	} {
		if status := call(c.method, c.target, c.bearer, ""); status != c.status || len(asked) > 0 {
			t.Errorf("%s %s as %s: %d, it was asked %q", c.method, c.target, c.bearer, status, asked)
		}
	}
	r.functions.never = true
	if w := r.call("POST", to, "tenant", "{}"); w.Code != 404 || !strings.Contains(w.Body.String(), `"no code deployed yet"`) || len(asked) > 0 {
		t.Errorf("never deployed: %d %s", w.Code, w.Body)
	}
	if w := newRig(t).call("GET", to, "tenant", ""); w.Code != 404 {
		t.Errorf("where nothing is passed on: %d", w.Code)
	}
}

func TestWithoutFunctions(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Functions = nil })
	for _, rt := range functionRoutes() {
		body := ""
		if rt.method == post {
			body = "{}"
		}
		want := 404
		if rt.doc.id == "listFunctions" {
			want = 200
		}
		path := strings.NewReplacer(":id", "app-1", ":deploy", "dep-1", "*rest", "x").Replace(rt.path)
		if w := r.call(rt.method, path, "tenant", body); w.Code != want {
			t.Errorf("%s: %d %s", rt.doc.id, w.Code, w.Body)
		}
	}
}
