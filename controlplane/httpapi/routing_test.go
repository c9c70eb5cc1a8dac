package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
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
		{"PUT", "/v1/sandboxes/x/fs?path=/a", nil, false, false},
		{"DELETE", "/v1/sandboxes/x", nil, false, false},
		{"POST", "/v1/sandboxes/x/hibernate", key, false, false},
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
