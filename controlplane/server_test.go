package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

func TestThreeReplicasServeAsOne(t *testing.T) {
	s := newStack(t)
	h1, h2 := s.join("h1", 8192), s.join("h2", 8192)
	var requestIDs sync.Map
	for _, h := range []*fakehost.Host{h1, h2} {
		h.SetFault(func(_ context.Context, c fakehost.Call) error {
			requestIDs.Store(c.Op+" "+c.RequestID, true)
			return nil
		})
	}
	_, key := s.user("ann")
	for i, p := range s.replicas {
		t.Run("through "+p.id, func(t *testing.T) {
			c := s.client(key, p.url)
			rid := fmt.Sprintf("my-request-%d", i)
			c.RequestID = func() string { return rid }
			sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", Metadata: api.Object(`{"n":1}`), Env: api.StringMap{"K": "v"}}, "")
			if err != nil {
				t.Fatal(err)
			}
			if sb.Status != "running" || len(sb.ID) != 26 || sb.MemoryMB != 512 || sb.AgentID == "" || sb.StartedAt == nil ||
				string(sb.Metadata) != `{"n":1}` || sb.PreviewURL != "https://{port}-"+sb.ID+".preview.test" {
				t.Fatalf("%+v", sb)
			}
			if _, ok := requestIDs.Load("put " + rid); !ok {
				t.Fatal("the host did not get the request's id")
			}
			// The other replicas show what one has acknowledged.
			for _, q := range s.replicas {
				got, err := s.client(key, q.url).GetSandbox(t.Context(), sb.ID)
				if err != nil || got.ID != sb.ID {
					t.Fatalf("replica %s: %v", q.id, err)
				}
				list, _, err := s.client(key, q.url).ListSandboxes(t.Context(), api.Page{})
				if err != nil || len(list) != 1 {
					t.Fatalf("replica %s lists %d, %v", q.id, len(list), err)
				}
			}
			res, err := c.Exec(t.Context(), sb.ID, api.Exec{Cmd: api.Command{Shell: "echo hi"}})
			if err != nil || res.Stdout != "sh -c echo hi" {
				t.Fatalf("%+v, %v", res, err)
			}
			if err := c.DeleteSandbox(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := c.GetSandbox(t.Context(), sb.ID); api.StatusOf(err) != 404 {
				t.Fatalf("after the delete: %v", err)
			}
			if err := c.DeleteSandbox(t.Context(), sb.ID); api.StatusOf(err) != 404 {
				t.Fatalf("second delete: %v", err)
			}
		})
	}
	if n := len(h1.Boxes()) + len(h2.Boxes()); n != 0 {
		t.Fatalf("%d boxes left", n)
	}
	for _, p := range s.replicas {
		st, err := s.admin(p.url).RaftStatus(t.Context())
		if err != nil || st.NodeID != p.id || len(st.Peers) != 3 {
			t.Fatalf("%+v, %v", st, err)
		}
		for _, q := range st.Peers {
			if !q.Healthy || q.AppliedIndex == 0 || !q.Voter {
				t.Errorf("%s sees peer %+v", p.id, q)
			}
		}
	}
	_, metrics := raw(t, "GET", s.leader().url+"/metrics", "", "")
	for _, want := range []string{
		`berth_create_stage_seconds_count{engine="true",stage="host.restore"} 3`, `berth_create_stage_seconds_count{engine="false",stage="own"} 3`,
		`stage="admit"`, `stage="placement"`, `stage="dispatch"`, `stage="host_call"`, `stage="commit"`, `stage="total"`,
		`berth_raft_state{state="leader"} 1`, `berth_agents{state="up"} 2`, `berth_store_commits_total`, `berth_http_request_duration_seconds`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// Another workspace's credential gets 404 on each route of a sandbox, through
// each replica, and changes nothing.
func TestOtherWorkspacesFindNothing(t *testing.T) {
	tier.Slow(t)
	s := newStack(t)
	h := s.join("h1", 8192)
	_, ann := s.user("ann")
	eveJWT, eve := s.user("eve")
	sb, err := s.client(ann).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "k")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range s.replicas {
		token := []string{eve, eveJWT, eve}[i]
		for _, rt := range tenantRoutes(t, p.url) {
			path := strangers(t, rt.path, sb.ID)
			if path == "" {
				continue
			}
			resp, body := patiently(t, rt.method, p.url+path, token, rt.body)
			if resp.StatusCode != 404 || !strings.Contains(body, `"error":"not found"`) {
				t.Errorf("%s %s: %d %s", rt.method, rt.path, resp.StatusCode, body)
			}
		}
		if resp, list := patiently(t, http.MethodGet, p.url+"/v1/sandboxes", token, ""); resp.StatusCode != 200 || strings.TrimSpace(list) != "[]" {
			t.Errorf("list: %d %s", resp.StatusCode, list)
		}
	}
	if got, err := s.client(ann).GetSandbox(t.Context(), sb.ID); err != nil || got.Status != "running" || got.TTLSeconds != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	// Another workspace can use the same idempotency key.
	_, eva := s.user("eva")
	other, err := s.client(eva).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "k")
	if err != nil || other.ID == sb.ID {
		t.Fatalf("%v", err)
	}
	if _, ok := h.Boxes()[sb.ID]; !ok {
		t.Fatal("the sandbox is gone")
	}
}

func TestCredentials(t *testing.T) {
	s := newStack(t)
	annJWT, ann := s.user("ann")
	p := s.follower()
	for _, c := range []struct {
		name, method, path, token string
		status                    int
		detail                    string
	}{
		{"no credential", "GET", "/v1/sandboxes", "", 401, "missing bearer token"},
		{"noise", "GET", "/v1/sandboxes", "x", 401, "invalid api token"},
		{"an unknown key", "GET", "/v1/sandboxes", "brt_aaaaaaaa_" + strings.Repeat("a", 32), 401, "invalid api token"},
		{"a key with another secret", "GET", "/v1/sandboxes", ann[:len(ann)-1] + "~", 401, "invalid api token"},
		{"a key on a route for people", "GET", "/v1/me", ann, 401, "jwt required"},
		{"a JWT there", "GET", "/v1/me", annJWT, 200, ""},
		{"a JWT for another purpose", "GET", "/v1/sandboxes", annJWT, 200, ""},
		{"a broken JWT", "GET", "/v1/me", annJWT + "x", 401, "invalid api token"},
		{"a JWT without signature", "GET", "/v1/me", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.", 401, "invalid api token"},
		{"the operator is no tenant", "GET", "/v1/sandboxes", adminToken, 401, "invalid api token"},
		{"a tenant is no operator", "GET", "/v1/admin/agents", ann, 403, ""},
		{"the operator", "GET", "/v1/admin/agents", adminToken, 200, ""},
	} {
		resp, body := raw(t, c.method, p.url+c.path, c.token, "")
		if resp.StatusCode != c.status || !strings.Contains(body, c.detail) || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
		}
	}
	// Clients cannot call the internal routes, not even through a replica that
	// forwards.
	for _, q := range s.replicas {
		for _, path := range []string{peer.PathStatus, hostapi.PathHeartbeat, hostapi.PathJoin, "/%69nternal/v1/status", "/v1/../internal/v1/status", "//internal/v1/status"} {
			for _, method := range []string{"GET", "POST"} {
				if resp, body := raw(t, method, q.url+path, adminToken, "{}"); resp.StatusCode != 404 {
					t.Errorf("%s %s on the public port: %d %s", method, path, resp.StatusCode, body)
				}
			}
		}
	}
	// An operator's certificate, on the peer port of a replica that forwards it.
	node, err := pki.LoadOperator(filepath.Join(s.dir, "pki", "operator"))
	if err != nil {
		t.Fatal(err)
	}
	transport := peer.NewTransport(node)
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + p.peer + "/v1/admin/agents")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("operator's certificate: %d", resp.StatusCode)
	}
	// A revoked key is refused.
	prefix := strings.Split(ann, "_")[1]
	if err := s.client(annJWT).RevokeToken(t.Context(), prefix); err != nil {
		t.Fatal(err)
	}
	if resp, _ := raw(t, "GET", p.url+"/v1/sandboxes", ann, ""); resp.StatusCode != 401 {
		t.Fatalf("revoked key: %d", resp.StatusCode)
	}
}

func TestJoinTokensWorkOnce(t *testing.T) {
	s := newStack(t)
	s.join("h1", 1024)
	token, err := s.admin().CreateJoinToken(t.Context(), api.CreateJoinToken{})
	if err != nil {
		t.Fatal(err)
	}
	if token.CASHA256 != s.ca.Fingerprint() {
		t.Fatal("the token's answer names another CA")
	}
	if _, status := s.askToJoin(s.peers[0], token.Token, "h1"); status != 409 {
		t.Errorf("taking over a host: %d", status)
	}
	if _, status := s.askToJoin(s.peers[0], token.Token, "Not/A-Name"); status != 400 {
		t.Errorf("bad name: %d", status)
	}
	if _, status := s.askToJoin(s.peers[1], token.Token, "h2"); status != 200 {
		t.Errorf("first use: %d", status)
	}
	if _, status := s.askToJoin(s.peers[2], token.Token, "h3"); status != 401 {
		t.Errorf("second use: %d", status)
	}
	if _, status := s.askToJoin(s.peers[2], "bjt_guess", "h3"); status != 401 {
		t.Errorf("unknown token: %d", status)
	}
}

func TestCreateErrors(t *testing.T) {
	s := newStack(t)
	_, key := s.user("ann")
	c := s.client(key, s.follower().url)
	create := func(body string) (int, string) {
		resp, text := raw(t, "POST", s.follower().url+"/v1/sandboxes", key, body)
		return resp.StatusCode, text
	}
	if status, body := create(`{"template":"base"}`); status != 502 || !strings.Contains(body, `"no available compute node"`) {
		t.Fatalf("without hosts: %d %s", status, body)
	}
	h1 := s.join("h1", 2*(512+32))
	if status, body := create(`{"template":"nope"}`); status != 400 || !strings.Contains(body, `"unknown template"`) || !strings.Contains(body, "base") {
		t.Fatalf("unknown template: %d %s", status, body)
	}
	for _, bad := range []string{
		`{}`, `{"template":""}`, `{"template":"../x"}`, `{"template":"base","ttl_seconds":0}`, `{"template":"base","ttl_seconds":-5}`,
		`{"template":"base","metadata":[]}`, `{"template":"base","metadata":"x"}`, `{"template":"base","env":{"A=B":"x"}}`,
		`{"template":"base","env":{"A":"x\u0000y"}}`, `{"template":"base","env":{"":"x"}}`, `{"template":"base","boot":"warm"}`,
		`{"template":"base","env":[]}`, `{"template":5}`, `nonsense`, `{"template":"base","metadata":{"x":"` + strings.Repeat("y", 20<<10) + `"}}`,
	} {
		if status, body := create(bad); status != 400 {
			t.Errorf("%.60s: %d %s", bad, status, body)
		}
	}
	if status, _ := create(`{"template":"base","from_snapshot":"snap-1"}`); status != 404 {
		t.Errorf("unknown snapshot: %d", status)
	}
	if status, _ := create(""); status != 411 {
		t.Errorf("no body: %d", status)
	}
	// If a host is full, the create goes to another.
	h1.SetFault(func(_ context.Context, call fakehost.Call) error {
		if call.Op == "put" {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "insufficient host memory for sandbox"}
		}
		return nil
	})
	h2 := s.join("h2", 1*(512+32))
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
	if err != nil || sb.AgentID != "h2" {
		t.Fatalf("%+v, %v", sb, err)
	}
	if status, body := create(`{"template":"base"}`); status != 502 || !strings.Contains(body, `"no available compute node"`) {
		t.Fatalf("full: %d %s", status, body)
	}
	h1.SetFault(func(_ context.Context, call fakehost.Call) error {
		if call.Op == "put" {
			return fakehost.ErrDrop
		}
		return nil
	})
	resp, body := raw(t, "POST", s.leader().url+"/v1/sandboxes", key, `{"template":"base"}`)
	if resp.StatusCode != 502 || !strings.Contains(body, `"agent unreachable"`) || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("unreachable: %d %s", resp.StatusCode, body)
	}
	if n := len(h1.Boxes()) + len(h2.Boxes()); n != 1 {
		t.Fatalf("%d boxes", n)
	}
}

func TestIdempotencyKeys(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	_, key := s.user("ann")
	c := s.client(key)
	in := api.CreateSandbox{Template: "base"}
	// Simultaneous requests with one key create one sandbox.
	hold := make(chan struct{})
	h.SetFault(func(ctx context.Context, call fakehost.Call) error {
		if call.Op == "put" && !call.Done {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			sb, err := s.client(key, s.replicas[i%3].url).CreateSandbox(t.Context(), in, "key-1")
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = sb.ID
		})
	}
	testcluster.Await(t, "a create under way", func() bool {
		list, _, err := c.ListSandboxes(t.Context(), api.Page{})
		return err == nil && len(list) == 1 && list[0].Status == api.SandboxStarting
	})
	close(hold)
	wg.Wait()
	if len(slices.Compact(slices.Clone(ids))) != 1 {
		t.Fatalf("several sandboxes: %v", ids)
	}
	if _, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", Boot: new(api.BootCold)}, "key-1"); api.StatusOf(err) != 409 || !strings.Contains(err.Error(), "idempotency key reused") {
		t.Fatalf("another body: %v", err)
	}
	// And after the leader has changed.
	s.leader().kill()
	again, err := c.CreateSandbox(t.Context(), in, "key-1")
	if err != nil || again.ID != ids[0] {
		t.Fatalf("%v, %v", again, err)
	}
	// The key of a failed create can be used again.
	h.SetFault(func(_ context.Context, call fakehost.Call) error {
		if call.Op == "put" {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "broken"}
		}
		return nil
	})
	if _, err := c.CreateSandbox(t.Context(), in, "key-2"); api.StatusOf(err) != 500 {
		t.Fatalf("failed create: %v", err)
	}
	h.SetFault(nil)
	if _, err := c.CreateSandbox(t.Context(), in, "key-2"); err != nil {
		t.Fatalf("the same key again: %v", err)
	}
	// A key does not create again what the client has deleted.
	if err := c.DeleteSandbox(t.Context(), again.ID); err != nil {
		t.Fatal(err)
	}
	if after, err := c.CreateSandbox(t.Context(), in, "key-1"); err != nil || after.ID != again.ID {
		t.Fatalf("key of a deleted sandbox: %+v, %v", after, err)
	}
	if list, _, err := c.ListSandboxes(t.Context(), api.Page{}); err != nil || len(list) != 1 { // that of key-2
		t.Fatalf("%+v, %v", list, err)
	}
}

func TestRateLimit(t *testing.T) {
	tier.Slow(t) // its hundred requests have to come within two seconds
	s := newStack(t)
	_, key := s.user("ann")
	_, other := s.user("eve")
	c, leader := s.client(key, s.leader().url), s.leader()
	var limited error
	for range 100 {
		if _, _, err := c.ListSandboxes(t.Context(), api.Page{}); err != nil {
			limited = err
			break
		}
	}
	var e *api.Error
	if !errors.As(limited, &e) || e.Status != 429 || e.RetryAfter != time.Second || e.Message != "rate limit: 50 req/burst, 25/sec sustained per workspace" {
		t.Fatalf("%v", limited)
	}
	if _, _, err := s.client(other, leader.url).ListSandboxes(t.Context(), api.Page{}); err != nil {
		t.Fatalf("another workspace: %v", err)
	}
}

// A client that spreads over all replicas gets no more than one that does not.
func TestRateLimitAcrossReplicas(t *testing.T) {
	tier.Slow(t)
	s := newStack(t)
	_, key := s.user("ann")
	var passed atomic.Int64
	start := time.Now()
	var all sync.WaitGroup
	for _, p := range s.replicas {
		for range 4 {
			all.Go(func() {
				for time.Since(start) < 3*time.Second {
					if resp, _ := raw(t, http.MethodGet, p.url+"/v1/volumes", key, ""); resp.StatusCode == http.StatusOK {
						passed.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	took := time.Since(start).Seconds()
	if most := 50 + 25*took + 1; float64(passed.Load()) > most || passed.Load() < 50 {
		t.Errorf("%d requests in %.1f s, want at most %.0f", passed.Load(), took, most)
	}
	// What replicas take from each other is not for clients.
	for _, p := range s.replicas {
		if resp, _ := raw(t, http.MethodPost, p.url+peer.PathRate+"?workspace=ws&n=1", adminToken, "{}"); resp.StatusCode != 404 {
			t.Errorf("%s: %d", p.id, resp.StatusCode)
		}
	}
}
