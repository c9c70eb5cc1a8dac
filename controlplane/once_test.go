package controlplane

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// repeatable is how a test calls a route that takes an Idempotency-Key.
type repeatable struct {
	body     string
	id       func() string                        // fills {id}
	gone     func(answer map[string]any) []string // the paths whose DELETE removes what was created
	stays    string                               // why there are none
	replicas bool                                 // it needs several
}

// elsewhere are the routes whose Idempotency-Key is not the control plane's to keep, with
// the reason.
var elsewhere = map[string]string{
	"POST /v1/sandboxes/{id}/commands": "the guest keeps the keys of its commands, which live through its hibernation and in its forks",
}

// onceRig is a rig whose host has everything that creates need, with the
// API of each replica.
type onceRig struct {
	*walker
	urls     map[*testplane.Node]string
	archives *fakehost.Archives

	mine, others string // keys of the workspace
}

func newOnceRig(t *testing.T, replicas int) *onceRig {
	t.Helper()
	r := &onceRig{walker: &walker{t: t, rig: testplane.NewRig(t, replicas)}, urls: map[*testplane.Node]string{}, archives: fakehost.NewArchives()}
	for _, n := range r.rig.Nodes {
		auth, err := authn.New(authn.Config{
			Store: n.Store, Users: n.Orgs, AdminToken: adminToken, JWT: authn.JWTConfig{HS256Key: jwtKey, Issuer: jwtIssuer}, Clock: time.Now, Logger: testcluster.Log(),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.urls[n] = publicAPIFor(t, n, auth).URL
	}
	r.mine, r.others = r.key("ws", "aaaaaaaa"), r.key("ws", "bbbbbbbb")
	r.rig.H1.SetArchives(r.archives)
	r.rig.H1.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		for _, name := range []string{"postgres-16", template.App} {
			*ts = append(*ts, hostapi.TemplateState{Name: name, BuildID: "of-" + name, Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 2048})
		}
	})
	testcluster.Await(t, "the templates", func() bool {
		tpl, ok := template.Operators(r.rig.Leader().Store.View(), "postgres-16")
		return ok && tpl.BuildID != ""
	})
	return r
}

// post sends a create with a key to the leader. Its host name is the same whichever that is.
func (r *onceRig) post(path, credential, key, body string) (status int, answer string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.urls[r.rig.LeaderNode()]+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Host = "berth.test"
	req.Header.Set("Authorization", "Bearer "+credential)
	req.Header.Set(api.HeaderIdempotencyKey, key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// documented returns the routes of the document that take an Idempotency-Key, with their
// access.
func (r *onceRig) documented() map[string]string {
	r.t.Helper()
	_, doc := raw(r.t, http.MethodGet, r.urls[r.rig.LeaderNode()]+"/openapi.json", "", "")
	var parsed struct {
		Paths map[string]map[string]struct {
			Security   []map[string][]string
			Parameters []struct{ Name, In string }
		}
	}
	if err := json.Unmarshal([]byte(doc), &parsed); err != nil {
		r.t.Fatal(err)
	}
	out := map[string]string{}
	for path, methods := range parsed.Paths {
		for method, op := range methods {
			for _, p := range op.Parameters {
				if p.Name != api.HeaderIdempotencyKey {
					continue
				}
				need := "operator"
				for _, s := range op.Security {
					if _, ok := s["jwt"]; ok && need != "workspace" {
						need = "jwt"
					}
					if _, ok := s["apiKey"]; ok {
						need = "workspace"
					}
				}
				out[strings.ToUpper(method)+" "+path] = need
			}
		}
	}
	if len(out) < 15 {
		r.t.Fatalf("only %d routes take an Idempotency-Key", len(out))
	}
	return out
}

// app makes an app, and a deployment of it that was live.
func (r *onceRig) app() (id, deployment string) {
	r.t.Helper()
	a, err := r.rig.LeaderNode().Apps.Create(r.t.Context(), testplane.Caller, api.CreateApp{Name: "shop", GitURL: "https://git.example.com/a/b"}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return a.ID, r.live(a.ID)
}

// live gives an app a deployment that was live.
func (r *onceRig) live(app string) string {
	r.t.Helper()
	id := "dep-" + core.RandomText(20)
	r.rig.Update(func(tx *raftstore.Tx) error {
		for _, status := range []record.DeploymentStatus{record.DeploymentQueued, record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive} {
			raftstore.Put(tx, record.Deployments, &record.Deployment{
				Meta: record.Meta{ID: id}, WorkspaceID: "ws", AppID: app, Status: status, Source: "git", Trigger: "api", GitURL: "https://git.example.com/a/b", GitRef: "main",
			})
		}
		return nil
	})
	return id
}

// function makes a function.
func (r *onceRig) function(name string) string {
	r.t.Helper()
	f, err := r.rig.LeaderNode().Apps.Functions().Create(r.t.Context(), testplane.Caller, api.CreateFunction{Name: name, Runtime: "python"}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return f.ID
}

// database makes a database that can be cloned.
func (r *onceRig) database() string {
	r.t.Helper()
	n := r.rig.LeaderNode()
	d, err := n.Databases.Create(r.t.Context(), testplane.Caller, api.CreateDatabase{}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	row := func() *record.Database {
		row, _ := raftstore.Get(n.Store.View(), record.Databases, d.ID)
		return row
	}
	testcluster.Await(r.t, "the database", func() bool { return row().Status == record.DatabaseReady })
	first, last := time.Now().Add(-time.Hour), time.Now().Add(-10*time.Minute)
	r.archives.Fill(row().Archive().Name, first, last, "0/5000060")
	r.rig.H1.ChangeDatabase(row().SandboxID, func(s *hostapi.DatabaseState) {
		s.Archive = hostapi.ArchiveState{LastLSN: "0/5000060", LastAt: last, FirstRestorable: first, LastRestorable: last, BaseBackups: 1}
	})
	testcluster.Await(r.t, "its archive", func() bool { return !row().Archive().FirstRestorable.IsZero() })
	return d.ID
}

// rows are how the routes are called.
func (r *onceRig) rows() map[string]repeatable {
	box := func() string { return r.rig.Must(r.t, api.CreateSandbox{}).ID }
	workspace := func() string { return "ws" }
	deployed, deployedBefore := r.app()
	claiming, _ := r.app()
	uploaded, rolledBack := r.function("uploaded"), r.function("rolled-back")
	is := func(id string) func() string { return func() string { return id } }
	path := func(p string) func(map[string]any) []string {
		return func(map[string]any) []string { return []string{p} }
	}
	member := func(prefix, name string) func(map[string]any) []string {
		return func(answer map[string]any) []string { return []string{prefix + answer[name].(string)} }
	}
	children := func(answer map[string]any) (out []string) {
		for _, c := range answer["children"].([]any) {
			out = append(out, "/v1/sandboxes/"+c.(map[string]any)["id"].(string))
		}
		return out
	}
	another, _ := r.app()
	return map[string]repeatable{
		"POST /v1/sandboxes":                    {body: `{"template":"base","metadata":{"a": "<b>"}}`, gone: member("/v1/sandboxes/", "id")},
		"POST /v1/sandboxes/{id}/snapshots":     {body: `{"name":"one"}`, id: box, gone: member("/v1/snapshots/", "id")},
		"POST /v1/sandboxes/{id}/fork":          {body: `{"count":2}`, id: box, gone: children},
		"POST /v1/sandboxes/{id}/fork-tree":     {body: `{"count":2,"metadata":{"a":1}}`, id: box, gone: children},
		"POST /v1/volumes":                      {body: `{"name":"data"}`, gone: member("/v1/volumes/", "name")},
		"POST /v1/templates/build":              {body: `{"name":"web","from":"base"}`, stays: "a build is not deleted; by then it is under way, or has ended"},
		"POST /v1/databases":                    {body: `{"label":"orders"}`, gone: member("/v1/databases/", "id")},
		"POST /v1/databases/{id}/clone":         {body: `{}`, id: r.database, gone: member("/v1/databases/", "id"), replicas: true},
		"POST /v1/apps":                         {body: `{"name":"blog","git_url":"https://git.example.com/a/b","env":{"A":"1"}}`, gone: member("/v1/apps/", "id")},
		"POST /v1/apps/{id}/deploys":            {body: `{}`, id: is(another), gone: path("/v1/apps/" + another)},
		"POST /v1/apps/{id}/rollback":           {body: `{"deployment_id":"` + deployedBefore + `"}`, id: is(deployed), gone: path("/v1/apps/" + deployed)},
		"POST /v1/apps/{id}/domains":            {body: `{"domain":"shop.example.com"}`, id: is(claiming), gone: path("/v1/apps/" + claiming + "/domains/shop.example.com")},
		"POST /v1/functions":                    {body: `{"name":"thumbs","runtime":"python"}`, gone: member("/v1/functions/", "id")},
		"POST /v1/functions/{id}/deploy":        {body: `{"files":{"handler.py":"def handler(request):\n    return 'hello'\n"}}`, id: is(uploaded), gone: path("/v1/functions/" + uploaded)},
		"POST /v1/functions/{id}/rollback":      {body: `{"deployment_id":"` + r.live(rolledBack) + `"}`, id: is(rolledBack), gone: path("/v1/functions/" + rolledBack)},
		"POST /v1/webhooks/endpoints":           {body: `{"url":"https://example.com/hook"}`, gone: member("/v1/webhooks/endpoints/", "id")},
		"POST /v1/me/tokens":                    {body: `{"name":"ci"}`, gone: member("/v1/me/tokens/", "prefix")},
		"POST /v1/orgs":                         {body: `{"name":"second"}`, gone: member("/v1/orgs/", "id")},
		"POST /v1/orgs/{id}/members":            {body: `{"email":"bob@example.com"}`, id: workspace, gone: member("/v1/orgs/ws/invitations/", "id")},
		"POST /v1/admin/workspaces":             {body: `{"name":"acme"}`, stays: "operators delete no workspaces"},
		"POST /v1/admin/workspaces/{id}/tokens": {body: `{"name":"ci"}`, id: workspace, stays: "operators revoke no keys of workspaces"},
		"POST /v1/admin/join-tokens":            {body: `{}`, stays: "a token ends with its use or its time"},
	}
}

// repeat makes the create of a route, and repeats it.
func (r *onceRig) repeat(t *testing.T, name, need string, row repeatable) {
	r.t = t
	_, path, _ := strings.Cut(name, " ")
	if row.id != nil {
		path = strings.Replace(path, "{id}", row.id(), 1)
	}
	mine, others, another, anotherBody := r.mine, r.others, "/v1/volumes", `{"name":"another"}`
	switch need {
	case "jwt":
		mine, others = r.person("olga", record.RoleOwner), r.person("omar", record.RoleOwner)
	case "operator": // there is one operator here
		mine, others, another, anotherBody = adminToken, "", "/v1/admin/workspaces", `{"name":"another"}`
	}
	switch path {
	case "/v1/volumes":
		another, anotherBody = "/v1/webhooks/endpoints", `{"url":"https://example.com/another"}`
	case "/v1/admin/workspaces":
		another, anotherBody = "/v1/admin/join-tokens", `{}`
	}
	status, first := r.post(path, mine, name, row.body)
	if status != 201 && status != 202 {
		t.Fatalf("%d %s", status, first)
	}
	reused := func(path, credential, body, detail string) {
		t.Helper()
		status, answer := r.post(path, credential, name, body)
		var e api.ErrorBody
		if err := json.Unmarshal([]byte(answer), &e); err != nil || status != 409 || e.Error != "idempotency key reused" || !strings.Contains(e.Detail, detail) {
			t.Errorf("%s, not %q: %d %s", path, detail, status, answer)
		}
	}
	again := func(when string) {
		t.Helper()
		if now, answer := r.post(path, mine, name, row.body); now != status || answer != first {
			t.Errorf("%s: %d %s\nthe first was %d %s", when, now, answer, status, first)
		}
		reused(path, mine, row.body+" ", "another body")
		reused(another, mine, anotherBody, "another route")
		if others != "" {
			reused(path, others, row.body, "another user")
		}
	}
	again("at once")
	if row.gone == nil {
		if row.stays == "" {
			t.Error("what deletes it?")
		}
		return
	}
	var answer map[string]any
	if err := json.Unmarshal([]byte(first), &answer); err != nil {
		t.Fatal(err)
	}
	for _, p := range row.gone(answer) {
		if resp, body := raw(t, http.MethodDelete, r.urls[r.rig.LeaderNode()]+p, mine, ""); resp.StatusCode != 204 && resp.StatusCode != 202 {
			t.Fatalf("DELETE %s: %d %s", p, resp.StatusCode, body)
		}
	}
	again("after the delete")
}

// Every route that takes an Idempotency-Key, according to the document, answers a repetition
// as it has answered first, and refuses the key of any other request of the workspace.
func TestEveryCreateIsRepeatable(t *testing.T) {
	r := newOnceRig(t, 1)
	routes, rows := r.documented(), r.rows()
	for name := range rows {
		if _, ok := routes[name]; !ok {
			t.Errorf("%s takes no Idempotency-Key, or is no route", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		row, ok := rows[name]
		switch {
		case elsewhere[name] != "", row.replicas:
		case !ok:
			t.Errorf("%s takes an Idempotency-Key, and this test does not know it", name)
		default:
			t.Run(name, func(t *testing.T) { r.repeat(t, name, routes[name], row) })
		}
	}
}

// Some creates need several replicas.
func TestEveryCreateOfAClusterIsRepeatable(t *testing.T) {
	tier.Slow(t)
	r := newOnceRig(t, 3)
	for name, row := range r.rows() {
		if row.replicas {
			t.Run(name, func(t *testing.T) { r.repeat(t, name, "workspace", row) })
		}
	}
}

// The next leader answers as the one before.
func TestTheNextLeaderRepeatsTheFirstAnswer(t *testing.T) {
	tier.Slow(t)
	r := newOnceRig(t, 3)
	key, body := r.mine, `{"template":"base"}`
	status, first := r.post("/v1/sandboxes", key, "k", body)
	if status != 201 {
		t.Fatalf("%d %s", status, first)
	}
	var sb api.Sandbox
	if err := json.Unmarshal([]byte(first), &sb); err != nil {
		t.Fatal(err)
	}
	before := r.rig.LeaderNode()
	r.rig.Cut(before.Replica)
	var answer string
	testcluster.Await(t, "the next leader's answer", func() bool {
		if r.rig.LeaderNode() == before {
			return false
		}
		status, answer = r.post("/v1/sandboxes", key, "k", body)
		return status != 503
	})
	if status != 201 || answer != first {
		t.Errorf("%d %s\nthe first was %s", status, answer, first)
	}
	r.rig.Change(sb.ID, func(s *record.Sandbox) { s.Metadata = json.RawMessage(`{"changed":true}`) })
	if status, answer := r.post("/v1/sandboxes", key, "k", body); status != 201 || answer != first {
		t.Errorf("of a changed sandbox: %d %s\nthe first was %s", status, answer, first)
	}
	if boxes := r.rig.H1.Boxes(); len(boxes) != 1 {
		t.Errorf("%d boxes", len(boxes))
	}
}
