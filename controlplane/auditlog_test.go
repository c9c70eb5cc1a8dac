package controlplane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// What people, keys and operators do through the API is told, with who did it, and without
// anything by which others could do it.
func TestWhatTheAuditLogTells(t *testing.T) {
	w := newWalker(t)
	key, viewer, nowhere := w.key("ws", "aaaaaaaa"), w.person("vera", record.RoleViewer), w.person("nan", "")
	w.leave("nan")
	do := func(method, path, bearer, body string, want int) string {
		t.Helper()
		resp, answer := raw(t, method, w.server.URL+path, bearer, body)
		if resp.StatusCode != want {
			t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
		}
		return answer
	}
	var made api.Workspace
	if err := json.Unmarshal([]byte(do("POST", "/v1/admin/workspaces", adminToken, `{"name":"ci"}`, 201)), &made); err != nil {
		t.Fatal(err)
	}
	var token api.NewToken
	if err := json.Unmarshal([]byte(do("POST", "/v1/admin/workspaces/"+made.ID+"/tokens", adminToken, `{"name":"ci"}`, 201)), &token); err != nil {
		t.Fatal(err)
	}
	do("GET", "/v1/sandboxes", token.Key, "", 200)
	do("GET", "/v1/sandboxes", token.Key, "", 200)
	do("DELETE", "/v1/volumes/v", nowhere, "", 403) // of no workspace: strangers would fill the operators' log
	do("DELETE", "/v1/sandboxes/"+w.box, viewer, "", 403)
	do("DELETE", "/v1/sandboxes/"+w.box, key, "", 204)
	do("DELETE", "/v1/sandboxes/"+w.box, key, "", 404) // nothing was done
	do("DELETE", "/v1/admin/agents/zz", adminToken, "", 404)
	do("DELETE", "/v1/admin/routers/r1", adminToken, "", 204)

	got := map[string]string{}
	for _, e := range raftstore.All(w.rig.Node.Store.View(), record.AuditEntries) {
		text := fmt.Sprintf("%s %s %s %s", e.Chain, e.ActorType, e.ActorID, e.Outcome)
		if e.Resource != "" {
			text += " " + e.Resource
		}
		got[e.Action+" "+e.Outcome] = text
		whole := fmt.Sprintf("%+v", e)
		for _, secret := range []string{w.box, token.Key, key, viewer, adminToken} {
			if strings.Contains(whole, secret) {
				t.Errorf("%s tells a secret: %s", e.Action, whole)
			}
		}
		if e.RequestID == "" && !strings.HasPrefix(e.Action, "sign") && e.Action != "firstUseOfToken" {
			t.Errorf("no request: %s", whole)
		}
	}
	box := "sandboxes/" + w.box[:8]
	for what, want := range map[string]string{
		"createWorkspace ok":      made.ID + " operator  ok workspaces/" + made.ID,
		"createWorkspaceToken ok": made.ID + " operator  ok tokens/" + token.Prefix,
		"firstUseOfToken ok":      made.ID + " key " + token.Prefix + " ok tokens/" + token.Prefix,
		"deleteSandbox refused":   "ws user ", // and a user's id
		"deleteSandbox ok":        "ws key aaaaaaaa ok " + box,
		"removeAgent refused":     "operators operator  refused agents/zz",
		"removeRouter ok":         "operators operator  ok routers/r1",
	} {
		if !strings.HasPrefix(got[what], want) {
			t.Errorf("%s: %q, want %q", what, got[what], want)
		}
	}
	for _, untold := range []string{"deleteSandbox failed", "deleteVolume refused"} {
		if got[untold] != "" {
			t.Errorf("%s: %q", untold, got[untold])
		}
	}
	answer := do("GET", "/v1/admin/audit?workspace="+made.ID+"&limit=1", adminToken, "", 200)
	var page []api.AuditEntry
	if err := json.Unmarshal([]byte(answer), &page); err != nil || len(page) != 1 || page[0].Action != "firstUseOfToken" || page[0].WorkspaceID != made.ID {
		t.Errorf("%s, %v", answer, err)
	}
}

// Every delete of a tenant's, and all that operators change, is told by the route that does
// it: in the log of the workspace, once, with what it acts on.
func TestEveryDestructiveActIsTold(t *testing.T) {
	w := newWalker(t)
	has := w.belongings()
	key, owner := w.key("ws", "aaaaaaaa"), w.person("olga", record.RoleOwner)
	w.person("mel", record.RoleMember)
	mel := org.UserID(jwtIssuer, "mel")
	do := func(method, path, bearer, body string) string {
		t.Helper()
		resp, answer := raw(t, method, w.server.URL+path, bearer, body)
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
		}
		return answer
	}
	for _, path := range []string{"/v1/apps/" + has.app + "/env/A", "/v1/functions/" + has.function + "/env/A", "/v1/repos/9/preview-env/A"} {
		do("PUT", path, key, `{"value":"x"}`)
	}
	do("POST", "/v1/apps/"+has.app+"/domains", key, `{"domain":"shop.example.com"}`)
	var token api.NewToken
	var invitation api.NewInvitation
	for path, made := range map[string]any{"/v1/me/tokens": &token, "/v1/orgs/ws/members": &invitation} {
		if err := json.Unmarshal([]byte(do("POST", path, owner, `{"name":"ci","email":"bob@example.com"}`)), made); err != nil {
			t.Fatal(err)
		}
	}
	var other api.Org
	if err := json.Unmarshal([]byte(do("POST", "/v1/orgs", owner, `{"name":"other"}`)), &other); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{ // what belongings do not fill
		"/v1/apps/{id}/domains/{domain}":         "/v1/apps/" + has.app + "/domains/shop.example.com",
		"/v1/repos/{repo}/preview-env/{key}":     "/v1/repos/9/preview-env/A",
		"/v1/me/tokens/{prefix}":                 "/v1/me/tokens/" + token.Prefix,
		"/v1/orgs/{id}/members/{user}":           "/v1/orgs/ws/members/" + mel,
		"/v1/orgs/{id}/invitations/{invitation}": "/v1/orgs/ws/invitations/" + invitation.ID,
		"/v1/orgs/{id}":                          "/v1/orgs/" + other.ID,
	}
	untold := []string{
		"removeFile", "removePort", "deleteCommand", // inside a sandbox
		"deleteAtApp", "deleteAtFunction", // a tenant's program decides what it means
		"deleteGithubInstallation", // needs a GitHub
	}
	routes := slices.DeleteFunc(slices.Clone(w.routes), func(rt walked) bool {
		destroys := rt.method == http.MethodDelete || rt.id == "rotateWebhookSecret" || rt.need == "operator" && rt.method != http.MethodGet
		return !destroys || slices.Contains(untold, rt.id)
	})
	// What is in an app goes before the app.
	slices.SortStableFunc(routes, func(a, b walked) int { return strings.Count(b.path, "/") - strings.Count(a.path, "/") })
	entries := func(action string) (out []*record.AuditEntry) {
		for _, e := range raftstore.All(w.rig.Node.Store.View(), record.AuditEntries) {
			if e.Action == action {
				out = append(out, e)
			}
		}
		return out
	}
	for _, rt := range routes {
		if rt.need == "operator" { // also what is refused
			status, e := w.call(rt, w.fill(rt), adminToken)
			if got := entries(rt.id); len(got) == 0 || got[0].ActorType != core.ActorOperator {
				t.Errorf("%s: %d %+v is told by %+v", rt.name(), status, e, got)
			}
			continue
		}
		path, known := own[rt.path]
		if !known {
			path, _, _ = strings.Cut(has.fill(rt.path), "?")
		}
		credential, chain := key, "ws"
		if rt.need == "jwt" {
			credential = owner
		}
		if rt.id == "deleteOrg" {
			chain = other.ID
		}
		do(rt.method, path, credential, rt.body)
		got := entries(rt.id)
		if len(got) != 1 {
			t.Errorf("%s is told by %d entries", rt.name(), len(got))
			continue
		}
		if e := got[0]; e.Chain != chain || e.Outcome != core.OutcomeOK || e.ActorID == "" || e.Resource == "" || e.RequestID == "" {
			t.Errorf("%s is told as %+v", rt.name(), e)
		}
	}
	if len(routes) < 30 {
		t.Errorf("only %d routes were walked", len(routes))
	}
}
