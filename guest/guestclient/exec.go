package guestclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/plainjson"
)

// Streams are the caller's ends of a command. A nil one is absent. A slow writer
// slows the command down.
type Streams struct {
	Stdin   io.Reader // read to its end, or to the command's
	Stdout  io.Writer // a terminal's output, too
	Stderr  io.Writer
	Signals <-chan string // names without SIG
	Resizes <-chan guestapi.TTY
}

// Result is a finished command with its output.
type Result struct {
	guestapi.ExecExit
	Stdout, Stderr []byte
}

// maxKept is how much of each stream Run keeps where the request does not say.
const maxKept = 8 << 20

// Run runs a command and keeps its output, up to the request's limit, which is
// enforced here as well: the guest is not trusted.
func (c *Client) Run(ctx context.Context, req guestapi.ExecRequest) (Result, error) {
	limit := int(req.OutputLimitBytes)
	if limit <= 0 {
		limit = maxKept
	}
	stdout, stderr := keeper{limit: limit}, keeper{limit: limit}
	exit, err := c.Exec(ctx, req, Streams{Stdout: &stdout, Stderr: &stderr})
	exit.Truncated = exit.Truncated || stdout.dropped || stderr.dropped
	return Result{exit, stdout.kept, stderr.kept}, err
}

// keeper keeps the beginning of a stream.
type keeper struct {
	limit   int
	kept    []byte
	dropped bool
}

// Write implements io.Writer. What does not fit is dropped.
func (k *keeper) Write(p []byte) (int, error) {
	n := min(len(p), k.limit-len(k.kept))
	k.kept = append(k.kept, p[:n]...)
	k.dropped = k.dropped || n < len(p)
	return len(p), nil
}

// Exec runs a command and returns its end. When ctx ends first the connection is
// reset, upon which guestd kills the command. A command that cannot be started
// for any reason but its program is an *Error; one whose program is missing or
// not executable ends with 127 or 126, as in a shell, unless the request has
// MustStart: then it is an *Error with guestapi.CodeNoProgram.
func (c *Client) Exec(ctx context.Context, req guestapi.ExecRequest, s Streams) (guestapi.ExecExit, error) {
	req.OpenStdin = req.OpenStdin || s.Stdin != nil
	command, err := c.Start(ctx, req)
	if err != nil {
		return guestapi.ExecExit{}, err
	}
	return command.Wait(ctx, s)
}

// Command is a command that the guest has accepted. As a connection it carries
// the frames, both ways. Closing it kills the command.
type Command struct{ upgraded }

// Start sends a command to the guest and returns once the guest has accepted it:
// from then on it runs, or has failed to start, and must not be started again.
// A refusal is an *Error.
func (c *Client) Start(ctx context.Context, req guestapi.ExecRequest) (*Command, error) {
	conn, err := c.upgrade(ctx, guestapi.PathExec, guestapi.Upgrade, func() ([]byte, error) { return plainjson.Marshal(&req) })
	if err != nil {
		return nil, err
	}
	return &Command{conn}, nil
}

// Wait passes the streams on until the command ends, and closes the connection.
// When ctx ends first the connection is reset.
func (c *Command) Wait(ctx context.Context, s Streams) (guestapi.ExecExit, error) {
	defer context.AfterFunc(ctx, c.Reset)()
	done := make(chan struct{})
	var senders sync.WaitGroup
	defer senders.Wait()
	defer c.Close() // before the wait: a sender may be in a write
	defer close(done)
	out := &frameWriter{w: c}
	if s.Stdin != nil {
		// Not waited for: nothing can end a read of the caller's input.
		go sendStdin(out, s.Stdin)
	}
	senders.Go(func() { sendEvents(out, s, done) })
	exit, err := receive(c, s)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("guest exec: %w", context.Cause(ctx))
	}
	return exit, err
}

func receive(r io.Reader, s Streams) (guestapi.ExecExit, error) {
	var exit guestapi.ExecExit
	buf := make([]byte, 64<<10)
	for {
		kind, payload, err := guestapi.ReadFrame(r, buf)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			switch kind {
			case guestapi.FrameStdout:
				err = write(s.Stdout, payload)
			case guestapi.FrameStderr:
				err = write(s.Stderr, payload)
			case guestapi.FrameExit:
				return exit, json.Unmarshal(payload, &exit)
			case guestapi.FrameError:
				return exit, asError(0, payload)
			default:
				err = fmt.Errorf("frame of unknown type %d", kind)
			}
		}
		if err != nil {
			return exit, fmt.Errorf("guest exec: %w", err)
		}
	}
}

func write(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) frame(t guestapi.FrameType, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return guestapi.WriteFrame(f.w, t, payload)
}

func sendStdin(out *frameWriter, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && out.frame(guestapi.FrameStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = out.frame(guestapi.FrameEOF, nil)
			return
		}
	}
}

func sendEvents(out *frameWriter, s Streams, done <-chan struct{}) {
	for {
		select {
		case name := <-s.Signals:
			if name != "" { // not closed
				_ = out.frame(guestapi.FrameSignal, []byte(name))
			} else {
				s.Signals = nil
			}
		case size, ok := <-s.Resizes:
			if !ok {
				s.Resizes = nil
				break
			}
			if raw, err := json.Marshal(size); err == nil {
				_ = out.frame(guestapi.FrameResize, raw)
			}
		case <-done:
			return
		}
	}
}
