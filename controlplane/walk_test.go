package controlplane

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
)

// tenantRoute is one route of the document that a tenant may call.
type tenantRoute struct{ method, path, body string }

// tenantRoutes returns every route in a replica's own document that names a tenant's
// resource, with the example of its body.
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

// strangers fills a route's path with another tenant's ids or, for kinds that the
// test has not created, with unknown ids; "" if nobody owns those. It fails for a kind that it does not know.
func strangers(t *testing.T, path, sandboxID string) string {
	t.Helper()
	for prefix, id := range map[string]string{
		"/v1/sandboxes/": sandboxID, "/v1/snapshots/": "snap-stranger", "/v1/volumes/": "stranger",
		"/v1/templates/": "stranger", "/v1/builds/": "build-stranger", "/v1/webhooks/endpoints/": "we-stranger", "/v1/apps/": "app-stranger", "/v1/functions/": "fn-stranger", "/v1/databases/": "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37",
	} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			_, rest, _ = strings.Cut(rest, "}")
			return prefix + id + strings.NewReplacer("{lang}", "python", "{delivery}", "wd_stranger", "{deploy}", "dep-stranger", "{key}", "A", "{rest}", "x").Replace(rest) + "?path=/etc/passwd&port=80"
		}
	}
	// A git host's ids are those that it gives: of a repository each workspace has
	// variables of its own, and package githost tests whose an installation is.
	if !strings.HasPrefix(path, "/v1/repos/") && !strings.HasPrefix(path, "/v1/github/") {
		t.Errorf("%s: whose is that?", path)
	}
	return ""
}

// patiently repeats a request while it exceeds the rate limit.
func patiently(t *testing.T, method, url, token, body string) (resp *http.Response, answer string) {
	t.Helper()
	testcluster.Await(t, "an answer within the rate limit", func() bool {
		resp, answer = raw(t, method, url, token, body)
		return resp.StatusCode != http.StatusTooManyRequests
	})
	return resp, answer
}
