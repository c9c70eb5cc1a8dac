package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/commands"
	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

// planeTable is what runs in a guest, on this machine.
func planeTable(dir string) *commands.Table {
	return commands.New(commands.Config{Freezer: proc.NewFreezer(proc.Groups{}, time.Minute, func() error { return nil }), Dir: dir})
}

// planeRefusal converts a guest's refusal.
func planeRefusal(err error) error {
	var r *files.Refusal
	if !errors.As(err, &r) {
		return err
	}
	code := map[int]apierror.Code{
		http.StatusBadRequest: apierror.EInvalid, http.StatusNotFound: apierror.ENotFound, http.StatusConflict: apierror.EConflict,
		http.StatusTooManyRequests: apierror.ERateLimited,
	}[r.Status]
	return &apierror.Error{Code: code, Message: r.Text, Detail: r.Detail}
}

func planeCommand(c guestapi.Command) (out api.SandboxCommand, err error) {
	out = api.SandboxCommand{
		ID: c.ID, Status: api.CommandStatus(c.Status), ExitCode: c.ExitCode, TimedOut: c.TimedOut, StartedAt: api.Time{Time: c.StartedAt}, OutputBytes: c.OutputBytes,
	}
	if c.EndedAt != nil {
		out.EndedAt = &api.Time{Time: *c.EndedAt}
	}
	return out, json.Unmarshal(c.Text, &out.Cmd)
}

func (p planeCommands) Start(ctx context.Context, c core.Caller, id string, in api.Exec, i core.Idempotency) (api.SandboxCommand, error) {
	if _, err := p.plane.Get(ctx, c, id); err != nil {
		return api.SandboxCommand{}, err
	}
	argv := in.Cmd.Argv
	if in.Cmd.Shell != "" {
		argv = []string{"sh", "-c", in.Cmd.Shell}
	}
	text, err := json.Marshal(in.Cmd)
	if err != nil {
		return api.SandboxCommand{}, err
	}
	req := &guestapi.StartCommand{Text: text, Key: i.Key, Digest: hex.EncodeToString(i.BodySHA256)}
	req.Stdin, req.OpenStdin = []byte(in.Stdin), in.Stdin == ""
	spec := proc.Spec{Argv: argv, Cwd: p.dir, Stdin: true, Env: []map[string]string{in.Env}}
	if in.TimeoutSeconds != nil {
		spec.Timeout = time.Duration(*in.TimeoutSeconds) * time.Second
	}
	started, err := p.guest.Start(ctx, req, spec)
	if err != nil {
		return api.SandboxCommand{}, planeRefusal(err)
	}
	return planeCommand(started)
}

func (p planeCommands) List(context.Context, core.Caller, string) ([]api.SandboxCommand, error) {
	var out []api.SandboxCommand
	for _, c := range p.guest.List() {
		one, err := planeCommand(c)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

func (p planeCommands) Get(_ context.Context, _ core.Caller, _, command string) (api.SandboxCommand, error) {
	c, err := p.guest.Get(command)
	if err != nil {
		return api.SandboxCommand{}, planeRefusal(err)
	}
	return planeCommand(c.Info())
}

func (p planeCommands) Delete(_ context.Context, _ core.Caller, _, command string) error {
	return planeRefusal(p.guest.Remove(command))
}

func (p planeCommands) Write(_ context.Context, _ core.Caller, _, command string, data []byte, eof bool) error {
	c, err := p.guest.Get(command)
	if err == nil {
		err = c.Input(data, eof)
	}
	return planeRefusal(err)
}

func (p planeCommands) Signal(_ context.Context, _ core.Caller, _, command, name string) error {
	c, err := p.guest.Get(command)
	if err == nil {
		err = c.Signal(name)
	}
	return planeRefusal(err)
}

// planeOutput is output that is followed.
type planeOutput struct {
	pieces chan sandbox.CommandPiece
	stop   context.CancelFunc
}

func (p planeCommands) Output(ctx context.Context, _ core.Caller, _, command string, since int64, follow bool) (core.Follower[sandbox.CommandPiece], error) {
	c, err := p.guest.Get(command)
	if err != nil {
		return nil, planeRefusal(err)
	}
	release, err := c.Hold(since)
	if err != nil {
		return nil, planeRefusal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	out := &planeOutput{make(chan sandbox.CommandPiece), stop}
	go func() {
		defer release()
		defer close(out.pieces)
		_ = c.Output(ctx, since, follow, func(o guestapi.CommandOutput) error {
			piece := sandbox.CommandPiece{Stream: o.Stream, Offset: o.Offset, Data: o.Data}
			if e := o.Exit; e != nil {
				piece.Exit = &api.CommandExit{ExitCode: e.ExitCode, DurationMS: e.DurationMS, TimedOut: e.TimedOut, Offset: o.Offset}
			}
			select {
			case out.pieces <- piece:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func() error { return nil })
	}()
	return out, nil
}

func (o *planeOutput) Next() (sandbox.CommandPiece, error) {
	piece, ok := <-o.pieces
	if !ok {
		return piece, io.EOF
	}
	return piece, nil
}

func (o *planeOutput) Close() error {
	o.stop()
	return nil
}
