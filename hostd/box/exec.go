package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
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
	var res hostapi.ExecResult
	conn, resp, err := h.guestRequest(ctx, slot, guestapi.PathExec, &guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin,
		Timeout: req.Timeout, OutputLimitBytes: req.OutputLimitBytes,
	}, http.Header{"Connection": {"Upgrade"}, "Upgrade": {guestapi.Upgrade}})
	if err != nil {
		return res, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxGuestAnswer))
		return res, guestError(resp.StatusCode, raw)
	}
	out := collector{limit: req.OutputLimitBytes, host: h}
	defer out.free()
	exit, err := out.collect(resp.Body)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return res, err
	}
	return hostapi.ExecResult{
		ExitCode: exit.ExitCode, Stdout: out.stdout, Stderr: out.stderr,
		DurationMS: exit.DurationMS, TimedOut: exit.TimedOut, Truncated: exit.Truncated || out.truncated,
	}, nil
}

// collector keeps the output of one command, within its limit and within what
// the host spends on all of them.
type collector struct {
	limit          int64
	host           *Host
	stdout, stderr []byte
	truncated      bool
	held           int64
}

func (c *collector) collect(r io.Reader) (guestapi.ExecExit, error) {
	var exit guestapi.ExecExit
	buf := make([]byte, 32<<10)
	for {
		t, payload, err := guestapi.ReadFrame(r, buf)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return exit, fmt.Errorf("%w: read output: %w", ErrGuest, err)
		}
		switch t {
		case guestapi.FrameStdout:
			c.stdout = c.add(c.stdout, payload)
		case guestapi.FrameStderr:
			c.stderr = c.add(c.stderr, payload)
		case guestapi.FrameExit:
			if err := json.Unmarshal(payload, &exit); err != nil {
				return exit, fmt.Errorf("%w: decode exit: %w", ErrGuest, err)
			}
			return exit, nil
		case guestapi.FrameError:
			return exit, guestError(http.StatusBadRequest, payload)
		default:
			return exit, fmt.Errorf("%w: frame of type %d", ErrGuest, t)
		}
	}
}

// add appends what fits. The guest keeps the limit as well; it is not trusted.
func (c *collector) add(to, payload []byte) []byte {
	n := min(int64(len(payload)), c.limit-int64(len(to)))
	if n > 0 && c.host.buffered.Add(n) > c.host.cfg.OutputBudget {
		c.host.buffered.Add(-n)
		n = 0
	}
	c.held += n
	if n < int64(len(payload)) {
		c.truncated = true
	}
	return append(to, payload[:n]...)
}

func (c *collector) free() { c.host.buffered.Add(-c.held) }
