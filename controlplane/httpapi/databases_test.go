package httpapi

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

var _ Databases = (*database.Databases)(nil)

// fakeDatabases has one database, "db", and answers with what it was asked.
type fakeDatabases struct {
	Databases // of which whatever is not here panics, as a 500

	created api.CreateDatabase
	cloned  api.CloneDatabase
	forced  bool
	patched *bool
	key     core.Idempotency
}

func fakeDatabase(id string) (api.Database, error) {
	if id != "db" {
		return api.Database{}, apierror.NotFound()
	}
	return api.Database{ID: "db", Status: api.DatabaseRunning, Template: "postgres-16", Size: api.Database1G, Port: 5432, Password: "p", BrokerURL: "/v1/databases/db/proxy"}, nil
}

func (f *fakeDatabases) Create(_ context.Context, _ core.Caller, in api.CreateDatabase, i core.Idempotency) (api.Database, error) {
	f.created, f.key = in, i
	return fakeDatabase("db")
}

func (f *fakeDatabases) Get(_ context.Context, _ core.Caller, id string) (api.Database, error) {
	return fakeDatabase(id)
}

func (f *fakeDatabases) List(context.Context, core.Caller, core.ListOptions) ([]api.Database, string, error) {
	d, err := fakeDatabase("db")
	return []api.Database{d}, "next", err
}

func (f *fakeDatabases) Connection(_ context.Context, _ core.Caller, id string) (api.DatabaseConnection, error) {
	d, err := fakeDatabase(id)
	return api.DatabaseConnection{Status: d.Status, Port: d.Port, Password: d.Password, BrokerURL: d.BrokerURL}, err
}

func (f *fakeDatabases) Patch(_ context.Context, _ core.Caller, id string, in api.PatchDatabase) (api.Database, error) {
	f.patched = &in.AlwaysOn
	return fakeDatabase(id)
}

func (f *fakeDatabases) Delete(_ context.Context, _ core.Caller, id string) error {
	_, err := fakeDatabase(id)
	return err
}

func (f *fakeDatabases) Wake(_ context.Context, _ core.Caller, id string) (api.DatabaseWake, error) {
	_, err := fakeDatabase(id)
	return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "soon"}, err
}

func (f *fakeDatabases) ResetCredentials(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error) {
	return f.Connection(ctx, c, id)
}

func (f *fakeDatabases) Clone(_ context.Context, _ core.Caller, id string, in api.CloneDatabase, i core.Idempotency) (api.Database, error) {
	f.cloned, f.key = in, i
	return fakeDatabase(id)
}

func (f *fakeDatabases) Failover(_ context.Context, _ core.Caller, id string, in api.FailoverDatabase) (api.DatabaseFailover, error) {
	f.forced = in.Force
	_, err := fakeDatabase(id)
	return api.DatabaseFailover{ID: id, Status: api.DatabaseRestoring, Error: "hint"}, err
}

func (f *fakeDatabases) Archive(_ context.Context, _ core.Caller, id string) (api.DatabaseArchive, error) {
	_, err := fakeDatabase(id)
	return api.DatabaseArchive{BaseBackups: []api.DatabaseBaseBackup{}}, err
}

func (f *fakeDatabases) Logs(_ context.Context, _ core.Caller, id string, tail int) (io.ReadCloser, error) {
	_, err := fakeDatabase(id)
	return io.NopCloser(strings.NewReader(strings.Repeat("line\n", tail))), err
}

func (f *fakeDatabases) FollowLogs(_ context.Context, _ core.Caller, id string, _ int) (core.Follower[sandbox.LogLine], error) {
	if _, err := fakeDatabase(id); err != nil {
		return nil, err
	}
	return &listOf[sandbox.LogLine]{left: []sandbox.LogLine{{Stream: "stderr", LogLine: api.LogLine{Line: "ready"}}}}, nil
}

func TestDatabaseRoutes(t *testing.T) {
	r := newRig(t)
	if r.call("POST", "/v1/databases/db/clone", "tenant", "{}", api.HeaderIdempotencyKey, "k1"); r.databases.key.Key != "k1" || len(r.databases.key.BodySHA256) == 0 {
		t.Errorf("a clone has the key %+v", r.databases.key)
	}
	if r.call("POST", "/v1/databases", "tenant", "{}", api.HeaderIdempotencyKey, "k2"); r.databases.key.Key != "k2" {
		t.Errorf("a create has the key %+v", r.databases.key)
	}
	for _, c := range []struct {
		method, target, body string
		status               int
		has                  string
	}{
		{"POST", "/v1/databases", `{"label":"l","size":"4g","always_on":true,"cpu":2,"memory_mb":64}`, 202, `"broker_url":"http://example.com/v1/databases/db/proxy"`},
		{"POST", "/v1/databases", `{}`, 202, `"id":"db"`},
		{"POST", "/v1/databases", ``, 411, ``},
		{"POST", "/v1/databases", `{"size":1}`, 400, `"invalid json"`},
		{"GET", "/v1/databases", ``, 200, `[{"id":"db"`},
		{"GET", "/v1/databases/db", ``, 200, `"password":"p"`},
		{"GET", "/v1/databases/no", ``, 404, `"not found"`},
		{"GET", "/v1/databases/db/connection", ``, 200, `"broker_url":"http://example.com/v1/databases/db/proxy"`},
		{"PATCH", "/v1/databases/db", `{"always_on":true}`, 200, `"id":"db"`},
		{"PATCH", "/v1/databases/db", `{"always_on":`, 400, `"invalid json"`},
		{"PATCH", "/v1/databases/no", `{}`, 404, `"not found"`},
		{"DELETE", "/v1/databases/db", ``, 204, ``},
		{"DELETE", "/v1/databases/no", ``, 404, `"not found"`},
		{"POST", "/v1/databases/db/wake", `{}`, 202, `{"status":"waking","detail":"soon"}`},
		{"POST", "/v1/databases/db/reset-credentials", `{}`, 200, `"password":"p"`},
		{"POST", "/v1/databases/db/clone", `{"target_time":"x"}`, 202, `"id":"db"`},
		{"POST", "/v1/databases/db/clone", `{"target_time":5}`, 400, `"invalid json"`},
		{"POST", "/v1/databases/db/failover", `{"force":true}`, 202, `{"id":"db","status":"restoring","error":"hint"}`},
		{"GET", "/v1/databases/db/archive", ``, 200, `"first_restorable":null,"last_restorable":null,"last_archived_lsn":null`},
		{"GET", "/v1/databases/db/logs?tail=2", ``, 200, "line\nline\n"},
		{"GET", "/v1/databases/db/logs?tail=0", ``, 400, `"invalid tail"`},
		{"GET", "/v1/databases/db/logs?follow=1", ``, 200, "event: stderr\ndata: {"},
	} {
		w := r.call(c.method, c.target, "tenant", c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.target, c.body, w.Code, w.Body, c.status, c.has)
		}
	}
	if link := r.call("GET", "/v1/databases?limit=1", "tenant", "").Header().Get("Link"); link != `</v1/databases?cursor=next&limit=1>; rel="next"` {
		t.Errorf("the next page is at %q", link)
	}
	if f := r.databases; !f.forced || *f.cloned.TargetTime != "x" || f.patched == nil || !*f.patched {
		t.Errorf("%+v", f)
	}
}

// A PATCH changes only always_on.
func TestAPatchOfADatabaseIsOfOneField(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{`{}`, `{"always_on":null}`, `{"always_on":"true"}`, `{"always_on":1}`, `{"Always_On":true}`, `{"label":"x"}`, `{"always_on":true,"label":"x"}`, `{"size":"4g"}`} {
		w := r.call("PATCH", "/v1/databases/db", "tenant", body)
		if e := errorOf(t, w); w.Code != 400 || e.Error != "no updatable fields provided (supported: always_on)" {
			t.Errorf("%s: %d %+v", body, w.Code, e)
		}
	}
	if r.databases.patched != nil {
		t.Error("it was patched")
	}
}

// The broker's URL starts with the address that the client used.
func TestTheBrokersURLIsTheClients(t *testing.T) {
	r := newRig(t)
	for proto, want := range map[string]string{"": "http://api.test", "https": "https://api.test", "gopher": "http://api.test"} {
		req := httptest.NewRequest("GET", "http://api.test/v1/databases/db", nil)
		req.Header.Set("Authorization", "Bearer tenant")
		if proto != "" {
			req.Header.Set("X-Forwarded-Proto", proto)
		}
		if w := r.send(req); !strings.Contains(w.Body.String(), `"broker_url":"`+want+`/v1/databases/db/proxy"`) {
			t.Errorf("%q: %s", proto, w.Body)
		}
	}
}
