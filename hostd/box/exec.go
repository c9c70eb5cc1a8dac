package box

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
	"github.com/berth-cloud/berth/timescale"
)

// execGrace is how much longer than a command's time-out the host waits for the
// guest to end it and to say so. A guest on a busy host may be that late.
var execGrace = timescale.Limit(10 * time.Second)

// exitKilled is the exit code of a command that was killed, as a shell has it.
const exitKilled = 128 + int(syscall.SIGKILL)

// Exec runs a command in a running box and waits for its end. When ctx ends
// first the connection is closed, upon which guestd kills the command's whole
// process group. Its output counts against the host's budget until ctx ends: who
// asks ends it when the result has been read. A command whose time is over has timed out, whether or not the
// guest says so in time.
func (h *Host) Exec(ctx context.Context, id string, req hostapi.ExecRequest) (hostapi.ExecResult, error) {
	if err := validateExec(&req); err != nil {
		return hostapi.ExecResult{}, err
	}
	l, err := h.enterCommand(ctx, id)
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	defer l.leave()

	began := h.now()
	res, err := h.exec(ctx, l, &req)
	h.metrics.exec(h.now().Sub(began), err)
	return res, err
}

var errOverdue = errors.New("the command's time is over")

func (h *Host) exec(caller context.Context, l *link, req *hostapi.ExecRequest) (hostapi.ExecResult, error) {
	stdout := collector{limit: req.OutputLimitBytes, host: h, box: l.box}
	stderr := collector{limit: req.OutputLimitBytes, host: h, box: l.box}
	// A result may wait for a reader who is slow: it counts until then.
	defer func() { context.AfterFunc(caller, func() { stdout.free(); stderr.free() }) }()
	streams := guestclient.Streams{Stdout: &stdout, Stderr: &stderr}
	inline := req.Stdin
	if len(inline) > inlineStdin {
		in, err := h.holdInput(l.box, int64(len(inline)), bytes.NewReader(inline))
		if err != nil {
			return hostapi.ExecResult{}, err
		}
		defer in.free()
		inline, req.Stdin, streams.Stdin = nil, nil, in
	}
	command, err := h.startCommand(l, guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: inline, OpenStdin: streams.Stdin != nil,
		Timeout: req.Timeout, OutputLimitBytes: req.OutputLimitBytes,
	})
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	// Its time runs from here, and not from when a busy guest was first asked.
	started := h.now()
	ctx, cancel := context.WithTimeoutCause(l.ctx, req.Timeout+execGrace, errOverdue)
	defer cancel()
	exit, err := command.Wait(ctx, streams)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errOverdue):
		exit = guestapi.ExecExit{ExitCode: exitKilled, TimedOut: true, DurationMS: h.now().Sub(started).Milliseconds()}
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

// budget is what is held of the budget for input and output, in bytes.
type budget struct {
	mu  sync.Mutex
	all int64
	of  map[string]int64 // by workspace, of those that have some
}

// collector keeps one output stream, within its limit and within what the host
// spends on all of them, on a workspace's and on one box. The guest keeps the limit
// as well; it is not trusted.
type collector struct {
	limit     int64
	host      *Host
	box       *box
	kept      []byte
	truncated bool
}

// Write implements io.Writer. What does not fit is dropped: the command runs on.
func (c *collector) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.limit-int64(len(c.kept)))
	if n > 0 && !c.host.hold(c.box, n) {
		n = 0
	}
	if n < int64(len(p)) {
		c.truncated = true
	}
	c.kept = append(c.kept, p[:n]...)
	return len(p), nil
}

// free gives the budget back.
func (c *collector) free() { c.host.unhold(c.box, int64(len(c.kept))) }

// hold takes n bytes of the budget for a box, if there are as many. A workspace
// leaves at least as much as its boxes hold, so that however many there are, some
// is left for another.
func (h *Host) hold(b *box, n int64) bool {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	left := h.cfg.OutputBudget - h.held.all - n
	if left < 0 || b.held+n > h.cfg.OutputBudget/boxShare || h.held.of[b.workspace]+n > left {
		return false
	}
	h.held.all += n
	h.held.of[b.workspace] += n
	b.held += n
	return true
}

func (h *Host) unhold(b *box, n int64) {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	h.held.all -= n
	b.held -= n
	if h.held.of[b.workspace] -= n; h.held.of[b.workspace] == 0 {
		delete(h.held.of, b.workspace)
	}
}

// input is what a command has yet to take of its input: a command need not read
// any for as long as it runs. It counts against the budget of outputs until all of
// it was read, or it is freed.
type input struct {
	from io.Reader
	free func()
}

func (h *Host) holdInput(b *box, n int64, from io.Reader) (*input, error) {
	if !h.hold(b, n) {
		return nil, fmt.Errorf("%w: their input and output take all that may be held", hosterr.ErrBusy)
	}
	return &input{from: from, free: sync.OnceFunc(func() { h.unhold(b, n) })}, nil
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
