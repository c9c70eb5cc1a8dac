package guestio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// execGrace is how much longer than a command's time-out the host waits for the
// guest to end it and to say so. A guest on a busy host may be that late.
var execGrace = timescale.Limit(10 * time.Second)

// exitKilled is the exit code of a command that was killed, as a shell has it.
const exitKilled = 128 + int(syscall.SIGKILL)

// Exec runs a command in a running box and waits for its end. When ctx ends
// first, the connection is closed and guestd kills the command's whole process
// group. The output counts against the host's budget until ctx ends, which is
// when the caller has passed the result on. A command that exceeds its time has
// timed out, whether or not the guest says so.
func (g *Guests) Exec(ctx context.Context, id string, req hostapi.ExecRequest) (hostapi.ExecResult, error) {
	if err := validateExec(&req); err != nil {
		return hostapi.ExecResult{}, err
	}
	l, err := g.boxes.Enter(ctx, id, Command)
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	defer l.Leave()

	began := g.cfg.Now()
	_, span := telemetry.Start(ctx, spanExec)
	span.SetSandbox(id)
	res, err := g.exec(ctx, l, &req)
	if err == nil {
		span.SetInt(telemetry.KeyExitCode, res.ExitCode)
		span.SetBool(telemetry.KeyTimedOut, res.TimedOut)
	}
	span.End(err)
	g.cfg.Metrics.exec(g.cfg.Now().Sub(began), err)
	return res, err
}

// spanExec is a command of a guest: never its words, which are a tenant's.
const spanExec = "guest.exec"

var errOverdue = errors.New("the command's time is over")

func (g *Guests) exec(caller context.Context, l *Link, req *hostapi.ExecRequest) (hostapi.ExecResult, error) {
	stdout := collector{limit: req.OutputLimitBytes, guests: g, line: l.line}
	stderr := collector{limit: req.OutputLimitBytes, guests: g, line: l.line}
	// A result may wait for a reader who is slow: it counts until then.
	defer func() { context.AfterFunc(caller, func() { stdout.free(); stderr.free() }) }()
	streams := guestclient.Streams{Stdout: &stdout, Stderr: &stderr}
	inline := req.Stdin
	if len(inline) > inlineStdin {
		in, err := g.holdInput(l.line, int64(len(inline)), bytes.NewReader(inline))
		if err != nil {
			return hostapi.ExecResult{}, err
		}
		defer in.free()
		inline, req.Stdin, streams.Stdin = nil, nil, in
	}
	command, err := g.startCommand(l, guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: inline, OpenStdin: streams.Stdin != nil,
		Timeout: req.Timeout, OutputLimitBytes: req.OutputLimitBytes,
	})
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	// Its time runs from here, and not from when a busy guest was first asked.
	started := g.cfg.Now()
	ctx, cancel := context.WithTimeoutCause(l.ctx, req.Timeout+execGrace, errOverdue)
	defer cancel()
	exit, err := command.Wait(ctx, streams)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errOverdue):
		exit = guestapi.ExecExit{ExitCode: exitKilled, TimedOut: true, DurationMS: g.cfg.Now().Sub(started).Milliseconds()}
	case err != nil:
		return hostapi.ExecResult{}, guestError(ctx, err)
	}
	return hostapi.ExecResult{
		ExitCode: exit.ExitCode, Stdout: stdout.kept, Stderr: stderr.kept, DurationMS: exit.DurationMS,
		TimedOut: exit.TimedOut, Truncated: exit.Truncated || stdout.truncated || stderr.truncated,
	}, nil
}

// inlineStdin goes with the request, more follows it as frames: the guest bounds
// how large a request may be. In bytes.
const inlineStdin = 64 << 10

// boxShare is which part of the budget for input and output one box may have.
const boxShare = 4

// collector keeps one output stream, within its limit and within what the host
// spends on all of them, on a workspace's and on one box. The guest keeps the limit
// as well; it is not trusted.
type collector struct {
	limit     int64
	guests    *Guests
	line      *Line
	kept      []byte
	truncated bool
}

// Write implements io.Writer. What does not fit is dropped: the command runs on.
func (c *collector) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.limit-int64(len(c.kept)))
	if n > 0 && !c.guests.hold(c.line, n) {
		n = 0
	}
	if n < int64(len(p)) {
		c.truncated = true
	}
	c.kept = append(c.kept, p[:n]...)
	return len(p), nil
}

// free gives the budget back.
func (c *collector) free() { c.guests.unhold(c.line, int64(len(c.kept))) }

// hold takes n bytes of the budget for a box, if the box and its workspace may have them.
func (g *Guests) hold(l *Line, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held+n > g.cfg.OutputBudget/boxShare || !g.held.take(l.workspace, n) {
		return false
	}
	l.held += n
	return true
}

func (g *Guests) unhold(l *Line, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= n
	g.held.give(l.workspace, n)
}

// input is the part of a command's input that was not read yet: a command need
// not read any for as long as it runs. It counts against the budget until all
// of it was read, or it is freed.
type input struct {
	from io.Reader
	free func()
}

func (g *Guests) holdInput(l *Line, n int64, from io.Reader) (*input, error) {
	if !g.hold(l, n) {
		return nil, fmt.Errorf("%w: their input and output take all that may be held", hosterr.ErrBusy)
	}
	return &input{from: from, free: sync.OnceFunc(func() { g.unhold(l, n) })}, nil
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if err != nil {
		i.from = bytes.NewReader(nil) // whoever has i need not have the rest
		i.free()
	}
	return n, err
}
