package httpapi

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// The use cases are what the handlers call.
var (
	_ Lifecycle = (*sandbox.Sandboxes)(nil)
	_ Commands  = (*sandbox.Commands)(nil)
	_ Files     = (*sandbox.Files)(nil)
	_ Logs      = (*sandbox.Logs)(nil)
	_ Ports     = (*sandbox.Ports)(nil)
	_ Inputs    = (*core.Core)(nil)
)

type fakeLifecycle struct {
	transition func(name, id string) (api.Sandbox, error)
	get        func(id string) (api.Lifecycle, error)
	patch      func(id string, in api.PatchLifecycle) (api.Lifecycle, error)
}

func (f *fakeLifecycle) moved(name, id string) (api.Sandbox, error) {
	if f.transition == nil {
		return api.Sandbox{}, errUnexpected
	}
	return f.transition(name, id)
}

func (f *fakeLifecycle) Pause(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return f.moved("pause", id)
}

func (f *fakeLifecycle) Resume(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return f.moved("resume", id)
}

func (f *fakeLifecycle) Hibernate(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return f.moved("hibernate", id)
}

func (f *fakeLifecycle) Wake(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return f.moved("wake", id)
}

func (f *fakeLifecycle) Lifecycle(_ context.Context, _ core.Caller, id string) (api.Lifecycle, error) {
	if f.get == nil {
		return api.Lifecycle{}, errUnexpected
	}
	return f.get(id)
}

func (f *fakeLifecycle) PatchLifecycle(_ context.Context, _ core.Caller, id string, in api.PatchLifecycle) (api.Lifecycle, error) {
	if f.patch == nil {
		return api.Lifecycle{}, errUnexpected
	}
	return f.patch(id, in)
}

// fakeStreams answers with what a test has set. Methods that it has not set return
// an empty result or an error, or panic, which shows as a 500.
type fakeStreams struct {
	exec     func(ctx context.Context, id string, in api.Exec) (api.ExecResult, error)
	wake     func(id string) error
	admit    func(bytes int64) (release func(), err error)
	stream   func(ctx context.Context, in api.Exec, openStdin bool) (sandbox.Process, error)
	terminal func(in sandbox.Terminal) (sandbox.Process, error)
	lsp      func(lang string) (sandbox.Process, error)
	read     func(path string, h http.Header) (*sandbox.File, error)
	write    func(path, mode string, body io.Reader, size int64) (bool, error)
	remove   func(path string, recursive bool) error
	stat     func(path string) (api.FileStat, error)
	list     func(path string, each func(api.FileStat) error) error
	mkdir    func(path string) error
	logs     func(q api.LogQuery) (io.ReadCloser, error)
	follow   func(q api.LogQuery) (core.Follower[sandbox.LogLine], error)
	events   func(q api.EventQuery) ([]api.Event, error)
	watch    func(q api.EventQuery) (core.Follower[api.Event], error)
	ports    func() ([]api.Port, error)
	addPort  func(in api.AddPort) (api.Port, error)
	delPort  func(port int) error
}

// The parts of fakeStreams by their subject.
type (
	fakeCommands struct {
		*fakeStreams
		Detached
	}
	fakeFiles struct{ *fakeStreams }
	fakeLogs  struct{ *fakeStreams }
	fakePorts struct {
		Ports
		*fakeStreams
	}
)

func (f fakeCommands) Exec(ctx context.Context, _ core.Caller, id string, in api.Exec) (api.ExecResult, error) {
	if f.exec == nil {
		return api.ExecResult{}, errUnexpected
	}
	return f.exec(ctx, id, in)
}

func (f fakeCommands) Wake(_ context.Context, _ core.Caller, id string) error {
	if f.wake == nil {
		return nil
	}
	return f.wake(id)
}

func (f *fakeStreams) AdmitInput(_ context.Context, _ core.Caller, bytes int64) (func(), error) {
	if f.admit == nil {
		return func() {}, nil
	}
	return f.admit(bytes)
}

func (f fakeCommands) Stream(ctx context.Context, _ core.Caller, _ string, in api.Exec, openStdin bool) (sandbox.Process, error) {
	return f.stream(ctx, in, openStdin)
}

func (f fakeCommands) OpenTerminal(_ context.Context, _ core.Caller, _ string, in sandbox.Terminal) (sandbox.Process, error) {
	return f.terminal(in)
}

func (f fakeCommands) LanguageServer(_ context.Context, _ core.Caller, _, lang string) (sandbox.Process, error) {
	return f.lsp(lang)
}

func (f fakeFiles) Read(_ context.Context, _ core.Caller, _, path string, h http.Header) (*sandbox.File, error) {
	return f.read(path, h)
}

func (f fakeFiles) Write(_ context.Context, _ core.Caller, _, path, mode string, body io.Reader, size int64) (bool, error) {
	return f.write(path, mode, body, size)
}

func (f fakeFiles) Remove(_ context.Context, _ core.Caller, _, path string, recursive bool) error {
	return f.remove(path, recursive)
}

func (f fakeFiles) Stat(_ context.Context, _ core.Caller, _, path string) (api.FileStat, error) {
	return f.stat(path)
}

func (f fakeFiles) List(_ context.Context, _ core.Caller, _, path string, each func(api.FileStat) error) error {
	return f.list(path, each)
}

func (f fakeFiles) MakeDir(_ context.Context, _ core.Caller, _, path string) error {
	return f.mkdir(path)
}

func (f fakeLogs) Text(_ context.Context, _ core.Caller, _ string, q api.LogQuery) (io.ReadCloser, error) {
	return f.logs(q)
}

func (f fakeLogs) Follow(_ context.Context, _ core.Caller, _ string, q api.LogQuery) (core.Follower[sandbox.LogLine], error) {
	return f.follow(q)
}

func (f fakeLogs) Events(_ context.Context, _ core.Caller, _ string, q api.EventQuery) ([]api.Event, error) {
	return f.events(q)
}

func (f fakeLogs) FollowEvents(_ context.Context, _ core.Caller, _ string, q api.EventQuery) (core.Follower[api.Event], error) {
	return f.watch(q)
}

func (f fakePorts) List(context.Context, core.Caller, string) ([]api.Port, error) {
	return f.ports()
}

func (f fakePorts) Add(_ context.Context, _ core.Caller, _ string, in api.AddPort) (api.Port, error) {
	return f.addPort(in)
}

func (f fakePorts) Remove(_ context.Context, _ core.Caller, _ string, port int) error {
	return f.delPort(port)
}

// fakeDetached answers with what a test has set.
type fakeDetached struct {
	start  func(in api.Exec, i core.Idempotency) (api.SandboxCommand, error)
	list   func() ([]api.SandboxCommand, error)
	get    func(command string) (api.SandboxCommand, error)
	remove func(command string) error
	write  func(command string, data []byte, eof bool) error
	signal func(command, name string) error
	output func(command string, since int64, follow bool) (core.Follower[sandbox.CommandPiece], error)
}

func (f *fakeDetached) Start(_ context.Context, _ core.Caller, _ string, in api.Exec, i core.Idempotency) (api.SandboxCommand, error) {
	return f.start(in, i)
}

func (f *fakeDetached) List(context.Context, core.Caller, string) ([]api.SandboxCommand, error) {
	return f.list()
}

func (f *fakeDetached) Get(_ context.Context, _ core.Caller, _, command string) (api.SandboxCommand, error) {
	return f.get(command)
}

func (f *fakeDetached) Delete(_ context.Context, _ core.Caller, _, command string) error {
	return f.remove(command)
}

func (f *fakeDetached) Write(_ context.Context, _ core.Caller, _, command string, data []byte, eof bool) error {
	return f.write(command, data, eof)
}

func (f *fakeDetached) Signal(_ context.Context, _ core.Caller, _, command, name string) error {
	return f.signal(command, name)
}

func (f *fakeDetached) Output(_ context.Context, _ core.Caller, _, command string, since int64, follow bool) (core.Follower[sandbox.CommandPiece], error) {
	return f.output(command, since, follow)
}

// fakeAudit remembers what it was to record. Its lists have what a test has set.
type fakeAudit struct {
	Audit
	mu       sync.Mutex
	recorded []string
	list     func(q api.AuditQuery) ([]api.AuditEntry, error)
}

func (f *fakeAudit) Record(_ context.Context, _ *core.Act, outcome, message string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorded = append(f.recorded, outcome+" "+message)
	return nil
}

func (f *fakeAudit) List(_ context.Context, q api.AuditQuery, _ core.ListOptions) ([]api.AuditEntry, string, error) {
	if f.list == nil {
		return nil, "", nil
	}
	out, err := f.list(q)
	return out, "", err
}

func (f *fakeAudit) ListOf(ctx context.Context, _ core.Caller, orgID string, q api.AuditQuery, o core.ListOptions) ([]api.AuditEntry, string, error) {
	q.WorkspaceID = orgID
	return f.List(ctx, q, o)
}
