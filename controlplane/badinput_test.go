package controlplane

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// bodied is a route that takes JSON, with what the document says of its fields.
type bodied struct {
	method, path, credential, good string
	fields                         map[string][]string // their types
}

// schemas are those of the document.
type schemas map[string]struct {
	Ref        string `json:"$ref"`
	Type       any
	Properties map[string]json.RawMessage
}

// types are the types of a schema, none where it does not say.
func (s schemas) types(raw json.RawMessage) (out []string) {
	var in struct {
		Ref   string `json:"$ref"`
		Type  any
		AnyOf []json.RawMessage `json:"anyOf"`
		OneOf []json.RawMessage `json:"oneOf"`
		AllOf []json.RawMessage `json:"allOf"`
	}
	if json.Unmarshal(raw, &in) != nil {
		return nil
	}
	switch t := in.Type.(type) {
	case string:
		out = append(out, t)
	case []any:
		for _, one := range t {
			out = append(out, fmt.Sprint(one))
		}
	}
	if name, ok := strings.CutPrefix(in.Ref, "#/components/schemas/"); ok {
		if t, ok := s[name].Type.(string); ok {
			out = append(out, t)
		}
	}
	for _, of := range slices.Concat(in.AnyOf, in.OneOf, in.AllOf) {
		out = append(out, s.types(of)...)
	}
	return out
}

// bodies are the routes of apps, git hosts, webhooks, people and operators that take JSON.
// Each acts on what there is.
func (w *walker) bodies(key, person string) []bodied {
	w.t.Helper()
	_, doc := raw(w.t, http.MethodGet, w.server.URL+"/openapi.json", "", "")
	var parsed struct {
		Components struct{ Schemas schemas }
		Paths      map[string]map[string]struct {
			RequestBody *struct {
				Content map[string]struct {
					Schema  json.RawMessage
					Example json.RawMessage
				}
			} `json:"requestBody"`
		}
	}
	if err := json.Unmarshal([]byte(doc), &parsed); err != nil {
		w.t.Fatal(err)
	}
	all := parsed.Components.Schemas
	var out []bodied
	for path, methods := range parsed.Paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
		switch {
		case strings.HasPrefix(path, "/v1/admin/"):
			first = adminToken
		case slices.Contains([]string{"apps", "github", "repos", "webhooks"}, first):
			first = key
		case slices.Contains([]string{"me", "orgs", "invitations"}, first):
			first = person
		default:
			continue
		}
		for method, op := range methods {
			if op.RequestBody == nil || len(op.RequestBody.Content["application/json"].Schema) == 0 || strings.HasPrefix(path, "/v1/webhooks/git") {
				continue
			}
			media := op.RequestBody.Content["application/json"]
			b := bodied{method: strings.ToUpper(method), path: w.there(path), credential: first, good: string(media.Example), fields: map[string][]string{}}
			var ref struct {
				Ref string `json:"$ref"`
			}
			if err := json.Unmarshal(media.Schema, &ref); err != nil {
				w.t.Fatal(err)
			}
			for name, schema := range all[strings.TrimPrefix(ref.Ref, "#/components/schemas/")].Properties {
				b.fields[name] = all.types(schema)
			}
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b bodied) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	if len(out) < 31 {
		w.t.Fatalf("only %d routes take JSON", len(out))
	}
	return out
}

// there fills a path with what the workspace ws has.
func (w *walker) there(path string) string {
	return strings.NewReplacer(
		"/v1/apps/{id}", "/v1/apps/"+w.app, "/v1/webhooks/endpoints/{id}", "/v1/webhooks/endpoints/"+w.endpoint, "/v1/orgs/{id}", "/v1/orgs/ws",
		"/v1/admin/workspaces/{id}", "/v1/admin/workspaces/ws", "/v1/admin/agents/{id}", "/v1/admin/agents/h1", "{repo}", "9", "{key}", "A", "{deploy}", "dep-none", "{delivery}", "wd_none",
		"{user}", "usr-none", "{token}", "binv_none",
	).Replace(path)
}

// rows are all that these routes may write.
func (w *walker) rows() string {
	w.t.Helper()
	view := w.rig.Leader().Store.View()
	out, err := json.Marshal([]any{
		raftstore.All(view, record.Apps), raftstore.All(view, record.WebhookEndpoints), raftstore.All(view, record.RepoEnvs), raftstore.All(view, record.Workspaces),
		raftstore.All(view, record.Users), raftstore.All(view, record.Invitations), raftstore.All(view, record.APIKeys), raftstore.All(view, record.IdempotencyKeys),
		len(raftstore.All(view, record.Deployments)), len(raftstore.All(view, record.WebhookDeliveries)), // which go on by themselves
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return string(out)
}

// TestBadInput sends to each of these routes what it cannot take: each is refused, with a
// status, an error and a detail that says where, and nothing is written.
func TestBadInput(t *testing.T) {
	w := newWalker(t)
	key, person := w.key("ws", "aaaaaaaa"), w.person("olga", record.RoleOwner)
	send := func(b bodied, body string) (status int, e api.ErrorBody) {
		t.Helper()
		resp, got := raw(t, b.method, w.server.URL+b.path, b.credential, body)
		if resp.StatusCode < 300 || resp.StatusCode == http.StatusLengthRequired {
			return resp.StatusCode, e
		}
		if err := json.Unmarshal([]byte(got), &e); err != nil || e.Error == "" || resp.StatusCode >= 500 || resp.Header.Get("X-Request-Id") == "" ||
			!strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") || len(got) > 2000 {
			t.Errorf("%s %s %.80s: %d %.300s", b.method, b.path, body, resp.StatusCode, got)
		}
		return resp.StatusCode, e
	}
	values := map[string][]string{
		"integer": {"7"}, "string": {`"x"`}, "boolean": {"true"}, "array": {"[7]", `[["x"]]`}, "object": {`{"a":{"b":[7]}}`},
	}
	for _, b := range w.bodies(key, person) {
		before := w.rows()
		for _, body := range []string{
			" ", "null", "[]", `"x"`, "7", "{", `{"a":1} x`, `{"a":1,"a":2}`, "{\"a\":\"\x00\"}", `{"a":"\u0000"}`, "{\"a\":\"\xff\"}", "a=b&c=d", "<a/>",
			strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), strings.Repeat("[", 100_000),
		} {
			if status, e := send(b, body); status != 400 || e.Error != "invalid json" || e.Detail == "" {
				t.Errorf("%s %s %.80q: %d %+v", b.method, b.path, body, status, e)
			}
		}
		if status, e := send(b, `{"a":"`+strings.Repeat("x", 1<<20)+`"}`); status != 413 || e.Error != "request body too large" || e.Detail == "" {
			t.Errorf("%s %s, too large: %d %+v", b.method, b.path, status, e)
		}
		for field, types := range b.fields {
			for kind, of := range values {
				if len(types) == 0 || slices.Contains(types, kind) || kind == "integer" && slices.Contains(types, "number") {
					continue
				}
				for _, v := range of {
					status, e := send(b, with(b.good, field, v))
					if status != 400 || !strings.Contains(e.Detail, field) || e.Error != "invalid json" && e.Error != field+" must be a string map" {
						t.Errorf("%s %s, %s is %s: %d %+v", b.method, b.path, field, v, status, e)
					}
				}
			}
			for kind, extremes := range map[string][]string{
				"integer": {"-1", "-9223372036854775809", "99999999999999999999", "1e400", "1.5", "2147483648"},
				"string":  {`"A=` + strings.Repeat("x", 300_000) + `"`, `"A=` + strings.Repeat("é\\n", 70_000) + `"`},
				"array":   {"[" + strings.Repeat(`"x",`, 100_000) + `"x"]`, "[null]"},
				"object":  {`{"` + strings.Repeat("x", 300_000) + `":"x"}`, `{"":"x"}`},
			} {
				if !slices.Contains(types, kind) || kind == "object" && field != "env" { // of others, a newer client may have more
					continue
				}
				for _, v := range extremes {
					// A reference may also be to nothing.
					if status, e := send(b, with(b.good, field, v)); status != 400 && (status != 404 || field != "to" && !strings.HasSuffix(field, "_id")) {
						t.Errorf("%s %s, %s is %.40s: %d %+v", b.method, b.path, field, v, status, e)
					}
				}
			}
		}
		if w.rows() != before {
			t.Errorf("%s %s: something was written", b.method, b.path)
		}
	}
}

// with is a JSON object with one member in the place of what it has.
func with(object, member, value string) string {
	members := map[string]json.RawMessage{}
	if object != "" {
		_ = json.Unmarshal([]byte(object), &members) // an example of the document's
	}
	delete(members, member)
	out := []string{}
	for k, v := range members {
		out = append(out, fmt.Sprintf("%q:%s", k, v))
	}
	slices.Sort(out)
	return "{" + strings.Join(append(out, fmt.Sprintf("%q:%s", member, value)), ",") + "}"
}

// Whatever is in the path or the query of a route, by whoever may call it, is answered as a
// mistake of the caller, or by what there is, and nothing is written.
func TestNonsenseInPathsAndQueries(t *testing.T) {
	w := newWalker(t)
	credentials := map[string]string{"operator": adminToken, "workspace": w.key("ws", "aaaaaaaa"), "jwt": w.person("olga", record.RoleOwner)}
	nonsense := []string{
		"%00", "%FF%FE", "%0d%0aX-Evil:%201", "..%2F..%2Fetc%2Fpasswd", "%2e%2e", "%20", "-1", "99999999999999999999", "null", "%7B%7D", "%27%20OR%201=1--", "%F0%9F%92%A3", "%25s%25n", strings.Repeat("x", 5000),
	}
	send := func(rt walked, path string) {
		t.Helper()
		body := ""
		if rt.method != http.MethodGet && rt.method != http.MethodDelete {
			body = "{}"
		}
		resp, got := raw(t, rt.method, w.server.URL+path, credentials[rt.need], body)
		if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented { // GitHub is not set up
			t.Errorf("%s %.120s: %d %.200s", rt.method, path, resp.StatusCode, got)
		}
		var e api.ErrorBody
		if resp.StatusCode >= 400 && (json.Unmarshal([]byte(got), &e) != nil || e.Error == "" || len(got) > 2000) {
			t.Errorf("%s %.120s: %d %.200s", rt.method, path, resp.StatusCode, got)
		}
		if resp.Header.Get("X-Evil") != "" {
			t.Errorf("%s %.120s sets a header", rt.method, path)
		}
	}
	before, sent := w.rows(), 0
	for _, rt := range w.routes {
		if credentials[rt.need] == "" {
			continue
		}
		if strings.Contains(rt.path, "{") {
			for _, n := range nonsense {
				path := rt.path
				for strings.Contains(path, "{") {
					head, tail, _ := strings.Cut(path, "{")
					_, tail, _ = strings.Cut(tail, "}")
					path = head + n + tail
				}
				send(rt, path)
				sent++
			}
		}
		if rt.method != http.MethodGet {
			continue
		}
		for _, name := range rt.query {
			for _, n := range append([]string{"", "x", "2026-13-45", "&" + name + "="}, nonsense...) {
				send(rt, w.fill(rt)+"?"+name+"="+n)
				sent++
			}
		}
	}
	if sent < 2000 {
		t.Errorf("only %d requests were sent", sent)
	}
	if w.rows() != before {
		t.Error("something was written")
	}
}
