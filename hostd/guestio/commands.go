package guestio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/plainjson"
)

const (
	// maxCommand bounds the guest's description of one command, in bytes, and maxCommands
	// how many it may list.
	maxCommand  = 4 * guestapi.MaxCommandText
	maxCommands = 2 * (guestapi.MaxCommands + guestapi.KeptCommands)
	// maxOutputLine bounds a line of output, whose bytes are in base64.
	maxOutputLine = 4 * guestapi.MaxCommandPiece
)

var (
	errNoAnswer = fmt.Errorf("%w: it does not answer in time", hosterr.ErrGuest)
	// errOldAgent is the refusal of a guest whose agent is older than its commands.
	errOldAgent = &Refusal{
		Status: http.StatusNotImplemented, Message: "commands are not supported by this sandbox",
		Detail: "its template was stored by an earlier version; build the template again, and create a new sandbox",
	}
)

// StartCommand starts a command in a running box that belongs to the guest.
func (g *Guests) StartCommand(ctx context.Context, id string, req hostapi.StartCommand) (hostapi.Command, error) {
	checked := hostapi.ExecStream{Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Timeout: req.Timeout}
	if err := validateStream(&checked); err != nil {
		return hostapi.Command{}, err
	}
	var out guestapi.Command
	err := g.askCommand(ctx, id, http.MethodPost, "", guestapi.StartCommand{
		ExecRequest: guestapi.ExecRequest{
			Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, OpenStdin: req.OpenStdin, Timeout: req.Timeout,
		},
		Text: req.Text, Key: req.Key, Digest: req.Digest,
	}, &out)
	if err != nil {
		return hostapi.Command{}, err
	}
	return commandOf(&out)
}

// Commands returns the commands of a running box's guest, newest first.
func (g *Guests) Commands(caller context.Context, id string) ([]hostapi.Command, error) {
	ctx, cancel := context.WithTimeoutCause(caller, startTimeout, errNoAnswer)
	defer cancel()
	resp, err := g.relayCommand(ctx, id, GuestRequest{Method: http.MethodGet, Path: guestapi.PathCommands})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	nonsense := func(err error) ([]hostapi.Command, error) {
		if errors.Is(err, hosterr.ErrBusy) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: decode its commands: %w", hosterr.ErrGuest, err)
	}
	list := holdAnswer(resp)
	defer func() { context.AfterFunc(caller, list.free) }()
	// One after the other: in short entries a list takes many times its size.
	found := json.NewDecoder(io.LimitReader(list, maxCommands*maxCommand))
	if begin, err := found.Token(); err != nil || begin != json.Delim('[') {
		return nonsense(errors.Join(err, errors.New("it is no list")))
	}
	out := []hostapi.Command{}
	for found.More() {
		if len(out) == maxCommands {
			return nonsense(errors.New("there are too many"))
		}
		var c guestapi.Command
		if err := found.Decode(&c); err != nil {
			return nonsense(err)
		}
		command, err := commandOf(&c)
		if err != nil {
			return nil, err
		}
		out = append(out, command)
	}
	if end, err := found.Token(); err != nil || end != json.Delim(']') {
		return nonsense(errors.Join(err, errors.New("it has no end")))
	}
	return out, nil
}

// Command returns one command.
func (g *Guests) Command(ctx context.Context, id, command string) (hostapi.Command, error) {
	var out guestapi.Command
	if err := g.askCommand(ctx, id, http.MethodGet, "/"+command, nil, &out); err != nil {
		return hostapi.Command{}, err
	}
	return commandOf(&out)
}

// DeleteCommand kills a command and has the guest forget it.
func (g *Guests) DeleteCommand(ctx context.Context, id, command string) error {
	return g.askCommand(ctx, id, http.MethodDelete, "/"+command, nil, nil)
}

// WriteCommand queues input for a command.
func (g *Guests) WriteCommand(ctx context.Context, id, command string, in hostapi.CommandInput) error {
	return g.askCommand(ctx, id, http.MethodPost, "/"+command+"/input", guestapi.CommandInput{Data: in.Data, EOF: in.EOF}, nil)
}

// SignalCommand signals a command's process group.
func (g *Guests) SignalCommand(ctx context.Context, id, command string, in hostapi.CommandSignal) error {
	return g.askCommand(ctx, id, http.MethodPost, "/"+command+"/signal", guestapi.CommandSignal{Signal: in.Signal}, nil)
}

// Output is who is handed a command's output.
type Output struct {
	Began func()                            // called once, before the first piece
	Emit  func(hostapi.CommandOutput) error // an error of it ends the output
}

// CommandOutput hands on what a command has written since an offset and, with follow, what
// it writes until its end or ctx's.
func (g *Guests) CommandOutput(ctx context.Context, id, command string, since int64, follow bool, out Output) error {
	resp, err := g.relayCommand(ctx, id, GuestRequest{
		Method: http.MethodGet, Path: guestapi.PathCommands + "/" + command + "/output",
		Query: url.Values{"since": {strconv.FormatInt(since, 10)}, "follow": {strconv.FormatBool(follow)}},
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out.Began()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 4<<10), maxOutputLine)
	for lines.Scan() {
		var o guestapi.CommandOutput
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("%w: decode a command's output: %w", hosterr.ErrGuest, err)
		}
		piece := hostapi.CommandOutput{Stream: o.Stream, Offset: o.Offset, Data: o.Data}
		switch o.Stream {
		case guestapi.StreamStdout, guestapi.StreamStderr, guestapi.StreamGap:
		case guestapi.StreamExit:
			if o.Exit == nil {
				return fmt.Errorf("%w: a command's end is empty", hosterr.ErrGuest)
			}
			piece.Exit = &hostapi.CommandExit{ExitCode: o.Exit.ExitCode, DurationMS: o.Exit.DurationMS, TimedOut: o.Exit.TimedOut}
		default:
			return fmt.Errorf("%w: a command's output has a stream that does not exist", hosterr.ErrGuest)
		}
		if err := out.Emit(piece); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: read a command's output: %w", hosterr.ErrGuest, err)
	}
	return nil
}

// askCommand makes a request with a short answer.
func (g *Guests) askCommand(ctx context.Context, id, method, sub string, body, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errNoAnswer)
	defer cancel()
	r := GuestRequest{Method: method, Path: guestapi.PathCommands + sub}
	if body != nil {
		raw, err := plainjson.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode a request for a command: %w", err)
		}
		r.Body, r.Length, r.Held = bytes.NewReader(raw), int64(len(raw)), len(raw) > inlineStdin
	}
	resp, err := g.relayCommand(ctx, id, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxCommand)).Decode(into); err != nil {
		return fmt.Errorf("%w: decode a command: %w", hosterr.ErrGuest, err)
	}
	return nil
}

func (g *Guests) relayCommand(ctx context.Context, id string, r GuestRequest) (*http.Response, error) {
	resp, err := g.Relay(ctx, id, r)
	if errors.Is(err, errNoRoute) {
		err = errOldAgent
	}
	return resp, err
}

// commandOf checks what a guest says of a command.
func commandOf(c *guestapi.Command) (hostapi.Command, error) {
	out := hostapi.Command{ID: c.ID, Text: c.Text, TimedOut: c.TimedOut, StartedAt: c.StartedAt, OutputBytes: c.OutputBytes}
	switch {
	case !hostapi.ValidCommandID(c.ID), len(c.Text) > guestapi.MaxCommandText, c.OutputBytes < 0:
		return out, fmt.Errorf("%w: what it says of a command makes no sense", hosterr.ErrGuest)
	case c.Status == guestapi.CommandRunning:
		return out, nil
	case c.Status != guestapi.CommandExited, c.ExitCode == nil, c.EndedAt == nil:
		return out, fmt.Errorf("%w: what it says of a command's end makes no sense", hosterr.ErrGuest)
	}
	out.Exited, out.ExitCode, out.EndedAt = true, *c.ExitCode, *c.EndedAt
	return out, nil
}
