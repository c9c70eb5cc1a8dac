package box

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// execGrace is how much longer than a command's time-out the host waits for
// the guest to say how it ended.
const execGrace = 10 * time.Second

// Exec runs a command in a running box and waits for its end. When ctx ends
// first the connection is closed, upon which guestd kills the command's whole
// process group.
func (h *Host) Exec(ctx context.Context, id string, req hostapi.ExecRequest) (hostapi.ExecResult, error) {
	if err := validateExec(&req); err != nil {
		return hostapi.ExecResult{}, err
	}
	b, err := h.lookup(id)
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	process, slot, leaveSlot, err := h.enter(b)
	if err != nil {
		return hostapi.ExecResult{}, err
	}
	defer leaveSlot()

	began := h.now()
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, req.Timeout+execGrace,
		fmt.Errorf("%w: it did not end the command after its time-out", ErrGuest))
	defer cancelTimeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A killed VM closes no connection; nothing would ever arrive on it.
	stop := afterDone(ctx, process.Done(), func() { cancel(fmt.Errorf("%w: VMM died", ErrNotRunning)) })
	defer stop()

	res, err := h.exec(ctx, slot, &req)
	h.metrics.exec(h.now().Sub(began), err)
	return res, err
}

// enter counts the caller as using the box's slot, where the box runs.
func (h *Host) enter(b *box) (process VMM, slot int, done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.leaving == leaveForget:
		return nil, 0, nil, ErrNotFound
	case b.leaving != leaveNot:
		return nil, 0, nil, fmt.Errorf("%w: it is being deleted", ErrNotRunning)
	case b.rec.State != ledger.Running:
		return nil, 0, nil, fmt.Errorf("%w: it is %s", ErrNotRunning, b.rec.State)
	}
	select {
	case b.execSlot <- struct{}{}:
	default:
		return nil, 0, nil, ErrBusy
	}
	b.execs.Add(1)
	return b.vmm, b.rec.Slot, func() { <-b.execSlot; b.execs.Done() }, nil
}

func (h *Host) exec(ctx context.Context, slot int, req *hostapi.ExecRequest) (hostapi.ExecResult, error) {
	stdout := collector{limit: req.OutputLimitBytes, host: h}
	stderr := collector{limit: req.OutputLimitBytes, host: h}
	defer stdout.free()
	defer stderr.free()
	streams := guestclient.Streams{Stdout: &stdout, Stderr: &stderr}
	inline := req.Stdin
	if len(inline) > inlineStdin {
		inline, streams.Stdin = nil, bytes.NewReader(req.Stdin)
	}
	exit, err := h.guest(slot).Exec(ctx, guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: inline,
		Timeout: req.Timeout, OutputLimitBytes: req.OutputLimitBytes,
	}, streams)
	if err != nil {
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

// collector keeps one output stream, within its limit and within what the host
// spends on all of them. The guest keeps the limit as well; it is not trusted.
type collector struct {
	limit     int64
	host      *Host
	kept      []byte
	truncated bool
}

// Write implements io.Writer. What does not fit is dropped: the command runs on.
func (c *collector) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.limit-int64(len(c.kept)))
	if n > 0 && c.host.buffered.Add(n) > c.host.cfg.OutputBudget {
		c.host.buffered.Add(-n)
		n = 0
	}
	if n < int64(len(p)) {
		c.truncated = true
	}
	c.kept = append(c.kept, p[:n]...)
	return len(p), nil
}

// free gives the budget back; the result's bytes are the caller's now.
func (c *collector) free() { c.host.buffered.Add(-int64(len(c.kept))) }
