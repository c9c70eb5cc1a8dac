package httpapi

import (
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Commands are the use cases of commands in sandboxes.
type Commands interface {
	Wake(ctx context.Context, c core.Caller, id string) error
	Exec(ctx context.Context, c core.Caller, id string, in api.Exec) (api.ExecResult, error)
	Stream(ctx context.Context, c core.Caller, id string, in api.Exec, openStdin bool) (sandbox.Process, error)
	OpenTerminal(ctx context.Context, c core.Caller, id string, in sandbox.Terminal) (sandbox.Process, error)
	LanguageServer(ctx context.Context, c core.Caller, id, lang string) (sandbox.Process, error)
	Detached
}

// Files are the use cases of a sandbox's file system.
type Files interface {
	Read(ctx context.Context, c core.Caller, id, path string, conditions http.Header) (*sandbox.File, error)
	Write(ctx context.Context, c core.Caller, id, path, mode string, body io.Reader, size int64) (isNew bool, err error)
	Remove(ctx context.Context, c core.Caller, id, path string, recursive bool) error
	Stat(ctx context.Context, c core.Caller, id, path string) (api.FileStat, error)
	List(ctx context.Context, c core.Caller, id, path string, each func(api.FileStat) error) error
	MakeDir(ctx context.Context, c core.Caller, id, path string) error
}

// Logs are the use cases of logs and events.
type Logs interface {
	Text(ctx context.Context, c core.Caller, id string, q api.LogQuery) (io.ReadCloser, error)
	Follow(ctx context.Context, c core.Caller, id string, q api.LogQuery) (core.Follower[sandbox.LogLine], error)
	Events(ctx context.Context, c core.Caller, id string, q api.EventQuery) ([]api.Event, error)
	FollowEvents(ctx context.Context, c core.Caller, id string, q api.EventQuery) (core.Follower[api.Event], error)
}

// Ports are the use cases of a sandbox's ports and previews.
type Ports interface {
	List(ctx context.Context, c core.Caller, id string) ([]api.Port, error)
	Add(ctx context.Context, c core.Caller, id string, in api.AddPort) (api.Port, error)
	Remove(ctx context.Context, c core.Caller, id string, port int) error
	PreviewToken(ctx context.Context, c core.Caller, id string, in api.CreatePreviewToken) (api.PreviewAccess, error)
}

// Inputs limits the memory for clients' input that may be held for long.
type Inputs interface {
	AdmitInput(ctx context.Context, c core.Caller, bytes int64) (release func(), err error)
}

const (
	typeEvents = "text/event-stream"
	typeBytes  = "application/octet-stream"
)

// needsRunning adds the errors of every route that needs a running sandbox. A route
// that wakes a hibernated one may find no memory for it, or that it cannot be woken.
func needsRunning(more ...apierror.Error) []apierror.Error {
	return append(more,
		apierror.Error{Code: apierror.ENotFound, Message: "sandbox not found or not running", Detail: "its status is failed"},
		apierror.Error{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"},
		apierror.Error{Code: apierror.EConflict, Message: "sandbox stopped while this was under way", Detail: "it is hibernated; what had begun is not done again"},
		apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"},
		apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox"},
		errMemoryLost,
	)
}

// errMemoryLost is the error of each wake of a sandbox whose saved memory cannot be used.
var errMemoryLost = apierror.Error{
	Code: apierror.EUnprocessable, Message: "snapshot cannot be restored",
	Detail: "its saved memory cannot be used: its memory was saved by cloud-hypervisor v52.0, this host has cloud-hypervisor v53.0",
}

func refusals(code apierror.Code, messages ...string) []apierror.Error {
	out := make([]apierror.Error, len(messages))
	for i, m := range messages {
		out[i] = apierror.Error{Code: code, Message: m}
	}
	return out
}

// streamRoutes are the routes of streams, files, logs, events and ports.
func streamRoutes() []route {
	return slices.Concat(processRoutes(), commandRoutes(), fileRoutes(), logRoutes(), portRoutes())
}

const bySubprotocol = " A browser, which can set no header on a WebSocket, offers the subprotocols `berth.v1` and `bearer.<credential>`."

func processRoutes() []route {
	return []route{
		{post, "/v1/sandboxes/:id/exec/stream", workspace, (*API).execStream, operation{
			id: "execStream", tag: "Streams", summary: "Run a command and stream what it writes",
			detail: "Server-sent events: `stdout` and `stderr` with an Output, then one `exit` with an Exit, or `error` with an " +
				"Error when the stream breaks off. A client that goes away kills the " +
				"process group; one that reads slowly slows the command.",
			body: exampleExec, status: 200, answerType: typeEvents, events: map[string]any{
				"stdout": api.Output{}, "stderr": api.Output{}, "exit": api.Exit{}, "error": api.ErrorBody{},
			},
			failures: needsRunning(refusals(apierror.EInvalid, "cmd required", "invalid timeout_seconds")...),
		}},
		{get, "/v1/sandboxes/:id/exec/pty", workspace, (*API).openTerminal, operation{
			id: "openTerminal", tag: "Streams", summary: "Open a terminal over a WebSocket", websocket: true,
			detail: "Binary messages are the terminal's bytes, both ways. Text messages are Frames: `resize` and `signal` in, " +
				"one `exit` out." + bySubprotocol,
			query: []parameter{
				{name: "cmd", description: "Run by sh -c; the user's login shell unless given.", schema: aString},
				{name: "cols", description: "80 unless given.", schema: anInteger(1, maxTerminal)},
				{name: "rows", description: "24 unless given.", schema: anInteger(1, maxTerminal)},
				{name: "cwd", description: "Absolute; the user's home unless given.", schema: aString},
				{name: "user", description: "A name or uid[:gid]; root unless given.", schema: aString},
			},
			status: 101, failures: needsRunning(refusals(apierror.EInvalid, "invalid cols", "invalid rows", "invalid cwd", "invalid user")...),
		}},
		{get, "/v1/sandboxes/:id/exec/ws", workspace, (*API).execSocket, operation{
			id: "execSocket", tag: "Streams", summary: "Run a command over a WebSocket, with its input open", websocket: true,
			detail: "The first message is an Exec. After it Frames: `stdin`, `eof` and `signal` in; `stdout`, `stderr` and one " +
				"`exit`, or `error`, out." + bySubprotocol,
			status: 101, failures: needsRunning(),
		}},
		{get, "/v1/sandboxes/:id/lsp/:lang", workspace, (*API).openLanguageServer, operation{
			id: "openLanguageServer", tag: "Streams", summary: "Talk to a language server over a WebSocket", websocket: true,
			detail: "One JSON-RPC message a text message, without the header." + bySubprotocol,
			status: 101, failures: needsRunning(apierror.Error{Code: apierror.ENotFound, Message: "no language server for cobol"}),
		}},
	}
}

func fileRoutes() []route {
	file := parameter{name: "path", description: "Absolute, without \"..\", at most 4095 bytes; not the root.", schema: aFile, required: true}
	path := parameter{name: "path", description: "Absolute, without \"..\", at most 4095 bytes.", schema: aPath, required: true}
	failures := func(more ...apierror.Error) []apierror.Error {
		return needsRunning(append(more,
			apierror.Error{Code: apierror.EInvalid, Message: "path required"},
			apierror.Error{Code: apierror.EInvalid, Message: "invalid path", Detail: "path must be absolute"},
			apierror.Error{Code: apierror.EInvalid, Message: "not a directory"},
			apierror.Error{Code: apierror.EForbidden, Message: "permission denied"},
			apierror.Error{Code: apierror.ENotFound, Message: "no such file or directory"})...)
	}
	return []route{
		{get, "/v1/sandboxes/:id/fs", workspace, (*API).readFile, operation{
			id: "readFile", tag: "Files", summary: "Read a file",
			detail: "Supports Range requests.",
			query:  []parameter{file}, status: 200, answerType: typeBytes,
			also: map[int]string{http.StatusPartialContent: "The range asked for.", http.StatusNotModified: "It has not changed since If-Modified-Since."},
			failures: failures(
				apierror.Error{Code: apierror.EInvalid, Message: "is a directory"},
				apierror.Error{Code: apierror.ERange, Message: "invalid range"}),
		}},
		{put, "/v1/sandboxes/:id/fs", workspace, (*API).writeFile, operation{
			id: "writeFile", tag: "Files", summary: "Write a file",
			detail: "The body is the bytes, of any number. Parent directories are made. The file is in its place once all of it is there: " +
				"an upload that breaks off leaves what was there before.",
			query:    []parameter{file, {name: "mode", description: "Octal; 0644 unless given.", schema: map[string]any{"type": "string", "pattern": "^[0-7]{3,4}$"}}},
			bodyType: typeBytes, status: 201, also: map[int]string{http.StatusNoContent: "It was there, and is replaced."},
			failures: failures(
				apierror.Error{Code: apierror.EInvalid, Message: "incomplete body", Detail: "the body ended early"},
				apierror.Error{Code: apierror.EInvalid, Message: "invalid mode", Detail: "mode is octal, such as 0644"},
				apierror.Error{Code: apierror.EInvalid, Message: "is a directory"},
				apierror.Error{Code: apierror.EInsufficient, Message: "no space left on device"}),
		}},
		{del, "/v1/sandboxes/:id/fs", workspace, (*API).removeFile, operation{
			id: "removeFile", tag: "Files", summary: "Delete a file or a directory",
			query: []parameter{file, {name: "recursive", description: "Also a directory that is not empty.", schema: aBoolean}}, status: 204,
			failures: failures(apierror.Error{Code: apierror.EConflict, Message: "directory not empty"}),
		}},
		{get, "/v1/sandboxes/:id/fs/stat", workspace, (*API).statFile, operation{
			id: "statFile", tag: "Files", summary: "Describe a file, a directory or a link",
			query: []parameter{path}, status: 200, answer: exampleStat, failures: failures(),
		}},
		{get, "/v1/sandboxes/:id/fs/dir", workspace, (*API).listDir, operation{
			id: "listDir", tag: "Files", summary: "List a directory",
			query: []parameter{path}, status: 200, answer: exampleDir, failures: failures(),
		}},
		{post, "/v1/sandboxes/:id/fs/dir", workspace, (*API).makeDir, operation{
			id: "makeDir", tag: "Files", summary: "Make a directory, with its parents",
			query: []parameter{path}, body: api.Empty{}, status: 201,
			failures: failures(apierror.Error{Code: apierror.EInsufficient, Message: "no space left on device"}),
		}},
	}
}

// toFollow is the parameter of routes that can be followed.
var toFollow = parameter{name: "follow", description: "Stream what is there and what comes.", schema: aFlag}

func logRoutes() []route {
	return []route{
		{get, "/v1/sandboxes/:id/logs", workspace, (*API).showLogs, operation{
			id: "logs", tag: "Logs and events", summary: "Read what the template's start command and the console wrote",
			detail: "Text, or with `follow` server-sent events named `stdout`, `stderr` or `console` with a LogLine.",
			query: []parameter{
				{name: "stream", description: "Which; both unless given.", schema: map[string]any{"enum": []string{"stdout", "stderr", "both", "console"}}},
				{name: "tail", description: "At most so many lines of those that are there.", schema: anInteger(1, math.MaxInt32)},
				toFollow,
			},
			status: 200, answerType: "text/plain", acceptType: typeEvents, events: map[string]any{
				"stdout": api.LogLine{}, "stderr": api.LogLine{}, "console": api.LogLine{}, "error": api.ErrorBody{},
			},
			failures: needsRunning(append(refusals(apierror.EInvalid, "invalid stream", "invalid tail", "invalid follow"), manyStreams)...),
		}},
		{get, "/v1/sandboxes/:id/events", workspace, (*API).showEvents, operation{
			id: "events", tag: "Logs and events", summary: "Read what happened to a sandbox, oldest first",
			detail: "With `follow`, server-sent events named `ev`, each with an Event, its `id` the event's `ts`: pass it as `since`, " +
				"or as Last-Event-ID, to go on from there without a gap or a double. Without `follow`, a deleted sandbox's events, for 90 days.",
			query: []parameter{
				{name: "tail", description: "The last so many, 10000 at most; of those after since where it is given. 100 unless either is given.", schema: anInteger(0, math.MaxInt32)},
				{name: "since", description: "Only what came after this time.", schema: map[string]any{"type": "string", "format": "date-time"}},
				toFollow,
			},
			status: 200, answer: []api.Event{exampleEvent}, acceptType: typeEvents,
			events: map[string]any{"ev": api.Event{}, "error": api.ErrorBody{}},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid since", "invalid follow"), manyStreams,
				apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"},
				apierror.Error{Code: apierror.EUnavailable, Message: "event store unavailable", RetryAfter: time.Second}),
		}},
	}
}

func portRoutes() []route {
	return []route{
		{get, "/v1/sandboxes/:id/ports", workspace, (*API).listPorts, operation{
			id: "listPorts", tag: "Ports", summary: "List the ports that something listens on, and those that are registered",
			status: 200, answer: []api.Port{examplePort}, failures: needsRunning(),
		}},
		{post, "/v1/sandboxes/:id/ports", workspace, (*API).addPort, operation{
			id: "addPort", tag: "Ports", summary: "Register a port, with a label",
			detail: "Any port can be reached at its preview URL, registered or not.",
			body:   api.AddPort{Port: 3000, Label: "web"}, status: 201, answer: exampleNewPort,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid port", Detail: "port must be from 1 to 65535"},
				{Code: apierror.EInvalid, Message: "invalid label", Detail: "a label has at most 63 printable characters"},
				{Code: apierror.EConflict, Message: "too many ports"},
			},
		}},
		{del, "/v1/sandboxes/:id/ports", workspace, (*API).removePort, operation{
			id: "removePort", tag: "Ports", summary: "Remove the registration of a port",
			query:  []parameter{{name: "port", description: "Which.", schema: anInteger(1, 65535), required: true}},
			status: 204, failures: refusals(apierror.EInvalid, "port required", "invalid port"),
		}},
	}
}
