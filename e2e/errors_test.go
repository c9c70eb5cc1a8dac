package e2e

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const unknownID = "aaaaaaaaaaaaaaaaaaaaaaaaaa" // well-formed, and nobody's

func TestErrorContract(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	const create, big = "/v1/sandboxes", 10 << 20
	cases := []struct {
		name   string
		in     request
		status int
		text   string // "error" of the body; "" where any will do
		detail string // part of "detail"
	}{
		{"no credential", request{method: "GET", path: create}, 401, "unauthorized", "missing bearer token"},
		{"an unknown key", request{method: "GET", path: create, token: "brt_aaaaaaaa_bbbb"}, 401, "unauthorized", "invalid api token"},
		{"an operator's token elsewhere", request{method: "POST", path: create, token: theStack.AdminToken, body: `{"template":"base"}`}, 401, "unauthorized", ""},
		{"a key where a JWT is wanted", request{method: "GET", path: "/v1/me", token: c.token}, 401, "unauthorized", "jwt required"},
		{"a key on an operator's route", request{method: "GET", path: "/v1/admin/raft-status", token: c.token}, 403, "", ""},
		{"a JWT with another signature", request{method: "GET", path: "/v1/me", token: c.jwt[:len(c.jwt)-4] + "AAAA"}, 401, "unauthorized", ""},
		{"a POST without a body", request{method: "POST", path: create, token: c.token}, 411, "", ""},
		{"no JSON", request{method: "POST", path: create, token: c.token, body: `{"template":`}, 400, "invalid json", ""},
		{"two JSON values", request{method: "POST", path: create, token: c.token, body: `{"template":"base"}{}`}, 400, "invalid json", ""},
		{"a wrong type names its field", request{method: "POST", path: create, token: c.token, body: `{"template":7}`}, 400, "invalid json", "template"},
		{"an array for metadata", request{method: "POST", path: create, token: c.token, body: `{"template":"base","metadata":[]}`}, 400, "invalid json", "metadata"},
		{"no template", request{method: "POST", path: create, token: c.token, body: `{}`}, 400, "template is required", ""},
		{"an unknown template", request{method: "POST", path: create, token: c.token, body: `{"template":"no-such"}`}, 400, "unknown template", ""},
		{"a template outside its directory", request{method: "POST", path: create, token: c.token, body: `{"template":"../../etc"}`}, 0, "", ""},
		{"env with a number", request{method: "POST", path: create, token: c.token, body: `{"template":"base","env":{"A":1}}`}, 400, "env must be a string map", ""},
		{"a negative time to live", request{method: "POST", path: create, token: c.token, body: `{"template":"base","ttl_seconds":-1}`}, 400, "", ""},
		{"a body of 10 MiB", request{method: "POST", path: create, token: c.token, body: `{"template":"` + strings.Repeat("a", big) + `"}`}, 413, "", ""},
		{"a body of 10 MiB without a length", request{method: "POST", path: create, token: c.token, chunked: true, body: `{"template":"` + strings.Repeat("a", big) + `"}`}, 413, "", ""},
		{"an unknown sandbox", request{method: "GET", path: create + "/" + unknownID, token: c.token}, 404, "not found", ""},
		{"a delete of an unknown sandbox", request{method: "DELETE", path: create + "/" + unknownID, token: c.token}, 404, "not found", ""},
		{"an exec in an unknown sandbox", request{method: "POST", path: create + "/" + unknownID + "/exec", token: c.token, body: `{"cmd":"true"}`}, 404, "", ""},
		{"an unknown route", request{method: "GET", path: "/v1/nothing", token: c.token}, 404, "not found", ""},
		{"an unknown method", request{method: "PATCH", path: create, token: c.token, body: `{}`}, 405, "", ""},
		{"a limit that is no number", request{method: "GET", path: create + "?limit=x", token: c.token}, 400, "invalid limit", "1000"},
		{"a limit over the most", request{method: "GET", path: create + "?limit=1001", token: c.token}, 400, "", "1000"},
		{"a cursor of nobody's", request{method: "GET", path: create + "?cursor=%00%ff", token: c.token}, 400, "", ""},
		{"an idempotency key that is too long", request{method: "POST", path: create, token: c.token, body: `{"template":"base"}`, header: map[string]string{"Idempotency-Key": strings.Repeat("k", 256)}}, 400, "", "255"},
	}
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.replica = i % len(theStack.URLs) // leader or follower, the answer is the same
			got := tc.in.send(t)
			if tc.status == 0 {
				if got.status < 400 || got.status >= 500 {
					t.Fatalf("status %d, want a refusal: %s", got.status, clip(got.body))
				}
			} else if got.status != tc.status {
				t.Fatalf("status %d, want %d: %s", got.status, tc.status, clip(got.body))
			}
			if got.header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
			if got.status == http.StatusLengthRequired {
				if got.body != "" {
					t.Errorf("411 has the body %q", got.body)
				}
				return
			}
			if got.errorText() == "" {
				t.Errorf(`the body has no "error": %q`, clip(got.body))
			}
			if tc.text != "" && got.errorText() != tc.text {
				t.Errorf("error %q, want %q", got.errorText(), tc.text)
			}
			if !strings.Contains(got.detail(), tc.detail) {
				t.Errorf("detail %q lacks %q", got.detail(), tc.detail)
			}
		})
	}
}

// Whatever stands where an id belongs is an unknown id, and touches nothing.
func TestStrangeIDsAreUnknown(t *testing.T) {
	c := newTenant(t)
	for _, id := range []string{
		"..", "../" + unknownID, "a/b", "%2e%2e", "\x00", "a\x00b", "a\nb", "日本語", "a b", "'; DROP",
		strings.ToUpper(unknownID), unknownID + "a", strings.Repeat("a", 4000), "<script>", "\xff\xfe",
	} {
		for _, r := range []request{
			{method: "GET", path: "/v1/sandboxes/" + url.PathEscape(id)},
			{method: "DELETE", path: "/v1/sandboxes/" + url.PathEscape(id)},
			{method: "POST", path: "/v1/sandboxes/" + url.PathEscape(id) + "/exec", body: `{"cmd":"true"}`},
		} {
			r.token = c.token
			if got := r.send(t); got.status != 404 || got.errorText() == "" {
				t.Errorf("%s with the id %q: status %d, %s", r.method, clip(id), got.status, clip(got.body))
			}
		}
	}
}

func TestBadExecs(t *testing.T) {
	c := newTenant(t)
	path := "/v1/sandboxes/" + c.create(t).ID + "/exec"
	for name, tc := range map[string]struct {
		body, text string
		status     int
	}{
		"no command":              {`{}`, "cmd required", 400},
		"an empty command":        {`{"cmd":""}`, "cmd required", 400},
		"an empty argv":           {`{"cmd":[]}`, "cmd required", 400},
		"a number for a command":  {`{"cmd":1}`, "invalid json", 400},
		"a null in the argv":      {`{"cmd":["a",null]}`, "invalid json", 400},
		"a NUL in the command":    {`{"cmd":"a\u0000b"}`, "", 400},
		"a NUL in the argv":       {`{"cmd":["a","b\u0000"]}`, "", 400},
		"a time-out of a day":     {`{"cmd":"true","timeout_seconds":86400}`, "", 400},
		"a negative time-out":     {`{"cmd":"true","timeout_seconds":-1}`, "", 400},
		"an env name with =":      {`{"cmd":"true","env":{"A=B":"c"}}`, "", 400},
		"a command of 10 MiB":     {`{"cmd":"` + strings.Repeat("a", 10<<20) + `"}`, "", 413},
		"stdin that is no base64": {`{"cmd":"cat","stdin_base64":"%%%"}`, "invalid json", 400},
	} {
		t.Run(name, func(t *testing.T) {
			got := request{method: "POST", path: path, token: c.token, body: tc.body}.send(t)
			if got.status != tc.status || got.errorText() == "" || tc.text != "" && got.errorText() != tc.text {
				t.Errorf("status %d, %s; want %d %q", got.status, clip(got.body), tc.status, tc.text)
			}
		})
	}
}

func TestAnotherWorkspaceSeesNothing(t *testing.T) {
	mine, theirs := newTenant(t), newTenant(t, "other")
	sandbox := mine.create(t)
	for _, r := range []request{
		{method: "GET", path: "/v1/sandboxes/" + sandbox.ID},
		{method: "DELETE", path: "/v1/sandboxes/" + sandbox.ID},
		{method: "POST", path: "/v1/sandboxes/" + sandbox.ID + "/exec", body: `{"cmd":"id"}`},
	} {
		for _, credential := range []string{theirs.token, theirs.jwt} {
			r.token = credential
			if got := r.send(t); got.status != 404 {
				t.Errorf("%s with another workspace's credential: status %d, %s", r.method, got.status, clip(got.body))
			}
		}
	}
	listed, _, err := theirs.ListSandboxes(t.Context(), api.Page{})
	if err != nil || len(listed) != 0 {
		t.Errorf("the other workspace lists %v, %v", listed, err)
	}
	mine.answers(t, sandbox.ID)
}

func TestRevokedKeyIsRefusedEverywhere(t *testing.T) {
	c := newTenant(t)
	withJWT, err := api.NewClient(nil, c.jwt, theStack.URLs...)
	if err != nil {
		t.Fatal(err)
	}
	defer withJWT.Close()
	if err := withJWT.RevokeToken(t.Context(), strings.Split(c.token, "_")[1]); err != nil {
		t.Fatal(err)
	}
	for i := range theStack.URLs {
		got := request{method: "GET", path: "/v1/sandboxes", token: c.token, replica: i}.send(t)
		if got.status != 401 || got.detail() != "invalid api token" {
			t.Errorf("replica %d: status %d, %s", i+1, got.status, got.body)
		}
	}
}

func TestRequestID(t *testing.T) {
	c := newTenant(t)
	longest := strings.Repeat("x", api.MaxRequestIDLength)
	for given, reused := range map[string]bool{"my-request.1": true, longest: true, longest + "x": false} {
		for i := range theStack.URLs {
			for _, path := range []string{"/healthz", "/v1/sandboxes", "/v1/nothing"} {
				got := request{method: "GET", path: path, token: c.token, replica: i,
					header: map[string]string{"X-Request-Id": given}}.send(t).header.Get("X-Request-Id")
				if got == "" || (got == given) != reused {
					t.Errorf("replica %d %s: sent %d characters, got %q", i+1, path, len(given), got)
				}
			}
		}
	}
	// The name of a request is found in the logs of all who had a part in it.
	id := "e2e-" + strconv.Itoa(len(longest)) + "-through-all"
	sandbox := c.create(t)
	got := request{method: "POST", path: "/v1/sandboxes/" + sandbox.ID + "/exec", token: c.token,
		body: `{"cmd":"true"}`, header: map[string]string{"X-Request-Id": id}}.send(t)
	if got.status != 200 {
		t.Fatalf("exec: %d %s", got.status, got.body)
	}
	if !logHas(t, "r1", id) && !logHas(t, "r2", id) && !logHas(t, "r3", id) {
		t.Error("no replica's log names the request")
	}
	if !logHas(t, sandbox.AgentID, id) {
		t.Errorf("the log of %s does not name the request", sandbox.AgentID)
	}
}

func TestPublicPages(t *testing.T) {
	for i := range theStack.URLs {
		for path, want := range map[string]string{
			"/healthz":      `"ok"`,
			"/version":      `"api":"v1"`,
			"/metrics":      "# TYPE",
			"/openapi.json": `"openapi":"3.1`,
		} {
			got := request{method: "GET", path: path, replica: i}.send(t)
			body := strings.ReplaceAll(got.body, `": `, `":`)
			if got.status != 200 || !strings.Contains(body, want) {
				t.Errorf("replica %d %s: status %d, %s", i+1, path, got.status, clip(got.body))
			}
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	c := newTenant(t)
	const body, other = `{"template":"base","metadata":{"n":1}}`, `{"template":"base","metadata":{"n":2}}`
	send := func(body, token string, replica int) answer {
		return request{method: "POST", path: "/v1/sandboxes", token: token, body: body, replica: replica,
			header: map[string]string{"Idempotency-Key": "once"}}.send(t)
	}
	// Four at once, through all the replicas: one sandbox.
	answers := make([]answer, 4)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = send(body, c.token, i%len(theStack.URLs)) })
	}
	all.Wait()
	listed, _, err := c.ListSandboxes(t.Context(), api.Page{})
	if err != nil || len(listed) != 1 {
		t.Fatalf("%d sandboxes, %v; want one", len(listed), err)
	}
	c.deleteAtEnd(t, listed[0].ID)
	for _, a := range answers {
		if a.status != 201 || !strings.Contains(a.body, listed[0].ID) {
			t.Errorf("status %d, %s; want 201 with the one sandbox", a.status, clip(a.body))
		}
	}
	if got := send(other, c.token, 1); got.status != 409 || got.errorText() != "idempotency key reused" {
		t.Errorf("another body: %d %s", got.status, got.body)
	}
	// The key outlives the leader that took it.
	leader := theStack.Leader(t.Context())
	if leader == nil {
		t.Fatal("no leader")
	}
	restartAtEnd(t, leader)
	if err := leader.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := theStack.WaitLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive := (indexOf(leader) + 1) % len(theStack.URLs)
	if got := send(body, c.token, alive); got.status != 201 || !strings.Contains(got.body, listed[0].ID) {
		t.Errorf("after a change of leader: %d %s", got.status, clip(got.body))
	}
}

func indexOf(p *stack.Process) int {
	for i, r := range theStack.Replicas {
		if r == p {
			return i
		}
	}
	return -1
}
