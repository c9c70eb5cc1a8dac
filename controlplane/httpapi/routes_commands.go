package httpapi

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Detached are the use cases of commands that belong to a sandbox and not to a request.
type Detached interface {
	Start(ctx context.Context, c core.Caller, id string, in api.Exec, i core.Idempotency) (api.SandboxCommand, error)
	List(ctx context.Context, c core.Caller, id string) ([]api.SandboxCommand, error)
	Get(ctx context.Context, c core.Caller, id, command string) (api.SandboxCommand, error)
	Delete(ctx context.Context, c core.Caller, id, command string) error
	Write(ctx context.Context, c core.Caller, id, command string, data []byte, eof bool) error
	Signal(ctx context.Context, c core.Caller, id, command, name string) error
	Output(ctx context.Context, c core.Caller, id, command string, since int64, follow bool) (core.Follower[sandbox.CommandPiece], error)
}

func commandRoutes() []route {
	const one = "/v1/sandboxes/:id/commands/:cid"
	failures := func(more ...apierror.Error) []apierror.Error {
		return needsRunning(append(more, apierror.Error{
			Code: apierror.ENotImplemented, Message: "commands are not supported by this sandbox",
			Detail: "its template was stored by an earlier version; build the template again, and create a new sandbox",
		})...)
	}
	ended := apierror.Error{Code: apierror.EConflict, Message: "command has ended"}
	return []route{
		{post, "/v1/sandboxes/:id/commands", workspace, (*API).startCommand, operation{
			id: "startCommand", tag: "Commands", summary: "Start a command that belongs to the sandbox",
			detail: "Answers once the command has started. It goes on without its caller, through hibernate and wake, and in each child " +
				"of a fork that keeps memory. It has no time-out unless `timeout_seconds` is given; time asleep does not count. Its " +
				"input stays open, unless `stdin` is given, which is then all of it. A program that is not there ends with exit code 127. " +
				"At most 64 run at once; of those that have ended the last 100 are kept, and their Idempotency-Keys as long.",
			idempotent: true, body: exampleStartCommand, status: 201, answer: exampleCommand,
			failures: failures(
				apierror.Error{Code: apierror.EInvalid, Message: "cmd required"},
				apierror.Error{Code: apierror.EInvalid, Message: "invalid timeout_seconds", Detail: "timeout_seconds must be from 1 to 3600"},
				apierror.Error{Code: apierror.EInvalid, Message: "invalid cwd", Detail: `invalid command: cwd "/x": no such file or directory`},
				apierror.Error{Code: apierror.ERateLimited, Message: "too many commands at once in this sandbox", Detail: "64 detached commands run; delete one, or wait for its end"},
				apierror.Error{Code: apierror.ERateLimited, Message: "too much input at once"}),
		}},
		{get, "/v1/sandboxes/:id/commands", workspace, (*API).listCommands, operation{
			id: "listCommands", tag: "Commands", summary: "List the commands that run and the last 100 that have ended, newest first",
			detail: "Wakes a hibernated sandbox, whose commands are in its memory, as all routes of commands do.",
			status: 200, answer: []api.SandboxCommand{exampleCommand}, failures: failures(),
		}},
		{get, one, workspace, (*API).getCommand, operation{
			id: "getCommand", tag: "Commands", summary: "Read one command",
			status: 200, answer: exampleCommand, failures: failures(),
		}},
		{del, one, workspace, (*API).deleteCommand, operation{
			id: "deleteCommand", tag: "Commands", summary: "Kill a command with everything it started, and forget it",
			status: 204, failures: failures(),
		}},
		{get, one + "/output", workspace, (*API).commandOutput, operation{
			id: "commandOutput", tag: "Commands", summary: "Read what a command has written, and what it writes",
			detail: "Server-sent events: `stdout` and `stderr` with a CommandOutput, `gap` with a CommandGap where what was asked for is " +
				"not kept any more (the last 8 MiB are), and a last `exit` with a CommandExit once the command has ended, or `error` " +
				"with an Error when the stream breaks off. The `id` of an event is the offset after it: pass it as `since`, or as " +
				"Last-Event-ID, to go on from there. A client that reads slowly does not slow the command.",
			query: []parameter{
				{name: "since", description: "The offset to begin at; 0 unless given.", schema: map[string]any{"type": "integer", "minimum": 0, "format": "int64"}},
				{name: "follow", description: "Stream what is there and what comes, until the command's end.", schema: aFlag},
			},
			status: 200, answerType: typeEvents, events: map[string]any{
				"stdout": api.CommandOutput{}, "stderr": api.CommandOutput{}, "gap": api.CommandGap{}, "exit": api.CommandExit{}, "error": api.ErrorBody{},
			},
			failures: failures(append(refusals(apierror.EInvalid, "invalid since", "invalid follow"), manyStreams)...),
		}},
		{post, one + "/input", workspace, (*API).writeCommand, operation{
			id: "writeCommand", tag: "Commands", summary: "Write to a command's input",
			detail: "Answers once the input is queued: all of it, or nothing. At most 1 MiB waits for a command that does not read it.",
			body:   api.CommandInput{Data: "yes\n"}, status: 204,
			failures: failures(ended,
				apierror.Error{Code: apierror.EInvalid, Message: "invalid encoding", Detail: `encoding is "base64", or is left out`},
				apierror.Error{Code: apierror.EConflict, Message: "input is closed", Detail: "nothing can follow the end of the input"},
				apierror.Error{Code: apierror.ERateLimited, Message: "too much input at once", Detail: "the command has not read 1048576 bytes of its input yet"}),
		}},
		{post, one + "/signal", workspace, (*API).signalCommand, operation{
			id: "signalCommand", tag: "Commands", summary: "Signal a command's process group",
			body: api.CommandSignal{Signal: "TERM"}, status: 204,
			failures: failures(ended, apierror.Error{Code: apierror.EInvalid, Message: "invalid signal", Detail: "signal is a name such as INT, TERM, KILL, HUP or USR1"}),
		}},
	}
}

var (
	exampleStartCommand = api.Exec{Cmd: api.Shell("make -j2 && make test"), Cwd: "/srv"}
	exampleCommand      = api.SandboxCommand{
		ID: "cmd-q5t3nz7k2m4w6x2p7j3dq5t3nz", Cmd: exampleStartCommand.Cmd, Status: api.CommandRunning, StartedAt: exampleStarted,
	}
)
