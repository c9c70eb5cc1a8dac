package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// fakeApps has one app, "app-1", with one deployment, "dep-1", and notes what it is
// asked.
type fakeApps struct {
	created    api.CreateApp
	patched    api.PatchApp
	deployed   api.CreateDeployment
	rolledBack api.RollBackApp
	variable   api.PutAppVariable
	imported   api.ImportAppEnv
	keys       []string // of variables
	key        core.Idempotency
	source     string
	putSource  func(r io.Reader) error // nil: it is kept
	lines      []sandbox.LogLine
	broken     error // of a log, after its lines
	status     api.DeploymentStatus
}

func fakeApp(id string) (api.App, error) {
	if id != "app-1" {
		return api.App{}, apierror.NotFound()
	}
	return api.App{ID: id, Name: "n", Status: api.AppRunning, URL: "https://app-1.app.test/", Port: 3000, MaxInstances: 1, IdleTimeoutSeconds: 900, Env: map[string]string{}}, nil
}

func (f *fakeApps) deployment(id, deploymentID string) (api.Deployment, error) {
	if _, err := fakeApp(id); err != nil || deploymentID != "dep-1" {
		return api.Deployment{}, apierror.NotFound()
	}
	status := api.DeploymentQueued
	if f.status != "" {
		status = f.status
	}
	return api.Deployment{ID: deploymentID, AppID: id, Status: status, Source: api.AppFromGit, Trigger: api.TriggerAPI, Phases: []api.DeploymentPhase{}}, nil
}

func (f *fakeApps) Create(_ context.Context, _ core.Caller, in api.CreateApp, i core.Idempotency) (api.App, error) {
	f.created, f.key = in, i
	return fakeApp("app-1")
}

func (f *fakeApps) Get(_ context.Context, _ core.Caller, id string) (api.App, error) {
	return fakeApp(id)
}

func (f *fakeApps) List(context.Context, core.Caller, core.ListOptions) ([]api.App, string, error) {
	a, err := fakeApp("app-1")
	return []api.App{a}, "next", err
}

func (f *fakeApps) Patch(_ context.Context, _ core.Caller, id string, in api.PatchApp) (api.App, error) {
	a, err := fakeApp(id)
	if err == nil {
		f.patched = in
	}
	return a, err
}

func (f *fakeApps) Delete(_ context.Context, _ core.Caller, id string) error {
	_, err := fakeApp(id)
	return err
}

func (f *fakeApps) Deploy(_ context.Context, _ core.Caller, id string, in api.CreateDeployment, i core.Idempotency) (api.Deployment, error) {
	d, err := f.deployment(id, "dep-1")
	if err == nil {
		f.deployed, f.key = in, i
	}
	return d, err
}

func (f *fakeApps) Deployments(_ context.Context, _ core.Caller, id string, _ core.ListOptions) ([]api.Deployment, string, error) {
	d, err := f.deployment(id, "dep-1")
	return []api.Deployment{d}, "next", err
}

func (f *fakeApps) Deployment(_ context.Context, _ core.Caller, id, deploymentID string) (api.Deployment, error) {
	return f.deployment(id, deploymentID)
}

func (f *fakeApps) CancelDeployment(_ context.Context, _ core.Caller, id, deploymentID string) (api.Deployment, error) {
	return f.deployment(id, deploymentID)
}

func (f *fakeApps) RollBack(_ context.Context, _ core.Caller, id string, in api.RollBackApp, i core.Idempotency) (api.Deployment, error) {
	f.rolledBack, f.key = in, i
	return f.deployment(id, "dep-1")
}

func (f *fakeApps) DeploymentLogs(_ context.Context, _ core.Caller, id, deploymentID string) (core.Follower[sandbox.LogLine], error) {
	if _, err := f.deployment(id, deploymentID); err != nil {
		return nil, err
	}
	return &breaking{listOf[sandbox.LogLine]{f.lines}, f.broken}, nil
}

func (f *fakeApps) Logs(_ context.Context, _ core.Caller, id string, tail int) (io.ReadCloser, error) {
	_, err := fakeApp(id)
	return io.NopCloser(strings.NewReader(strings.Repeat("line\n", tail))), err
}

func (f *fakeApps) FollowLogs(_ context.Context, _ core.Caller, id string, _ int) (core.Follower[sandbox.LogLine], error) {
	if _, err := fakeApp(id); err != nil {
		return nil, err
	}
	return &breaking{listOf[sandbox.LogLine]{f.lines}, f.broken}, nil
}

func (f *fakeApps) Env(_ context.Context, _ core.Caller, id string) ([]api.AppVariable, error) {
	_, err := fakeApp(id)
	return nil, err
}

func (f *fakeApps) PutVariable(_ context.Context, _ core.Caller, id, key string, in api.PutAppVariable) (api.AppVariable, error) {
	f.keys, f.variable = append(f.keys, key), in
	_, err := fakeApp(id)
	return api.AppVariable{Key: key, Value: in.Value}, err
}

func (f *fakeApps) DeleteVariable(_ context.Context, _ core.Caller, id, key string) error {
	f.keys = append(f.keys, key)
	_, err := fakeApp(id)
	return err
}

func (f *fakeApps) ImportEnv(_ context.Context, _ core.Caller, id string, in api.ImportAppEnv) ([]api.AppVariable, error) {
	_, err := fakeApp(id)
	if err == nil {
		f.imported = in
	}
	return []api.AppVariable{{Key: "A", Value: "b"}}, err
}

func (f *fakeApps) PutSource(_ context.Context, _ core.Caller, id string, tarball io.Reader) (api.SourceUpload, error) {
	if _, err := fakeApp(id); err != nil {
		return api.SourceUpload{}, err
	}
	if f.putSource != nil {
		return api.SourceUpload{}, f.putSource(tarball)
	}
	n, err := io.Copy(writerFunc(func(p []byte) { f.source += string(p) }), tarball)
	return api.SourceUpload{SourceID: "src-1", SizeBytes: n}, err
}

// breaking is a log that breaks off, if there is an error.
type breaking struct {
	listOf[sandbox.LogLine]
	err error
}

func (b *breaking) Next() (sandbox.LogLine, error) {
	l, err := b.listOf.Next()
	if err != nil && b.err != nil {
		err = b.err
	}
	return l, err
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestAppRoutes(t *testing.T) {
	r := newRig(t)
	r.apps.lines = []sandbox.LogLine{{Stream: "stderr", LogLine: api.LogLine{Line: "ready"}}}
	const one = "/v1/apps/app-1"
	for _, c := range []struct {
		method, target, body string
		status               int
		has                  string
	}{
		{"POST", "/v1/apps", `{"name":"n","git_url":"https://x/y","env":{"A":"b"},"port":80}`, 201, `"url":"https://app-1.app.test/"`},
		{"POST", "/v1/apps", ``, 411, ``},
		{"GET", "/v1/apps", ``, 200, `[{"id":"app-1"`},
		{"GET", one, ``, 200, `"last_request_at":null`},
		{"GET", "/v1/apps/no", ``, 404, `"not found"`},
		{"PATCH", one, `{"port":null,"start_command":"x","env":{"B":"c"}}`, 200, `"id":"app-1"`},
		{"PATCH", "/v1/apps/no", `{}`, 404, `"not found"`},
		{"DELETE", one, ``, 204, ``},
		{"DELETE", "/v1/apps/no", ``, 404, `"not found"`},
		{"POST", one + "/deploys", `{"git_ref":"v1"}`, 202, `"status":"queued"`},
		{"POST", one + "/deploys", ``, 411, ``},
		{"POST", "/v1/apps/no/deploys", `{}`, 404, `"not found"`},
		{"GET", one + "/deploys", ``, 200, `[{"id":"dep-1"`},
		{"GET", one + "/deploys/dep-1", ``, 200, `"error":"","phases":[]`},
		{"GET", one + "/deploys/dep-2", ``, 404, `"not found"`},
		{"GET", one + "/deploys/%2F", ``, 404, `"not found"`},
		{"POST", one + "/deploys/dep-1/cancel", `{}`, 200, `"id":"dep-1"`},
		{"POST", one + "/deploys/dep-2/cancel", `{}`, 404, `"not found"`},
		{"POST", one + "/rollback", `{"deployment_id":"dep-0"}`, 202, `"id":"dep-1"`},
		{"GET", one + "/runtime-logs?tail=2", ``, 200, "line\nline\n"},
		{"GET", one + "/runtime-logs?tail=0", ``, 400, `"invalid tail"`},
		{"GET", one + "/runtime-logs?follow=1", ``, 200, "event: stderr\ndata: {"},
		{"GET", one + "/runtime-logs?follow=true", ``, 200, "event: stderr\ndata: {"},
		{"GET", one + "/env", ``, 200, `[]`},
		{"PUT", one + "/env/A_1", `{"value":"","secret":true,"scope":"s"}`, 200, `{"key":"A_1","value":"","secret":false,"scope":""`}, // as the fake answers
		{"DELETE", one + "/env/A_2", ``, 204, ``},
		{"POST", one + "/env/import", `{"dotenv":"A=b","secret":true}`, 200, `[{"key":"A"`},
		{"POST", "/v1/apps/no/env/import", `{"dotenv":"A=b"}`, 404, `"not found"`},
	} {
		w := r.call(c.method, c.target, "tenant", c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.target, c.body, w.Code, w.Body, c.status, c.has)
		}
	}
	f := r.apps
	if diff := cmp.Diff(api.CreateApp{Name: "n", GitURL: "https://x/y", Env: api.StringMap{"A": "b"}, Port: new(80)}, f.created); diff != "" {
		t.Error(diff)
	}
	if p := f.patched; !p.Port.Set || p.Port.Value != nil || *p.StartCommand.Value != "x" || (*p.Env.Value)["B"] != "c" || p.Name.Set {
		t.Errorf("%+v", p)
	}
	if f.deployed.GitRef != "v1" || f.rolledBack.DeploymentID != "dep-0" || !*f.variable.Secret || *f.variable.Scope != "s" || !*f.imported.Secret || f.imported.Scope != nil || strings.Join(f.keys, " ") != "A_1 A_2" {
		t.Errorf("%+v", f)
	}
	for _, target := range []string{"/v1/apps", one + "/deploys", one + "/rollback"} {
		f.key = core.Idempotency{}
		if r.call("POST", target, "tenant", `{"name":"n"}`, api.HeaderIdempotencyKey, "k"); f.key.Key != "k" || len(f.key.BodySHA256) == 0 {
			t.Errorf("%s has the key %+v", target, f.key)
		}
		if strings.HasSuffix(target, "rollback") {
			continue
		}
		if link := r.call("GET", target+"?limit=1", "tenant", "").Header().Get("Link"); link != "<"+target+`?cursor=next&limit=1>; rel="next"` {
			t.Errorf("the next page is at %q", link)
		}
	}
	if r.call("POST", one+"/rollback", "tenant", `{}`, api.HeaderIdempotencyKey, "back"); f.key.Key != "back" || len(f.key.BodySHA256) == 0 {
		t.Errorf("a rollback has the key %+v", f.key)
	}
}

func TestFieldsOfAppsOfTheWrongKind(t *testing.T) {
	r := newRig(t)
	const one = "/v1/apps/app-1"
	for _, c := range []struct{ method, target, body, message, detail string }{
		{"POST", "/v1/apps", `{"name":7}`, "invalid json", "name must be a string, not number"},
		{"POST", "/v1/apps", `{"name":"n","env":"A=b"}`, "env must be a string map", "env must be an object whose values are strings, not string"},
		{"POST", "/v1/apps", `{"name":"n","env":["A=b"]}`, "env must be a string map", "env must be an object whose values are strings, not array"},
		{"POST", "/v1/apps", `{"name":"n","env":{"A":1}}`, "env must be a string map", "env.A must be a string, not number"},
		{"POST", "/v1/apps", `{"name":"n","env":{"A":{}}}`, "env must be a string map", "env.A must be a string, not object"},
		{"POST", "/v1/apps", `{"name":"n","env":{"A":null}}`, "env must be a string map", "env.A must be a string, not null"},
		{"POST", "/v1/apps", `{"name":"n","port":"80"}`, "invalid json", "port must be an integer, not string"},
		{"POST", "/v1/apps", `{"name":"n","auto_hibernate":"no"}`, "invalid json", "auto_hibernate must be true or false, not string"},
		{"POST", "/v1/apps", `{"name":"n","source":1}`, "invalid json", "source must be a string, not number"},
		{"PATCH", one, `{"env":"A=b"}`, "env must be a string map", "env must be an object whose values are strings, not string"},
		{"PATCH", one, `{"env":{"A":true}}`, "env must be a string map", "env.A must be a string, not boolean"},
		{"PATCH", one, `{"idle_timeout_seconds":"60"}`, "invalid json", "idle_timeout_seconds must be an integer, not string"},
		{"PATCH", one, `[]`, "invalid json", "the body must be an object"},
		{"POST", one + "/deploys", `{"git_ref":1}`, "invalid json", "git_ref must be a string, not number"},
		{"POST", one + "/rollback", `{"deployment_id":[]}`, "invalid json", "deployment_id must be a string, not array"},
		{"PUT", one + "/env/A", `{}`, "value is required", ""},
		{"PUT", one + "/env/A", `{"value":null}`, "value is required", ""},
		{"PUT", one + "/env/A", `{"value":1}`, "invalid json", "value must be a string, not number"},
		{"PUT", one + "/env/A", `{"value":"a\u0000b"}`, "invalid json", "value holds a NUL character"},
		{"POST", one + "/env/import", `{}`, "dotenv is required", ""},
		{"POST", one + "/env/import", `{"dotenv":{"A":"b"}}`, "invalid json", "dotenv must be a string, not object"},
	} {
		w := r.call(c.method, c.target, "tenant", c.body)
		if e := errorOf(t, w); w.Code != 400 || e.Error != c.message || e.Detail != c.detail {
			t.Errorf("%s %s %s: %d %+v, want %q %q", c.method, c.target, c.body, w.Code, e, c.message, c.detail)
		}
	}
}

func TestADeploymentsLogEndsWithTheDeployment(t *testing.T) {
	r := newRig(t)
	r.apps.lines = []sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "building"}}, {Stream: "stderr", LogLine: api.LogLine{Line: "warning"}}}
	r.apps.status = api.DeploymentLive
	const logs = "/v1/apps/app-1/deploys/dep-1/logs"
	w := r.call("GET", logs, "tenant", "")
	if got := w.Body.String(); w.Code != 200 || !strings.HasPrefix(got, "event: stdout\ndata: {\"line\":\"building\"}\n\nevent: stderr\n") ||
		!strings.Contains(got, "event: end\ndata: {\"id\":\"dep-1\"") || !strings.Contains(got, `"status":"live"`) {
		t.Errorf("%d %s", w.Code, got)
	}
	r.apps.broken = errors.New("the host went away")
	if got := r.call("GET", logs, "tenant", "").Body.String(); strings.Contains(got, "event: end") || !strings.Contains(got, "event: error") || strings.Contains(got, "went away") {
		t.Errorf("a stream that broke off: %s", got)
	}
	if w := r.call("GET", "/v1/apps/app-1/deploys/dep-2/logs", "tenant", ""); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestSourcesAreStreamed(t *testing.T) {
	r := newRig(t)
	const target = "/v1/apps/app-1/source"
	if w := r.call("PUT", target, "tenant", "tarball"); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"source_id":"src-1","size_bytes":7}` || r.apps.source != "tarball" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := r.call("PUT", "/v1/apps/no/source", "tenant", "tarball"); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	send := func(length int64, body io.Reader) *httptest.ResponseRecorder {
		req := httptest.NewRequest("PUT", target, body)
		req.ContentLength = length
		req.Header.Set("Authorization", "Bearer tenant")
		return r.send(req)
	}
	// The use case reads what it wants, and makes its own error of what it met.
	var read int64
	r.apps.putSource = func(body io.Reader) (err error) {
		if read, err = io.Copy(io.Discard, body); err != nil {
			return apierror.Unavailable("no", err)
		}
		return nil
	}
	zeros := func(n int64) io.Reader { return io.LimitReader(zeroes{}, n) }
	for name, c := range map[string]struct {
		length int64
		body   io.Reader
		status int
	}{
		"as large as may be":     {-1, zeros(maxSource), 200},
		"a byte more":            {-1, zeros(maxSource + 1), 413},
		"a byte more, announced": {maxSource + 1, zeros(0), 413},
		"endless":                {-1, zeroes{}, 413},
		"cut off":                {10, io.MultiReader(strings.NewReader("half"), cutReader{}), 400},
	} {
		if w := send(c.length, c.body); w.Code != c.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if read > maxSource {
			t.Errorf("%s: %d bytes were let through", name, read)
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }

type cutReader struct{}

func (cutReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestRequestsArePassedOnToAnApp(t *testing.T) {
	var asked []string
	r := newRig(t, func(c *Config) {
		c.AppProxy = func(id, rest string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, err := io.ReadAll(req.Body)
				asked = append(asked, strings.Join([]string{req.Method, id, rest, req.URL.RawQuery, string(body), strconv.FormatBool(err == nil)}, " "))
				w.Header().Set("Content-Type", "text/html")
				w.Header().Add("Cache-Control", "public")
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, "theirs")
			})
		}
	})
	const (
		root = "/v1/apps/app-1/proxy"
		to   = root + "/"
	)
	for _, c := range []struct{ method, target, body, want string }{
		{"GET", to, "", "GET app-1   "},
		{"GET", root, "", "GET app-1   "},
		{"GET", root + "?x=1", "", "GET app-1  x=1 "},
		{"POST", root, "{", "POST app-1   {"},
		{"DELETE", root, "", "DELETE app-1   "},
		{"BREW", root, "", "BREW app-1   "},
		{"GET", to + "a%2Fb/../c//?x=1", "", "GET app-1 a%2Fb/../c// x=1 "},
		{"HEAD", to + "x", "", "HEAD app-1 x  "},
		{"POST", to + "proxy/proxy/", "{", "POST app-1 proxy/proxy/  {"},
		{"PUT", to + "x", "content", "PUT app-1 x  content"},
		{"PATCH", to + "x", "p", "PATCH app-1 x  p"},
		{"DELETE", to + "x", "", "DELETE app-1 x  "},
		{"OPTIONS", to + "x", "", "OPTIONS app-1 x  "},
		{"PROPFIND", to + "a%2Fb/?x=1", "<propfind/>", "PROPFIND app-1 a%2Fb/ x=1 <propfind/>"},
		{"BREW", to, "", "BREW app-1   "},
	} {
		asked = nil
		req := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
		req.Header.Set("Authorization", "Bearer tenant")
		w := httptest.NewRecorder()
		r.api.ServeHTTP(w, req)
		if len(asked) != 1 || asked[0] != c.want+" true" {
			t.Errorf("%s %s reached the app as %q", c.method, c.target, asked)
		}
		if w.Code != http.StatusTeapot || w.Body.String() != "theirs" || strings.Join(w.Header()["Cache-Control"], ",") != "public" || w.Header().Get(api.HeaderRequestID) == "" {
			t.Errorf("%s %s: %d %s %v", c.method, c.target, w.Code, w.Body, w.Header())
		}
	}
	asked = nil
	for target, c := range map[string]struct {
		bearer string
		status int
	}{"/v1/apps/no/proxy/x": {"tenant", 404}, to + "x": {"", 401}, root: {"", 401}, root + "x": {"tenant", 404}, "/v1/apps/no/proxy": {"tenant", 404}, "/v1/apps/%2e%2e/proxy/x": {"tenant", 404}} {
		if w := r.call("GET", target, c.bearer, ""); w.Code != c.status || len(asked) > 0 {
			t.Errorf("%s: %d %s, and the app was asked %q", target, w.Code, w.Body, asked)
		}
	}
	for _, c := range []struct {
		method, target, bearer string
		status                 int
	}{
		{"PROPFIND", to + "x", "", 401}, {"PROPFIND", to + "x", "viewer", 403}, {"PROPFIND", "/v1/apps/no/proxy/x", "tenant", 404},
		{"PROPFIND", "/v1/apps/%2e%2e/proxy/x", "tenant", 404}, {"TRACE", to + "x", "tenant", 405}, {"PROPFIND", "/v1/apps/app-1/env", "tenant", 405},
		{"PROPFIND", "/v1/apps/app-1/other/proxy/x", "tenant", 404}, {"PROPFIND", root, "viewer", 403}, {"PROPFIND", root + "x", "tenant", 404},
	} {
		if w := r.call(c.method, c.target, c.bearer, ""); w.Code != c.status || len(asked) > 0 {
			t.Errorf("%s %s as %q: %d %s, and the app was asked %q", c.method, c.target, c.bearer, w.Code, w.Body, asked)
		}
	}
	// A socket is a way in, and no reading.
	for upgrade, status := range map[string]int{"": http.StatusTeapot, "websocket": http.StatusForbidden} {
		req := httptest.NewRequest("GET", to+"x", http.NoBody)
		req.Header.Set("Authorization", "Bearer viewer")
		req.Header.Set("Upgrade", upgrade)
		w := httptest.NewRecorder()
		if r.api.ServeHTTP(w, req); w.Code != status {
			t.Errorf("a viewer, upgrade to %q: %d %s", upgrade, w.Code, w.Body)
		}
	}
	asked = nil
	if w := r.call("POST", to+"x", "tenant", ""); w.Code != 411 || len(asked) > 0 {
		t.Errorf("without a body: %d %q", w.Code, asked)
	}
	if w := newRig(t).call("GET", to+"x", "tenant", ""); w.Code != 404 {
		t.Errorf("where nothing is passed on: %d", w.Code)
	}
}

// A control plane without apps has none, and says so as of any that is unknown.
func TestWithoutApps(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Apps = nil })
	for _, rt := range appRoutes() {
		body := ""
		if rt.method == post {
			body = "{}"
		}
		want := 404
		if rt.doc.id == "listApps" {
			want = 200
		}
		if w := r.call(rt.method, strings.NewReplacer(":id", "app-1", ":deploy", "dep-1").Replace(rt.path), "tenant", body); w.Code != want {
			t.Errorf("%s: %d %s", rt.doc.id, w.Code, w.Body)
		}
	}
}
