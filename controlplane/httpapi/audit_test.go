package httpapi

import (
	"context"
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

// quiet are the requests that change something, and that the audit log does not tell. A
// new route must be told, or be listed here.
var quiet = map[string]bool{
	"removeFile": true, "removePort": true, "deleteCommand": true, // of a sandbox's inside
}

func TestEveryOperatorsActionAndEveryDeleteIsTold(t *testing.T) {
	for _, rt := range routes() {
		told := rt.audited()
		switch {
		case rt.doc.proxied:
			if told {
				t.Errorf("%s %s is a tenant's program's", rt.method, rt.path)
			}
		case rt.access == operator && rt.method != get, rt.method == del && rt.access != brokerToken:
			if told == quiet[rt.doc.id] {
				t.Errorf("%s %s: told is %v", rt.method, rt.path, told)
			}
		}
	}
	for id := range told {
		if !slices.ContainsFunc(routes(), func(rt route) bool { return rt.doc.id == id && rt.audited() }) {
			t.Errorf("no route is %s", id)
		}
	}
}

// What no transaction told is told after it.
func TestActsWithoutATransactionAreTold(t *testing.T) {
	trail := &fakeAudit{}
	r := newRig(t, func(c *Config) { c.Audit = trail })
	r.cluster.transfer = func(string) error { return nil }
	for _, c := range []struct {
		method, path, token, body string
		want                      []string
	}{
		{"POST", "/v1/admin/raft/transfer-leadership", "operator", `{}`, []string{"ok "}},
		{"POST", "/v1/admin/raft/transfer-leadership", "tenant", `{}`, []string{"refused forbidden"}},
		{"POST", "/v1/admin/raft/transfer-leadership", "operator", `{`, []string{"refused invalid json"}},
		{"POST", "/v1/admin/raft/transfer-leadership", "", `{}`, nil}, // nobody in particular
		{"GET", "/v1/admin/raft-status", "operator", "", nil},
		{"HEAD", "/v1/admin/raft/snapshot", "operator", "", nil},
	} {
		trail.recorded = nil
		r.call(c.method, c.path, c.token, c.body)
		if !slices.Equal(trail.recorded, c.want) {
			t.Errorf("%s %s %s as %q: %q, want %q", c.method, c.path, c.body, c.token, trail.recorded, c.want)
		}
	}
}

// Who is a member of no organization has no log to be told in. A client that goes away
// before anything is done pays nothing for it, so it leaves no entry either.
func TestWhatIsNotToldOfTenants(t *testing.T) {
	trail := &fakeAudit{}
	r := newRig(t, func(c *Config) { c.Audit = trail })
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		bearer string
		ctx    context.Context
		path   string
		err    error
		want   []string
	}{
		{"nowhere", gone, "/v1/me/tokens/x", gone.Err(), nil},
		{"nowhere", t.Context(), "/v1/me/tokens/x", apierror.Unavailable("no leader", nil), nil},
		{"nowhere", t.Context(), "/v1/admin/agents/h1", nil, nil},
		{"jwt", gone, "/v1/me/tokens/x", gone.Err(), nil},
		{"jwt", t.Context(), "/v1/me/tokens/x", apierror.Unavailable("no leader", nil), []string{"failed control plane unavailable"}},
		{"operator", gone, "/v1/admin/agents/h1", gone.Err(), []string{"failed client closed the request"}},
	} {
		trail.recorded = nil
		r.identity.revoke = func(core.Caller, string) error { return c.err }
		r.cluster.changeAgent = func(string, string) (api.Agent, error) { return api.Agent{}, c.err }
		req := httptest.NewRequestWithContext(c.ctx, http.MethodDelete, c.path, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+c.bearer)
		r.api.ServeHTTP(httptest.NewRecorder(), req)
		if !slices.Equal(trail.recorded, c.want) {
			t.Errorf("%s as %q, %v: %q, want %q", c.path, c.bearer, c.err, trail.recorded, c.want)
		}
	}
}

func TestAuditQueries(t *testing.T) {
	trail := &fakeAudit{}
	r := newRig(t, func(c *Config) { c.Audit = trail })
	var got api.AuditQuery
	trail.list = func(q api.AuditQuery) ([]api.AuditEntry, error) {
		got = q
		return []api.AuditEntry{exampleAudit}, nil
	}
	w := r.call("GET", "/v1/admin/audit?workspace=ws-1&actor=usr-1&action=deleteApp&outcome=ok&since=2026-11-01T02:00:00+02:00&until=2026-12-01T00:00:00Z&limit=3", "operator", "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), exampleAudit.Hash) || got != (api.AuditQuery{
		WorkspaceID: "ws-1", ActorID: "usr-1", Action: "deleteApp", Outcome: "ok",
		Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC),
	}) {
		t.Errorf("%d %s, %+v", w.Code, w.Body, got)
	}
	for query, message := range map[string]string{
		"outcome=maybe": "invalid outcome", "outcome=": "invalid outcome", "since=yesterday": "invalid since", "until=1": "invalid until",
		"limit=0": "invalid limit", "actor=a&actor=b": "invalid actor",
	} {
		w := r.call("GET", "/v1/admin/audit?"+query, "operator", "")
		if w.Code != 400 || !strings.Contains(w.Body.String(), `"error":"`+message+`"`) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	trail.list = func(api.AuditQuery) ([]api.AuditEntry, error) { return nil, apierror.Unavailable("no leader", nil) }
	if w := r.call("GET", "/v1/admin/audit", "operator", ""); w.Code != 503 {
		t.Errorf("%d", w.Code)
	}
	if w := r.call("GET", "/v1/admin/audit", "tenant", ""); w.Code != 403 {
		t.Errorf("%d", w.Code)
	}
}
