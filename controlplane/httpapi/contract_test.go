package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// TestErrors gives every code its status and its body.
func TestErrors(t *testing.T) {
	cases := []struct {
		name   string
		err    error
		status int
		body   string
		header map[string]string
	}{
		{"invalid", &apierror.Error{Code: apierror.EInvalid, Message: "cmd required"}, 400, `{"error":"cmd required"}`, nil},
		{"unauthorized", apierror.Unauthorized("invalid api token"), 401,
			`{"detail":"invalid api token","error":"unauthorized"}`, map[string]string{"WWW-Authenticate": "Bearer"}},
		{"quota with fields", &apierror.Error{
			Code: apierror.EQuota, Message: "monthly free credit exhausted",
			Fields: map[string]any{"credit_usd": 5.4, "cost_usd_used": 5.41},
		}, 402, `{"cost_usd_used":5.41,"credit_usd":5.4,"error":"monthly free credit exhausted"}`, nil},
		{"forbidden", &apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}, 403, `{"error":"account suspended"}`, nil},
		{"not found", apierror.NotFound(), 404, `{"detail":"no such sandbox","error":"not found"}`, nil},
		{"conflict", &apierror.Error{Code: apierror.EConflict, Message: "idempotency key reused"}, 409, `{"error":"idempotency key reused"}`, nil},
		{"no archive", &apierror.Error{Code: apierror.ENoArchive, Message: "no restorable archive"}, 412, `{"error":"no restorable archive"}`, nil},
		{"too large", &apierror.Error{Code: apierror.ETooLarge, Message: "request body too large"}, 413, `{"error":"request body too large"}`, nil},
		{"unprocessable", &apierror.Error{Code: apierror.EUnprocessable, Message: "x"}, 422, `{"error":"x"}`, nil},
		{"rate limited", &apierror.Error{Code: apierror.ERateLimited, Message: "max sandboxes reached", Fields: map[string]any{"max": 5, "active": 5}}, 429,
			`{"active":5,"error":"max sandboxes reached","max":5}`, nil},
		{"retry after is whole seconds, rounded up", &apierror.Error{Code: apierror.ERateLimited, Message: "slow", RetryAfter: 300 * time.Millisecond}, 429,
			`{"error":"slow"}`, map[string]string{"Retry-After": "1"}},
		{"internal", &apierror.Error{Code: apierror.EInternal, Message: "internal error", Err: errors.New("secret")}, 500, `{"error":"internal error"}`, nil},
		{"not one of ours", errors.New("dial tcp 10.0.0.1: secret"), 500, `{"error":"internal error"}`, nil},
		{"wrapped", fmt.Errorf("place: %w", apierror.NotFound()), 404, `{"detail":"no such sandbox","error":"not found"}`, nil},
		{"not implemented", &apierror.Error{Code: apierror.ENotImplemented, Message: "not implemented"}, 501, `{"error":"not implemented"}`, nil},
		{"no host", &apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node"}, 502, `{"error":"no available compute node"}`, nil},
		{"no leader", apierror.Unavailable("no leader", nil), 503,
			`{"detail":"no leader","error":"control plane unavailable"}`, map[string]string{"Retry-After": "1"}},
		{"too slow", fmt.Errorf("ask the host: %w", context.DeadlineExceeded), 503,
			`{"detail":"the request took too long","error":"control plane unavailable"}`, map[string]string{"Retry-After": "1"}},
		{"no memory", &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox"}, 507,
			`{"error":"insufficient host memory for sandbox"}`, nil},
		{"a code that the table lacks", &apierror.Error{Code: "new", Message: "new"}, 500, `{"error":"new"}`, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) {
				return api.Sandbox{}, c.err
			}
			req := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/"+testID, nil)
			req.Header.Set("Authorization", "Bearer tenant")
			w := httptest.NewRecorder()
			r.api.ServeHTTP(w, req) // not every status is one that this route documents
			if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.body {
				t.Errorf("got %d %s, want %d %s", w.Code, got, c.status, c.body)
			}
			for k, v := range c.header {
				if got := w.Header().Get(k); got != v {
					t.Errorf("%s is %q, want %q", k, got, v)
				}
			}
			// What an operator has not set up is no failure of the service.
			if logged := strings.Contains(r.log.String(), `"level":"ERROR"`); logged != (c.status >= 500 && c.status != 501) {
				t.Errorf("logged as an error: %t", logged)
			}
			if c.header["Retry-After"] == "" && w.Header().Get("Retry-After") != "" {
				t.Errorf("a Retry-After that the error does not ask for")
			}
		})
	}
}

// TestEveryCodeHasAStatus reads the codes from the table itself, so a code that is
// added without a status shows in the test above as a 500.
func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range []apierror.Code{
		apierror.EInvalid, apierror.EUnauthorized, apierror.EQuota, apierror.EForbidden, apierror.ENotFound,
		apierror.EConflict, apierror.ENoArchive, apierror.ETooLarge, apierror.EUnprocessable, apierror.ERateLimited,
		apierror.EInternal, apierror.ENotImplemented, apierror.EBadGateway, apierror.EUnavailable, apierror.EInsufficient,
	} {
		if statusOf[code] == 0 {
			t.Errorf("%s has no status", code)
		}
	}
}

func TestInternalsStayInTheLog(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) {
		return api.Sandbox{}, errors.New("open /var/lib/berth/" + testID + ": no such file")
	}
	w := r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "", api.HeaderRequestID, "mine-1")
	if w.Code != 500 || strings.Contains(w.Body.String(), "/var/lib") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if log := r.log.String(); !strings.Contains(log, "/var/lib/berth/") || !strings.Contains(log, `"request_id":"mine-1"`) {
		t.Errorf("the log does not say what happened: %s", log)
	}
}

func TestRequestID(t *testing.T) {
	long := strings.Repeat("a", api.MaxRequestIDLength)
	cases := []struct {
		name   string
		sent   []string
		reused bool
	}{
		{"none", nil, false},
		{"short", []string{"a"}, true},
		{"64 characters", []string{long}, true},
		{"65 characters", []string{long + "a"}, false},
		{"every visible ASCII character", []string{`!"#$%&'()*+,-./0123456789:;<=>?@[\]^_`}, true},
		{"empty", []string{""}, false},
		{"with a space", []string{"a b"}, false},
		{"with a newline", []string{"a\nlevel=ERROR"}, false},
		{"with a NUL", []string{"a\x00b"}, false},
		{"not ASCII", []string{"für"}, false},
		{"two of them", []string{"a", "b"}, false},
	}
	targets := []struct {
		name, method, target, bearer, body string
		status                             int
	}{
		{"success", http.MethodGet, "/version", "", "", 200},
		{"no credential", http.MethodGet, "/v1/sandboxes", "", "", 401},
		{"unknown route", http.MethodGet, "/v2", "", "", 404},
		{"wrong method", http.MethodPut, "/v1/sandboxes", "tenant", "{}", 405},
		{"no body", http.MethodPost, "/v1/sandboxes", "tenant", "", 411},
		{"bad body", http.MethodPost, "/v1/sandboxes", "tenant", "{", 400},
	}
	r := newRig(t)
	for _, c := range cases {
		for _, target := range targets {
			t.Run(c.name+"/"+target.name, func(t *testing.T) {
				var header []string
				for _, v := range c.sent {
					header = append(header, api.HeaderRequestID, v)
				}
				w := r.call(target.method, target.target, target.bearer, target.body, header...)
				if w.Code != target.status {
					t.Errorf("status %d, want %d", w.Code, target.status)
				}
				got := w.Header().Values(api.HeaderRequestID)
				if len(got) != 1 {
					t.Fatalf("%d request ids", len(got))
				}
				if reused := len(c.sent) > 0 && got[0] == c.sent[0]; reused != c.reused {
					t.Errorf("sent %q, got %q", c.sent, got[0])
				}
				if !strings.Contains(r.log.String(), got[0]) && c.name != "every visible ASCII character" {
					t.Errorf("%q is in no log line", got[0])
				}
			})
		}
	}
}

func TestRequestIDReachesTheUseCase(t *testing.T) {
	r := newRig(t)
	var got core.Caller
	r.sandboxes.get = func(_ context.Context, c core.Caller, _ string) (api.Sandbox, error) {
		got = c
		return testSandbox(), nil
	}
	r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "", api.HeaderRequestID, "mine-2")
	if got.RequestID != "mine-2" || got.WorkspaceID != "ws-1" {
		t.Errorf("the use case saw %+v", got)
	}
}

func TestLogHoldsNoWholeSandboxID(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) {
		panic("no sandbox " + testID)
	}
	r.sandboxes.create = func(context.Context, core.Caller, api.CreateSandbox, core.Idempotency) (api.Sandbox, error) {
		return testSandbox(), nil
	}
	r.sandboxes.delete = func(context.Context, core.Caller, string) error { return errors.New("lost " + testID) }
	r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{"template":"base"}`)
	r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "")
	r.call(http.MethodDelete, "/v1/sandboxes/"+testID, "tenant", "")
	r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/nowhere", "tenant", "")
	log := r.log.String()
	if strings.Contains(log, testID) {
		t.Errorf("a whole sandbox id is in the log:\n%s", log)
	}
	if !strings.Contains(log, `"sandbox_id":"`+testID[:8]+`"`) {
		t.Errorf("no line names the sandbox:\n%s", log)
	}
	for line := range strings.Lines(log) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if fields["request_id"] == nil || fields["route"] == nil {
			t.Errorf("a line without request_id or route: %s", line)
		}
	}
}

func TestPanicIsA500(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) { panic("secret") }
	w := r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "")
	if w.Code != 500 || errorOf(t, w).Error != "internal error" || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if log := r.log.String(); !strings.Contains(log, "secret") || !strings.Contains(log, `"status":500`) {
		t.Errorf("log: %s", log)
	}
}

func TestRouting(t *testing.T) {
	cases := []struct {
		name, method, target string
		status               int
		message, allow       string
	}{
		{"unknown route", "GET", "/v1/nothing", 404, "not found", ""},
		{"root", "GET", "/", 404, "not found", ""},
		{"trailing slash", "GET", "/v1/sandboxes/", 404, "not found", ""},
		{"double slash", "GET", "//v1/sandboxes", 404, "not found", ""},
		{"dots are not resolved", "GET", "/v1/x/../sandboxes", 404, "not found", ""},
		{"other case", "GET", "/V1/sandboxes", 404, "not found", ""},
		{"routes that do not exist", "GET", "/v1/sandboxes/" + testID + "/files", 404, "not found", ""},
		{"wrong method", "PUT", "/v1/sandboxes", 405, "method not allowed", "GET, HEAD, POST"},
		{"wrong method on one", "PATCH", "/v1/sandboxes/" + testID, 405, "method not allowed", "DELETE, GET, HEAD"},
		{"OPTIONS", "OPTIONS", "/v1/me", 405, "method not allowed", "GET, HEAD"},
		{"POST where there is none, without a body", "POST", "/healthz", 405, "method not allowed", "GET, HEAD"},
		{"a path that is no value of its sibling's parameter", "GET", "/v1/templates/build", 405, "method not allowed", "POST"},
		{"the same", "DELETE", "/v1/templates/build", 405, "method not allowed", "POST"},
		{"the same", "OPTIONS", "/v1/templates/build", 405, "method not allowed", "POST"},
		{"made-up method", "BREW", "/version", 405, "method not allowed", "GET, HEAD"},
	}
	r := newRig(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := r.call(c.method, c.target, "tenant", "")
			if w.Code != c.status || errorOf(t, w).Error != c.message {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if got := sorted(w.Header().Get("Allow")); got != c.allow {
				t.Errorf("Allow is %q, want %q", got, c.allow)
			}
		})
	}
}

// The link of an invitation tells who opens it in a browser what to do with it.
func TestALinkThatIsOpenedTellsHowToAccept(t *testing.T) {
	w := newRig(t).call("GET", "/v1/invitations/binv_t", "", "")
	if e := errorOf(t, w); w.Code != 405 || !strings.HasSuffix(e.Detail, ": berth org accept LINK") {
		t.Errorf("%d %+v", w.Code, e)
	}
}

func TestHeadIsGetWithoutABody(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) { return testSandbox(), nil }
	server := httptest.NewServer(r.api)
	defer server.Close()
	var length [2]string
	for i, method := range []string{http.MethodGet, http.MethodHead} {
		req, err := http.NewRequest(method, server.URL+"/v1/sandboxes/"+testID, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer tenant")
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: status %d", method, resp.StatusCode)
		}
		length[i] = resp.Header.Get("Content-Length")
	}
	if length[0] == "" || length[0] != length[1] {
		t.Errorf("Content-Length is %q for GET and %q for HEAD", length[0], length[1])
	}
}

func TestAccess(t *testing.T) {
	cases := []struct {
		name, method, target, bearer, body string
		status                             int
		message, detail                    string
	}{
		{"workspace route, nobody", "GET", "/v1/sandboxes", "", "", 401, "unauthorized", "missing bearer token"},
		{"workspace route, unknown key", "GET", "/v1/sandboxes", "nobody", "", 401, "unauthorized", "invalid api token"},
		{"workspace route, operator", "GET", "/v1/sandboxes", "operator", "", 401, "unauthorized", "invalid api token"},
		{"JWT route, nobody", "GET", "/v1/me", "", "", 401, "unauthorized", "missing bearer token"},
		{"JWT route, API key", "GET", "/v1/me", "tenant", "", 401, "unauthorized", "jwt required"},
		{"JWT route, operator", "GET", "/v1/me", "operator", "", 401, "unauthorized", "jwt required"},
		{"current-org, API key", "POST", "/v1/me/current-org", "tenant", "{}", 401, "unauthorized", "jwt required"},
		{"create token, API key", "POST", "/v1/me/tokens", "tenant", "{}", 401, "unauthorized", "jwt required"},
		{"list tokens, API key", "GET", "/v1/me/tokens", "tenant", "", 401, "unauthorized", "jwt required"},
		{"revoke token, API key", "DELETE", "/v1/me/tokens/abcdefgh", "tenant", "", 401, "unauthorized", "jwt required"},
		{"operator route, nobody", "GET", "/v1/admin/raft-status", "", "", 401, "unauthorized", "missing bearer token"},
		{"operator route, API key", "GET", "/v1/admin/raft-status", "tenant", "", 403, "forbidden", "this route needs an operator's credential"},
		{"operator route, JWT", "POST", "/v1/admin/join-tokens", "jwt", "{}", 403, "forbidden", "this route needs an operator's credential"},
		{"a credential is asked for before the body is read", "POST", "/v1/sandboxes", "", "{", 401, "unauthorized", "missing bearer token"},
		{"and before the id is looked at", "GET", "/v1/sandboxes/%00", "", "", 401, "unauthorized", "missing bearer token"},
	}
	r := newRig(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := r.call(c.method, c.target, c.bearer, c.body)
			e := errorOf(t, w)
			if w.Code != c.status || e.Error != c.message || e.Detail != c.detail {
				t.Errorf("got %d %+v", w.Code, e)
			}
		})
	}
}

// TestEveryRouteIsGuarded calls each route of the table without a credential.
func TestEveryRouteIsGuarded(t *testing.T) {
	r := newRig(t)
	for _, rt := range routes() {
		body := ""
		if rt.method == post {
			body = "{}"
		}
		target := strings.NewReplacer(":id", testID, ":prefix", "abcdefgh", ":lang", "python", ":name", "n").Replace(rt.path)
		w := r.call(rt.method, target, "", body)
		if want := map[bool]int{true: 200, false: 401}[rt.access == public]; w.Code != want {
			t.Errorf("%s %s without a credential: %d, want %d", rt.method, rt.path, w.Code, want)
		}
	}
}

func TestRateLimit(t *testing.T) {
	var asked []string
	r := newRig(t, func(c *Config) {
		c.Limiter = limiterFunc(func(ws string) error {
			asked = append(asked, ws)
			return &apierror.Error{
				Code: apierror.ERateLimited, RetryAfter: time.Second,
				Message: "rate limit: 50 req/burst, 25/sec sustained per workspace",
			}
		})
	})
	w := r.call(http.MethodGet, "/v1/sandboxes", "tenant", "")
	if w.Code != 429 || errorOf(t, w).Error != "rate limit: 50 req/burst, 25/sec sustained per workspace" || w.Header().Get("Retry-After") != "1" {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := r.call(http.MethodGet, "/v1/admin/raft-status", "operator", ""); w.Code != 200 {
		t.Errorf("an operator is limited: %d", w.Code)
	}
	r.call(http.MethodGet, "/v1/sandboxes", "", "")
	// However many requests the workspace's keys make, its people can revoke them.
	for _, c := range [][2]string{
		{http.MethodGet, "/v1/sandboxes"}, {http.MethodGet, "/v1/me"}, {http.MethodDelete, "/v1/me/tokens/abcdefgh"}, {http.MethodDelete, "/v1/orgs/ws-1/members/u-2"},
	} {
		if w := r.call(c[0], c[1], "jwt", ""); w.Code != 429 {
			t.Errorf("%s: %d", c, w.Code)
		}
	}
	if want := []string{"ws-1", "ws-1", "u-1", "u-1", "u-1"}; !slices.Equal(asked, want) {
		t.Errorf("the limiter was asked for %q, want %q", asked, want)
	}
}

func TestMetrics(t *testing.T) {
	r := newRig(t)
	r.sandboxes.get = func(context.Context, core.Caller, string) (api.Sandbox, error) { return testSandbox(), nil }
	r.call(http.MethodGet, "/v1/sandboxes/"+testID, "tenant", "")
	r.call("BREW", "/"+testID, "", "")
	w := r.call(http.MethodGet, "/metrics", "", "")
	for _, want := range []string{
		`berth_http_request_duration_seconds_count{method="GET",route="/v1/sandboxes/:id",status="200"} 1`,
		`berth_http_request_duration_seconds_count{method="other",route="none",status="404"} 1`,
		`berth_http_requests_in_flight 1`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), testID) {
		t.Error("a sandbox id is in the metrics")
	}
}

func TestHealthAndVersion(t *testing.T) {
	sick := errors.New("the disk of /var/lib is gone")
	var health error
	r := newRig(t, func(c *Config) { c.Health = func(context.Context) error { return health } })
	if w := r.call(http.MethodGet, "/healthz", "", ""); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"status":"ok"}` {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	health = sick
	if w := r.call(http.MethodGet, "/healthz", "", ""); w.Code != 503 || strings.Contains(w.Body.String(), "/var/lib") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	w := r.call(http.MethodGet, "/version", "", "")
	if got := strings.TrimSpace(w.Body.String()); got != `{"version":"v0","commit":"c","go_version":"go1","api":"v1"}` {
		t.Errorf("got %s", got)
	}
}

// TestClientGone: a request whose client left is counted as that, not as a server
// error.
func TestClientGone(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	r.sandboxes.get = func(ctx context.Context, _ core.Caller, _ string) (api.Sandbox, error) {
		cancel()
		<-ctx.Done()
		return api.Sandbox{}, fmt.Errorf("ask the host: %w", ctx.Err())
	}
	req := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/"+testID, nil).WithContext(ctx)
	req.Header.Set("Authorization", "Bearer tenant")
	r.api.ServeHTTP(httptest.NewRecorder(), req)
	if log := r.log.String(); !strings.Contains(log, `"status":499`) || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("log: %s", log)
	}
}

func sorted(list string) string {
	if list == "" {
		return ""
	}
	parts := strings.Split(list, ", ")
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// TestEveryCreateTakesAnIdempotencyKey: what is made again by the same request is the
// same, or short-lived and without a limit on how many there are.
func TestEveryCreateTakesAnIdempotencyKey(t *testing.T) {
	without := map[string]bool{"makeDir": true, "addPort": true, "createPreviewToken": true}
	for _, rt := range routes() {
		if rt.method == post && rt.doc.status == http.StatusCreated && rt.doc.idempotent == without[rt.doc.id] {
			t.Errorf("%s %s: idempotent is %t", rt.method, rt.path, rt.doc.idempotent)
		}
	}
}
