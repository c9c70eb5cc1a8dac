package httpapi

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/githost"
)

var _ GitHosts = (*githost.GitHosts)(nil)

// fakeGitHosts has the installation "7" and the repository "9" with the variable A. It
// takes every signature for a good one.
type fakeGitHosts struct {
	callback githost.Callback
	received []byte
	put      api.PutRepoVariable
	err      error
	absent   string // a git host that is not set up
}

func fakeInstallation() api.GitHubInstallation {
	return api.GitHubInstallation{ID: "7", Account: "<b>acme</b>", AccountType: "Organization", RepositorySelection: "all"}
}

func (f *fakeGitHosts) Connect(context.Context, core.Caller) (api.GitHubConnect, error) {
	return api.GitHubConnect{URL: "https://github.com/apps/berth/installations/new?state=s"}, f.err
}

func (f *fakeGitHosts) Callback(_ context.Context, in githost.Callback) (api.GitHubInstallation, error) {
	f.callback = in
	return fakeInstallation(), f.err
}

func (f *fakeGitHosts) Installations(context.Context, core.Caller, core.ListOptions) ([]api.GitHubInstallation, string, error) {
	return []api.GitHubInstallation{fakeInstallation()}, "next", f.err
}

func (f *fakeGitHosts) DeleteInstallation(_ context.Context, _ core.Caller, id string) error {
	if id != "7" {
		return apierror.NotFound()
	}
	return f.err
}

func (f *fakeGitHosts) Repos(_ context.Context, _ core.Caller, id string, _ core.ListOptions) ([]api.GitHubRepo, string, error) {
	if id != "7" {
		return nil, "", apierror.NotFound()
	}
	return []api.GitHubRepo{{ID: "9", FullName: "acme/shop"}}, "2.100", f.err
}

func (f *fakeGitHosts) CheckHook(provider string, header http.Header) error {
	if provider == f.absent {
		return &apierror.Error{Code: apierror.ENotImplemented, Message: "gitlab is not set up"}
	}
	if header.Get("X-Hub-Signature-256") == "" {
		return apierror.Unauthorized("invalid signature")
	}
	return nil
}

func (f *fakeGitHosts) Receive(_ context.Context, _ string, _ http.Header, body []byte) (api.GitEventReceipt, error) {
	f.received = body
	return api.GitEventReceipt{Status: api.GitEventAccepted}, f.err
}

func (f *fakeGitHosts) PreviewEnv(context.Context, core.Caller, string) ([]api.RepoVariable, error) {
	return []api.RepoVariable{{Key: "A"}}, f.err
}

func (f *fakeGitHosts) PutPreviewVariable(_ context.Context, _ core.Caller, _, key string, in api.PutRepoVariable) (api.RepoVariable, error) {
	f.put = in
	return api.RepoVariable{Key: key, Value: in.Value}, f.err
}

func (f *fakeGitHosts) DeletePreviewVariable(_ context.Context, _ core.Caller, _, key string) error {
	if key != "A" {
		return apierror.NotFound()
	}
	return f.err
}

func TestGitHostRoutes(t *testing.T) {
	r := newRig(t)
	r.githosts.absent = githost.GitLab
	for _, c := range []struct {
		method, path, bearer, body string
		status                     int
		has                        string
	}{
		{"GET", "/v1/github/connect", "tenant", "", 200, `"url":"https://github.com/apps/berth`},
		{"GET", "/v1/github/connect", "", "", 401, "missing bearer token"},
		{"GET", "/v1/github/callback?installation_id=7&state=s&setup_action=install", "", "", 200, `"id":"7"`},
		{"GET", "/v1/github/callback?installation_id=7&installation_id=8&state=s", "", "", 400, "more than once"},
		{"HEAD", "/v1/github/callback?installation_id=7&state=s", "", "", 405, ""},
		{"GET", "/v1/github/installations", "tenant", "", 200, `[{"id":"7"`},
		{"DELETE", "/v1/github/installations/7", "tenant", "", 204, ""},
		{"DELETE", "/v1/github/installations/8", "tenant", "", 404, "not found"},
		{"GET", "/v1/github/repos?installation_id=7", "tenant", "", 200, `"full_name":"acme/shop"`},
		{"GET", "/v1/github/repos?installation_id=", "tenant", "", 400, "invalid installation_id"},
		{"GET", "/v1/github/repos?installation_id=8", "tenant", "", 404, "not found"},
		{"GET", "/v1/github/repos?installation_id=7&limit=0", "tenant", "", 400, "invalid limit"},
		{"POST", "/v1/webhooks/github", "", `{"ref":1}`, 202, `"status":"accepted"`},
		{"POST", "/v1/webhooks/gitea", "", `{}`, 202, `"status":"accepted"`},
		{"POST", "/v1/webhooks/gitlab", "", `{}`, 501, "gitlab is not set up"},
		{"POST", "/v1/webhooks/github", "", "", 411, ""},
		{"GET", "/v1/repos/9/preview-env", "tenant", "", 200, `[{"key":"A"`},
		{"PUT", "/v1/repos/9/preview-env/B", "tenant", `{"value":"x","secret":true}`, 200, `"key":"B"`},
		{"PUT", "/v1/repos/9/preview-env/B", "tenant", `{"value":7}`, 400, "value must be a string"},
		{"PUT", "/v1/repos/9/preview-env/B", "tenant", `{}`, 400, "value is required"},
		{"PUT", "/v1/repos/9/preview-env/B", "tenant", `{"value":null,"secret":true}`, 400, "value is required"},
		{"PUT", "/v1/repos/%2F/preview-env/B", "tenant", `{"value":"x"}`, 404, "not found"},
		{"DELETE", "/v1/repos/9/preview-env/A", "tenant", "", 204, ""},
		{"DELETE", "/v1/repos/9/preview-env/C", "tenant", "", 404, "not found"},
	} {
		w := r.call(c.method, c.path, c.bearer, c.body, "X-Hub-Signature-256", "s")
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	if want := (githost.Callback{InstallationID: "7", State: "s", SetupAction: "install"}); r.githosts.callback != want {
		t.Errorf("%+v", r.githosts.callback)
	}
	if r.githosts.put.Value != "x" || r.githosts.put.Secret == nil || !*r.githosts.put.Secret {
		t.Errorf("%+v", r.githosts.put)
	}
	link := r.call("GET", "/v1/github/repos?installation_id=7", "tenant", "").Header().Get("Link")
	if !strings.Contains(link, "installation_id=7") || !strings.Contains(link, "cursor=2.100") {
		t.Errorf("Link is %q", link)
	}
}

// A person gets a page, in which nothing that GitHub or a URL said is markup.
func TestGitHubCallbackInABrowser(t *testing.T) {
	r := newRig(t)
	const path = "/v1/github/callback?installation_id=7&state=s"
	w := r.call("GET", path, "", "", "Accept", "text/html,*/*;q=0.8")
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || strings.Contains(w.Body.String(), "<b>") || !strings.Contains(w.Body.String(), "acme") {
		t.Errorf("%d %s %s", w.Code, w.Header(), w.Body)
	}
	if w.Header().Get("Content-Security-Policy") == "" {
		t.Error("no policy")
	}
	// Before that, it is asked whether the workspace is the right one, and shows whose it is.
	r.githosts.err = &apierror.Error{Code: apierror.EConflict, Message: "confirmation required", Fields: map[string]any{
		"account": "<b>acme</b>", "workspace": "<b>theirs</b>", "workspace_id": "ws-1", "asked_by": "mallory@example.com", "confirm": `"yes`,
	}}
	w = r.call("GET", path, "", "", "Accept", "text/html")
	for _, has := range []string{"theirs", "ws-1", "mallory@example.com", `name="confirm" value="&#34;yes"`, `name="state" value="s"`, `name="installation_id" value="7"`} {
		if w.Code != 200 || !strings.Contains(w.Body.String(), has) || strings.Contains(w.Body.String(), "<b>") {
			t.Errorf("the question has no %s: %d %s", has, w.Code, w.Body)
		}
	}
	if !r.githosts.callback.Ask {
		t.Error("a browser is not asked")
	}
	r.githosts.err = nil
	if r.call("GET", path, "", ""); r.githosts.callback.Ask {
		t.Error("a client that is no browser is asked")
	}
	if w := r.call("GET", path+"&confirm=yes", "", "", "Accept", "text/html"); w.Code != 200 || r.githosts.callback.Confirm != "yes" {
		t.Errorf("%d, %+v", w.Code, r.githosts.callback)
	}
	r.githosts.err = &apierror.Error{Code: apierror.EForbidden, Message: "invalid state", Detail: "<script>"}
	w = httptest.NewRecorder()
	req := httptest.NewRequest("GET", path, nil)
	req.Header.Set("Accept", "text/html")
	r.api.ServeHTTP(w, req)
	if w.Code != 403 || strings.Contains(w.Body.String(), "<script>") || !strings.Contains(w.Body.String(), "invalid state") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Bodies arrive as they were sent, up to GitHub's own limit; what would need too much
// memory is refused before it is read.
func TestLargeGitWebhooks(t *testing.T) {
	r := newRig(t)
	send := func(n int) *httptest.ResponseRecorder {
		return r.call("POST", "/v1/webhooks/github", "", strings.Repeat("x", n), "X-Hub-Signature-256", "s")
	}
	if w := send(10 << 20); w.Code != 202 || len(r.githosts.received) != 10<<20 {
		t.Errorf("10 MB: %d, %d bytes", w.Code, len(r.githosts.received))
	}
	if w := send(maxHookBody + 1); w.Code != 413 {
		t.Errorf("beyond the limit: %d", w.Code)
	}
	if r.api.hooks.all != 0 || len(r.api.hooks.of) != 0 {
		t.Errorf("memory is not given back: %+v", r.api.hooks.of)
	}
	for _, other := range []string{"192.0.2.9", "192.0.2.10"} {
		if !r.api.hooks.take(other, maxSenderHook) {
			t.Error("there is less memory than there should be")
		}
	}
	if w := send(1 << 20); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("without memory: %d", w.Code)
	}
	small := bytes.Repeat([]byte("y"), 1<<10)
	if w := r.call("POST", "/v1/webhooks/github", "", string(small), "X-Hub-Signature-256", "s"); w.Code != 202 || !bytes.Equal(r.githosts.received, small) {
		t.Errorf("a small one without memory: %d", w.Code)
	}
}

// Who sends large bodies slowly, and never signs them, takes from the others neither
// memory nor, for long, a connection.
func TestSlowSendersOfGitWebhooks(t *testing.T) {
	r := newRig(t)
	srv := httptest.NewServer(r.api)
	t.Cleanup(srv.Close)
	before := hookTimeout
	hookTimeout = 300 * time.Millisecond
	t.Cleanup(func() { hookTimeout = before })

	answers := make(chan int)
	for range 8 {
		body, w := io.Pipe()
		t.Cleanup(func() { _ = w.Close() })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/webhooks/github", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Hub-Signature-256", "s")
		req.Header.Set("Content-Type", "application/json")
		req.ContentLength = maxHookBody
		go func() {
			status := 0
			if resp, err := http.DefaultClient.Do(req); err == nil {
				status = resp.StatusCode
				resp.Body.Close()
			}
			answers <- status
		}()
		if _, err := w.Write([]byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	if w := r.call("POST", "/v1/webhooks/github", "", strings.Repeat("x", 24<<20), "X-Hub-Signature-256", "s"); w.Code != 202 {
		t.Errorf("a large one beside slow ones: %d %s", w.Code, w.Body)
	}
	for range 8 {
		if status := <-answers; status != http.StatusRequestTimeout && status != 0 { // or cut off while it sends
			t.Errorf("a slow one: %d", status)
		}
	}
}

// No sender gets more than its share; what it is refused, another gets.
func TestOneSenderOfGitWebhooks(t *testing.T) {
	m := newHookMemory()
	for range 2 {
		if !m.take("a", maxHookBody) {
			t.Fatal("its share is too small")
		}
	}
	if m.take("a", 1) {
		t.Error("it gets more than its share")
	}
	if !m.take("b", maxSenderHook) || m.take("c", 1) {
		t.Error("the others' share is wrong")
	}
	m.give("a", maxHookBody)
	if !m.take("c", maxHookBody) || m.take("b", 1) {
		t.Error("what was given back is not there")
	}
	for remote, want := range map[string]string{
		"192.0.2.7:1": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "@": "",
	} {
		req := httptest.NewRequest("POST", "/", nil)
		req.RemoteAddr = remote
		req.Header.Set("X-Forwarded-For", "203.0.113.1") // anybody's word
		if got := sender(req); got != want {
			t.Errorf("%s: %q, want %q", remote, got, want)
		}
	}
}

// A webhook that nobody can have signed is refused before any of it is read.
func TestUnsignedGitWebhooks(t *testing.T) {
	r := newRig(t)
	body := &unread{}
	req := httptest.NewRequest("POST", "/v1/webhooks/github", body)
	req.ContentLength = maxHookBody
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	if w.Code != 401 || body.read {
		t.Errorf("%d, read: %t", w.Code, body.read)
	}
}

// unread tells whether it was read.
type unread struct{ read bool }

func (u *unread) Read([]byte) (int, error) {
	u.read = true
	return 0, io.EOF
}
