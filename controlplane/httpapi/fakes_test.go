package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/berth-cloud/berth/controlplane/service"
)

// The use cases are what the handlers call.
var (
	_ Lifecycle = (*service.Sandboxes)(nil)
	_ Streams   = (*service.Sandboxes)(nil)
)

type fakeLifecycle struct {
	move  func(name, id string) (service.Sandbox, error)
	get   func(id string) (service.Lifecycle, error)
	patch func(id string, in service.PatchLifecycle) (service.Lifecycle, error)
}

func (f *fakeLifecycle) moved(name, id string) (service.Sandbox, error) {
	if f.move == nil {
		return service.Sandbox{}, errUnexpected
	}
	return f.move(name, id)
}

func (f *fakeLifecycle) Pause(_ context.Context, _ service.Caller, id string) (service.Sandbox, error) {
	return f.moved("pause", id)
}

func (f *fakeLifecycle) Resume(_ context.Context, _ service.Caller, id string) (service.Sandbox, error) {
	return f.moved("resume", id)
}

func (f *fakeLifecycle) Hibernate(_ context.Context, _ service.Caller, id string) (service.Sandbox, error) {
	return f.moved("hibernate", id)
}

func (f *fakeLifecycle) Wake(_ context.Context, _ service.Caller, id string) (service.Sandbox, error) {
	return f.moved("wake", id)
}

func (f *fakeLifecycle) Lifecycle(_ context.Context, _ service.Caller, id string) (service.Lifecycle, error) {
	if f.get == nil {
		return service.Lifecycle{}, errUnexpected
	}
	return f.get(id)
}

func (f *fakeLifecycle) PatchLifecycle(_ context.Context, _ service.Caller, id string, in service.PatchLifecycle) (service.Lifecycle, error) {
	if f.patch == nil {
		return service.Lifecycle{}, errUnexpected
	}
	return f.patch(id, in)
}

// fakeStreams answers with what a test set, and else as if nothing were there.
type fakeStreams struct {
	Streams // of which whatever a test does not set panics, as a 500

	rouse    func(id string) error
	admit    func(bytes int64) (release func(), err error)
	stream   func(ctx context.Context, in service.Exec, openStdin bool) (service.Process, error)
	terminal func(in service.Terminal) (service.Process, error)
	lsp      func(lang string) (service.Process, error)
	read     func(path string, h http.Header) (*service.File, error)
	write    func(path, mode string, body io.Reader, size int64) (bool, error)
	remove   func(path string, recursive bool) error
	stat     func(path string) (service.FileStat, error)
	list     func(path string, each func(service.FileStat) error) error
	mkdir    func(path string) error
	logs     func(q service.LogQuery) (io.ReadCloser, error)
	follow   func(q service.LogQuery) (service.Follower[service.LogLine], error)
	events   func(q service.EventQuery) ([]service.Event, error)
	watch    func(q service.EventQuery) (service.Follower[service.Event], error)
	ports    func() ([]service.Port, error)
	addPort  func(port int, label string) (service.Port, error)
	delPort  func(port int) error
}

func (f *fakeStreams) Rouse(_ context.Context, _ service.Caller, id string) error {
	if f.rouse == nil {
		return nil
	}
	return f.rouse(id)
}

func (f *fakeStreams) AdmitInput(_ context.Context, _ service.Caller, bytes int64) (func(), error) {
	if f.admit == nil {
		return func() {}, nil
	}
	return f.admit(bytes)
}

func (f *fakeStreams) Stream(ctx context.Context, _ service.Caller, _ string, in service.Exec, openStdin bool) (service.Process, error) {
	return f.stream(ctx, in, openStdin)
}

func (f *fakeStreams) OpenTerminal(_ context.Context, _ service.Caller, _ string, in service.Terminal) (service.Process, error) {
	return f.terminal(in)
}

func (f *fakeStreams) LanguageServer(_ context.Context, _ service.Caller, _, lang string) (service.Process, error) {
	return f.lsp(lang)
}

func (f *fakeStreams) ReadFile(_ context.Context, _ service.Caller, _, path string, h http.Header) (*service.File, error) {
	return f.read(path, h)
}

func (f *fakeStreams) WriteFile(_ context.Context, _ service.Caller, _, path, mode string, body io.Reader, size int64) (bool, error) {
	return f.write(path, mode, body, size)
}

func (f *fakeStreams) RemoveFile(_ context.Context, _ service.Caller, _, path string, recursive bool) error {
	return f.remove(path, recursive)
}

func (f *fakeStreams) StatFile(_ context.Context, _ service.Caller, _, path string) (service.FileStat, error) {
	return f.stat(path)
}

func (f *fakeStreams) ListDir(_ context.Context, _ service.Caller, _, path string, each func(service.FileStat) error) error {
	return f.list(path, each)
}

func (f *fakeStreams) MakeDir(_ context.Context, _ service.Caller, _, path string) error {
	return f.mkdir(path)
}

func (f *fakeStreams) Logs(_ context.Context, _ service.Caller, _ string, q service.LogQuery) (io.ReadCloser, error) {
	return f.logs(q)
}

func (f *fakeStreams) FollowLogs(_ context.Context, _ service.Caller, _ string, q service.LogQuery) (service.Follower[service.LogLine], error) {
	return f.follow(q)
}

func (f *fakeStreams) Events(_ context.Context, _ service.Caller, _ string, q service.EventQuery) ([]service.Event, error) {
	return f.events(q)
}

func (f *fakeStreams) FollowEvents(_ context.Context, _ service.Caller, _ string, q service.EventQuery) (service.Follower[service.Event], error) {
	return f.watch(q)
}

func (f *fakeStreams) Ports(context.Context, service.Caller, string) ([]service.Port, error) {
	return f.ports()
}

func (f *fakeStreams) AddPort(_ context.Context, _ service.Caller, _ string, port int, label string) (service.Port, error) {
	return f.addPort(port, label)
}

func (f *fakeStreams) RemovePort(_ context.Context, _ service.Caller, _ string, port int) error {
	return f.delPort(port)
}
