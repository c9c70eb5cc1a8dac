package httpapi

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/tier"
)

func TestRaftStatus(t *testing.T) {
	tier.Slow(t)
	r := newRig(t)
	r.cluster.status = api.RaftStatus{
		NodeID: "r2", State: "follower", LeaderID: "r1", LeaderAddress: "h1:7001", Term: 3,
		CommitIndex: 10, AppliedIndex: 9, LastLogIndex: 11, LastSnapshotIndex: 5, LastContactMS: 41,
		Peers: []api.RaftPeer{
			{ID: "r1", Address: "h1:7001", Voter: true, Healthy: true, AppliedIndex: 10},
			{ID: "r3", Address: "h3:7001", LastContactMS: -1},
		},
	}
	w := r.call(http.MethodGet, "/v1/admin/raft-status", "operator", "")
	const want = `{"node_id":"r2","state":"follower","leader_id":"r1","leader_address":"h1:7001","term":3,` +
		`"commit_index":10,"applied_index":9,"last_log_index":11,"last_snapshot_index":5,"last_contact_ms":41,"peers":[` +
		`{"id":"r1","address":"h1:7001","voter":true,"healthy":true,"last_contact_ms":0,"applied_index":10},` +
		`{"id":"r3","address":"h3:7001","voter":false,"healthy":false,"last_contact_ms":-1,"applied_index":0}]}`
	if diff := cmp.Diff(want, strings.TrimSpace(w.Body.String())); diff != "" {
		t.Error(diff)
	}
}

func TestMembership(t *testing.T) {
	r := newRig(t)
	var did []string
	r.cluster.addPeer = func(id, address string) error { did = append(did, "add "+id+" "+address); return nil }
	r.cluster.removePeer = func(id string) error { did = append(did, "remove "+id); return nil }
	r.cluster.transfer = func(to string) error { did = append(did, "transfer "+to); return nil }
	for _, call := range [][3]string{
		{"POST", "/v1/admin/raft/peers", `{"id":"r4","address":"h4:7001"}`},
		{"DELETE", "/v1/admin/raft/peers/r4", ""},
		{"POST", "/v1/admin/raft/transfer-leadership", `{"to":"r2"}`},
		{"POST", "/v1/admin/raft/transfer-leadership", `{}`},
	} {
		if w := r.call(call[0], call[1], "operator", call[2]); w.Code != 204 {
			t.Errorf("%v: got %d %s", call, w.Code, w.Body)
		}
	}
	if diff := cmp.Diff([]string{"add r4 h4:7001", "remove r4", "transfer r2", "transfer "}, did); diff != "" {
		t.Error(diff)
	}
}

func TestBackup(t *testing.T) {
	t.Run("whole", func(t *testing.T) {
		r := newRig(t)
		r.cluster.backup = func(w io.Writer) error {
			_, err := io.WriteString(w, "the store")
			return err
		}
		w := r.call(http.MethodGet, "/v1/admin/raft/snapshot", "operator", "")
		if w.Code != 200 || w.Body.String() != "the store" || w.Header().Get("Content-Type") != backupType {
			t.Errorf("got %d %v %q", w.Code, w.Header(), w.Body)
		}
	})
	t.Run("refused before the first byte", func(t *testing.T) {
		r := newRig(t)
		r.cluster.backup = func(io.Writer) error { return apierror.Unavailable("no leader", nil) }
		if w := r.call(http.MethodGet, "/v1/admin/raft/snapshot", "operator", ""); w.Code != 503 || errorOf(t, w).Detail != "no leader" {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	})
	t.Run("cut short, the client sees that it is not whole", func(t *testing.T) {
		r := newRig(t)
		r.cluster.backup = func(w io.Writer) error {
			_, _ = io.WriteString(w, "half of ")
			w.(*backupWriter).c.Writer.Flush()
			return errors.New("disk gone")
		}
		server := r.server()
		req, err := http.NewRequest(http.MethodGet, server.URL+"/v1/admin/raft/snapshot", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer operator")
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("read %q without an error", got)
		}
	})
	t.Run("HEAD makes none", func(t *testing.T) {
		r := newRig(t)
		r.cluster.backup = func(io.Writer) error { t.Error("a backup was made"); return nil }
		if w := r.call(http.MethodHead, "/v1/admin/raft/snapshot", "operator", ""); w.Code != 200 {
			t.Errorf("got %d", w.Code)
		}
	})
}

func TestRestore(t *testing.T) {
	r := newRig(t)
	var got string
	r.cluster.restore = func(in io.Reader) error {
		b, err := io.ReadAll(in)
		got = string(b)
		return err
	}
	if w := r.call(http.MethodPost, "/v1/admin/raft/restore", "operator", "\x00the store\xff"); w.Code != 204 || got != "\x00the store\xff" {
		t.Errorf("got %d %q", w.Code, got)
	}
	for query, want := range map[string]bool{"": false, "?without_keys=false": false, "?without_keys=true": true} {
		if w := r.call(http.MethodPost, "/v1/admin/raft/restore"+query, "operator", "x"); w.Code != 204 || r.cluster.withoutKeys != want {
			t.Errorf("%q: got %d, without keys: %t", query, w.Code, r.cluster.withoutKeys)
		}
	}
	t.Run("of any size", func(t *testing.T) {
		const size = 5 << 28
		req := request(t, http.MethodPost, "/v1/admin/raft/restore", "operator", "x")
		req.Body = io.NopCloser(io.LimitReader(zeros{}, size))
		req.ContentLength = size
		var n int64
		r.cluster.restore = func(in io.Reader) (err error) {
			n, err = io.Copy(io.Discard, in)
			return err
		}
		if w := r.send(req); w.Code != 204 || n != size {
			t.Errorf("got %d %s, and %d bytes were read", w.Code, w.Body, n)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestAgents(t *testing.T) {
	r := newRig(t)
	r.cluster.agents = []api.Agent{{ID: "host-2", Templates: []api.AgentTemplate{}}, {ID: "host-1", Templates: []api.AgentTemplate{}}}
	w := r.call(http.MethodGet, "/v1/admin/agents?limit=1", "operator", "")
	if w.Code != 200 || !strings.HasPrefix(w.Body.String(), `[{"id":"host-2",`) {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	link := w.Header().Get("Link")
	w = r.call(http.MethodGet, strings.TrimPrefix(strings.TrimSuffix(link, `>; rel="next"`), "<"), "operator", "")
	if w.Code != 200 || !strings.HasPrefix(w.Body.String(), `[{"id":"host-1",`) || w.Header().Get("Link") != "" {
		t.Fatalf("the page after %s: got %d %s %v", link, w.Code, w.Body, w.Header())
	}
}

func TestAgentJSON(t *testing.T) {
	r := newRig(t)
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	r.cluster.agents = []api.Agent{{
		ID: "host-a", Address: "h:7443", State: "up", Draining: true, Ready: true, CreatedAt: api.Time{Time: at}, LastSeenAt: api.NewTime(at.Add(time.Minute)),
		Capacity:  api.AgentCapacity{CPUs: 2, MemoryMB: 1024, ReservedMB: 512, Slots: 8, SlotsUsed: 1, DiskFreeBytes: 1 << 40},
		Sandboxes: 1,
		Versions:  api.AgentVersions{Hostd: "v1", Engine: "e", Kernel: "k"},
		Templates: []api.AgentTemplate{{Name: "base", BuildID: "b", Status: "ready"}, {Name: "x", Status: "failed", Error: new("no disk")}},
	}, {ID: "host-b", State: "lost", Templates: []api.AgentTemplate{}}}
	w := r.call(http.MethodGet, "/v1/admin/agents", "operator", "")
	const want = `[{"id":"host-a","address":"h:7443","state":"up","ready":true,"draining":true,"last_seen_at":"2026-11-20T10:01:00.000Z",` +
		`"capacity":{"cpus":2,"memory_mb":1024,"reserved_mb":512,"slots":8,"slots_used":1,"disk_free_bytes":1099511627776},` +
		`"versions":{"hostd":"v1","engine":"e","kernel":"k"},` +
		`"templates":[{"name":"base","build_id":"b","status":"ready","error":null},{"name":"x","build_id":"","status":"failed","error":"no disk"}],` +
		`"sandboxes":1,"evacuation":null,"created_at":"2026-11-20T10:00:00.000Z"},` +
		`{"id":"host-b","address":"","state":"lost","ready":false,"draining":false,"last_seen_at":null,` +
		`"capacity":{"cpus":0,"memory_mb":0,"reserved_mb":0,"slots":0,"slots_used":0,"disk_free_bytes":0},` +
		`"versions":{"hostd":"","engine":"","kernel":""},"templates":[],"sandboxes":0,"evacuation":null,"created_at":"0001-01-01T00:00:00.000Z"}]`
	if diff := cmp.Diff(want, strings.TrimSpace(w.Body.String())); diff != "" {
		t.Error(diff)
	}
}

func TestChangeAgents(t *testing.T) {
	r := newRig(t)
	var did []string
	r.cluster.changeAgent = func(verb, id string) (api.Agent, error) {
		did = append(did, verb+" "+id)
		if id == "gone" {
			return api.Agent{}, apierror.NotFound()
		}
		return api.Agent{ID: id, Draining: verb == "drain", Templates: []api.AgentTemplate{}}, nil
	}
	for _, c := range []struct {
		method, target, body string
		status               int
	}{
		{"POST", "/v1/admin/agents/host-a/drain", "{}", 200},
		{"POST", "/v1/admin/agents/host-a/evacuate", `{"at_once":2}`, 200},
		{"GET", "/v1/admin/agents/host-a", "", 200},
		{"GET", "/v1/admin/agents/gone", "", 404},
		{"POST", "/v1/admin/agents/host-a/undrain", "{}", 200},
		{"POST", "/v1/admin/rebalance", `{"dry_run":true}`, 200},
		{"GET", "/v1/admin/rebalance", "", 200},
		{"DELETE", "/v1/admin/rebalance", "", 204},
		{"DELETE", "/v1/admin/agents/host-a", "", 204},
		{"POST", "/v1/admin/agents/gone/drain", "{}", 404},
		{"DELETE", "/v1/admin/agents/gone", "", 404},
	} {
		if w := r.call(c.method, c.target, "operator", c.body); w.Code != c.status {
			t.Errorf("%s %s: got %d %s", c.method, c.target, w.Code, w.Body)
		}
	}
	if diff := cmp.Diff([]string{"drain host-a", "evacuate host-a", "get host-a", "get gone", "undrain host-a", "rebalance true", "rebalancing ", "stop rebalancing ", "remove host-a", "drain gone", "remove gone"}, did); diff != "" {
		t.Error(diff)
	}
}

func TestJoinToken(t *testing.T) {
	r := newRig(t)
	var asked []api.CreateJoinToken
	r.cluster.joinToken = func(in api.CreateJoinToken) (api.JoinToken, error) {
		asked = append(asked, in)
		return api.JoinToken{
			Token: "tok", ExpiresAt: api.Time{Time: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}, CASHA256: "ab", Peers: []string{"h:1"},
		}, nil
	}
	w := r.call(http.MethodPost, "/v1/admin/join-tokens", "operator", `{"ttl_seconds":90}`)
	if got := strings.TrimSpace(w.Body.String()); w.Code != 201 ||
		got != `{"token":"tok","expires_at":"2026-11-20T10:00:00.000Z","ca_sha256":"ab","peers":["h:1"]}` {
		t.Errorf("got %d %s", w.Code, got)
	}
	r.call(http.MethodPost, "/v1/admin/join-tokens", "operator", `{}`)
	if diff := cmp.Diff([]api.CreateJoinToken{{TTLSeconds: new(int64(90))}, {}}, asked); diff != "" {
		t.Error(diff)
	}
}

func TestIdentity(t *testing.T) {
	at := api.Time{Time: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}
	orgs := []api.Org{{ID: "ws-1", Name: "One", Role: "owner", Tier: "free", CreatedAt: at}, {ID: "ws-2", Name: "Two", Role: "owner", Tier: "free", Suspended: true, CreatedAt: at}}
	profile := api.Me{ID: "u-1", Email: "a@b", CurrentOrg: &orgs[1], Orgs: orgs}
	token := api.Token{Prefix: "abcdefgh", Name: "n", Scopes: []string{"all"}, CreatedAt: at}
	var did []string
	r := newRig(t, func(c *Config) {
		c.Orgs = &fakeIdentity{
			me: func(core.Caller) (api.Me, error) { return profile, nil },
			setOrg: func(_ core.Caller, id string) (api.Me, error) {
				did = append(did, "org "+id)
				return profile, nil
			},
			create: func(_ core.Caller, name string) (api.NewToken, error) {
				did = append(did, "create "+name)
				return api.NewToken{Token: token, Key: "brt_abcdefgh_secret"}, nil
			},
			list: func(_ core.Caller, o core.ListOptions) ([]api.Token, string, error) {
				return []api.Token{token}, "next", nil
			},
			revoke: func(_ core.Caller, prefix string) error { did = append(did, "revoke "+prefix); return nil },
		}
	})
	const me = `{"id":"u-1","email":"a@b","current_org":{"id":"ws-2","name":"Two","role":"owner","tier":"free","suspended":true,"created_at":"2026-11-20T10:00:00.000Z"},` +
		`"orgs":[{"id":"ws-1","name":"One","role":"owner","tier":"free","suspended":false,"created_at":"2026-11-20T10:00:00.000Z"},` +
		`{"id":"ws-2","name":"Two","role":"owner","tier":"free","suspended":true,"created_at":"2026-11-20T10:00:00.000Z"}]}`
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/v1/me", "", 200, me},
		{"POST", "/v1/me/current-org", `{"org_id":"ws-2"}`, 200, me},
		{"POST", "/v1/me/tokens", `{"name":"n"}`, 201, `{"prefix":"abcdefgh","name":"n","scopes":["all"],"created_at":"2026-11-20T10:00:00.000Z","expires_at":null,"last_used_at":null,"token":"brt_abcdefgh_secret"}`},
		{"POST", "/v1/me/tokens", `{}`, 201, `{"prefix":"abcdefgh","name":"n","scopes":["all"],"created_at":"2026-11-20T10:00:00.000Z","expires_at":null,"last_used_at":null,"token":"brt_abcdefgh_secret"}`},
		{"GET", "/v1/me/tokens", "", 200, `[{"prefix":"abcdefgh","name":"n","scopes":["all"],"created_at":"2026-11-20T10:00:00.000Z","expires_at":null,"last_used_at":null}]`},
		{"POST", "/v1/me/tokens", `{"expires_at":"soon"}`, 400, `{"detail":"expires_at must be an RFC 3339 time, not string","error":"invalid json"}`},
		{"DELETE", "/v1/me/tokens/abcdefgh", "", 204, ""},
	} {
		w := r.call(c.method, c.target, "jwt", c.body)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.want {
			t.Errorf("%s %s: got %d %s", c.method, c.target, w.Code, got)
		}
	}
	if diff := cmp.Diff([]string{"org ws-2", "create n", "create ", "revoke abcdefgh"}, did); diff != "" {
		t.Error(diff)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an API of nothing was made")
	}
}
