package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"berth": main})
}

// leakChecked fails a test run that leaks goroutines.
type leakChecked struct{ m *testing.M }

// Run implements testscript.TestingM.
func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScripts runs the program like a user, against the real HTTP API in front of
// a small fake control plane; see testdata/script.
func TestScripts(t *testing.T) {
	tier.Slow(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			p := &plane{dir: env.WorkDir}
			registry := prometheus.NewRegistry()
			h, err := httpapi.New(httpapi.Config{
				Sandboxes: p, Lifecycle: planeMoves{p}, Commands: planeCommands{plane: p, guest: planeTable(filepath.Join(p.dir, "outputs"))}, Files: planeFiles{dir: p.dir}, Logs: planeLogs{},
				Ports: planePorts{}, Inputs: planeInputs{}, Snapshots: planeForks{p}, Forks: planeForks{p}, Volumes: &planeVolumes{plane: p},
				Templates: planeTemplates{}, Databases: &planeDatabases{plane: p}, Metrics: planeMetrics{}, Broker: planeBroker{}, Webhooks: &planeWebhooks{}, Apps: &planeApps{plane: p}, Domains: &planeDomains{plane: p},
				Functions: &planeFunctions{dir: p.dir}, Invoke: invokePlane,
				GitHosts: &planeGitHosts{},
				Orgs:     (*planeIdentity)(p), Usage: planeBill{}, Billing: planeBill{}, Cluster: (*planeCluster)(p), Audit: planeAudit{}, Authenticator: p,
				Version:    api.VersionInfo{Version: "v9", Commit: "abc", GoVersion: "go9"},
				Registerer: registry, Gatherer: registry,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				return err
			}
			server := httptest.NewServer(keyed(h))
			env.Defer(server.Close)
			env.Setenv("BERTH_URL", server.URL)
			env.Setenv("BERTH_TOKEN", "brt_tenant")
			env.Setenv("BERTH_JWT", "jwt")
			env.Setenv("BERTH_ADMIN_TOKEN", "operator")
			// With -race, each of the hundred short runs would wait a second
			// before it exits.
			env.Setenv("GORACE", "atexit_sleep_ms=10")
			// Nothing listens on the discard port of a modern machine.
			env.Setenv("NOWHERE", "http://127.0.0.1:9")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"await": await},
	})
}

// creates are the paths of what would be made twice if a call was sent again.
var creates = regexp.MustCompile(`^/v1/(sandboxes|volumes|databases|apps|functions|templates/build|webhooks/endpoints|` +
	`sandboxes/[^/]+/(snapshots|fork|fork-tree|commands)|databases/[^/]+/clone|apps/[^/]+/(deploys|rollback|domains))$`)

// keyed refuses creates without an idempotency key: the client does not repeat them
// when a replica goes away.
func keyed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && creates.MatchString(r.URL.Path) && r.Header.Get(api.HeaderIdempotencyKey) == "" {
			http.Error(w, `{"error": "a create without an idempotency key"}`, http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// await waits until a file exists.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-deadline.C:
			ts.Fatalf("%s did not come", args[0])
		case <-tick.C:
		}
	}
}

// plane is a control plane in one process. Its sandboxes are directories, and
// commands run on this machine.
type plane struct {
	dir string

	mu        sync.Mutex
	sandboxes []api.Sandbox
	env       map[string]map[string]string
	keys      map[string]string
	slow      chan struct{} // closed when the slow create is done
	tokens    []api.Token
	draining  bool

	evacuation *api.AgentEvacuation
	rebalanced *api.Rebalancing
	stays      string // why something stays on a host that is evacuated
	peers      []api.RaftPeer
	leader     string
}

type (
	planeIdentity plane
	planeCluster  plane
)

func (p *plane) Authenticate(r *http.Request) (core.Caller, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return core.Caller{}, apierror.Unauthorized(apierror.DetailMissingToken)
	case "Bearer brt_tenant":
		return core.Caller{WorkspaceID: "ws"}, nil
	case "Bearer brt_one":
		return core.Caller{WorkspaceID: "ws", KeyID: "one", Scopes: []string{"app:app-1"}}, nil
	case "Bearer brt_ada":
		return core.Caller{WorkspaceID: planeOrg.ID}, nil
	case "Bearer jwt":
		return core.Caller{WorkspaceID: "ws", UserID: "u", ViaJWT: true}, nil
	case "Bearer operator":
		return core.Caller{Admin: true}, nil
	}
	return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
}

func (p *plane) Create(ctx context.Context, _ core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
	switch in.Template {
	case "base", "python":
	case "slow":
		// It signals that it has begun, and completes when its client has left.
		// The same key waits for that.
		p.mu.Lock()
		again := p.slow != nil
		if !again {
			p.slow = make(chan struct{})
		}
		p.mu.Unlock()
		if again {
			<-p.slow
			break
		}
		defer close(p.slow)
		if err := os.WriteFile(filepath.Join(p.dir, "creating"), nil, 0o600); err != nil {
			return api.Sandbox{}, err
		}
		<-ctx.Done()
		_, err := p.add(in, i.Key)
		return api.Sandbox{}, errors.Join(ctx.Err(), err)
	case "full":
		return api.Sandbox{}, &apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node", Detail: "2 hosts, none with 512 MB free"}
	case "quota":
		return api.Sandbox{}, &apierror.Error{Code: apierror.ERateLimited, Message: "max sandboxes reached", Fields: map[string]any{"max": 5, "active": 5}}
	default:
		return api.Sandbox{}, &apierror.Error{Code: apierror.EInvalid, Message: "unknown template", Detail: "no template is named " + in.Template}
	}
	return p.add(in, i.Key)
}

// add creates the sandbox, or returns the one created with the same key.
func (p *plane) add(in api.CreateSandbox, key string) (api.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.keys[key]; ok {
		return p.sandboxes[p.find(id)], nil
	}
	sb := api.Sandbox{
		ID: fmt.Sprintf("k7m2qz4xw3v5n6a2j7p4t5r6s%c", 'a'+len(p.sandboxes)), Status: "running",
		Template: in.Template, Metadata: in.Metadata, CPU: 1, MemoryMB: 512, DiskMB: 2048, AgentID: "host-a",
		CreatedAt: api.Time{Time: time.Now().Add(-90 * time.Second)}, StartedAt: api.NewTime(time.Now()), TTLSeconds: in.TTLSeconds,
		FromSnapshot: core.OrNull(in.FromSnapshot), Volumes: []api.VolumeMount{},
		PreviewURL: "http://{port}-x.localhost",
	}
	if in.TTLSeconds != nil {
		sb.ExpiresAt = api.NewTime(sb.CreatedAt.Add(time.Duration(*in.TTLSeconds) * time.Second))
	}
	if in.Boot != nil && *in.Boot == "cold" {
		sb.Error = new("booted cold")
	}
	p.sandboxes = append(p.sandboxes, sb)
	if p.env == nil {
		p.env, p.keys = map[string]map[string]string{}, map[string]string{}
	}
	p.env[sb.ID], p.keys[key] = in.Env, sb.ID
	return sb, nil
}

func (p *plane) find(id string) int {
	return slices.IndexFunc(p.sandboxes, func(s api.Sandbox) bool { return s.ID == id })
}

func (p *plane) Get(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(id); i >= 0 {
		return p.sandboxes[i], nil
	}
	return api.Sandbox{}, apierror.NotFound()
}

func (p *plane) List(_ context.Context, _ core.Caller, o core.ListOptions) ([]api.Sandbox, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.sandboxes)
	slices.Reverse(all)
	// Two per page, whatever the limit, so that clients must follow the links.
	if o.Cursor != "" {
		at := slices.IndexFunc(all, func(s api.Sandbox) bool { return s.ID == o.Cursor })
		all = all[at+1:]
	}
	if len(all) > 2 {
		return all[:2], all[1].ID, nil
	}
	return all, "", nil
}

func (p *plane) Delete(_ context.Context, _ core.Caller, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(id)
	if i < 0 {
		return apierror.NotFound()
	}
	p.sandboxes = slices.Delete(p.sandboxes, i, i+1)
	return nil
}

func (p planeCommands) Exec(ctx context.Context, _ core.Caller, id string, in api.Exec) (api.ExecResult, error) {
	if _, err := p.plane.Get(ctx, core.Caller{}, id); err != nil {
		return api.ExecResult{}, err
	}
	argv := in.Cmd.Argv
	if in.Cmd.Shell != "" {
		argv = []string{"sh", "-c", in.Cmd.Shell}
	}
	timeout := int64(sandbox.DefaultExecSeconds)
	if in.TimeoutSeconds != nil {
		timeout = *in.TimeoutSeconds
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(timeout)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	cmd.Dir = p.dir
	if in.Cwd != "" {
		cmd.Dir = in.Cwd
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "RUN_AS=" + in.User}
	for _, vars := range []map[string]string{p.env[id], in.Env} {
		for k, v := range vars {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in.Stdin+string(in.StdinBase64)), &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	if ctx.Err() != nil {
		return api.ExecResult{}, errors.Join(ctx.Err(), os.WriteFile(filepath.Join(p.dir, "killed"), nil, 0o600))
	}
	res := api.ExecResult{
		Stdout: stdout.String(), Stderr: stderr.String(), DurationMS: time.Since(start).Milliseconds(),
		TimedOut: limited.Err() != nil, Truncated: strings.Contains(in.Cmd.Shell, "truncate-me"),
	}
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		status := ended.Sys().(syscall.WaitStatus)
		res.ExitCode = status.ExitStatus()
		if status.Signaled() {
			res.ExitCode = 128 + int(status.Signal())
		}
	case err != nil:
		res.ExitCode, res.Stderr = 127, err.Error()+"\n"
	}
	return res, nil
}

func (p *planeIdentity) Me(context.Context, core.Caller) (api.Me, error) {
	return api.Me{ID: "u", CurrentOrg: &planeOrg, Orgs: []api.Org{planeOrg}}, nil
}

func (p *planeIdentity) SetCurrentOrg(context.Context, core.Caller, api.SetCurrentOrg) (api.Me, error) {
	return api.Me{ID: "u", CurrentOrg: &planeOrg, Orgs: []api.Org{planeOrg}}, nil
}

func (p *planeIdentity) CreateToken(_ context.Context, _ core.Caller, in api.CreateToken, _ core.Idempotency) (api.NewToken, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := api.Token{Prefix: fmt.Sprintf("prefix%02d", len(p.tokens)), Name: in.Name, Scopes: scopesOf(in), CreatedAt: api.Time{Time: time.Now().Add(-3 * time.Hour)}, ExpiresAt: in.ExpiresAt}
	p.tokens = append(p.tokens, t)
	return api.NewToken{Token: t, Key: "brt_" + t.Prefix + "_secret"}, nil
}

func (p *planeIdentity) ListTokens(context.Context, core.Caller, core.ListOptions) ([]api.Token, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tokens), "", nil
}

func (p *planeIdentity) RevokeToken(_ context.Context, _ core.Caller, prefix string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.tokens, func(t api.Token) bool { return t.Prefix == prefix })
	if i < 0 {
		return apierror.NotFound()
	}
	p.tokens = slices.Delete(p.tokens, i, i+1)
	return nil
}

func (p *planeCluster) RaftStatus(context.Context) (api.RaftStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	leader := "r1"
	if p.leader != "" {
		leader = p.leader
	}
	st := api.RaftStatus{
		NodeID: "r2", State: "follower", LeaderID: leader, LeaderAddress: "h1:7001", Term: 4, CommitIndex: 12, AppliedIndex: 12,
		Peers: []api.RaftPeer{
			{ID: "r1", Address: "h1:7001", Voter: true, Healthy: true, AppliedIndex: 12},
			{ID: "r2", Address: "h2:7001", Voter: true, Healthy: true, AppliedIndex: 12, LastContactMS: 41},
			{ID: "r3", Address: "h3:7001", Voter: true, LastContactMS: -1},
		},
	}
	st.Peers = append(st.Peers, p.peers...)
	return st, nil
}

func (p *planeCluster) AddPeer(_ context.Context, in api.AddPeer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peers = append(p.peers, api.RaftPeer{ID: in.ID, Address: in.Address})
	return nil
}

func (p *planeCluster) RemoveRouter(_ context.Context, name string) error {
	if name != "r1" {
		return apierror.NotFound()
	}
	return nil
}

func (p *planeCluster) RemovePeer(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.peers, func(r api.RaftPeer) bool { return r.ID == id })
	if i < 0 {
		return apierror.NotFound()
	}
	p.peers = slices.Delete(p.peers, i, i+1)
	return nil
}

func (p *planeCluster) TransferLeadership(_ context.Context, in api.TransferLeadership) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader = in.To
	return nil
}

func (p *planeCluster) Backup(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "the store\n")
	return err
}

// AcceptRestore tells the script that it was called.
func (p *planeCluster) AcceptRestore(context.Context) error {
	return os.WriteFile(filepath.Join(p.dir, "accepted"), nil, 0o600)
}

// Restore tells the script that the backup begins to arrive.
func (p *planeCluster) Restore(_ context.Context, r io.Reader, _ bool) error {
	in := bufio.NewReader(r)
	if _, err := in.Peek(1); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "restoring"), nil, 0o600); err != nil {
		return err
	}
	b, err := io.ReadAll(in)
	if err == nil && string(b) != "the store\n" {
		err = &apierror.Error{Code: apierror.EInvalid, Message: "invalid backup"}
	}
	return err
}

func (p *planeCluster) Agents(context.Context, core.ListOptions) (page []api.Agent, next string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []api.Agent{
		{
			ID: "host-a", State: "up", Ready: true, Draining: p.draining, LastSeenAt: api.NewTime(time.Now()), CreatedAt: api.Time{Time: time.Now()},
			Capacity:  api.AgentCapacity{MemoryMB: 4096, ReservedMB: 1024, Slots: 16, SlotsUsed: 2},
			Sandboxes: 2, Templates: []api.AgentTemplate{},
			Versions: api.AgentVersions{Engine: "chvemu"},
		},
		{ID: "host-b", State: "lost", Templates: []api.AgentTemplate{}},
	}, "", nil
}

func (p *planeCluster) AgentEvents(_ context.Context, id string, _ api.EventQuery) ([]api.Event, error) {
	if id != "host-a" {
		return nil, apierror.NotFound()
	}
	return []api.Event{{SandboxID: "q7w2e9r4", AgentID: id, Type: "recover.unmanaged", Code: "warn", Message: "what belongs to no sandbox is removed"}}, nil
}

func (p *planeCluster) DrainAgent(_ context.Context, id string) (api.Agent, error) {
	return p.change(id, true)
}

// EvacuateAgent begins an evacuation of which each look at the host shows more.
func (p *planeCluster) EvacuateAgent(_ context.Context, id string, in api.EvacuateAgent) (api.Agent, error) {
	if id == "host-c" {
		return api.Agent{}, &apierror.Error{Code: apierror.EConflict, Message: "agent has no snapshot store", Detail: "configure one"}
	}
	p.mu.Lock()
	p.evacuation = &api.AgentEvacuation{AtOnce: *in.AtOnce, Waiting: 1, Moving: 1, Stays: []api.AgentStay{}}
	p.mu.Unlock()
	return p.Agent(context.Background(), id)
}

func (p *planeCluster) Agent(_ context.Context, id string) (api.Agent, error) {
	out, err := p.change(id, true)
	if err != nil {
		return out, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.evacuation != nil {
		now := *p.evacuation
		out.Evacuation = &now
		switch e := p.evacuation; {
		case e.Waiting > 0:
			e.Waiting, e.Moved = 0, 1
		default:
			e.Moving, e.Moved, e.Done = 0, 2, true
			if p.stays != "" {
				e.Moved, e.Staying = 1, 1
				e.Stays = []api.AgentStay{{Kind: "sandbox", ID: "q7w2e9r4", WorkspaceID: "ws-1", Reason: p.stays}}
			}
		}
	}
	return out, nil
}

// Rebalance begins a rebalancing of which each look shows more.
func (p *planeCluster) Rebalance(_ context.Context, in api.Rebalance) (api.Rebalancing, error) {
	move := api.RebalanceMove{Kind: "database", ID: "5f2a6c1e", WorkspaceID: "ws-1", From: "host-a", To: "host-b", DiskMB: 4096, State: "waiting"}
	out := api.Rebalancing{
		DryRun: in.DryRun, BeganAt: &api.Time{Time: time.Unix(1, 0)}, AtOnce: *in.AtOnce, Percent: *in.Percent, Planned: 2, Waiting: 2,
		Hosts: []api.RebalancedHost{{ID: "host-a", Sandboxes: 4, DiskMB: 16384, Share: 200, ShareAfter: 100}},
		Moves: []api.RebalanceMove{move}, Stays: []api.AgentStay{},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !in.DryRun {
		p.rebalanced = &out
	}
	return out, nil
}

func (p *planeCluster) Rebalancing(context.Context) (api.Rebalancing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.rebalanced; b.Waiting > 0 {
		b.Waiting, b.Moving, b.Moved = 0, 1, 1
	} else {
		b.Moving, b.Moved, b.Done, b.Moves = 0, 2, true, []api.RebalanceMove{}
		if b.AtOnce == 3 {
			b.Moved, b.Failed = 1, 1
			b.Stays = []api.AgentStay{{Kind: "sandbox", ID: "q7w2e9r4", WorkspaceID: "ws-1", Reason: "no host takes it: another engine"}}
		}
	}
	return *p.rebalanced, nil
}

func (p *planeCluster) StopRebalancing(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rebalanced = nil
	return nil
}

func (p *planeCluster) UndrainAgent(_ context.Context, id string) (api.Agent, error) {
	return p.change(id, false)
}

func (p *planeCluster) change(id string, draining bool) (api.Agent, error) {
	if id != "host-a" {
		return api.Agent{}, apierror.NotFound()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = draining
	return api.Agent{ID: id, State: "up", Ready: true, Draining: draining, Templates: []api.AgentTemplate{}}, nil
}

func (p *planeCluster) RemoveAgent(_ context.Context, id string) error {
	if id != "host-b" {
		return &apierror.Error{Code: apierror.EConflict, Message: "agent has sandboxes", Detail: "2 sandboxes"}
	}
	return nil
}

func (p *planeCluster) CreateJoinToken(_ context.Context, in api.CreateJoinToken, _ core.Idempotency) (api.JoinToken, error) {
	ttl := time.Hour
	if in.TTLSeconds != nil {
		ttl = time.Duration(*in.TTLSeconds) * time.Second
	}
	if ttl > 24*time.Hour {
		return api.JoinToken{}, apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to 86400")
	}
	return api.JoinToken{
		Token: "bjt_secret", ExpiresAt: api.Time{Time: time.Now().Add(ttl)},
		CASHA256: "9f2b", Peers: []string{"h1:7001", "h2:7001"},
	}, nil
}

// The command that join-token prints runs on a host with the package.
func TestTheJoinCommandIsWhereThePackagePutsIt(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "scripts", "packaging", "berth-hostd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), "dst: "+installedHostd+",") {
		t.Errorf("the package does not install %s", installedHostd)
	}
}
