package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// planeDatabases are databases that run after they were looked at twice.
type planeDatabases struct {
	httpapi.Databases
	*plane
	all   []api.Database
	looks int // since the last change
}

func (p *planeDatabases) find(id string) (*api.Database, error) {
	for i := range p.all {
		if p.all[i].ID == id {
			return &p.all[i], nil
		}
	}
	return nil, apierror.NotFound()
}

func (p *planeDatabases) add(db api.Database) api.Database {
	p.mu.Lock()
	defer p.mu.Unlock()
	db.ID = fmt.Sprintf("7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c%02d", len(p.all))
	db.Status, db.Template, db.Error = api.DatabaseProvisioning, "postgres-16", "PostgreSQL is starting"
	db.CreatedAt = *api.NewTime(time.Now())
	if db.Port = 5432; db.Label != "unrouted" {
		db.Host = db.ID + ".db.example.com"
	}
	p.all, p.looks = append([]api.Database{db}, p.all...), 0
	return db
}

func (p *planeDatabases) Create(_ context.Context, _ core.Caller, in api.CreateDatabase, _ core.Idempotency) (api.Database, error) {
	size := api.Database1G
	if in.Size != nil {
		size = *in.Size
	}
	if size != api.Database1G && size != api.Database4G {
		return api.Database{}, &apierror.Error{Code: apierror.EInvalid, Message: "size must be 1g, 4g or 16g"}
	}
	return p.add(api.Database{Label: in.Label, AlwaysOn: in.AlwaysOn, Size: size}), nil
}

func (p *planeDatabases) Clone(_ context.Context, _ core.Caller, id string, in api.CloneDatabase, _ core.Idempotency) (api.Database, error) {
	p.mu.Lock()
	db, err := p.find(id)
	p.mu.Unlock()
	if err != nil {
		return api.Database{}, err
	}
	out := api.Database{ClonedFrom: id, Label: db.Label + " (clone)", Size: db.Size}
	if in.TargetTime != nil {
		at, err := time.Parse(time.RFC3339Nano, *in.TargetTime)
		if err != nil {
			return api.Database{}, &apierror.Error{Code: apierror.EInvalid, Message: "invalid target_time (want RFC3339, such as 2026-11-20T13:05:09Z)"}
		}
		out.TargetTime = api.NewTime(at)
	}
	return p.add(out), nil
}

func (p *planeDatabases) Get(_ context.Context, _ core.Caller, id string) (api.Database, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	db, err := p.find(id)
	if err != nil {
		return api.Database{}, err
	}
	p.looks++
	switch {
	case db.Label == "busy" && p.looks == 1:
		return api.Database{}, &apierror.Error{Code: apierror.ERateLimited, Message: "too many requests", RetryAfter: time.Second}
	case db.Label == "busy" && p.looks == 2:
		return api.Database{}, &apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	case db.Label == "hidden":
		return api.Database{}, apierror.NotFound()
	case db.Label == "fails":
		db.Status, db.Error = api.DatabaseFailed, "no available compute node"
		db.FailoverAvailable, db.FailoverReason = new(false), "there is no base backup yet"
	case db.Status == api.DatabaseRestoring && p.looks == 1:
		return api.Database{}, apierror.NotFound()
	case db.Status != api.DatabaseRunning && db.Status != api.DatabaseHibernated && p.looks >= 2:
		db.Status, db.Error, db.Database, db.Username = api.DatabaseRunning, "", "app", "app"
		if db.Password == "" {
			db.Password = "first"
		}
	}
	return *withURL(db), nil
}

// withURL has what depends on whether a database runs.
func withURL(db *api.Database) *api.Database {
	db.ConnectionURL = ""
	if db.Status == api.DatabaseRunning && db.Host != "" {
		db.ConnectionURL = fmt.Sprintf("postgres://%s:%s@%s:%d/%s", db.Username, db.Password, db.Host, db.Port, db.Database)
	}
	return db
}

func (p *planeDatabases) Connection(_ context.Context, _ core.Caller, id string) (api.DatabaseConnection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	db, err := p.find(id)
	if err != nil {
		return api.DatabaseConnection{}, err
	}
	out := api.DatabaseConnection{Status: db.Status, Host: db.Host, Port: db.Port, Error: db.Error}
	if withURL(db); db.Status == api.DatabaseRunning {
		out.Database, out.Username, out.Password, out.ConnectionURL, out.BrokerToken = db.Database, db.Username, db.Password, db.ConnectionURL, brokerToken
	}
	return out, nil
}

func (p *planeDatabases) List(context.Context, core.Caller, core.ListOptions) ([]api.Database, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all, "", nil
}

// Patch also puts a database to sleep that may be: so a script can have one.
func (p *planeDatabases) Patch(_ context.Context, _ core.Caller, id string, in api.PatchDatabase) (api.Database, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	db, err := p.find(id)
	if err != nil {
		return api.Database{}, err
	}
	if db.AlwaysOn = in.AlwaysOn; !in.AlwaysOn {
		db.Status = api.DatabaseHibernated
	}
	return *db, nil
}

func (p *planeDatabases) Delete(_ context.Context, _ core.Caller, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.all {
		if p.all[i].ID == id {
			p.all = append(p.all[:i], p.all[i+1:]...)
			return nil
		}
	}
	return apierror.NotFound()
}

func (p *planeDatabases) to(id string, status api.DatabaseStatus) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	db, err := p.find(id)
	if err != nil {
		return err
	}
	db.Status, p.looks = status, 0
	return nil
}

// Wake finds no memory for a database that is labelled "large", some time after it has
// answered; one that runs stays as it is.
func (p *planeDatabases) Wake(_ context.Context, _ core.Caller, id string) (api.DatabaseWake, error) {
	p.mu.Lock()
	db, err := p.find(id)
	if err == nil && db.Status == api.DatabaseRunning {
		p.mu.Unlock()
		return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs already"}, nil
	}
	if err == nil && db.Label == "large" {
		db.Error = "insufficient host memory for sandbox"
		p.mu.Unlock()
		return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs in a moment"}, nil
	}
	p.mu.Unlock()
	return api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs in a moment"}, p.to(id, api.DatabaseWaking)
}

func (p *planeDatabases) Failover(_ context.Context, _ core.Caller, id string, in api.FailoverDatabase) (api.DatabaseFailover, error) {
	if !in.Force {
		return api.DatabaseFailover{}, &apierror.Error{Code: apierror.EConflict, Message: "database is running"}
	}
	return api.DatabaseFailover{ID: id, Status: api.DatabaseRestoring, Error: "what was written after 13:05 may be lost"}, p.to(id, api.DatabaseRestoring)
}

func (p *planeDatabases) ResetCredentials(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error) {
	p.mu.Lock()
	if db, err := p.find(id); err == nil {
		db.Password = "second"
	}
	p.mu.Unlock()
	return p.Connection(ctx, c, id)
}

// Archive is that of a database which ran, or, labelled "fails", never did.
func (p *planeDatabases) Archive(_ context.Context, _ core.Caller, id string) (api.DatabaseArchive, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if db, err := p.find(id); err == nil && db.Label == "fails" {
		return api.DatabaseArchive{BaseBackups: []api.DatabaseBaseBackup{}, Error: new("bucket is away")}, nil
	}
	at := func(s string) *api.Time {
		t, _ := time.Parse(time.RFC3339, s)
		return api.NewTime(t)
	}
	return api.DatabaseArchive{
		FirstRestorable: at("2026-11-20T13:05:09Z"), LastRestorable: at("2026-11-20T14:00:00Z"), LagSeconds: 3.5, SizeBytes: 12 << 20,
		LastArchivedLSN: new("0/5000060"),
		BaseBackups:     []api.DatabaseBaseBackup{{ID: "one", StartedAt: *at("2026-11-20T13:04:00Z"), SizeBytes: 9 << 20}},
	}, nil
}

func (p *planeDatabases) Logs(context.Context, core.Caller, string, int) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("database system is ready to accept connections\n")), nil
}

func (p *planeDatabases) FollowLogs(context.Context, core.Caller, string, int) (core.Follower[sandbox.LogLine], error) {
	return &planeLines{{Stream: "stderr", LogLine: api.LogLine{Line: "checkpoint starting: time"}}}, nil
}

// planeLines is a log that ends.
type planeLines []sandbox.LogLine

func (l *planeLines) Next() (sandbox.LogLine, error) {
	if len(*l) == 0 {
		return sandbox.LogLine{}, io.EOF
	}
	line := (*l)[0]
	*l = (*l)[1:]
	return line, nil
}

func (*planeLines) Close() error { return nil }

const brokerToken = "brk_1"

// planeBroker answers each query with the query.
type planeBroker struct{}

func (planeBroker) Admit(r *http.Request, _ string) (string, error) {
	if r.Header.Get("Authorization") != "Bearer "+brokerToken {
		return "", apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	return "ws", nil
}

func (planeBroker) Call(_ context.Context, _, _, _ string, _ http.Header, body io.Reader) (*http.Response, error) {
	var in api.SQLQuery
	if err := json.NewDecoder(body).Decode(&in); err != nil {
		return nil, err
	}
	status, answer := http.StatusOK, any(api.SQLResult{Command: "DELETE", RowCount: 3, Columns: []api.SQLColumn{}, Rows: [][]json.RawMessage{}})
	switch in.SQL {
	case "SELECT":
		answer = api.SQLResult{
			Columns: []api.SQLColumn{{Name: "n", Type: "int4"}, {Name: "text", Type: "text"}, {Name: "nothing", Type: "text"}},
			Rows:    [][]json.RawMessage{{json.RawMessage("42"), in.Params[0], json.RawMessage("null")}}, RowCount: 1, Command: "SELECT", Truncated: true,
		}
	case "wrong":
		status, answer = http.StatusBadRequest, map[string]string{"error": `syntax error at or near "wrong"`, "sqlstate": "42601"}
	}
	raw, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw)),
	}, err
}
