package controlplane

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// belongings are the ids of what a workspace has, one of each kind.
type belongings struct {
	box, snapshot, volume, template, build, database, app, deployment, function, endpoint, delivery string
}

// nobodys are ids that nobody has.
var nobodys = belongings{
	box: strings.Repeat("z", 26), snapshot: "snap-nobodys", volume: "nobodys", template: "nobodys", build: "bld-nobodys", database: "00000000-0000-4000-8000-000000000000",
	app: "app-nobodys", deployment: "dep-nobodys", function: "fn-nobodys", endpoint: "we_nobodys", delivery: "wd_nobodys",
}

// nobodys returns the answer to a request for what nobody has: it names the kind, and is
// the answer for what another workspace has, too.
func (w *walker) nobodys(rt walked, path, credential string) map[string]any {
	w.t.Helper()
	status, e := w.call(rt, path, credential)
	if status != 404 || e.Error != "not found" || !strings.HasPrefix(e.Detail, "no such ") {
		w.t.Errorf("%s: %d %+v", rt.name(), status, e)
	}
	return refused("not found", e.Detail)
}

// belongings gives the workspace ws one of each kind that it lacks.
func (w *walker) belongings() belongings {
	w.t.Helper()
	has := belongings{
		box: w.box, app: w.app, endpoint: w.endpoint, snapshot: "snap-ours", volume: "ours", template: "ours", build: "bld-ours",
		database: "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37", deployment: "dep-ours", delivery: "wd_ours",
	}
	f, err := w.rig.Node.Apps.Functions().Create(w.t.Context(), core.Caller{WorkspaceID: "ws"}, api.CreateFunction{Name: "ours", Runtime: "python"}, core.Idempotency{})
	if err != nil {
		w.t.Fatal(err)
	}
	has.function = f.ID
	w.rig.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: has.snapshot}, WorkspaceID: "ws", Status: record.ResourceReady, SandboxID: w.box, Template: "base"})
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "vol-ours"}, WorkspaceID: "ws", Name: has.volume, Status: record.ResourceReady, SizeMB: 256})
		raftstore.Put(tx, record.Templates, &record.Template{Meta: record.Meta{ID: "tpl-ours"}, WorkspaceID: "ws", Name: has.template, Key: "ws-ours", Status: record.TemplateReady, BuildID: has.build})
		raftstore.Put(tx, record.Builds, &record.Build{Meta: record.Meta{ID: has.build}, WorkspaceID: "ws", Template: has.template, Key: "ws-ours", Status: record.TemplateReady})
		raftstore.Put(tx, record.Databases, &record.Database{Meta: record.Meta{ID: has.database}, WorkspaceID: "ws", Status: record.DatabaseProvisioning, Size: "1g", Name: "db", Username: "u"})
		deployment := &record.Deployment{Meta: record.Meta{ID: has.deployment}, WorkspaceID: "ws", AppID: has.app, Status: record.DeploymentQueued, Source: "git", Trigger: "api"}
		raftstore.Put(tx, record.Deployments, deployment)
		deployment = deployment.Clone()
		deployment.Status = record.DeploymentFailed
		raftstore.Put(tx, record.Deployments, deployment)
		delivery := &record.WebhookDelivery{Meta: record.Meta{ID: has.delivery}, EndpointID: has.endpoint, Type: "endpoint.test", Body: []byte("{}"), Status: record.WebhookPending}
		raftstore.Put(tx, record.WebhookDeliveries, delivery)
		delivery = delivery.Clone()
		delivery.Status = record.WebhookDelivered
		raftstore.Put(tx, record.WebhookDeliveries, delivery)
		return nil
	})
	return has
}

// fill fills a route's path with ids of what is there; "" if it names nothing of it.
func (has belongings) fill(path string) string {
	for prefix, id := range map[string]string{
		"/v1/sandboxes/{id}": has.box, "/v1/snapshots/{id}": has.snapshot, "/v1/volumes/{name}": has.volume, "/v1/templates/{name}": has.template,
		"/v1/builds/{id}": has.build, "/v1/webhooks/endpoints/{id}": has.endpoint, "/v1/apps/{id}": has.app, "/v1/functions/{id}": has.function, "/v1/databases/{id}": has.database,
	} {
		if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
			before, _, _ := strings.Cut(prefix, "{")
			rest = strings.NewReplacer("{deploy}", has.deployment, "{delivery}", has.delivery, "{lang}", "python").Replace(rest)
			for strings.Contains(rest, "{") {
				head, tail, _ := strings.Cut(rest, "{")
				_, tail, _ = strings.Cut(tail, "}")
				rest = head + "A" + tail
			}
			return before + id + rest + "?path=/etc/passwd&port=80"
		}
	}
	return ""
}

// Whatever a workspace has is, to everybody else, as if it was not there: by a key and
// by a JWT, on every route that names it.
func TestWhatOthersHaveIsNotFound(t *testing.T) {
	w := newWalker(t)
	has := w.belongings()
	key, strangersKey, stranger := w.key("ws", "aaaaaaaa"), w.key("other", "bbbbbbbb"), w.person("eve", "")
	seen := map[string]bool{}
	for _, rt := range w.routes {
		if rt.need != "workspace" || !strings.Contains(rt.path, "{") {
			continue
		}
		path := has.fill(rt.path)
		if path == "" {
			// A git host's ids are those that it gives: of a repository each workspace has
			// variables of its own, and package githost tests whose an installation is.
			if !strings.HasPrefix(rt.path, "/v1/repos/") && !strings.HasPrefix(rt.path, "/v1/github/") {
				t.Errorf("%s: whose is that?", rt.name())
			}
			continue
		}
		w.exactly("another workspace's key", rt, path, strangersKey, 404, w.nobodys(rt, nobodys.fill(rt.path), strangersKey))
		w.exactly("another workspace's member", rt, path, stranger, 404, w.nobodys(rt, nobodys.fill(rt.path), stranger))
		seen[rt.path] = true
	}
	if len(seen) < 50 {
		t.Errorf("only %d paths were walked", len(seen))
	}
	// All of it is there, after all that.
	for _, path := range []string{
		"/v1/sandboxes/{id}", "/v1/snapshots/{id}", "/v1/volumes/{name}", "/v1/templates/{name}", "/v1/builds/{id}", "/v1/webhooks/endpoints/{id}",
		"/v1/apps/{id}", "/v1/apps/{id}/deploys/{deploy}", "/v1/functions/{id}", "/v1/databases/{id}",
	} {
		address, _, _ := strings.Cut(has.fill(path), "?")
		if resp, body := raw(t, http.MethodGet, w.server.URL+address, key, ""); resp.StatusCode != 200 {
			t.Errorf("its own key, GET %s: %d %s", path, resp.StatusCode, body)
		}
		if !seen[path] {
			t.Errorf("%s is no route", path)
		}
	}
}

// An id of one's own in the path gives nothing of another's that the rest of it names.
func TestAnIDOfOnesOwnOpensNothingElse(t *testing.T) {
	w := newWalker(t)
	has := w.belongings()
	strangersKey, caller := w.key("other", "bbbbbbbb"), core.Caller{WorkspaceID: "other"}
	app, err := w.rig.Node.Apps.Create(t.Context(), caller, api.CreateApp{Name: "theirs", GitURL: "https://git.example.com/a/b"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := w.rig.Node.Webhooks.Create(t.Context(), caller, api.CreateWebhookEndpoint{URL: "https://example.com"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	mixed := has
	mixed.app, mixed.endpoint = app.ID, endpoint.ID
	walked := 0
	for _, rt := range w.routes {
		if rt.need == "workspace" && (strings.Contains(rt.path, "{deploy}") || strings.Contains(rt.path, "{delivery}")) && !strings.HasPrefix(rt.path, "/v1/functions/") {
			walked++
			w.exactly("an id of its own before ours", rt, mixed.fill(rt.path), strangersKey, 404, w.nobodys(rt, nobodys.fill(rt.path), strangersKey))
		}
	}
	if walked < 3 {
		t.Errorf("only %d routes were walked", walked)
	}
	status, e := w.call(walkedRoute("POST", "/v1/apps/{id}/rollback", `{"deployment_id":"`+has.deployment+`"}`), "/v1/apps/"+app.ID+"/rollback", strangersKey)
	if status != 404 {
		t.Errorf("a rollback to another's deployment: %d %+v", status, e)
	}
	status, e = w.call(walkedRoute("POST", "/v1/sandboxes", `{"template":"base","from_snapshot":"`+has.snapshot+`"}`), "/v1/sandboxes", strangersKey)
	if status != 404 {
		t.Errorf("a sandbox from another's snapshot: %d %+v", status, e)
	}
	status, e = w.call(walkedRoute("POST", "/v1/sandboxes", `{"template":"base","volumes":[{"name":"`+has.volume+`","mount_path":"/data"}]}`), "/v1/sandboxes", strangersKey)
	if status != 404 && status != 400 {
		t.Errorf("a sandbox with another's volume: %d %+v", status, e)
	}
	status, e = w.call(walkedRoute("POST", "/v1/sandboxes", `{"template":"`+has.template+`"}`), "/v1/sandboxes", strangersKey)
	if status != 404 && status != 400 {
		t.Errorf("a sandbox of another's template: %d %+v", status, e)
	}
}

func walkedRoute(method, path, body string) walked {
	return walked{method: method, path: path, body: body}
}

// A key with one scope does what that covers, on every route, and nothing else.
func TestEveryScopeOnEveryRoute(t *testing.T) {
	w := newWalker(t)
	covers := map[string][]string{
		"sandboxes": {"/v1/sandboxes", "/v1/snapshots", "/v1/templates", "/v1/builds", "/v1/metrics/sandboxes"},
		"databases": {"/v1/databases", "/v1/metrics/databases"},
		"apps":      {"/v1/apps", "/v1/functions", "/v1/github", "/v1/repos", "/v1/metrics/apps", "/v1/metrics/functions"},
		"volumes":   {"/v1/volumes"},
		"webhooks":  {"/v1/webhooks"},
	}
	prefix := byte('c')
	for scope, paths := range covers {
		key := w.key("ws", strings.Repeat(string(prefix), 8), scope)
		prefix++
		passed := 0
		for _, rt := range w.routes {
			switch rt.need {
			case "jwt":
				w.want("a key of "+scope, rt, key, 401, "unauthorized", "jwt required")
			case "operator":
				w.want("a key of "+scope, rt, key, 403, "forbidden", needsOperator)
			case "workspace":
				covered := false
				for _, p := range paths {
					covered = covered || rt.path == p || strings.HasPrefix(rt.path, p+"/")
				}
				if covered {
					passed++
					w.passes("a key of "+scope, rt, key)
				} else {
					w.want("a key of "+scope, rt, key, 403, "forbidden", scopesCoverNot)
				}
			}
		}
		if passed == 0 {
			t.Errorf("%s covers no route", scope)
		}
	}
	// A key of one app: of that one everything, of no other anything.
	mine := w.key("ws", "zzzzzzzz", "app:"+w.app)
	for _, rt := range w.routes {
		if rt.need != "workspace" || !strings.HasPrefix(rt.path, "/v1/apps/{id}") || rt.method != http.MethodGet || rt.path == "/v1/apps/{id}/requests" {
			continue
		}
		w.want("a key of another app", rt, mine, 403, "forbidden", scopesCoverNot)
	}
	if resp, body := raw(t, http.MethodGet, w.server.URL+"/v1/apps/"+w.app, mine, ""); resp.StatusCode != 200 {
		t.Errorf("a key of the app: %d %s", resp.StatusCode, body)
	}
}

// The events of git hosts come without a credential, but not without a signature.
func TestSignedRoutesWithoutASignature(t *testing.T) {
	w := newWalker(t)
	signed := 0
	for _, rt := range w.routes {
		if rt.need != "" || !strings.HasPrefix(rt.path, "/v1/webhooks/") {
			continue
		}
		signed++
		rt.body = `{"ref":"refs/heads/main"}`
		for who, credential := range map[string]string{"nobody": "", "a key": w.key("ws", "aaaaaaaa"), "the operator": adminToken} {
			status, e := w.call(rt, rt.path, credential)
			if status != 401 && status != 501 || status == 401 && (e.Error != "unauthorized" || e.Detail != "invalid signature") {
				t.Errorf("%s, %s: %d %+v", who, rt.name(), status, e)
			}
		}
	}
	if signed < 3 {
		t.Errorf("only %d signed routes", signed)
	}
}

// What a spent month refuses is documented, with its fields, where it is refused.
func TestWhatAMonthRefusesIsDocumented(t *testing.T) {
	w := newWalker(t)
	key := w.key("ws", "aaaaaaaa")
	w.rig.Become(w.box, hostapi.StatusHibernated)
	bodies := map[string]string{
		"POST /v1/sandboxes": `{"template":"base"}`, "POST /v1/volumes": `{"name":"v"}`, "POST /v1/databases": `{}`,
		"POST /v1/sandboxes/{id}/exec": `{"cmd":"true"}`, "POST /v1/sandboxes/{id}/wake": `{}`, "POST /v1/sandboxes/{id}/resume": `{}`, "GET /v1/sandboxes/{id}/fs": "",
		"GET /v1/sandboxes/{id}/ports": "",
	}
	for _, c := range []struct {
		quotas      record.Quotas
		create, run string
		status      int
		fields      []string
	}{
		{record.Quotas{CreditCents: new(0)}, "free quota exceeded", "monthly free credit exhausted", 402, []string{"credit_usd", "cost_usd_used"}},
		{record.Quotas{CPUSecondsPerMonth: new(0)}, "monthly cpu-seconds quota exceeded", "monthly cpu-seconds quota exceeded", 429, []string{"cpu_seconds_used", "cpu_seconds_max"}},
		{record.Quotas{BudgetCents: new(0)}, "monthly budget exceeded", "monthly budget exceeded", 429, []string{"budget_usd", "cost_usd_used"}},
	} {
		w.rig.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: c.quotas})
			return nil
		})
		seen := 0
		for _, rt := range w.routes {
			body, is := bodies[rt.name()]
			if !is {
				continue
			}
			seen++
			message := c.create
			if strings.Contains(rt.path, "{id}") {
				message = c.run
			}
			path := strings.ReplaceAll(rt.path, "{id}", w.box)
			if strings.HasSuffix(path, "/fs") {
				path += "?path=/etc/passwd"
			}
			resp, text := raw(t, rt.method, w.server.URL+path, key, body)
			var got map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil || resp.StatusCode != c.status || got["error"] != message {
				t.Errorf("%s: %d %s, want %q", rt.name(), resp.StatusCode, text, message)
				continue
			}
			documented := string(rt.statuses[strconv.Itoa(c.status)])
			for _, name := range append([]string{message}, c.fields...) {
				if _, has := got[name]; name != message && !has || !strings.Contains(documented, `"`+name+`"`) {
					t.Errorf("%s: %s answered and documented %s lack %s", rt.name(), text, documented, name)
				}
			}
		}
		if seen != len(bodies) {
			t.Errorf("%d of %d routes were called", seen, len(bodies))
		}
	}
}
