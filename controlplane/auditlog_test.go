package controlplane

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
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
