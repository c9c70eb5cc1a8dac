package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// MaxCommands is how many detached commands may run at once in a sandbox.
const MaxCommands = guestapi.MaxCommands

// maxShownCmd is how much of a command's text is kept to be shown, in bytes.
const maxShownCmd = 2 << 10

// Start starts a command that belongs to the sandbox and not to the request. The guest
// keeps the idempotency key beside the command, so that both are known, saved and copied
// together.
func (c *Commands) Start(ctx context.Context, caller core.Caller, id string, in api.Exec, i core.Idempotency) (api.SandboxCommand, error) {
	limited := in.TimeoutSeconds != nil
	req, err := requestOf(in)
	if err == nil && len(req.Stdin) > guestapi.MaxInput {
		err = &apierror.Error{Code: apierror.ETooLarge, Message: "request body too large", Detail: "stdin of a detached command is at most 1 MiB; write more to a file, or send it as input"}
	}
	if err != nil {
		return api.SandboxCommand{}, c.orNotFound(ctx, caller, id, err)
	}
	text, err := json.Marshal(shown(in.Cmd))
	if err != nil {
		return api.SandboxCommand{}, err
	}
	start := hostapi.StartCommand{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, OpenStdin: len(req.Stdin) == 0,
		Text: text, Key: i.Key, Digest: requestDigest(i),
	}
	if limited {
		start.Timeout = req.Timeout
	}
	var out hostapi.Command
	err = c.onGuest(ctx, caller, id, func(ctx context.Context, t target) (err error) {
		out, err = t.client.StartCommand(ctx, id, start)
		return err
	})
	if err != nil {
		return api.SandboxCommand{}, err
	}
	return commandFrom(out)
}

// requestDigest distinguishes the requests that may have the same idempotency key, by body
// and sender.
func requestDigest(i core.Idempotency) string {
	sum := sha256.Sum256(append([]byte(i.By+"\x00"), i.BodySHA256...))
	return hex.EncodeToString(sum[:])
}

// shown is as much of a command as is kept to be shown.
func shown(cmd api.Command) api.Command {
	left := maxShownCmd
	short := func(s string) string {
		if len(s) <= left {
			left -= len(s)
			return s
		}
		for left > 0 && !utf8.RuneStart(s[left]) {
			left--
		}
		s, left = s[:left]+"…", 0
		return s
	}
	if cmd.Argv == nil {
		return api.Shell(short(cmd.Shell))
	}
	var argv []string
	for _, arg := range cmd.Argv {
		argv = append(argv, short(arg))
		if left--; left <= 0 {
			break
		}
	}
	return api.Argv(argv...)
}

// List returns a sandbox's detached commands, newest first: those that run and the last
// that have ended.
func (c *Commands) List(ctx context.Context, caller core.Caller, id string) ([]api.SandboxCommand, error) {
	var found []hostapi.Command
	err := c.onGuest(ctx, caller, id, func(ctx context.Context, t target) (err error) {
		found, err = t.client.Commands(ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]api.SandboxCommand, len(found))
	for n, f := range found {
		if out[n], err = commandFrom(f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Get returns one detached command.
func (c *Commands) Get(ctx context.Context, caller core.Caller, id, command string) (api.SandboxCommand, error) {
	var out hostapi.Command
	err := c.onCommand(ctx, caller, id, command, func(ctx context.Context, t target) (err error) {
		out, err = t.client.Command(ctx, id, command)
		return err
	})
	if err != nil {
		return api.SandboxCommand{}, err
	}
	return commandFrom(out)
}

// Delete kills a detached command, and has the sandbox forget it.
func (c *Commands) Delete(ctx context.Context, caller core.Caller, id, command string) error {
	return c.onCommand(ctx, caller, id, command, func(ctx context.Context, t target) error {
		return t.client.DeleteCommand(ctx, id, command)
	})
}

// Write queues input for a detached command. With eof it is the last.
func (c *Commands) Write(ctx context.Context, caller core.Caller, id, command string, data []byte, eof bool) error {
	return c.onCommand(ctx, caller, id, command, func(ctx context.Context, t target) error {
		return t.client.WriteCommand(ctx, id, command, hostapi.CommandInput{Data: data, EOF: eof})
	})
}

// Signal signals a detached command's process group.
func (c *Commands) Signal(ctx context.Context, caller core.Caller, id, command, name string) error {
	signal, ok := SignalName(name)
	if !ok {
		err := apierror.Invalid("invalid signal", "signal is a name such as INT, TERM, KILL, HUP or USR1")
		return c.orNotFound(ctx, caller, id, err)
	}
	return c.onCommand(ctx, caller, id, command, func(ctx context.Context, t target) error {
		return t.client.SignalCommand(ctx, id, command, hostapi.CommandSignal{Signal: signal})
	})
}

// CommandPiece is a piece of a detached command's output: bytes of Stdout or Stderr, a Gap
// after which the output goes on at Offset, or the command's end, which is the last piece.
type CommandPiece struct {
	Stream string
	Offset int64
	Data   []byte
	Exit   *api.CommandExit // not nil: it has ended
}

// Gap is the stream of a CommandPiece without output.
const Gap = "gap"

// Output returns what a detached command has written since an offset and, with follow, what
// it writes until its end.
func (c *Commands) Output(ctx context.Context, caller core.Caller, id, command string, since int64, follow bool) (core.Follower[CommandPiece], error) {
	out, err := followed[hostapi.CommandOutput](c.reach, caller)
	if err != nil {
		return nil, err
	}
	err = c.onKnown(ctx, caller, id, command, open(c.reach, &out.opened, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.CommandOutput], error) {
		return t.client.CommandOutput(ctx, id, command, since, follow)
	}))
	if err != nil {
		out.leave()
		return nil, err
	}
	return &core.Converted[hostapi.CommandOutput, CommandPiece]{From: out.it, Release: out.end, Convert: pieceFrom}, nil
}

func pieceFrom(o hostapi.CommandOutput) CommandPiece {
	p := CommandPiece{Stream: o.Stream, Offset: o.Offset, Data: o.Data}
	if e := o.Exit; e != nil {
		p.Exit = &api.CommandExit{ExitCode: e.ExitCode, DurationMS: e.DurationMS, TimedOut: e.TimedOut, Offset: o.Offset}
	}
	return p
}

// onGuest calls fn for a short answer, with the host of a running sandbox.
func (c *Commands) onGuest(ctx context.Context, caller core.Caller, id string, fn func(context.Context, target) error) error {
	return c.onRunning(ctx, caller, id, func(ctx context.Context, t target) error {
		ctx, release := c.core.Hosts.WhileHeard(ctx, t.row.HostID)
		defer release()
		return fn(ctx, t)
	})
}

// onCommand is onGuest for one command.
func (c *Commands) onCommand(ctx context.Context, caller core.Caller, id, command string, fn func(context.Context, target) error) error {
	return c.onKnown(ctx, caller, id, command, func(ctx context.Context, t target) error {
		ctx, release := c.core.Hosts.WhileHeard(ctx, t.row.HostID)
		defer release()
		return fn(ctx, t)
	})
}

// onKnown is onRunning, but wakes no sandbox for what is the id of no command.
func (c *Commands) onKnown(ctx context.Context, caller core.Caller, id, command string, fn func(context.Context, target) error) error {
	if !hostapi.ValidCommandID(command) {
		return c.orNotFound(ctx, caller, id, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such command"})
	}
	return c.onRunning(ctx, caller, id, fn)
}

// within returns the nearest time that RFC 3339 can express: whose it is is the guest.
func within(t time.Time) time.Time {
	switch {
	case t.Before(earliest):
		return earliest
	case t.After(latest):
		return latest
	}
	return t
}

// commandFrom converts what a guest says of a command.
func commandFrom(h hostapi.Command) (api.SandboxCommand, error) {
	out := api.SandboxCommand{
		ID: h.ID, Status: api.CommandRunning, TimedOut: h.TimedOut, StartedAt: api.Time{Time: within(h.StartedAt)}, OutputBytes: h.OutputBytes,
	}
	if err := json.Unmarshal(h.Text, &out.Cmd); err != nil || strings.ContainsRune(out.Cmd.Shell, 0) {
		return out, apierror.Unreachable("the sandbox's answer makes no sense", err)
	}
	if h.Exited {
		out.Status, out.ExitCode, out.EndedAt = api.CommandExited, &h.ExitCode, &api.Time{Time: within(h.EndedAt)}
	}
	return out, nil
}
