package controlplane

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// walker calls every route of the document with one credential after another.
type walker struct {
	t      *testing.T
	rig    *testplane.Rig
	server *httptest.Server
	routes []walked

	// What the workspace ws has.
	box, app, endpoint string
}

// walked is a route of the document. need is its access: "", "workspace", "jwt",
// "operator" or "broker".
type walked struct {
	id, method, path, need, body string
	statuses                     map[string]json.RawMessage // that the document has
	query                        []string                   // names of its parameters
}

func (rt walked) name() string { return rt.method + " " + rt.path }

// writes reports whether a viewer may not call it.
func (rt walked) writes() bool {
	socket := strings.Contains(rt.path, "/exec/") || strings.Contains(rt.path, "/lsp/")
	invoke := strings.HasPrefix(rt.path, "/v1/functions/{id}/invoke")
	return rt.method != http.MethodGet || socket || invoke || rt.path == "/v1/github/connect" // whose answer lets an installation in
}

func newWalker(t *testing.T) *walker {
	r := testplane.NewRig(t, 1)
	auth, err := authn.New(authn.Config{
		Store: r.Node.Store, Users: r.Node.Orgs, AdminToken: adminToken, JWT: authn.JWTConfig{HS256Key: jwtKey, Issuer: jwtIssuer}, Clock: time.Now, Logger: testcluster.Log(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{t: t, rig: r, server: publicAPIFor(t, r.Node, auth), box: r.Must(t, api.CreateSandbox{}).ID}
	app, err := r.Node.Apps.Create(t.Context(), testplane.Caller, api.CreateApp{Name: "shop", GitURL: "https://git.example.com/a/b"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := r.Node.Webhooks.Create(t.Context(), testplane.Caller, api.CreateWebhookEndpoint{URL: "https://example.com"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	w.app, w.endpoint = app.ID, endpoint.ID
	_, doc := raw(t, http.MethodGet, w.server.URL+"/openapi.json", "", "")
	var parsed struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Security    []map[string][]string
			RequestBody *struct {
				Content map[string]struct{ Example json.RawMessage }
			} `json:"requestBody"`
			Responses  map[string]json.RawMessage
			Parameters []struct{ Name, In string }
		}
	}
	if err := json.Unmarshal([]byte(doc), &parsed); err != nil {
		t.Fatal(err)
	}
	for path, methods := range parsed.Paths {
		for method, op := range methods {
			rt := walked{id: op.OperationID, method: strings.ToUpper(method), path: path, statuses: op.Responses}
			for _, s := range op.Security {
				for scheme := range s {
					switch scheme {
					case "apiKey":
						rt.need = "workspace"
					case "jwt":
						if rt.need == "" {
							rt.need = "jwt"
						}
					case "operatorToken":
						rt.need = "operator"
					case "brokerToken":
						rt.need = "broker"
					}
				}
			}
			for _, p := range op.Parameters {
				if p.In == "query" {
					rt.query = append(rt.query, p.Name)
				}
			}
			if op.RequestBody != nil {
				rt.body = string(op.RequestBody.Content["application/json"].Example)
			}
			if rt.body == "" && rt.method == http.MethodPost {
				rt.body = "{}"
			}
			w.routes = append(w.routes, rt)
		}
	}
	slices.SortFunc(w.routes, func(a, b walked) int { return strings.Compare(a.name(), b.name()) })
	if len(w.routes) < 90 {
		t.Fatalf("the document has only %d routes", len(w.routes))
	}
	return w
}

// person signs a person in, in a role of the workspace ws; "": of none but their own.
func (w *walker) person(subject string, role record.Role) string {
	w.t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": jwtIssuer, "sub": subject, "email": subject + "@example.com", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(jwtKey))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.rig.Node.Orgs.SignIn(w.t.Context(), jwtIssuer, subject, subject+"@example.com", time.Time{}); err != nil {
		w.t.Fatal(err)
	}
	if role != "" {
		w.rig.Update(func(tx *raftstore.Tx) error {
			u, _ := raftstore.Get(tx, record.Users, org.UserID(jwtIssuer, subject))
			c := u.Clone()
			c.Join("ws", role)
			c.CurrentWorkspaceID = "ws"
			raftstore.Put(tx, record.Users, c)
			return nil
		})
	}
	return token
}

// leave ends all memberships of a person.
func (w *walker) leave(subject string) {
	w.rig.Update(func(tx *raftstore.Tx) error {
		u, _ := raftstore.Get(tx, record.Users, org.UserID(jwtIssuer, subject))
		c := u.Clone()
		for _, id := range u.WorkspaceIDs {
			c.Leave(id)
		}
		raftstore.Put(tx, record.Users, c)
		return nil
	})
}

// key makes an API key of a workspace.
func (w *walker) key(workspace, prefix string, scopes ...string) string {
	key := "brt_" + prefix + "_" + strings.Repeat("s", 32)
	w.rig.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.APIKeys, &record.APIKey{
			Meta: record.Meta{ID: "key-" + prefix}, WorkspaceID: workspace, Prefix: prefix, SHA256: org.APIKeyDigest(key), Scopes: scopes, LastUsedAt: time.Now(),
		})
		return nil
	})
	return key
}

// fill fills a route's path with ids that nobody has, except for the workspace ws.
func (w *walker) fill(rt walked) string {
	path := strings.Replace(rt.path, "/v1/orgs/{id}", "/v1/orgs/ws", 1)
	path = strings.Replace(path, "/v1/databases/{id}", "/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37", 1)
	path = strings.Replace(path, "/v1/sandboxes/{id}", "/v1/sandboxes/"+strings.Repeat("z", 26), 1)
	for strings.Contains(path, "{") {
		before, after, _ := strings.Cut(path, "{")
		_, after, _ = strings.Cut(after, "}")
		path = before + "unknown" + after
	}
	return path
}

// refused is the whole body of a refusal.
func refused(message, detail string) map[string]any {
	out := map[string]any{"error": message}
	if detail != "" {
		out["detail"] = detail
	}
	return out
}

// exactly checks that a request is answered by a status and by a body, which has nothing
// else.
func (w *walker) exactly(who string, rt walked, path, credential string, status int, body map[string]any) {
	w.t.Helper()
	resp, text := raw(w.t, rt.method, w.server.URL+path, credential, rt.body)
	var got map[string]any
	_ = json.Unmarshal([]byte(text), &got)
	if d := cmp.Diff(body, got); resp.StatusCode != status || d != "" {
		w.t.Errorf("%s, %s: %d %s, want %d %v", who, rt.name(), resp.StatusCode, text, status, body)
	}
	if challenge := resp.Header.Get("WWW-Authenticate"); (status == 401) != (challenge == "Bearer") {
		w.t.Errorf("%s, %s: %d with WWW-Authenticate %q", who, rt.name(), resp.StatusCode, challenge)
	}
	if resp.Header.Get("X-Request-Id") == "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		w.t.Errorf("%s, %s: header %v", who, rt.name(), resp.Header)
	}
}

// call sends a request and returns the status and the error of the answer.
func (w *walker) call(rt walked, path, credential string) (int, api.ErrorBody) {
	w.t.Helper()
	resp, body := raw(w.t, rt.method, w.server.URL+path, credential, rt.body)
	var e api.ErrorBody
	if resp.StatusCode >= 400 {
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			w.t.Errorf("%s: %d %q", rt.name(), resp.StatusCode, body)
		}
	}
	return resp.StatusCode, e
}

// want checks that a credential gets one error on a route.
func (w *walker) want(who string, rt walked, credential string, status int, message, detail string) {
	w.t.Helper()
	w.exactly(who, rt, w.fill(rt), credential, status, refused(message, detail))
}

// passes checks that a credential is no reason to refuse a route.
func (w *walker) passes(who string, rt walked, credential string) {
	w.t.Helper()
	if got, e := w.call(rt, w.fill(rt), credential); got == 401 || got == 403 || got >= 500 && e.Error == "internal error" {
		w.t.Errorf("%s, %s: %d %+v", who, rt.name(), got, e)
	}
}

const (
	viewerMayNot   = "a viewer may only read"
	scopesCoverNot = "the scopes of this key do not cover that"
	memberOfNone   = "you are a member of no organization: create one, or accept an invitation"
	needsAdmin     = "this needs the role admin or owner"
	needsOperator  = "this route needs an operator's credential"
)

// TestEveryRouteWithEveryCredential walks every route of the router with credentials
// that do not suffice, and compares the whole of each refusal.
func TestEveryRouteWithEveryCredential(t *testing.T) {
	w := newWalker(t)
	var (
		key                    = w.key("ws", "aaaaaaaa")
		readOnly, databasesKey = w.key("ws", "cccccccc", "read-only"), w.key("ws", "dddddddd", "databases")
		appKey                 = w.key("ws", "eeeeeeee", "app:blog")
		viewer, member         = w.person("vera", record.RoleViewer), w.person("mel", record.RoleMember)
		stranger, nowhere      = w.person("eve", ""), w.person("nan", "")
	)
	w.leave("nan")
	open := map[string]bool{} // to everybody, or by a credential of their own
	for _, rt := range w.routes {
		if rt.need == "" || rt.need == "broker" { // package pgedge tests the broker's own credentials
			open[rt.name()] = true
			continue
		}
		w.want("nobody", rt, "", 401, "unauthorized", "missing bearer token")
		for _, wrong := range []string{"noise", key[:len(key)-1] + "t", "brt_zzzzzzzz_" + strings.Repeat("s", 32), viewer + "x"} {
			w.want("a wrong credential", rt, wrong, 401, "unauthorized", "invalid api token")
		}
		switch rt.need {
		case "operator":
			w.want("a key", rt, key, 403, "forbidden", needsOperator)
			w.want("a person", rt, member, 403, "forbidden", needsOperator)
		case "jwt":
			w.want("a key", rt, key, 401, "unauthorized", "jwt required")
			w.want("the operator", rt, adminToken, 401, "unauthorized", "jwt required")
			w.walkPeople(rt, viewer, member, stranger)
			if strings.HasPrefix(rt.path, "/v1/me/tokens") {
				w.want("a person in no organization", rt, nowhere, 403, "forbidden", memberOfNone)
			}
		case "workspace":
			w.want("the operator", rt, adminToken, 401, "unauthorized", "invalid api token")
			if rt.writes() {
				w.want("a viewer", rt, viewer, 403, "forbidden", viewerMayNot)
				w.want("a key that reads", rt, readOnly, 403, "forbidden", scopesCoverNot)
			} else {
				w.passes("a viewer", rt, viewer)
				w.passes("a key that reads", rt, readOnly)
			}
			w.want("a person in no organization", rt, nowhere, 403, "forbidden", memberOfNone)
			if !strings.HasPrefix(rt.path, "/v1/databases") && rt.path != "/v1/metrics/databases" {
				w.want("a key of databases", rt, databasesKey, 403, "forbidden", scopesCoverNot)
			}
			if !strings.HasPrefix(rt.path, "/v1/apps/{id}") {
				w.want("a key of one app", rt, appKey, 403, "forbidden", scopesCoverNot)
			}
		}
	}
	// A new route is walked unless somebody enters it here.
	want := map[string]bool{}
	for _, name := range []string{
		"GET /healthz", "GET /readyz", "GET /version", "GET /metrics", "GET /openapi.json",
		"GET /v1/github/callback",                                                         // by its state, which is sealed
		"POST /v1/webhooks/github", "POST /v1/webhooks/gitlab", "POST /v1/webhooks/gitea", // signed
		"POST /v1/databases/{id}/proxy/query", "POST /v1/databases/{id}/proxy/batch", "POST /v1/databases/{id}/proxy/transaction", "GET /v1/databases/{id}/proxy/schema",
	} {
		want[name] = true
	}
	if d := cmp.Diff(want, open); d != "" {
		t.Errorf("routes that take neither key nor JWT: %s", d)
	}
}

// walkPeople walks a route for people.
func (w *walker) walkPeople(rt walked, viewer, member, stranger string) {
	w.t.Helper()
	if !strings.HasPrefix(rt.path, "/v1/orgs/{id}") {
		if rt.writes() && strings.HasPrefix(rt.path, "/v1/me/tokens") {
			w.want("a viewer", rt, viewer, 403, "forbidden", viewerMayNot)
		}
		return
	}
	w.exactly("a stranger", rt, w.fill(rt), stranger, 404, w.nobodys(rt, strings.Replace(w.fill(rt), "/v1/orgs/ws", "/v1/orgs/nobodys", 1), stranger))
	switch rt.name() {
	case "GET /v1/orgs/{id}", "GET /v1/orgs/{id}/members":
		w.passes("a viewer", rt, viewer)
	case "DELETE /v1/orgs/{id}":
		w.want("a member", rt, member, 403, "forbidden", "this needs the role owner")
	default:
		w.want("a viewer", rt, viewer, 403, "forbidden", needsAdmin)
		w.want("a member", rt, member, 403, "forbidden", needsAdmin)
	}
}

// The state in its answer is all that the callback asks for: it lets an installation into
// the workspace, which only who may write can do.
func TestWhoMayOnlyReadConnectsNoInstallation(t *testing.T) {
	w := newWalker(t)
	rt := walked{method: http.MethodGet, path: "/v1/github/connect"}
	w.want("a viewer", rt, w.person("vera", record.RoleViewer), 403, "forbidden", viewerMayNot)
	w.want("a key that reads", rt, w.key("ws", "cccccccc", "read-only"), 403, "forbidden", scopesCoverNot)
}

// A suspended workspace, and one whose subscription is not active, create nothing;
// everything else goes on.
func TestWhatASuspendedWorkspaceMay(t *testing.T) {
	w := newWalker(t)
	key := w.key("ws", "aaaaaaaa")
	has := w.belongings()
	creates := map[string]string{ // with the id in the path that is called
		"POST /v1/functions": "", "POST /v1/functions/{id}/deploy": has.function,
		"POST /v1/sandboxes": "", "POST /v1/volumes": "", "POST /v1/databases": "", "POST /v1/templates/build": "", "POST /v1/webhooks/endpoints": "",
		"POST /v1/sandboxes/{id}/fork": w.box, "POST /v1/sandboxes/{id}/fork-tree": w.box, "POST /v1/sandboxes/{id}/snapshots": w.box,
		"POST /v1/apps": "", "POST /v1/apps/{id}/domains": w.app, "POST /v1/apps/{id}/deploys": w.app, "POST /v1/apps/{id}/rollback": w.app, "PUT /v1/apps/{id}/source": w.app,
		"PUT /v1/repos/{repo}/preview-env/{key}": "",
	}
	for state, change := range map[string]func(*record.Workspace){
		"account suspended":       func(ws *record.Workspace) { ws.Suspended = true },
		"subscription not active": func(ws *record.Workspace) { ws.SubscriptionStatus = record.SubscriptionCanceled },
		"free quota exceeded":     func(ws *record.Workspace) { ws.Quotas.CreditCents = new(0) },
	} {
		w.rig.Update(func(tx *raftstore.Tx) error {
			ws := &record.Workspace{Meta: record.Meta{ID: "ws"}}
			change(ws)
			raftstore.Put(tx, record.Workspaces, ws)
			return nil
		})
		seen := 0
		for _, rt := range w.routes {
			if rt.need != "workspace" {
				continue
			}
			box, is := creates[rt.name()]
			if !is {
				// A clone and a rollback need more than the example's id.
				if status, e := w.call(rt, w.fill(rt), key); e.Error == state && !strings.Contains(string(rt.statuses[strconv.Itoa(status)]), state) {
					t.Errorf("%s: %d %+v", rt.name(), status, e)
				}
				continue
			}
			seen++
			free := rt.name() == "POST /v1/webhooks/endpoints" || rt.name() == "PUT /v1/repos/{repo}/preview-env/{key}" || rt.name() == "POST /v1/apps/{id}/domains"
			if state == "free quota exceeded" && (box != "" || free) {
				continue // the sandbox hibernates meanwhile; and what is free costs nothing
			}
			path := strings.NewReplacer("{id}", box, "{repo}", "9", "{key}", "A").Replace(rt.path)
			switch rt.name() {
			case "POST /v1/sandboxes":
				rt.body = `{"template":"base"}`
			case "POST /v1/templates/build":
				rt.body = `{"name":"mine","from":"base"}`
			case "POST /v1/functions/{id}/deploy":
				rt.body = `{"files":{"handler.py":"def handler(request):\n    return {}\n"}}`
			}
			status, e := w.call(rt, path, key)
			if want := map[string]int{"account suspended": 403, "subscription not active": 402, "free quota exceeded": 402}[state]; status != want || e.Error != state {
				t.Errorf("%s: %d %+v, want %d %q", rt.name(), status, e, want, state)
			}
			if !strings.Contains(string(rt.statuses[strconv.Itoa(status)]), state) {
				t.Errorf("%s: the document has no %d %q", rt.name(), status, state)
			}
		}
		if seen != len(creates) {
			t.Errorf("%d of %d creates were called", seen, len(creates))
		}
	}
}

// Whatever else is wrong with a create of a suspended workspace, that it is suspended comes
// first. Only what was admitted before is answered again.
func TestThatAWorkspaceIsSuspendedComesFirst(t *testing.T) {
	w := newWalker(t)
	key, viewer := w.key("ws", "aaaaaaaa"), w.person("vera", record.RoleViewer)
	create := func(body, idempotencyKey string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/v1/volumes", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set(api.HeaderIdempotencyKey, idempotencyKey)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(out)
	}
	first, made := create(`{"name":"v"}`, "once")
	if first != 201 {
		t.Fatalf("%d %s", first, made)
	}
	w.rig.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	seen := 0
	for _, rt := range w.routes {
		if rt.need != "workspace" || rt.method == http.MethodGet || !strings.Contains(string(rt.statuses["403"]), "account suspended") {
			continue
		}
		seen++
		for _, body := range []string{`{"`, `{}`, `{"name":7,"template":"none","size":"2g"}`} {
			rt.body = body
			w.want("a key", rt, key, 403, "account suspended", core.ErrSuspended.Detail)
		}
		w.want("a viewer", rt, viewer, 403, "account suspended", core.ErrSuspended.Detail)
	}
	if seen < 16 {
		t.Errorf("only %d routes create", seen)
	}
	if status, body := create(`{"name":"v"}`, "once"); status != first || body != made {
		t.Errorf("repeated: %d %s, want %d %s", status, body, first, made)
	}
	for _, idempotencyKey := range []string{"another", strings.Repeat("x", 256)} {
		if status, body := create(`{"name":""}`, idempotencyKey); status != 403 || !strings.Contains(body, "account suspended") {
			t.Errorf("a new key: %d %s", status, body)
		}
	}
}

// Whatever a quota refuses, the document has, with the fields that say how much is used.
func TestWhatQuotasRefuseIsDocumented(t *testing.T) {
	w := newWalker(t)
	key := w.key("ws", "aaaaaaaa")
	zero := new(0)
	bodies := map[string]string{
		"POST /v1/sandboxes": `{"template":"base"}`, "POST /v1/templates/build": `{"name":"mine","from":"base"}`, "POST /v1/volumes": `{"name":"v"}`,
		"POST /v1/databases": `{}`, "POST /v1/sandboxes/{id}/fork": `{}`, "POST /v1/sandboxes/{id}/fork-tree": `{}`, "POST /v1/sandboxes/{id}/snapshots": `{}`,
		"POST /v1/apps": `{"name":"a","git_url":"https://git.example.com/a/b"}`,
	}
	for _, c := range []struct {
		quotas  record.Quotas
		message string
		routes  []string
		fields  []string
	}{
		{record.Quotas{Sandboxes: zero}, "max sandboxes reached", []string{"POST /v1/sandboxes", "POST /v1/sandboxes/{id}/fork", "POST /v1/sandboxes/{id}/fork-tree"}, []string{"max", "active"}},
		{
			record.Quotas{CPU: zero}, "workspace resource quota exceeded", []string{"POST /v1/sandboxes", "POST /v1/sandboxes/{id}/fork"},
			[]string{"cpu_used", "cpu_max", "memory_mb_used", "memory_mb_max"},
		},
		{record.Quotas{CreatesPerHour: zero}, "hourly create limit exceeded", []string{"POST /v1/sandboxes", "POST /v1/sandboxes/{id}/fork-tree"}, []string{"limit_per_hr", "used_last_hr"}},
		{record.Quotas{Snapshots: zero}, "max snapshots reached", []string{"POST /v1/sandboxes/{id}/snapshots"}, []string{"max", "active"}},
		{record.Quotas{Databases: zero}, "max databases reached", []string{"POST /v1/databases"}, []string{"max", "active"}},
		{record.Quotas{Apps: zero}, "max apps reached", []string{"POST /v1/apps"}, []string{"max", "active"}},
		{
			record.Quotas{DiskMB: zero}, "workspace resource quota exceeded",
			[]string{"POST /v1/sandboxes", "POST /v1/sandboxes/{id}/fork", "POST /v1/sandboxes/{id}/snapshots", "POST /v1/volumes", "POST /v1/databases"},
			[]string{"cpu_used", "cpu_max", "memory_mb_used", "memory_mb_max", "disk_mb_used", "disk_mb_max"},
		},
		{record.Quotas{VolumeMB: zero}, "volume quota exceeded", []string{"POST /v1/volumes"}, []string{"volume_mb_used", "volume_mb_max"}},
		{record.Quotas{Templates: zero}, "template quota exceeded", []string{"POST /v1/templates/build"}, []string{"templates_used", "templates_max"}},
		{record.Quotas{Builds: zero}, "too many builds at once", []string{"POST /v1/templates/build"}, nil},
	} {
		w.rig.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: c.quotas})
			return nil
		})
		seen := 0
		for _, rt := range w.routes {
			if !slices.Contains(c.routes, rt.name()) {
				continue
			}
			seen++
			resp, body := raw(t, rt.method, w.server.URL+strings.ReplaceAll(rt.path, "{id}", w.box), key, bodies[rt.name()])
			var got map[string]any
			if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 429 || got["error"] != c.message {
				t.Errorf("%s: %d %s, want %q", rt.name(), resp.StatusCode, body, c.message)
			}
			documented := string(rt.statuses["429"])
			for _, name := range append([]string{c.message}, c.fields...) {
				if _, has := got[name]; name != c.message && !has || !strings.Contains(documented, `"`+name+`"`) {
					t.Errorf("%s: %s answered and documented %s lack %s", rt.name(), body, documented, name)
				}
			}
		}
		if seen != len(c.routes) {
			t.Errorf("%s: %d of %d routes were called", c.message, seen, len(c.routes))
		}
	}
}
