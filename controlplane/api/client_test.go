package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is a server that counts what it is asked and answers as it is told.
type replica struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Value // func(http.ResponseWriter, *http.Request)
}

func newReplica(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *replica {
	r := &replica{}
	r.answer.Store(answer)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked.Add(1)
		r.answer.Load().(func(http.ResponseWriter, *http.Request))(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

func answer(status int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(HeaderRequestID, "req-1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func newClient(t *testing.T, urls ...string) *Client {
	t.Helper()
	c, err := NewClient(nil, "brt_x_y", urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// refused is the address of a port that nobody listens on.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestBaseURLs(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://x", "http://", "/v1", "http://x\x7f"} {
		if _, err := NewClient(nil, "", bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := NewClient(nil, ""); err == nil {
		t.Error("no base URL was taken")
	}
}

func TestFailOver(t *testing.T) {
	sandbox := answer(200, `{"id":"a"}`)
	unavailable := answer(503, `{"error":"control plane unavailable"}`)
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	read := func(c *Client) error { _, err := c.GetSandbox(context.Background(), "a"); return err }
	create := func(c *Client) error {
		_, err := c.CreateSandbox(context.Background(), CreateSandbox{Template: "base"}, "")
		return err
	}
	createWithKey := func(c *Client) error {
		_, err := c.CreateSandbox(context.Background(), CreateSandbox{Template: "base"}, "k")
		return err
	}
	exec := func(c *Client) error {
		_, err := c.Exec(context.Background(), "a", Exec{Cmd: Shell("true")})
		return err
	}
	cases := []struct {
		name  string
		first func(http.ResponseWriter, *http.Request) // nil: refuses the connection
		call  func(*Client) error
		moves bool
	}{
		{"a read, refused", nil, read, true},
		{"a create, refused: nothing was sent", nil, create, true},
		{"an exec, refused: nothing was sent", nil, exec, true},
		{"a read, 503", unavailable, read, true},
		{"a read, connection cut", cut, read, true},
		{"a create, 503: it may have happened", unavailable, create, false},
		{"a create, connection cut: it may have happened", cut, create, false},
		{"a create with a key, 503", unavailable, createWithKey, true},
		{"a create with a key, connection cut", cut, createWithKey, true},
		{"an exec, 503", unavailable, exec, false},
		{"an exec, connection cut", cut, exec, false},
		{"a read, 500", answer(500, `{"error":"x"}`), read, false},
		{"a read, 404", answer(404, `{"error":"not found"}`), read, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			second := newReplica(t, sandbox)
			first := refused(t)
			if c.first != nil {
				first = newReplica(t, c.first).URL
			}
			client := newClient(t, first, second.URL)
			err := c.call(client)
			if moved := second.asked.Load() > 0; moved != c.moves || (err == nil) != c.moves {
				t.Errorf("moved on: %v, err: %v", moved, err)
			}
			if !c.moves {
				return
			}
			if err := c.call(client); err != nil || second.asked.Load() != 2 {
				t.Errorf("the next call: %v, the second replica was asked %d times", err, second.asked.Load())
			}
		})
	}
}

func TestFailOverComesRound(t *testing.T) {
	a, b := newReplica(t, answer(503, "")), newReplica(t, answer(200, `{"id":"a"}`))
	c := newClient(t, a.URL, b.URL)
	if _, err := c.GetSandbox(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	a.answer.Store(answer(200, `{"id":"a"}`))
	b.answer.Store(answer(503, ""))
	if _, err := c.GetSandbox(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	a.answer.Store(answer(503, `{"error":"control plane unavailable"}`))
	if _, err := c.GetSandbox(context.Background(), "a"); StatusOf(err) != 503 {
		t.Errorf("with all unavailable: %v", err)
	}
}

func TestPatience(t *testing.T) {
	electing := func(rounds int32) *Client {
		var asked atomic.Int32
		r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
			if asked.Add(1) <= rounds {
				answer(503, `{"error":"control plane unavailable"}`)(w, req)
				return
			}
			answer(200, `{}`)(w, req)
		})
		c := newClient(t, r.URL)
		c.Patience = time.Minute
		return c
	}
	if _, err := electing(2).GetSandbox(context.Background(), "a"); err != nil {
		t.Errorf("after an election: %v", err)
	}
	if _, err := electing(1).CreateSandbox(context.Background(), CreateSandbox{}, ""); StatusOf(err) != 503 {
		t.Errorf("a call that may not be sent twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := electing(1<<30).GetSandbox(ctx, "a"); StatusOf(err) != 503 {
		t.Errorf("a caller that waits no longer: %v", err)
	}
}

func TestCancelledCallIsNotTriedElsewhere(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	first := newReplica(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	second := newReplica(t, answer(200, `{}`))
	_, err := newClient(t, first.URL, second.URL).GetSandbox(ctx, "a")
	if !errors.Is(err, context.Canceled) || second.asked.Load() != 0 {
		t.Errorf("err %v, second asked %d times", err, second.asked.Load())
	}
}

func TestErrors(t *testing.T) {
	cases := []struct {
		name   string
		status int
		retry  string
		body   string
		want   Error
		text   string
	}{
		{"whole", 429, "3", `{"error":"max sandboxes reached","detail":"d","max":5,"active":5}`,
			Error{Status: 429, Message: "max sandboxes reached", Detail: "d", RequestID: "req-1", RetryAfter: 3 * time.Second, Fields: map[string]any{"max": 5.0, "active": 5.0}},
			"max sandboxes reached: d (status 429, request req-1)"},
		{"without a body", 411, "", "", Error{Status: 411, Message: "length required", RequestID: "req-1"}, "length required (status 411, request req-1)"},
		{"from something between", 502, "x", "<html>", Error{Status: 502, Message: "bad gateway", RequestID: "req-1"}, "bad gateway (status 502, request req-1)"},
		{"a redirect", 302, "", "", Error{Status: 302, Message: "found", RequestID: "req-1"}, "found (status 302, request req-1)"},
		{"an unknown status", 599, "-1", `[]`, Error{Status: 599, Message: "status 599", RequestID: "req-1"}, "status 599 (status 599, request req-1)"},
		{"error of another type", 400, "", `{"error":{"code":1}}`, Error{Status: 400, Message: "bad request", RequestID: "req-1"}, "bad request (status 400, request req-1)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
				if c.retry != "" {
					w.Header().Set("Retry-After", c.retry)
				}
				w.Header().Set("Location", "http://127.0.0.1:1/")
				answer(c.status, c.body)(w, req)
			})
			_, err := newClient(t, r.URL).GetSandbox(context.Background(), "a")
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(c.want, *e); diff != "" {
				t.Error(diff)
			}
			if e.Error() != c.text {
				t.Errorf("got %q", e.Error())
			}
		})
	}
}

func TestFailureHoldsNoSandboxID(t *testing.T) {
	_, err := newClient(t, refused(t)).GetSandbox(context.Background(), "k7m2qz4xw3v5n6a2j7p4t5r6sd")
	if err == nil || strings.Contains(err.Error(), "k7m2qz4xw3v5n6a2j7p4t5r6sd") {
		t.Errorf("got %v", err)
	}
}

func TestRequestsAreAsWritten(t *testing.T) {
	var got []string
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got = append(got, strings.Join([]string{
			req.Method, req.RequestURI, req.Header.Get("Authorization"), req.Header.Get(HeaderIdempotencyKey), string(body),
		}, "|"))
		if strings.HasSuffix(req.URL.Path, "tokens") && req.Method == http.MethodGet || strings.HasSuffix(req.URL.Path, "agents") ||
			strings.HasSuffix(req.URL.Path, "events") {
			answer(200, `[]`)(w, req)
			return
		}
		answer(200, `{}`)(w, req)
	})
	c := newClient(t, r.URL+"/")
	c.RequestID = func() string { return "mine" }
	ctx := context.Background()
	ttl := int64(60)
	for _, call := range []func() error{
		func() error { _, err := c.Version(ctx); return err },
		func() error { return c.Healthz(ctx) },
		func() error { return c.Readyz(ctx) },
		func() error {
			_, err := c.CreateSandbox(ctx, CreateSandbox{Template: "base", TTLSeconds: &ttl, Metadata: Object(`{"a":"<1>"}`), Env: StringMap{"A": "<b>"}}, "key")
			return err
		},
		func() error { _, err := c.GetSandbox(ctx, "../a/b c"); return err },
		func() error { return c.DeleteSandbox(ctx, "a") },
		func() error {
			_, err := c.Exec(ctx, "a", Exec{Cmd: Argv("x", "<y>"), StdinBase64: Bytes{0xff}})
			return err
		},
		func() error { _, err := c.Exec(ctx, "a", Exec{Cmd: Shell("x && y"), TimeoutSeconds: &ttl}); return err },
		func() error { _, err := c.Me(ctx); return err },
		func() error { _, err := c.SetCurrentOrg(ctx, "ws"); return err },
		func() error { _, err := c.CreateToken(ctx, CreateToken{Name: "n"}); return err },
		func() error { _, _, err := c.ListTokens(ctx, Page{Limit: 3, Cursor: "a b"}); return err },
		func() error { return c.RevokeToken(ctx, "abcd") },
		func() error { _, err := c.RaftStatus(ctx); return err },
		func() error { return c.AddPeer(ctx, "r4", "h:1") },
		func() error { return c.RemovePeer(ctx, "r4") },
		func() error { return c.TransferLeadership(ctx, "") },
		func() error { return c.Restore(ctx, strings.NewReader("store"), 5) },
		func() error { return c.RestoreWithoutKeys(ctx, strings.NewReader("store"), -1) },
		func() error { _, _, err := c.ListAgents(ctx, Page{}); return err },
		func() error {
			_, err := c.AgentEvents(ctx, "h", EventQuery{Since: time.Unix(1_800_000_000, 0)})
			return err
		},
		func() error { _, err := c.DrainAgent(ctx, "h"); return err },
		func() error { _, err := c.GetAgent(ctx, "h"); return err },
		func() error { _, err := c.EvacuateAgent(ctx, "h", EvacuateAgent{}); return err },
		func() error { _, err := c.Rebalance(ctx, Rebalance{DryRun: true}); return err },
		func() error { _, err := c.GetRebalancing(ctx); return err },
		func() error { return c.StopRebalancing(ctx) },
		func() error { _, err := c.UndrainAgent(ctx, "h"); return err },
		func() error { return c.RemoveAgent(ctx, "h") },
		func() error { _, err := c.CreateJoinToken(ctx, CreateJoinToken{}); return err },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	const bearer = "|Bearer brt_x_y|"
	want := []string{
		"GET|/version" + bearer + "|",
		"GET|/healthz" + bearer + "|",
		"GET|/readyz" + bearer + "|",
		"POST|/v1/sandboxes" + bearer + `key|{"template":"base","ttl_seconds":60,"metadata":{"a":"<1>"},"env":{"A":"<b>"}}`,
		"GET|/v1/sandboxes/..%2Fa%2Fb%20c" + bearer + "|",
		"DELETE|/v1/sandboxes/a" + bearer + "|",
		"POST|/v1/sandboxes/a/exec" + bearer + `|{"cmd":["x","<y>"],"stdin_base64":"/w=="}`,
		"POST|/v1/sandboxes/a/exec" + bearer + `|{"cmd":"x && y","timeout_seconds":60}`,
		"GET|/v1/me" + bearer + "|",
		"POST|/v1/me/current-org" + bearer + `|{"org_id":"ws"}`,
		"POST|/v1/me/tokens" + bearer + `|{"name":"n"}`,
		"GET|/v1/me/tokens?cursor=a+b&limit=3" + bearer + "|",
		"DELETE|/v1/me/tokens/abcd" + bearer + "|",
		"GET|/v1/admin/raft-status" + bearer + "|",
		"POST|/v1/admin/raft/peers" + bearer + `|{"id":"r4","address":"h:1"}`,
		"DELETE|/v1/admin/raft/peers/r4" + bearer + "|",
		"POST|/v1/admin/raft/transfer-leadership" + bearer + "|{}",
		"POST|/v1/admin/raft/restore" + bearer + "|store",
		"POST|/v1/admin/raft/restore?without_keys=true" + bearer + "|store",
		"GET|/v1/admin/agents" + bearer + "|",
		"GET|/v1/admin/agents/h/events?since=2027-01-15T08%3A00%3A00.000Z" + bearer + "|",
		"POST|/v1/admin/agents/h/drain" + bearer + "|{}",
		"GET|/v1/admin/agents/h" + bearer + "|",
		"POST|/v1/admin/agents/h/evacuate" + bearer + "|{}",
		"POST|/v1/admin/rebalance" + bearer + `|{"dry_run":true}`,
		"GET|/v1/admin/rebalance" + bearer + "|",
		"DELETE|/v1/admin/rebalance" + bearer + "|",
		"POST|/v1/admin/agents/h/undrain" + bearer + "|{}",
		"DELETE|/v1/admin/agents/h" + bearer + "|",
		"POST|/v1/admin/join-tokens" + bearer + "|{}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSandboxesWalksEveryPage(t *testing.T) {
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Query().Get("cursor") {
		case "":
			w.Header().Set("Link", `</v1/sandboxes>; rel="first", </v1/sandboxes?cursor=c%2F1&limit=1000>; rel="next"`)
			answer(200, `[{"id":"a"},{"id":"b"}]`)(w, req)
		case "c/1":
			answer(200, `[{"id":"c"}]`)(w, req)
		default:
			answer(400, `{"error":"invalid cursor"}`)(w, req)
		}
	})
	c := newClient(t, r.URL)
	var ids []string
	for s, err := range c.Sandboxes(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, ids); diff != "" {
		t.Error(diff)
	}
	for range c.Sandboxes(context.Background()) {
		break // stopping early is no error
	}
	r.answer.Store(answer(500, `{"error":"x"}`))
	for _, err := range c.Sandboxes(context.Background()) {
		if StatusOf(err) != 500 {
			t.Errorf("got %v", err)
		}
	}
}

func TestBackup(t *testing.T) {
	r := newReplica(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	var b strings.Builder
	if err := newClient(t, r.URL).Backup(context.Background(), &b); err == nil {
		t.Error("a backup that was cut short is no error")
	}
	r.answer.Store(answer(200, "whole"))
	b.Reset()
	if err := newClient(t, r.URL).Backup(context.Background(), &b); err != nil || b.String() != "whole" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestAnswerThatIsNoJSON(t *testing.T) {
	r := newReplica(t, answer(200, "<html>"))
	if _, err := newClient(t, r.URL).GetSandbox(context.Background(), "a"); err == nil || StatusOf(err) != 0 {
		t.Errorf("got %v", err)
	}
}

func TestTime(t *testing.T) {
	in := Time{time.Date(2026, 11, 20, 14, 5, 9, 9_999_999, time.FixedZone("", 3600))}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `"2026-11-20T13:05:09.009Z"` {
		t.Errorf("got %s, %v", b, err)
	}
	var out Time
	for _, bad := range []string{`1`, `"yesterday"`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &out); err == nil {
			t.Errorf("%s was read as %s", bad, out)
		}
	}
	if err := json.Unmarshal([]byte(`"2026-11-20T13:05:09Z"`), &out); err != nil || out.String() != "2026-11-20T13:05:09.000Z" {
		t.Errorf("got %s, %v", out, err)
	}
	if NewTime(time.Time{}) != nil {
		t.Error("the zero time does not render as null")
	}
}

func TestDocsCoverEveryType(t *testing.T) {
	docs, err := Docs()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Sandbox.PreviewURL":  "a pattern: replace {port}",
		"Exec.TimeoutSeconds": "default 60, at most 3600",
	} {
		if docs[name] != want {
			t.Errorf("%s is %q", name, docs[name])
		}
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		switch name := f.Name(); {
		case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"),
			strings.HasPrefix(name, "calls"), name == "client.go", name == "docs.go":
		default:
			if _, err := source.Open(name); err != nil {
				t.Errorf("%s is not among the files whose comments are read", name)
			}
		}
	}
	for name, doc := range docs {
		if !strings.Contains(name, ".") && doc == "" {
			t.Errorf("%s has no comment", name)
		}
	}
}

func TestExitFrames(t *testing.T) {
	for raw, want := range map[string]*Exit{
		`{"type":"exit","exit_code":3}`:                                       {ExitCode: 3}, // as services before wrote it
		`{"type":"exit","exit_code":0,"duration_ms":0,"timed_out":false}`:     {},
		`{"type":"exit","exit_code":137,"duration_ms":1000,"timed_out":true}`: {ExitCode: 137, DurationMS: 1000, TimedOut: true},
		`{"type":"stdout","data":"x"}`:                                        nil,
	} {
		f, err := decodeFrame([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.exit()); diff != "" {
			t.Errorf("%s: %s", raw, diff)
		}
	}
}
