package httpapi

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/template"
)

var _ Templates = (*template.Templates)(nil)

// fakeTemplates answers with what a test set.
type fakeTemplates struct {
	Templates // of which whatever a test does not set panics, as a 500

	key   core.Idempotency // of the last build
	build func(in api.BuildTemplate) (api.Build, error)
	get   func(id string) (api.Build, error)
	text  string
	lines []string
}

func (f *fakeTemplates) List(context.Context, core.Caller, core.ListOptions) ([]api.Template, string, error) {
	return []api.Template{{Name: "base", Status: "ready"}}, "", nil
}

func (f *fakeTemplates) Get(_ context.Context, _ core.Caller, name string) (api.Template, error) {
	if name != "base" {
		return api.Template{}, apierror.NotFound()
	}
	return api.Template{Name: name, Status: "ready"}, nil
}

func (f *fakeTemplates) Build(_ context.Context, _ core.Caller, in api.BuildTemplate, i core.Idempotency) (api.Build, error) {
	f.key = i
	return f.build(in)
}

func (f *fakeTemplates) Delete(_ context.Context, _ core.Caller, name string) error {
	if name == "used" {
		return &apierror.Error{Code: apierror.EConflict, Message: "template in use"}
	}
	return nil
}

func (f *fakeTemplates) ListBuilds(context.Context, core.Caller, string, core.ListOptions) ([]api.Build, string, error) {
	return nil, "", nil
}

func (f *fakeTemplates) GetBuild(_ context.Context, _ core.Caller, id string) (api.Build, error) {
	return f.get(id)
}

func (f *fakeTemplates) BuildLogs(context.Context, core.Caller, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(f.text)), nil
}

func (f *fakeTemplates) FollowBuildLogs(context.Context, core.Caller, string) (core.Follower[string], error) {
	return &fakeLines{left: f.lines}, nil
}

type fakeLines struct{ left []string }

func (f *fakeLines) Next() (string, error) {
	if len(f.left) == 0 {
		return "", io.EOF
	}
	line := f.left[0]
	f.left = f.left[1:]
	return line, nil
}

func (f *fakeLines) Close() error { return nil }

func TestTemplateRoutes(t *testing.T) {
	r := newRig(t)
	r.templates.build = func(in api.BuildTemplate) (api.Build, error) {
		if in.Name != "web" || in.From != "base" || *in.Ready.Port != 80 || in.Env["A"] != "b" || *in.MemoryMB != 512 || r.templates.key.Key != "k" {
			t.Errorf("%+v", in)
		}
		if in.CPU != nil || in.DiskMB != nil || in.Ready.TimeoutSeconds != nil {
			t.Errorf("what is not given came as given: %+v", in)
		}
		return api.Build{ID: "bld-1", Template: "web", Status: "queued"}, nil
	}
	r.templates.get = func(id string) (api.Build, error) {
		return api.Build{ID: id, Template: "web", Status: "failed", Error: new("no"), FinishedAt: api.NewTime(time.Unix(1, 0))}, nil
	}
	r.templates.text, r.templates.lines = "one\ntwo\n", []string{"one", "two"}
	for _, c := range []struct {
		method, path, body string
		header             []string
		status             int
		says               string
	}{
		{"GET", "/v1/templates", "", nil, 200, `"name":"base"`},
		{"GET", "/v1/templates/base", "", nil, 200, `"status":"ready"`},
		{"GET", "/v1/templates/none", "", nil, 404, "not found"},
		{"POST", "/v1/templates/build", `{"name":"web","from":"base","env":{"A":"b"},"ready":{"port":80},"memory_mb":512}`, []string{"Idempotency-Key", "k"}, 202, `"error":null`},
		{"POST", "/v1/templates/build", `{"name":1}`, nil, 400, "invalid json"},
		{"POST", "/v1/templates/build", `{"name":"web","files":{"a":1}}`, nil, 400, `{"detail":"files.a must be a string, not number","error":"invalid json"}`},
		{"POST", "/v1/templates/build", `{"name":"web","files":[]}`, nil, 400, `{"detail":"files must be an object whose values are strings, not array","error":"invalid json"}`},
		{"POST", "/v1/templates/build", "", nil, 411, ""},
		{"DELETE", "/v1/templates/used", "", nil, 409, "template in use"},
		{"DELETE", "/v1/templates/web", "", nil, 204, ""},
		{"GET", "/v1/templates/web/builds", "", nil, 200, "[]"},
		{"GET", "/v1/builds/bld-1", "", nil, 200, `"error":"no"`},
		{"GET", "/v1/builds/bld-1/logs", "", []string{"Accept", "text/plain"}, 200, "one\ntwo\n"},
		{"GET", "/v1/builds/bld-1/logs", "", nil, 200, "event: log\ndata: {\"line\":\"two\"}\n\nevent: end\ndata: {\"status\":\"failed\",\"error\":\"no\"}\n\n"},
	} {
		w := r.call(c.method, c.path, "tenant", c.body, c.header...)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
}

// A 0 is passed to the use case, which refuses it: only an absent or null number
// means the value of the template that the build starts from.
func TestZeroesOfABuildAreGiven(t *testing.T) {
	r := newRig(t)
	var got api.BuildTemplate
	r.templates.build = func(in api.BuildTemplate) (api.Build, error) {
		got = in
		return api.Build{ID: "bld-1", Template: "web", Status: "queued"}, nil
	}
	r.call("POST", "/v1/templates/build", "tenant", `{"cpu":0,"memory_mb":0,"disk_mb":0,"ready":{"port":0,"timeout_seconds":0}}`)
	for name, v := range map[string]*int{
		"cpu": got.CPU, "memory_mb": got.MemoryMB, "disk_mb": got.DiskMB, "ready.port": got.Ready.Port, "ready.timeout_seconds": got.Ready.TimeoutSeconds,
	} {
		if v == nil || *v != 0 {
			t.Errorf("%s came as %v", name, v)
		}
	}
	r.call("POST", "/v1/templates/build", "tenant", `{"cpu":null,"memory_mb":null,"disk_mb":null}`)
	if got.CPU != nil || got.MemoryMB != nil || got.DiskMB != nil {
		t.Errorf("null came as given: %+v", got)
	}
}
