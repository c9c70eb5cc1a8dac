package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/tier"
)

// postRoutes are the routes with a JSON body, each with the credential it
// needs and a body that it takes.
var postRoutes = []struct{ target, bearer, good string }{
	{"/v1/sandboxes", "tenant", `{"template":"base"}`},
	{"/v1/sandboxes/" + testID + "/exec", "tenant", `{"cmd":"true"}`},
	{"/v1/sandboxes/" + testID + "/exec/stream", "tenant", `{"cmd":"true"}`},
	{"/v1/sandboxes/" + testID + "/commands", "tenant", `{"cmd":"true"}`},
	{"/v1/sandboxes/" + testID + "/commands/cmd-1/input", "tenant", `{"data":"x"}`},
	{"/v1/sandboxes/" + testID + "/commands/cmd-1/signal", "tenant", `{"signal":"INT"}`},
	{"/v1/sandboxes/" + testID + "/pause", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/resume", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/hibernate", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/wake", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/fs/dir?path=/a", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/ports", "tenant", `{"port":80}`},
	{"/v1/sandboxes/" + testID + "/preview-tokens", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/snapshots", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/fork", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/fork-tree", "tenant", `{}`},
	{"/v1/sandboxes/" + testID + "/promote", "tenant", `{"tree_id":"t"}`},
	{"/v1/volumes", "tenant", `{"name":"v"}`},
	{"/v1/templates/build", "tenant", `{"name":"t","from":"base"}`},
	{"/v1/databases", "tenant", `{}`},
	{"/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/wake", "tenant", `{}`},
	{"/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/reset-credentials", "tenant", `{}`},
	{"/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/clone", "tenant", `{}`},
	{"/v1/databases/7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37/failover", "tenant", `{}`},
	{proxy + "query", "token", `{"sql":"SELECT 1"}`},
	{proxy + "batch", "token", `{"queries":[{"sql":"SELECT 1"}]}`},
	{proxy + "transaction", "token", `{"queries":[{"sql":"SELECT 1"}]}`},
	{"/v1/apps", "tenant", `{"name":"n"}`},
	{"/v1/apps/app-1/deploys", "tenant", `{}`},
	{"/v1/apps/app-1/deploys/dep-1/cancel", "tenant", `{}`},
	{"/v1/apps/app-1/rollback", "tenant", `{}`},
	{"/v1/apps/app-1/env/import", "tenant", `{"dotenv":"A=b"}`},
	{"/v1/apps/app-1/domains", "tenant", `{"domain":"shop.example.com"}`},
	{"/v1/apps/app-1/domains/shop.example.com/verify", "tenant", `{}`},
	{"/v1/functions", "tenant", `{"name":"n","runtime":"node"}`},
	{"/v1/functions/app-1/deploys/dep-1/cancel", "tenant", `{}`},
	{"/v1/functions/app-1/rollback", "tenant", `{}`},
	{"/v1/webhooks/endpoints", "tenant", `{"url":"https://example.com"}`},
	{"/v1/webhooks/endpoints/we-1/rotate", "tenant", `{}`},
	{"/v1/webhooks/endpoints/we-1/test", "tenant", `{}`},
	{"/v1/webhooks/endpoints/we-1/deliveries/wd_1/replay", "tenant", `{}`},
	{"/v1/me/current-org", "jwt", `{"org_id":"ws-1"}`},
	{"/v1/me/tokens", "jwt", `{"name":"n"}`},
	{"/v1/orgs", "jwt", `{"name":"n"}`},
	{"/v1/orgs/ws-1/members", "jwt", `{"email":"a@example.com"}`},
	{"/v1/invitations/binv_1", "jwt", `{}`},
	{"/v1/billing/sync", "tenant", `{}`},
	{"/v1/admin/workspaces", "operator", `{"name":"n"}`},
	{"/v1/admin/workspaces/ws-1/tokens", "operator", `{"name":"n"}`},
	{"/v1/admin/raft/peers", "operator", `{"id":"r4","address":"h:1"}`},
	{"/v1/admin/raft/transfer-leadership", "operator", `{}`},
	{"/v1/admin/agents/host-a/drain", "operator", `{}`},
	{"/v1/admin/agents/host-a/evacuate", "operator", `{}`},
	{"/v1/admin/agents/host-a/undrain", "operator", `{}`},
	{"/v1/admin/rebalance", "operator", `{}`},
	{"/v1/admin/join-tokens", "operator", `{}`},
}

func TestPostRoutesAreAllListed(t *testing.T) {
	n := 0
	for _, rt := range routes() {
		if rt.method == post && rt.doc.bodyType == "" {
			n++
		}
	}
	if n != len(postRoutes) {
		t.Errorf("the table has %d JSON routes, the tests know %d", n, len(postRoutes))
	}
}

// TestBodiesThatNoRouteTakes sends each of them to every route. No use case is
// set, so one that were called would fail the test with a 500.
func TestBodiesThatNoRouteTakes(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1)
	cases := []struct{ name, body, detail string }{
		{"white space", "  ", "the body is empty; send {} where there is nothing to say"},
		{"cut short", `{"cmd":"tr`, "at byte 10: unexpected end of JSON input"},
		{"not JSON", `template=base`, "at byte 2: invalid character 'e' in literal true (expecting 'r')"},
		{"a comma too many", `{"a":1,}`, "at byte 8: invalid character '}' looking for beginning of object key string"},
		{"single quotes", `{'a':1}`, "at byte 2: invalid character '\\'' looking for beginning of object key string"},
		{"NaN", `{"a":NaN}`, "at byte 6: invalid character 'N' looking for beginning of value"},
		{"two values", `{} {}`, "at byte 4: invalid character '{' after top-level value"},
		{"something after the value", `{}x`, "at byte 3: invalid character 'x' after top-level value"},
		{"null", `null`, "the body must be an object"},
		{"an array", `[{"template":"base"}]`, "the body must be an object"},
		{"a string", `"base"`, "the body must be an object"},
		{"a number", `1`, "the body must be an object"},
		{"the same member twice", `{"x":1,"x":2}`, "x is given twice"},
		{"the same member twice further in", `{"x":{"y":[{"z":1,"z":2}]}}`, "x.y.z is given twice"},
		{"a NUL byte", "{\"template\":\"ba\x00se\"}", "the body holds a NUL byte"},
		{"an escaped NUL", `{"x":"a\u0000b"}`, "x holds a NUL character"},
		{"an escaped NUL in a list", `{"x":["a","\u0000"]}`, "x holds a NUL character"},
		{"an escaped NUL in a name", `{"x":{"\u0000":1}}`, "the name of a member of x holds a NUL character"},
		{"not UTF-8", "{\"x\":\"\xff\"}", "the body is not UTF-8"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "the body holds a NUL byte"},
		{"a byte order mark", "\xef\xbb\xbf{}", "at byte 1: invalid character 'ï' looking for beginning of value"},
		{"half a character", `{"x":"a\ud83d"}`, "at byte 8: half a character (an unpaired surrogate)"},
		{"half a character before another escape", `{"x":"\ud83d\n"}`, "at byte 7: half a character (an unpaired surrogate)"},
		{"half a character before a whole one", `{"x":"\uD83D\u0041"}`, "at byte 7: half a character (an unpaired surrogate)"},
		{"halves in the wrong order", `{"x":["\ud83d\ude00\ude00\ud83d"]}`, "at byte 20: half a character (an unpaired surrogate)"},
		{"half a character in a name", `{"x":{"\ude00":1}}`, "at byte 8: half a character (an unpaired surrogate)"},
		{"nested too deep", deep, "a nests deeper than 64 levels"},
		{"nested far too deep", strings.Repeat("[", 200_000), "at byte 10001: invalid character '[' exceeded max depth"},
	}
	r := newRig(t)
	for _, route := range postRoutes {
		for _, c := range cases {
			t.Run(route.target+"/"+c.name, func(t *testing.T) {
				w := r.call(http.MethodPost, route.target, route.bearer, c.body)
				e := errorOf(t, w)
				if w.Code != 400 || e.Error != "invalid json" || e.Detail != c.detail {
					t.Errorf("got %d %+v, want 400 with %q", w.Code, e, c.detail)
				}
			})
		}
	}
}

// A long name that contains thousands of members must not be copied for each of
// them.
func TestLongNamesAreNotCopiedForEachMember(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"` + strings.Repeat("n", 64<<10) + `":{`)
	for i := range 4096 {
		fmt.Fprintf(&b, `"m%d":0,`, i)
	}
	b.WriteString(`"z":{"y":1,"y":2}}}`)
	body := []byte(b.String())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := decodeJSON(body, &api.Empty{})
	runtime.ReadMemStats(&after)
	var e *apierror.Error
	if want := strings.Repeat("n", maxShown) + "… is given twice"; !errors.As(err, &e) || e.Detail != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 32<<20 {
		t.Errorf("%d MB were taken for a body of %d KB", taken>>20, len(body)>>10)
	}
}

// withoutAStore replaces the fakes with the real use cases, which refuse bad input,
// but gives them no store: one that did not refuse would panic, and answer 500.
func withoutAStore(c *Config) {
	k := core.New(core.Core{Clock: time.Now})
	sandboxes := sandbox.New(k, sandbox.Config{})
	c.Sandboxes, c.Commands, c.Ports = sandboxes, sandboxes.Commands, sandboxes.Ports
	c.Forks, c.Orgs, c.Cluster = fork.New(k, sandboxes, 0), noneSuspended{org.New(k)}, cluster.New(k, cluster.Config{})
}

// noneSuspended are orgs of which nobody has to ask a store whether one is suspended.
type noneSuspended struct{ Orgs }

func (noneSuspended) NotSuspended(core.Caller, core.Idempotency) error { return nil }

// TestFieldsOfTheWrongKind names the field each time.
func TestFieldsOfTheWrongKind(t *testing.T) {
	sandboxes, exec := "/v1/sandboxes", "/v1/sandboxes/"+testID+"/exec"
	cases := []struct{ target, bearer, body, message, detail string }{
		{sandboxes, "tenant", `{}`, "template is required", ""},
		{sandboxes, "tenant", `{"template":""}`, "template is required", ""},
		{sandboxes, "tenant", `{"template":null}`, "template is required", ""},
		{sandboxes, "tenant", `{"template":1}`, "invalid json", "template must be a string, not number"},
		{sandboxes, "tenant", `{"template":["base"]}`, "invalid json", "template must be a string, not array"},
		{sandboxes, "tenant", `{"template":"base","ttl_seconds":"60"}`, "invalid json", "ttl_seconds must be an integer, not string"},
		{sandboxes, "tenant", `{"template":"base","ttl_seconds":1.5}`, "invalid json", "ttl_seconds must be an integer, not number 1.5"},
		{sandboxes, "tenant", `{"template":"base","ttl_seconds":99999999999999999999}`, "invalid json", "ttl_seconds must be an integer, not number 99999999999999999999"},
		{sandboxes, "tenant", `{"template":"base","metadata":"x"}`, "invalid json", "metadata must be an object, not string"},
		{sandboxes, "tenant", `{"template":"base","metadata":[1]}`, "invalid json", "metadata must be an object, not array"},
		{sandboxes, "tenant", `{"template":"base","from_snapshot":7}`, "invalid json", "from_snapshot must be a string, not number"},
		{sandboxes, "tenant", `{"template":"base","boot":true}`, "invalid json", "boot must be a string, not bool"},
		{sandboxes, "tenant", `{"template":"base","volumes":{}}`, "invalid json", "volumes must be an array, not object"},
		{sandboxes, "tenant", `{"template":"base","volumes":[{"name":1}]}`, "invalid json", "volumes.name must be a string, not number"},
		{sandboxes, "tenant", `{"template":"base","volumes":["a"]}`, "invalid json", "volumes must be an object, not string"},
		{sandboxes, "tenant", `{"template":"base","env":"A=b"}`, "env must be a string map", "env must be an object whose values are strings, not string"},
		{sandboxes, "tenant", `{"template":"base","env":["A=b"]}`, "env must be a string map", "env must be an object whose values are strings, not array"},
		{sandboxes, "tenant", `{"template":"base","env":{"B":2,"A":1}}`, "env must be a string map", "env.A must be a string, not number"},
		{sandboxes, "tenant", `{"template":"base","env":{"A":null}}`, "env must be a string map", "env.A must be a string, not null"},

		{exec, "tenant", `{}`, "cmd required", ""},
		{exec, "tenant", `{"cmd":null}`, "cmd required", ""},
		{exec, "tenant", `{"cmd":""}`, "cmd required", ""},
		{exec, "tenant", `{"cmd":" \n"}`, "cmd required", ""},
		{exec, "tenant", `{"cmd":[]}`, "cmd required", ""},
		{exec, "tenant", `{"cmd":["","a"]}`, "cmd required", "the first element of cmd, the program, is empty"},
		{exec, "tenant", `{"cmd":1}`, "invalid json", "cmd must be a string or an array of strings, not number"},
		{exec, "tenant", `{"cmd":{"a":1}}`, "invalid json", "cmd must be a string or an array of strings, not object"},
		{exec, "tenant", `{"cmd":["a",1]}`, "invalid json", "cmd must be a string or an array of strings, not an array with something else in it"},
		{exec, "tenant", `{"cmd":["a",null]}`, "invalid json", "cmd must be a string or an array of strings, not an array with something else in it"},
		{exec, "tenant", `{"cmd":"a\u0000b"}`, "invalid json", "cmd holds a NUL character"},
		{exec, "tenant", `{"cmd":"a","cwd":1}`, "invalid json", "cwd must be a string, not number"},
		{exec, "tenant", `{"cmd":"a","user":0}`, "invalid json", "user must be a string, not number"},
		{exec, "tenant", `{"cmd":"a","stdin":{}}`, "invalid json", "stdin must be a string, not object"},
		{exec, "tenant", `{"cmd":"a","stdin_base64":[97,98]}`, "invalid json", "stdin_base64 must be a string in base64, not array"},
		{exec, "tenant", `{"cmd":"a","stdin_base64":"%%"}`, "invalid json", "stdin_base64 must be a string in base64, not string"},
		{exec, "tenant", `{"cmd":"a","stdin":"a","stdin_base64":"YQ=="}`, "invalid json", "give stdin or stdin_base64, not both"},
		{exec, "tenant", `{"cmd":"a","env":{"A":true}}`, "env must be a string map", "env.A must be a string, not boolean"},
		{exec, "tenant", `{"cmd":"a","timeout_seconds":"5"}`, "invalid json", "timeout_seconds must be an integer, not string"},
		{exec, "tenant", `{"cmd":"a","timeout_seconds":0.5}`, "invalid json", "timeout_seconds must be an integer, not number 0.5"},

		{sandboxes, "tenant", `{"template":"base","boot":""}`, "invalid boot", `boot is "restore" or "cold"`},
		{sandboxes, "tenant", `{"template":"base","preview":""}`, "invalid preview", `preview is "public" or "token"`},
		{sandboxes + "/" + testID + "/fork", "tenant", `{"mode":""}`, "unknown mode", `mode is "cold" or "warm"`},
		{sandboxes + "/" + testID + "/preview-tokens", "tenant", `{"port":0}`, "invalid port", "port must be from 1 to 65535"},
		{sandboxes + "/" + testID + "/preview-tokens", "tenant", `{"ttl_seconds":0}`, "invalid ttl_seconds", "ttl_seconds must be from 1 to 604800"},

		{"/v1/me/current-org", "jwt", `{}`, "org_id is required", ""},
		{"/v1/me/current-org", "jwt", `{"org_id":1}`, "invalid json", "org_id must be a string, not number"},
		{"/v1/me/tokens", "jwt", `{"name":"n","scopes":["read"]}`, "invalid scopes", "want all, read-only, sandboxes, databases, apps, volumes, webhooks, or app:<id>"},
		{"/v1/me/tokens", "jwt", `{"name":"n","expires_at":"0001-01-01T00:00:00Z"}`, "invalid expires_at", "expires_at must be in the future"},
		{"/v1/me/tokens", "jwt", `{"name":{}}`, "invalid json", "name must be a string, not object"},

		{"/v1/admin/raft/peers", "operator", `{}`, "id is required", ""},
		{"/v1/admin/raft/peers", "operator", `{"id":"r4"}`, "address is required", ""},
		{"/v1/admin/raft/peers", "operator", `{"id":4,"address":"h:1"}`, "invalid json", "id must be a string, not number"},
		{"/v1/admin/raft/transfer-leadership", "operator", `{"to":2}`, "invalid json", "to must be a string, not number"},
		{"/v1/admin/join-tokens", "operator", `{"ttl_seconds":0}`, "invalid ttl_seconds", "ttl_seconds must be from 1 to 86400"},
		{"/v1/admin/join-tokens", "operator", `{"ttl_seconds":-1}`, "invalid ttl_seconds", "ttl_seconds must be from 1 to 86400"},
		{"/v1/admin/join-tokens", "operator", `{"ttl_seconds":9223372036854775807}`, "invalid ttl_seconds", "ttl_seconds must be from 1 to 86400"},
		{"/v1/admin/join-tokens", "operator", `{"ttl_seconds":[]}`, "invalid json", "ttl_seconds must be an integer, not array"},
	}
	r := newRig(t, withoutAStore)
	for _, c := range cases {
		t.Run(c.target+" "+c.body, func(t *testing.T) {
			w := r.call(http.MethodPost, c.target, c.bearer, c.body)
			e := errorOf(t, w)
			if w.Code != 400 || e.Error != c.message || e.Detail != c.detail {
				t.Errorf("got %d %+v, want 400 %q %q", w.Code, e, c.message, c.detail)
			}
		})
	}
}

// TestIDsThatCannotBe sends impossible ids to every route that takes one.
func TestIDsThatCannotBe(t *testing.T) {
	tier.Slow(t)
	ids := map[string]string{
		"an escaped slash":        "a%2Fb",
		"an escaped slash first":  "%2Fetc%2Fpasswd",
		"a path upwards":          "..%2F..%2Fetc",
		"dots":                    "..",
		"a dot":                   ".",
		"a NUL":                   "%00",
		"a NUL in it":             "abc%00def",
		"Unicode":                 "%E2%98%83",
		"right-to-left override":  "%E2%80%AEabc",
		"invalid UTF-8":           "%FF%FE",
		"a newline":               "a%0Ab",
		"a space":                 "a%20b",
		"a percent sign":          "%25",
		"a question mark":         "a%3Fb",
		"a semicolon":             "a;b",
		"a quote":                 "%27%20OR%201=1",
		"longer than any":         strings.Repeat("a", maxID+1),
		"a great deal longer":     strings.Repeat("a", 8000),
		"an asterisk":             "*",
		"a template's expression": "$%7Bx%7D",
	}
	r := newRig(t)
	for _, rt := range routes() {
		before, after, ok := strings.Cut(rt.path, ":")
		if !ok || rt.access == brokerToken { // whose token is no database's, whatever the id
			continue
		}
		if _, rest, more := strings.Cut(after, "/"); more {
			after = "/" + rest
		} else {
			after = ""
		}
		bearer := map[access]string{workspace: "tenant", jwtOnly: "jwt", operator: "operator"}[rt.access]
		body := ""
		if rt.method == post {
			body = "{}"
		}
		for name, id := range ids {
			if plain, err := url.PathUnescape(id); strings.HasPrefix(before, "/v1/volumes/") && err == nil && volume.IsName(plain) {
				continue // a volume may have such a name
			}
			t.Run(rt.method+" "+rt.path+"/"+name, func(t *testing.T) {
				w := r.call(rt.method, before+id+after, bearer, body)
				if w.Code != 404 || errorOf(t, w).Error != "not found" {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
			})
		}
	}
}

func TestListParameters(t *testing.T) {
	cases := []struct{ query, message string }{
		{"limit=0", "invalid limit"},
		{"limit=-1", "invalid limit"},
		{"limit=1001", "invalid limit"},
		{"limit=ten", "invalid limit"},
		{"limit=", "invalid limit"},
		{"limit=1.0", "invalid limit"},
		{"limit=%2B10", "invalid limit"},
		{"limit=99999999999999999999", "invalid limit"},
		{"limit=1&limit=2", "invalid limit"},
		{"cursor=a&cursor=b", "invalid cursor"},
		{"cursor=%00", "invalid cursor"},
		{"cursor=%E2%98%83", "invalid cursor"},
		{"cursor=a%20b", "invalid cursor"},
		{"cursor=" + strings.Repeat("a", 513), "invalid cursor"},
		{"limit=%zz", "invalid query"},
		{"a;b", "invalid query"},
	}
	lists := map[string]string{"/v1/sandboxes": "tenant", "/v1/me/tokens": "jwt", "/v1/admin/agents": "operator"}
	r := newRig(t)
	for target, bearer := range lists {
		for _, c := range cases {
			t.Run(target+"?"+c.query, func(t *testing.T) {
				w := r.call(http.MethodGet, target+"?"+c.query, bearer, "")
				if w.Code != 400 || errorOf(t, w).Error != c.message {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
			})
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	cases := []struct {
		name   string
		sent   []string
		status int
		key    string
	}{
		{"none", nil, 201, ""},
		{"short", []string{"k"}, 201, "k"},
		{"255 characters", []string{strings.Repeat("k", 255)}, 201, strings.Repeat("k", 255)},
		{"spaces inside", []string{"order 42 / a"}, 201, "order 42 / a"},
		{"not ASCII", []string{"ü"}, 400, ""},
		{"256 characters", []string{strings.Repeat("k", 256)}, 400, ""},
		{"empty", []string{""}, 400, ""},
		{"twice", []string{"a", "b"}, 400, ""},
		{"a NUL", []string{"a\x00"}, 400, ""},
		{"a newline", []string{"a\nb"}, 400, ""},
		{"not UTF-8", []string{"\xff"}, 400, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			var got core.Idempotency
			r.sandboxes.create = func(_ context.Context, _ core.Caller, _ api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
				got = i
				return testSandbox(), nil
			}
			var header []string
			for _, v := range c.sent {
				header = append(header, "Idempotency-Key", v)
			}
			w := r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{"template":"base"}`, header...)
			if w.Code != c.status || got.Key != c.key {
				t.Errorf("got %d, key %q: %s", w.Code, got.Key, w.Body)
			}
			if c.status == 201 && len(got.BodySHA256) != 32 {
				t.Errorf("the digest has %d bytes", len(got.BodySHA256))
			}
			if c.status == 400 && errorOf(t, w).Error != "invalid idempotency key" {
				t.Errorf("got %s", w.Body)
			}
		})
	}
}

func TestMediaTypes(t *testing.T) {
	cases := []struct {
		name, contentType, body string
		status                  int
		detail                  string
	}{
		{"JSON", "application/json", `{"template":"base"}`, 201, ""},
		{"JSON with a charset", "application/json; charset=utf-8", `{"template":"base"}`, 201, ""},
		{"JSON called a form, as curl -d does", "application/x-www-form-urlencoded", `{"template":"base"}`, 201, ""},
		{"JSON without a name", "", `{"template":"base"}`, 201, ""},
		{"a form", "application/x-www-form-urlencoded", `name=base`, 400,
			"at byte 2: invalid character 'a' in literal null (expecting 'u'); send JSON with Content-Type: application/json"},
		{"YAML", "application/yaml", `template: base`, 400,
			"at byte 2: invalid character 'e' in literal true (expecting 'r'); send JSON with Content-Type: application/json"},
	}
	r := newRig(t)
	r.sandboxes.create = func(context.Context, core.Caller, api.CreateSandbox, core.Idempotency) (api.Sandbox, error) {
		return testSandbox(), nil
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			req := request(t, http.MethodPost, "/v1/sandboxes", "tenant", c.body)
			req.Header.Set("Content-Type", c.contentType)
			w := r.send(req)
			if w.Code != c.status || (c.detail != "" && errorOf(t, w).Detail != c.detail) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
	t.Run("compressed", func(t *testing.T) {
		w := r.call(http.MethodPost, "/v1/sandboxes", "tenant", "\x1f\x8b\x08", "Content-Encoding", "gzip")
		if w.Code != 400 || !strings.Contains(errorOf(t, w).Detail, "Content-Encoding gzip is not supported") {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	})
}
