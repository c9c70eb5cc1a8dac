package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

func request(t *testing.T, method, target, bearer, body string) *http.Request {
	t.Helper()
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+bearer)
	return req
}

func TestCreatePassesOnWhatWasAsked(t *testing.T) {
	r := newRig(t)
	var got api.CreateSandbox
	r.sandboxes.create = func(_ context.Context, _ core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
		got = in
		return testSandbox(), nil
	}
	w := r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{
		"template": "base", "ttl_seconds": 60, "metadata": {"b": 1e400, "a": [null]}, "env": {"A": "b", "E": ""},
		"from_snapshot": "snap-1", "volumes": [{"name": "data", "mount_path": "/data"}], "boot": "cold", "persistent": true, "preview": "token",
		"cpu": "many", "memory_mb": {"ignored": true}, "added_later": [1]
	}`)
	if w.Code != 201 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	ttl := int64(60)
	want := api.CreateSandbox{
		Template: "base", TTLSeconds: &ttl, Metadata: api.Object(`{"b": 1e400, "a": [null]}`),
		Env: map[string]string{"A": "b", "E": ""}, FromSnapshot: "snap-1",
		Volumes: []api.VolumeMount{{Name: "data", MountPath: "/data"}}, Boot: new(api.BootCold), Persistent: true, Preview: new(api.PreviewToken),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSandboxJSON(t *testing.T) {
	r := newRig(t)
	ttl := int64(90)
	full := testSandbox()
	full.Metadata = api.Object(`{"b":1,"a":"<x>"}`)
	full.Owner = &api.Owner{Type: "app", ID: "app-1"}
	full.FromSnapshot, full.ForkedFrom, full.Error = new("snap-1"), new("other"), new("the VM died")
	full.StartedAt = api.NewTime(full.CreatedAt.Add(time.Second))
	full.ExpiresAt = api.NewTime(full.CreatedAt.Add(90 * time.Second))
	full.TTLSeconds, full.Persistent, full.Preview = &ttl, true, "token"
	full.Volumes = []api.VolumeMount{{Name: "data", MountPath: "/data"}}
	full.PreviewURL = "http://{port}-" + testID + ".localhost"
	cases := []struct {
		name string
		in   api.Sandbox
		want string
	}{
		{"with nothing set", testSandbox(), `{"id":"k7m2qz4xw3v5n6a2j7p4t5r6sd","status":"running","template":"base","metadata":{},` +
			`"cpu":1,"memory_mb":512,"disk_mb":2048,"agent_id":"host-a","owner":null,"from_snapshot":null,"forked_from":null,` +
			`"created_at":"2026-11-20T12:05:09.412Z","started_at":null,"expires_at":null,"ttl_seconds":null,"persistent":false,` +
			`"error":null,"volumes":[],"preview_url":"","preview":"public"}`},
		{"with everything set", full, `{"id":"k7m2qz4xw3v5n6a2j7p4t5r6sd","status":"running","template":"base","metadata":{"b":1,"a":"<x>"},` +
			`"cpu":1,"memory_mb":512,"disk_mb":2048,"agent_id":"host-a","owner":{"type":"app","id":"app-1"},"from_snapshot":"snap-1","forked_from":"other",` +
			`"created_at":"2026-11-20T12:05:09.412Z","started_at":"2026-11-20T12:05:10.412Z","expires_at":"2026-11-20T12:06:39.412Z","ttl_seconds":90,"persistent":true,` +
			`"error":"the VM died","volumes":[{"name":"data","mount_path":"/data"}],"preview_url":"http://{port}-k7m2qz4xw3v5n6a2j7p4t5r6sd.localhost","preview":"token"}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r.sandboxes.get = func(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
				if id != testID {
					t.Errorf("asked for %q", id)
				}
				return c.in, nil
			}
			w := r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "")
			if diff := cmp.Diff(c.want, strings.TrimSpace(w.Body.String())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	var asked []core.ListOptions
	r.sandboxes.list = func(_ context.Context, _ core.Caller, o core.ListOptions) ([]api.Sandbox, string, error) {
		asked = append(asked, o)
		if o.Cursor == "" {
			return []api.Sandbox{testSandbox()}, "c/2+x=", nil
		}
		return nil, "", nil
	}
	w := r.call(http.MethodGet, "/v1/sandboxes?limit=1", "tenant", "")
	if got, want := w.Header().Get("Link"), `</v1/sandboxes?cursor=c%2F2%2Bx%3D&limit=1>; rel="next"`; got != want {
		t.Errorf("Link is %s, want %s", got, want)
	}
	w = r.call(http.MethodGet, "/v1/sandboxes?cursor=c%2F2%2Bx%3D&limit=1", "tenant", "")
	if w.Header().Get("Link") != "" || strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("the last page: %v %s", w.Header(), w.Body)
	}
	r.call(http.MethodGet, "/v1/sandboxes", "tenant", "")
	want := []core.ListOptions{{Limit: 1}, {Limit: 1, Cursor: "c/2+x="}, {Limit: 100}}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestDelete(t *testing.T) {
	r := newRig(t)
	r.sandboxes.delete = func(context.Context, core.Caller, string) error { return nil }
	w := r.call(http.MethodDelete, "/v1/sandboxes/"+testID, "tenant", "")
	if w.Code != 204 || w.Body.Len() != 0 {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
	r.sandboxes.delete = func(context.Context, core.Caller, string) error { return core.ErrRemoving }
	if w := r.call(http.MethodDelete, "/v1/sandboxes/"+testID, "tenant", ""); w.Code != 202 || w.Body.Len() != 0 {
		t.Errorf("while it is still there: %d %q", w.Code, w.Body)
	}
	const managed = "managed sandbox: delete it from the feature that owns it (Databases or Apps)"
	r.sandboxes.delete = func(context.Context, core.Caller, string) error {
		return &apierror.Error{Code: apierror.EConflict, Message: managed}
	}
	if w := r.call(http.MethodDelete, "/v1/sandboxes/"+testID, "tenant", ""); w.Code != 409 || errorOf(t, w).Error != managed {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestExecForms(t *testing.T) {
	timeout := int64(5)
	cases := []struct {
		name, body string
		want       api.Exec
	}{
		{"a string is for the shell", `{"cmd":"echo $HOME"}`, api.Exec{Cmd: api.Shell("echo $HOME")}},
		{"a string with newlines", `{"cmd":"set -e\nfalse\ntrue\r\n"}`, api.Exec{Cmd: api.Shell("set -e\nfalse\ntrue\r\n")}},
		{"an array is an argv", `{"cmd":["echo","$HOME","a\nb",""]}`, api.Exec{Cmd: api.Argv("echo", "$HOME", "a\nb", "")}},
		{"Unicode", `{"cmd":"echo ☃ \ud83d\ude00"}`, api.Exec{Cmd: api.Shell("echo ☃ 😀")}},
		{"Unicode in capitals", `{"cmd":"\uD83D\uDE00\ud83d\ude00\\"}`, api.Exec{Cmd: api.Shell(`😀😀\`)}},
		{"an escape of an escape", `{"cmd":"printf '\\ud83d'"}`, api.Exec{Cmd: api.Shell(`printf '\ud83d'`)}},
		{"stdin may hold a NUL", `{"cmd":"cat","stdin":"a\u0000b"}`, api.Exec{Cmd: api.Shell("cat"), Stdin: "a\x00b"}},
		{"stdin in base64", `{"cmd":"cat","stdin_base64":"/wA="}`, api.Exec{Cmd: api.Shell("cat"), StdinBase64: []byte{0xff, 0}}},
		{"everything", `{"cmd":["a"],"cwd":"/tmp","env":{"A":"1"},"user":"1000:1000","stdin":"x","timeout_seconds":5}`,
			api.Exec{Cmd: api.Argv("a"), Cwd: "/tmp", Env: map[string]string{"A": "1"}, User: "1000:1000", Stdin: "x", TimeoutSeconds: &timeout}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			var got api.Exec
			r.streams.exec = func(_ context.Context, _ string, in api.Exec) (api.ExecResult, error) {
				got = in
				return api.ExecResult{}, nil
			}
			if w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/exec", "tenant", c.body); w.Code != 200 {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExecAnswer(t *testing.T) {
	cases := []struct {
		name string
		in   api.ExecResult
		want string
	}{
		{"nothing written", api.ExecResult{ExitCode: 137, TimedOut: true},
			`{"exit_code":137,"stdout":"","stderr":"","duration_ms":0,"timed_out":true,"truncated":false}`},
		{"text", api.ExecResult{Stdout: "<b>☃\n\x00", Stderr: "x", DurationMS: 3, Truncated: true},
			`{"exit_code":0,"stdout":"<b>☃\n\u0000","stderr":"x","duration_ms":3,"timed_out":false,"truncated":true}`},
		{"bytes that are no text", api.ExecResult{Stdout: "a\xff\xfeb", Stderr: "ok"},
			`{"exit_code":0,"stdout":"a�b","stderr":"ok","duration_ms":0,"timed_out":false,"truncated":false,"stdout_base64":"Yf/+Yg=="}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.streams.exec = func(context.Context, string, api.Exec) (api.ExecResult, error) {
				return c.in, nil
			}
			w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/exec", "tenant", `{"cmd":"x"}`)
			if got := strings.TrimSpace(w.Body.String()); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			var back api.ExecResult
			if err := json.Unmarshal(w.Body.Bytes(), &back); err != nil {
				t.Fatal(err)
			}
			if string(back.StdoutBytes()) != c.in.Stdout || string(back.StderrBytes()) != c.in.Stderr {
				t.Errorf("read back as %q and %q", back.StdoutBytes(), back.StderrBytes())
			}
		})
	}
}

func TestListByMetadata(t *testing.T) {
	r := newRig(t)
	asked := ""
	r.sandboxes.list = func(_ context.Context, _ core.Caller, o core.ListOptions) ([]api.Sandbox, string, error) {
		asked = o.Metadata
		return nil, "more", nil
	}
	w := r.call(http.MethodGet, "/v1/sandboxes?metadata=job%3D42", "tenant", "")
	if link := w.Header().Get("Link"); w.Code != 200 || asked != "job=42" || !strings.Contains(link, "metadata=job%3D42") {
		t.Errorf("got %d, asked for %q, link %q", w.Code, asked, link)
	}
	for _, bad := range []string{"metadata=", "metadata=a%3D1&metadata=b%3D2"} {
		if w := r.call(http.MethodGet, "/v1/sandboxes?"+bad, "tenant", ""); w.Code != 400 {
			t.Errorf("%s: got %d", bad, w.Code)
		}
	}
}

func TestDetailsOf404(t *testing.T) {
	for route, want := range map[string]string{
		"/v1/sandboxes/:id/exec": "no such sandbox", "/v1/apps/:id/domains/:domain": "no such app or domain", "/v1/webhooks/endpoints/:id": "no such webhook endpoint", "": "",
		"/v1/apps/:id/deploys/:deploy": "no such app or deployment", "/v1/repos/:repo/preview-env/:key": "no such variable", "/v1/admin/raft/peers/:id": "no such replica",
	} {
		if got := notFoundDetail(route); got != want {
			t.Errorf("%s: %q", route, got)
		}
	}
}
