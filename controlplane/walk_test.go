package controlplane

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
)

// tenantRoute is one route of the document that a tenant may call.
type tenantRoute struct{ method, path, body string }

// tenantRoutes reads from a replica's own document every route that names
// something of a tenant's, with the body that the document shows.
func tenantRoutes(t *testing.T, url string) []tenantRoute {
	t.Helper()
	_, raw := raw(t, http.MethodGet, url+"/openapi.json", "", "")
	var doc struct {
		Paths map[string]map[string]struct {
			Security    []map[string][]string
			RequestBody struct {
				Content map[string]struct{ Example json.RawMessage }
			} `json:"requestBody"`
		}
	}
	if err := json.Unmarshal([]byte(raw), &doc); err != nil {
		t.Fatal(err)
	}
	var out []tenantRoute
	for path, methods := range doc.Paths {
		for method, op := range methods {
			tenant := false
			for _, s := range op.Security {
				if _, ok := s["apiKey"]; ok {
					tenant = true
				}
			}
			if !tenant || !strings.Contains(path, "{") {
				continue
			}
			body := string(op.RequestBody.Content["application/json"].Example)
			if body == "" && method == "post" {
				body = "{}"
			}
			out = append(out, tenantRoute{strings.ToUpper(method), path, body})
		}
	}
	if len(out) < 20 {
		t.Fatalf("the document has only %d routes of tenants", len(out))
	}
	return out
}

// strangers puts into a route's path what belongs to somebody else, or, where
// the test has made none of its kind, what nobody has. A kind that it does not
// know has to be taught to it.
func strangers(t *testing.T, path, sandboxID string) string {
	t.Helper()
	for prefix, id := range map[string]string{
		"/v1/sandboxes/": sandboxID, "/v1/snapshots/": "snap-stranger", "/v1/volumes/": "stranger",
		"/v1/templates/": "stranger", "/v1/builds/": "build-stranger",
	} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			_, rest, _ = strings.Cut(rest, "}")
			return prefix + id + strings.ReplaceAll(rest, "{lang}", "python") + "?path=/etc/passwd&port=80"
		}
	}
	t.Errorf("%s: whose is that?", path)
	return ""
}

// patiently makes a request again for as long as it is over the rate limit.
func patiently(t *testing.T, method, url, token, body string) (resp *http.Response, answer string) {
	t.Helper()
	testcluster.Await(t, 30*time.Second, "an answer within the rate limit", func() bool {
		resp, answer = raw(t, method, url, token, body)
		return resp.StatusCode != http.StatusTooManyRequests
	})
	return resp, answer
}
