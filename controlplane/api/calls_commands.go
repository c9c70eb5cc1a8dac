package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"
)

// StartCommand starts a command that belongs to the sandbox: it goes on when the caller
// leaves, and has no time-out unless in has one. Its input stays open, unless in has some,
// which is then all of it. If idempotencyKey is not empty, repeating the call returns the
// same command for as long as the sandbox knows it.
func (c *Client) StartCommand(ctx context.Context, id string, in Exec, idempotencyKey string) (*SandboxCommand, error) {
	return create[SandboxCommand](ctx, c, in, idempotencyKey, Version, "sandboxes", id, "commands")
}

// ListCommands returns the commands that run in a sandbox and the last that have ended,
// newest first.
func (c *Client) ListCommands(ctx context.Context, id string) ([]SandboxCommand, error) {
	out, err := into[[]SandboxCommand](ctx, c, get(Version, "sandboxes", id, "commands"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// GetCommand reads one command.
func (c *Client) GetCommand(ctx context.Context, id, command string) (*SandboxCommand, error) {
	return into[SandboxCommand](ctx, c, get(Version, "sandboxes", id, "commands", command))
}

// DeleteCommand kills a command with everything it started, and forgets it.
func (c *Client) DeleteCommand(ctx context.Context, id, command string) error {
	return c.done(ctx, remove(Version, "sandboxes", id, "commands", command))
}

// WriteCommand queues input for a command, all of it or nothing. With eof it is the last.
func (c *Client) WriteCommand(ctx context.Context, id, command string, data []byte, eof bool) error {
	piece := encodeData(data)
	cl, err := post(CommandInput{Data: piece.Data, Encoding: piece.Encoding, EOF: eof}, Version, "sandboxes", id, "commands", command, "input")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// SignalCommand sends a signal, such as "INT", to a command's process group.
func (c *Client) SignalCommand(ctx context.Context, id, command, signal string) error {
	cl, err := post(CommandSignal{Signal: signal}, Version, "sandboxes", id, "commands", command, "signal")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// CommandPiece is a piece of a command's output. With Gap, output before Offset is not
// kept any more.
type CommandPiece struct {
	Stream string // stdout or stderr
	Offset int64  // of its first byte, in the bytes of both streams
	Data   []byte
	Gap    bool
}

// CommandOutput calls each with what a command has written since an offset. It returns the
// command's end, or nil if it runs.
func (c *Client) CommandOutput(ctx context.Context, id, command string, since int64, each func(CommandPiece) error) (*CommandExit, error) {
	_, end, err := c.commandOutput(ctx, id, command, since, false, each)
	return end, err
}

// FollowCommand calls each with what a command has written since an offset and with what
// it writes, and returns its end. If the stream breaks, it continues where it was, unless
// the sandbox does not run any more: to follow again would wake it.
func (c *Client) FollowCommand(ctx context.Context, id, command string, since int64, each func(CommandPiece) error) (*CommandExit, error) {
	begun, pause := false, brokenPause
	for {
		next, end, err := c.commandOutput(ctx, id, command, since, true, each)
		var own *eachError
		switch {
		case end != nil:
			return end, nil
		case errors.As(err, &own):
			return nil, own.error
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		if next > since {
			since, begun, pause = next, true, brokenPause
		}
		var ended *StreamError
		begun = begun || errors.As(err, &ended) || err == nil
		if err != nil && !passing(err, begun) {
			return nil, err
		}
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
		pause = min(2*pause, longPause)
		if err := c.mayFollow(ctx, id); err != nil {
			return nil, err
		}
	}
}

// WaitCommand waits for a command's end.
func (c *Client) WaitCommand(ctx context.Context, id, command string) (*SandboxCommand, error) {
	now, err := c.GetCommand(ctx, id, command)
	if err != nil || now.Status == CommandExited {
		return now, err
	}
	if _, err := c.FollowCommand(ctx, id, command, now.OutputBytes, func(CommandPiece) error { return nil }); err != nil {
		return nil, err
	}
	now, err = c.GetCommand(ctx, id, command)
	if err == nil && now.Status != CommandExited { // who says either is the sandbox
		return nil, &StreamError{Message: "the sandbox's answer makes no sense", Detail: "its command has ended, and runs"}
	}
	return now, err
}

// brokenPause is longer than the moment between the end of a sandbox that is hibernated,
// which breaks its streams, and its new status.
const brokenPause = 500 * time.Millisecond

// mayFollow returns an error if a sandbox was stopped: whoever has done so does not want
// it woken by those who only listen.
func (c *Client) mayFollow(ctx context.Context, id string) error {
	sb, err := c.GetSandbox(ctx, id)
	switch {
	case err != nil && passing(err, true):
		return nil
	case err != nil:
		return err
	case sb.Status == SandboxHibernated, sb.Status == SandboxPaused:
		return &StreamError{
			Message: "the sandbox is " + string(sb.Status), Detail: "its commands go on when it does; follow again to wake a hibernated one",
		}
	}
	return nil
}

// eachError is an error of the caller's function.
type eachError struct{ error }

// commandOutput reads one stream. next is where to go on.
func (c *Client) commandOutput(ctx context.Context, id, command string, since int64, following bool, each func(CommandPiece) error) (next int64, end *CommandExit, err error) {
	cl := get(Version, "sandboxes", id, "commands", command, "output")
	cl.query = url.Values{"since": {strconv.FormatInt(since, 10)}}
	if following {
		cl.query.Set("follow", "true")
	}
	next = since
	s, err := c.listen(ctx, cl)
	if err != nil {
		return next, nil, err
	}
	defer s.close()
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return next, nil, nil
		case err != nil:
			return next, nil, err
		}
		piece := CommandPiece{Stream: name}
		switch name {
		case "exit":
			end := new(CommandExit)
			return next, end, decodeEvent(data, end)
		case "error":
			return next, nil, streamError(data)
		case "gap":
			var gap CommandGap
			if err := decodeEvent(data, &gap); err != nil {
				return next, nil, err
			}
			piece.Gap, piece.Offset = true, gap.Offset
		case "stdout", "stderr":
			var o CommandOutput
			if err := decodeEvent(data, &o); err != nil {
				return next, nil, err
			}
			piece.Offset = o.Offset
			if piece.Data, err = decodeData(o.Data, o.Encoding); err != nil {
				return next, nil, err
			}
		default:
			continue
		}
		if err := each(piece); err != nil {
			return next, nil, &eachError{fmt.Errorf("pass on output: %w", err)}
		}
		next = piece.Offset + int64(len(piece.Data))
	}
}
