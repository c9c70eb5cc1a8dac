package controlplane

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/audit"
	"github.com/berth-cloud/berth/controlplane/billing"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/domain"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/stats"
	"github.com/berth-cloud/berth/raftstore/record"
)

// asTenant makes the rig's caller the caller of every request.
type asTenant struct{}

func (asTenant) Authenticate(*http.Request) (core.Caller, error) { return testplane.Caller, nil }

// publicAPI serves the use cases of a node to one tenant.
func publicAPI(t *testing.T, n *testplane.Node) *httptest.Server {
	t.Helper()
	return publicAPIFor(t, n, asTenant{})
}

func publicAPIFor(t *testing.T, n *testplane.Node, auth httpapi.Authenticator) *httptest.Server {
	t.Helper()
	events, err := eventstore.Open(eventstore.Config{File: t.TempDir() + "/events.db"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	gitHosts, err := githost.New(n.Core, githost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	a, err := httpapi.New(httpapi.Config{
		Sandboxes: n.Sandboxes, Lifecycle: n.Sandboxes, Commands: n.Sandboxes.Commands, Files: n.Sandboxes.Files, Logs: n.Sandboxes.Logs, Ports: n.Sandboxes.Ports,
		Inputs: n.Core, Snapshots: n.Snapshots, Forks: n.Forks, Volumes: n.Volumes, Templates: n.Templates, Databases: n.Databases, Webhooks: n.Webhooks,
		Metrics: stats.New(stats.Config{Core: n.Core, Events: events, Databases: n.Databases, Clock: time.Now}), Broker: struct{ httpapi.Broker }{}, Orgs: n.Orgs, Usage: n.Usage, Billing: billing.New(n.Core, billing.Config{}), Cluster: n.Replicas, Audit: audit.New(n.Core, audit.Config{}), Authenticator: auth,
		GitHosts: gitHosts, Apps: n.Apps, Domains: domain.New(n.Core, domain.Config{URL: func(name string) string { return "https://" + name + "/" }}),
		AppProxy: func(string, string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		},
		Functions: n.Apps.Functions(),
		Invoke: func(string, string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		},
		Registerer: registry, Gatherer: registry, Logger: testcluster.Log(),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return server
}

// Every route of a sandbox refuses one that has an owner, but for those that only
// look at it.
func TestManagedSandboxesAreRefusedOnEveryRoute(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	r.Change(sb.ID, func(s *record.Sandbox) { s.Owner = &record.Owner{Type: "other", ID: "app-1"} })
	server := publicAPI(t, r.Node)
	look := map[string]bool{
		"GET /v1/sandboxes/{id}": true, "GET /v1/sandboxes/{id}/lifecycle": true, "GET /v1/sandboxes/{id}/events": true, "GET /v1/sandboxes/{id}/logs": true,
	}
	sockets := map[string]bool{"/v1/sandboxes/{id}/exec/pty": true, "/v1/sandboxes/{id}/exec/ws": true, "/v1/sandboxes/{id}/lsp/{lang}": true}
	refused := 0
	for _, rt := range tenantRoutes(t, server.URL) {
		rest, ok := strings.CutPrefix(rt.path, "/v1/sandboxes/{id}")
		if !ok {
			continue
		}
		target := server.URL + "/v1/sandboxes/" + sb.ID + strings.NewReplacer("{lang}", "python", "{cid}", "cmd-1").Replace(rest) + "?path=/etc/passwd&port=80"
		var resp *http.Response
		var body string
		if sockets[rt.path] {
			conn, got, err := websocket.Dial(t.Context(), target, nil)
			if err == nil {
				_ = conn.CloseNow()
			}
			resp = got
			var b [512]byte
			k, _ := got.Body.Read(b[:])
			body = string(b[:k])
		} else {
			if strings.HasSuffix(rest, "/logs") || strings.HasSuffix(rest, "/events") {
				target, _, _ = strings.Cut(target, "?")
			}
			resp, body = raw(t, rt.method, target, "key", rt.body)
		}
		if look[rt.method+" "+rt.path] {
			if resp.StatusCode != 200 {
				t.Errorf("%s %s: %d %s", rt.method, rt.path, resp.StatusCode, body)
			}
			continue
		}
		var e api.ErrorBody
		if err := json.Unmarshal([]byte(body), &e); err != nil || resp.StatusCode != 409 ||
			e.Error != "managed sandbox: delete it from the feature that owns it (Databases or Apps)" {
			t.Errorf("%s %s: %d %s", rt.method, rt.path, resp.StatusCode, body)
		}
		if isDelete := rt.method == "DELETE" && rest == ""; isDelete != (e.Detail == "") {
			t.Errorf("%s %s: detail %q", rt.method, rt.path, e.Detail)
		}
		refused++
	}
	if refused < 25 {
		t.Errorf("only %d routes refused", refused)
	}
	if got, err := r.Get(t.Context(), testplane.Caller, sb.ID); err != nil || got.Status != api.SandboxRunning || r.H1.Transitions("pause") != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
