package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/redact"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The use cases are what the handlers call.
var (
	_ Sandboxes = (*sandbox.Sandboxes)(nil)
	_ Orgs      = (*org.Orgs)(nil)
	_ Cluster   = (*cluster.Cluster)(nil)
)

// errUnexpected is the error of a use case that a test has not set.
var errUnexpected = errors.New("the test expects no such call")

type fakeSandboxes struct {
	create func(context.Context, core.Caller, api.CreateSandbox, core.Idempotency) (api.Sandbox, error)
	get    func(context.Context, core.Caller, string) (api.Sandbox, error)
	list   func(context.Context, core.Caller, core.ListOptions) ([]api.Sandbox, string, error)
	delete func(context.Context, core.Caller, string) error
}

func (f *fakeSandboxes) Create(ctx context.Context, c core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
	if f.create == nil {
		return api.Sandbox{}, errUnexpected
	}
	return f.create(ctx, c, in, i)
}

func (f *fakeSandboxes) Get(ctx context.Context, c core.Caller, id string) (api.Sandbox, error) {
	if f.get == nil {
		return api.Sandbox{}, errUnexpected
	}
	return f.get(ctx, c, id)
}

func (f *fakeSandboxes) List(ctx context.Context, c core.Caller, o core.ListOptions) ([]api.Sandbox, string, error) {
	if f.list == nil {
		return nil, "", errUnexpected
	}
	return f.list(ctx, c, o)
}

func (f *fakeSandboxes) Delete(ctx context.Context, c core.Caller, id string) error {
	if f.delete == nil {
		return errUnexpected
	}
	return f.delete(ctx, c, id)
}

type fakeIdentity struct {
	Orgs   // panics where a test expects no call
	me     func(core.Caller) (api.Me, error)
	setOrg func(core.Caller, string) (api.Me, error)
	create func(core.Caller, string) (api.NewToken, error)
	list   func(core.Caller, core.ListOptions) ([]api.Token, string, error)
	revoke func(core.Caller, string) error
}

// The tests of package org and the walk of every route cover what this leaves out.
func (f *fakeIdentity) Enter(c core.Caller, orgID string) (core.Caller, error) {
	if orgID != "ws-1" {
		return core.Caller{}, apierror.NotFound()
	}
	c.WorkspaceID, c.Role = orgID, "owner"
	return c, nil
}

func (f *fakeIdentity) NotSuspended(core.Caller, core.Idempotency) error { return nil }

func (f *fakeIdentity) AcceptInvitation(context.Context, core.Caller, string) (api.Org, error) {
	return api.Org{}, apierror.NotFound()
}

func (f *fakeIdentity) PatchMember(context.Context, core.Caller, string, string, api.PatchMember) (api.Member, error) {
	return api.Member{}, apierror.NotFound()
}

func (f *fakeIdentity) PatchWorkspace(context.Context, string, api.PatchWorkspace) (api.Workspace, error) {
	return api.Workspace{}, apierror.NotFound()
}

func (f *fakeIdentity) CreateWorkspaceToken(context.Context, string, api.CreateToken, core.Idempotency) (api.NewToken, error) {
	return api.NewToken{}, apierror.NotFound()
}

func (f *fakeIdentity) Me(_ context.Context, c core.Caller) (api.Me, error) {
	return f.me(c)
}

func (f *fakeIdentity) SetCurrentOrg(_ context.Context, c core.Caller, in api.SetCurrentOrg) (api.Me, error) {
	return f.setOrg(c, in.OrgID)
}

func (f *fakeIdentity) CreateToken(_ context.Context, c core.Caller, in api.CreateToken, _ core.Idempotency) (api.NewToken, error) {
	return f.create(c, in.Name)
}

func (f *fakeIdentity) ListTokens(_ context.Context, c core.Caller, o core.ListOptions) ([]api.Token, string, error) {
	return f.list(c, o)
}

func (f *fakeIdentity) RevokeToken(_ context.Context, c core.Caller, prefix string) error {
	return f.revoke(c, prefix)
}

type fakeCluster struct {
	status      api.RaftStatus
	agents      []api.Agent
	addPeer     func(id, address string) error
	removePeer  func(id string) error
	transfer    func(to string) error
	backup      func(io.Writer) error
	restore     func(io.Reader) error
	withoutKeys bool // what restore was called with
	changeAgent func(verb, id string) (api.Agent, error)
	joinToken   func(api.CreateJoinToken) (api.JoinToken, error)
}

func (f *fakeCluster) RaftStatus(context.Context) (api.RaftStatus, error) { return f.status, nil }
func (f *fakeCluster) AddPeer(_ context.Context, in api.AddPeer) error {
	return f.addPeer(in.ID, in.Address)
}
func (f *fakeCluster) RemoveRouter(_ context.Context, name string) error {
	return f.removePeer("router " + name)
}

func (f *fakeCluster) RemovePeer(_ context.Context, id string) error { return f.removePeer(id) }
func (f *fakeCluster) TransferLeadership(_ context.Context, in api.TransferLeadership) error {
	return f.transfer(in.To)
}
func (f *fakeCluster) Backup(_ context.Context, w io.Writer) error { return f.backup(w) }
func (f *fakeCluster) AcceptRestore(context.Context) error         { return nil }
func (f *fakeCluster) Restore(_ context.Context, r io.Reader, withoutKeys bool) error {
	f.withoutKeys = withoutKeys
	return f.restore(r)
}
func (f *fakeCluster) Agents(_ context.Context, o core.ListOptions) (page []api.Agent, next string, err error) {
	at, _ := strconv.Atoi(o.Cursor)
	if at+o.Limit < len(f.agents) {
		next = strconv.Itoa(at + o.Limit)
	}
	return f.agents[at:min(at+o.Limit, len(f.agents))], next, nil
}

func (f *fakeCluster) AgentEvents(_ context.Context, id string, _ api.EventQuery) ([]api.Event, error) {
	if id != "h1" {
		return nil, apierror.NotFound()
	}
	return []api.Event{{SandboxID: "q7w2e9r4", AgentID: id, Type: "recover.unmanaged", Code: "warn"}}, nil
}

func (f *fakeCluster) Agent(_ context.Context, id string) (api.Agent, error) {
	return f.changeAgent("get", id)
}

func (f *fakeCluster) EvacuateAgent(_ context.Context, id string, _ api.EvacuateAgent) (api.Agent, error) {
	return f.changeAgent("evacuate", id)
}

var noRebalancing = api.Rebalancing{Hosts: []api.RebalancedHost{}, Moves: []api.RebalanceMove{}, Stays: []api.AgentStay{}}

func (f *fakeCluster) Rebalance(_ context.Context, in api.Rebalance) (api.Rebalancing, error) {
	a, err := f.changeAgent("rebalance", fmt.Sprint(in.DryRun))
	out := noRebalancing
	out.DryRun, out.AtOnce = in.DryRun, len(a.ID)
	return out, err
}

func (f *fakeCluster) Rebalancing(context.Context) (api.Rebalancing, error) {
	_, err := f.changeAgent("rebalancing", "")
	return noRebalancing, err
}

func (f *fakeCluster) StopRebalancing(context.Context) error {
	_, err := f.changeAgent("stop rebalancing", "")
	return err
}

func (f *fakeCluster) DrainAgent(_ context.Context, id string) (api.Agent, error) {
	return f.changeAgent("drain", id)
}

func (f *fakeCluster) UndrainAgent(_ context.Context, id string) (api.Agent, error) {
	return f.changeAgent("undrain", id)
}

func (f *fakeCluster) RemoveAgent(_ context.Context, id string) error {
	_, err := f.changeAgent("remove", id)
	return err
}

func (f *fakeCluster) CreateJoinToken(_ context.Context, in api.CreateJoinToken, _ core.Idempotency) (api.JoinToken, error) {
	return f.joinToken(in)
}

// fakeAuth knows these bearers.
type fakeAuth struct{}

func (fakeAuth) Authenticate(r *http.Request) (core.Caller, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return core.Caller{}, apierror.Unauthorized(apierror.DetailMissingToken)
	case "Bearer tenant":
		return core.Caller{WorkspaceID: "ws-1", KeyID: "key-1"}, nil
	case "Bearer viewer":
		return core.Caller{WorkspaceID: "ws-1", UserID: "u-2", ViaJWT: true, Role: record.RoleViewer}, nil
	case "Bearer jwt":
		return core.Caller{WorkspaceID: "ws-1", UserID: "u-1", ViaJWT: true}, nil
	case "Bearer nowhere": // a member of no organization
		return core.Caller{UserID: "u-3", ViaJWT: true}, nil
	case "Bearer operator":
		return core.Caller{Admin: true}, nil
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

type limiterFunc func(string) error

func (f limiterFunc) Allow(workspaceID string) error { return f(workspaceID) }

// logBuffer is a log written by a server's goroutines and read by a test.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is the API with fakes behind it. Every answer that it gives to a test is
// checked against its own OpenAPI document.
type rig struct {
	t         *testing.T
	sandboxes *fakeSandboxes
	identity  *fakeIdentity
	cluster   *fakeCluster
	lifecycle *fakeLifecycle
	streams   *fakeStreams
	detached  *fakeDetached
	forks     *fakeForks
	volumes   *fakeVolumes
	templates *fakeTemplates
	databases *fakeDatabases
	broker    *fakeBroker
	webhooks  *fakeWebhooks
	apps      *fakeApps
	functions *fakeFunctions
	githosts  *fakeGitHosts
	registry  *prometheus.Registry
	log       *logBuffer
	api       *API
	doc       routers.Router
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, sandboxes: &fakeSandboxes{}, identity: &fakeIdentity{}, cluster: &fakeCluster{status: api.RaftStatus{Peers: []api.RaftPeer{}}},
		lifecycle: &fakeLifecycle{}, streams: &fakeStreams{}, detached: &fakeDetached{}, forks: &fakeForks{}, volumes: &fakeVolumes{}, templates: &fakeTemplates{}, databases: &fakeDatabases{}, broker: &fakeBroker{}, webhooks: &fakeWebhooks{}, apps: &fakeApps{},
		functions: &fakeFunctions{fakeApps: &fakeApps{}},
		githosts:  &fakeGitHosts{},
		registry:  prometheus.NewRegistry(), log: &logBuffer{},
	}
	cfg := Config{
		Sandboxes: r.sandboxes, Lifecycle: r.lifecycle, Commands: fakeCommands{r.streams, r.detached}, Files: fakeFiles{r.streams}, Logs: fakeLogs{r.streams},
		Ports: fakePorts{fakeStreams: r.streams}, Inputs: r.streams, Snapshots: r.forks, Forks: r.forks, Volumes: r.volumes, Templates: r.templates, Databases: r.databases, Broker: r.broker, Webhooks: r.webhooks, Apps: r.apps, Domains: struct{ AppDomains }{},
		Functions: r.functions,
		GitHosts:  r.githosts,
		Orgs:      r.identity, Usage: fakeUsage{}, Billing: fakeBilling{}, Cluster: r.cluster, Audit: &fakeAudit{}, Authenticator: fakeAuth{},
		Registerer: r.registry, Gatherer: r.registry,
		Version: api.VersionInfo{Version: "v0", Commit: "c", GoVersion: "go1"},
		Logger:  slog.New(redact.NewHandler(r.log, slog.LevelDebug, true)),
	}
	for _, c := range change {
		c(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.api = a
	if r.doc, err = docRouter(); err != nil {
		t.Fatalf("route by the OpenAPI document: %v", err)
	}
	return r
}

// docRouter finds the operation of the document that a request belongs to.
var docRouter = sync.OnceValues(func() (routers.Router, error) {
	openapi3filter.RegisterBodyDecoder(typeEvents, decodeEvents)
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	doc, err := theDocument()
	if err != nil {
		return nil, err
	}
	parsed, err := openapi3.NewLoader().LoadFromData(doc)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(parsed)
})

// decodeEvents checks each event against the document, which has a schema for one.
func decodeEvents(body io.Reader, _ http.Header, schema *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	var last any
	for block := range strings.SplitSeq(string(raw), "\n\n") {
		event := map[string]any{}
		for line := range strings.Lines(block) {
			if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok && name != "" {
				event[name] = value
			}
		}
		if len(event) == 0 {
			continue // a comment that keeps the connection open
		}
		if err := schema.Value.VisitJSON(event); err != nil {
			return nil, err
		}
		last = event
	}
	if last == nil {
		last = map[string]any{"event": "error", "data": "{}"} // none is as good as any
	}
	return last, nil
}

// call sends one request. The bearer "" sends no credential.
func (r *rig) call(method, target, bearer, body string, header ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, target, reader)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return r.send(req)
}

func (r *rig) send(req *http.Request) *httptest.ResponseRecorder {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	r.conforms(req, w)
	return w
}

// conforms fails the test unless the response conforms to the document.
func (r *rig) conforms(req *http.Request, w *httptest.ResponseRecorder) {
	r.t.Helper()
	if w.Header().Get(api.HeaderRequestID) == "" {
		r.t.Errorf("%s %s: no %s", req.Method, req.URL.Path, api.HeaderRequestID)
	}
	route, params, err := r.doc.FindRoute(req)
	if err != nil {
		return // not a route of the document
	}
	err = openapi3filter.ValidateResponse(req.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 w.Code,
		Header:                 w.Header(),
		Body:                   io.NopCloser(bytes.NewReader(w.Body.Bytes())),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
	if err != nil {
		r.t.Errorf("%s %s: the answer is not as documented: %v", req.Method, req.URL.Path, err)
	}
}

// errorOf reads the body of a refusal.
func errorOf(t *testing.T, w *httptest.ResponseRecorder) api.ErrorBody {
	t.Helper()
	var e api.ErrorBody
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		t.Fatalf("the body of status %d is not an error: %v: %q", w.Code, err, w.Body.String())
	}
	return e
}

const testID = "k7m2qz4xw3v5n6a2j7p4t5r6sd"

func testSandbox() api.Sandbox {
	return api.Sandbox{
		ID: testID, Status: "running", Template: "base",
		CPU: 1, MemoryMB: 512, DiskMB: 2048, AgentID: "host-a", Preview: "public", Volumes: []api.VolumeMount{},
		CreatedAt: api.Time{Time: time.Date(2026, 11, 20, 13, 5, 9, 412987654, time.FixedZone("CET", 3600))},
	}
}
