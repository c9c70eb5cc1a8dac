package httpapi

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/forward"
)

func TestWhatMayBeRepeatedAndWhoAnswers(t *testing.T) {
	table := NewRouting()
	key := []string{"Idempotency-Key", "k"}
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket"}
	for _, c := range []struct {
		method, path string
		header       []string
		repeatable   bool
		anyReplica   bool
	}{
		{"GET", "/healthz", nil, true, true},
		{"GET", "/version", nil, true, true},
		{"GET", "/metrics", nil, true, true},
		{"HEAD", "/openapi.json", nil, true, true},
		{"GET", "/v1/admin/raft-status", nil, true, true},
		{"POST", "/v1/databases/x/proxy/query", key, false, true},
		{"GET", "/v1/databases/x/proxy/schema", nil, true, true},
		{"GET", "/v1/sandboxes", nil, true, false},
		{"GET", "/v1/sandboxes/a%2Fb", nil, true, false},
		{"GET", "/v1/sandboxes/x/fs?path=/a", nil, true, false},
		{"GET", "/v1/sandboxes/x/exec/pty", upgrade, false, false},
		{"GET", "/v1/sandboxes/x/exec/pty", nil, false, false},
		{"GET", "/v1/sandboxes/x/exec/ws", upgrade, false, false},
		{"GET", "/v1/sandboxes/x/lsp/go", upgrade, false, false},
		{"GET", "/v1/sandboxes", upgrade, false, false},
		{"POST", "/v1/sandboxes", nil, false, false},
		{"POST", "/v1/sandboxes", key, true, false},
		{"POST", "/v1/sandboxes/x/fork", key, true, false},
		{"POST", "/v1/sandboxes/x/fork-tree", key, true, false},
		{"POST", "/v1/sandboxes/x/snapshots", key, true, false},
		{"POST", "/v1/volumes", key, true, false},
		{"POST", "/v1/templates/build", key, true, false},
		{"POST", "/v1/sandboxes/x/exec", key, false, false},
		{"POST", "/v1/sandboxes/x/exec/stream", key, false, false},
		{"POST", "/v1/sandboxes/x/commands", key, true, false},
		{"POST", "/v1/sandboxes/x/commands/y/input", key, false, false},
		{"PUT", "/v1/sandboxes/x/fs?path=/a", nil, false, false},
		{"DELETE", "/v1/sandboxes/x", nil, false, false},
		{"POST", "/v1/sandboxes/x/hibernate", key, false, false},
		{"POST", "/v1/apps", key, true, false},
		{"POST", "/v1/apps/x/deploys", key, true, false},
		{"POST", "/v1/apps/x/rollback", key, true, false},
		{"POST", "/v1/apps/x/deploys/y/cancel", key, false, false},
		{"PUT", "/v1/apps/x/source", key, false, false},
		{"GET", "/v1/apps/x/deploys/y/logs", nil, true, false},
		{"GET", "/v1/apps/x/proxy/a/b", nil, false, false},
		{"POST", "/v1/apps/x/proxy/", key, false, false},
		{"GET", "/nowhere", nil, false, false},
		{"GET", "/v1/../healthz", nil, false, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, http.NoBody)
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		if got := table.Repeatable(r); got != c.repeatable {
			t.Errorf("%s %s %v: repeatable is %v", c.method, c.path, c.header, got)
		}
		if got := table.AnyReplica(r); got != c.anyReplica {
			t.Errorf("%s %s: any replica is %v", c.method, c.path, got)
		}
	}
}

// The operations that every replica answers itself, and those that accept an
// Idempotency-Key, by operation id.
var (
	answeredAnywhere = []string{
		"healthz", "metrics", "openapi", "raftStatus", "readyz", "version", "queryDatabase", "batchDatabase", "transactDatabase", "databaseSchema",
	}
	repeatedWithKey = []string{
		"buildTemplate", "cloneDatabase", "createApp", "createAppDomain", "createDatabase", "createFunction",
		"createJoinToken", "createOrg", "createSandbox", "createSnapshot", "createToken", "createVolume",
		"createWebhookEndpoint", "createWorkspace", "createWorkspaceToken", "deployApp", "deployFunction",
		"forkSandbox", "forkTree", "inviteMember", "rollbackApp", "rollbackFunction", "startCommand",
	}
)

// dyingLeader is a transport to a leader whose connection breaks during the first
// request, after its header was sent.
type dyingLeader struct{ asked int }

func (l *dyingLeader) RoundTrip(r *http.Request) (*http.Response, error) {
	l.asked++
	if l.asked == 1 {
		httptrace.ContextClientTrace(r.Context()).WroteHeaders()
		return nil, errors.New("connection reset")
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// The forwarder and the table agree on every route: where it is answered, and
// whether it is sent again if the leader dies during the request.
func TestForwardingOfEveryRoute(t *testing.T) {
	table := NewRouting()
	// send gives a route's request to a follower.
	send := func(t *testing.T, rt route, header http.Header) (local bool, asked int) {
		leader := &dyingLeader{}
		f := forward.New(forward.Config{
			Self: "b", Leading: func() bool { return false }, Leader: func() (string, string) { return "a", "a:1" },
			Local:     http.HandlerFunc(func(http.ResponseWriter, *http.Request) { local = true }),
			Transport: leader, Logger: slog.New(slog.DiscardHandler),
			AnyReplica: table.AnyReplica, Repeatable: table.Repeatable,
		})
		segments := strings.Split(rt.path, "/")
		for i, s := range segments {
			segments[i] = strings.TrimPrefix(s, ":")
		}
		r := httptest.NewRequestWithContext(t.Context(), rt.method, strings.Join(segments, "/"), http.NoBody)
		maps.Copy(r.Header, header)
		f.ServeHTTP(httptest.NewRecorder(), r)
		return local, leader.asked
	}
	for _, rt := range routes() {
		t.Run(rt.doc.id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				anywhere := slices.Contains(answeredAnywhere, rt.doc.id)
				// An event of a git host has its effect once, however often it arrives.
				read := rt.method == http.MethodGet && rt.doc.status != http.StatusSwitchingProtocols && !rt.doc.proxied || rt.access == signed
				for _, c := range []struct {
					with       string
					header     http.Header
					repeatable bool
				}{
					{"nothing", nil, read},
					{"a key", http.Header{api.HeaderIdempotencyKey: {"k"}}, read || slices.Contains(repeatedWithKey, rt.doc.id)},
					{"an upgrade", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, false},
				} {
					asked := 1
					switch {
					case anywhere:
						asked = 0
					case c.repeatable:
						asked = 2
					}
					if local, n := send(t, rt, c.header); local != anywhere || n != asked {
						t.Errorf("with %s: answered here is %v, and the leader was asked %d times, want %v and %d", c.with, local, n, anywhere, asked)
					}
				}
			})
		})
	}
}
