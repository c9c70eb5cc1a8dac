package guestio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// maxRefusal bounds what is read of a refusal of the guest, which is not trusted,
// in bytes.
const maxRefusal = 64 << 10

// ExecStream starts a process in a running box and returns the connection that
// its frames are on. first is what the guest must be sent before the caller's
// own frames. Closing the connection ends the process group.
func (g *Guests) ExecStream(ctx context.Context, id string, req hostapi.ExecStream) (conn *Conn, first io.Reader, err error) {
	if err := validateStream(&req); err != nil {
		return nil, nil, err
	}
	l, err := g.boxes.Enter(ctx, id, Command)
	if err != nil {
		return nil, nil, err
	}
	r := guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, OpenStdin: req.OpenStdin,
		Timeout: req.Timeout, MustStart: req.MustStart,
	}
	_, l.span = telemetry.Start(ctx, spanExec)
	l.span.SetSandbox(id)
	if req.TTY != nil {
		r.TTY = &guestapi.TTY{Cols: req.TTY.Cols, Rows: req.TTY.Rows, Term: req.TTY.Term}
	}
	first = bytes.NewReader(nil)
	if len(r.Stdin) > inlineStdin {
		in, err := g.holdInput(l.line, int64(len(r.Stdin)), stdinFrames(r.Stdin, !r.OpenStdin))
		if err != nil {
			l.Leave()
			return nil, nil, err
		}
		l.free, first = in.free, in
		r.Stdin, r.OpenStdin = nil, true
	}
	command, err := g.startCommand(l, r)
	if err != nil {
		l.Leave()
		return nil, nil, err
	}
	return l.conn(command), first, nil
}

// stdinFrames is input as the frames that carry it, with the end of the input
// where it is all there is.
func stdinFrames(stdin []byte, end bool) io.Reader {
	var parts []io.Reader
	for len(stdin) > 0 {
		n := min(len(stdin), inlineStdin)
		head := make([]byte, guestapi.FrameHeader, guestapi.FrameHeader+n)
		frame := append(head, stdin[:n]...)
		guestapi.PutFrameHeader(frame, guestapi.FrameStdin)
		parts = append(parts, bytes.NewReader(frame))
		stdin = stdin[n:]
	}
	if end {
		frame := make([]byte, guestapi.FrameHeader)
		guestapi.PutFrameHeader(frame, guestapi.FrameEOF)
		parts = append(parts, bytes.NewReader(frame))
	}
	return io.MultiReader(parts...)
}

// startTimeout bounds how long the agent may take to take a command on.
var startTimeout = timescale.Limit(30 * time.Second)

// startCommand has the agent of a box start a command.
func (g *Guests) startCommand(l *Link, r guestapi.ExecRequest) (*guestclient.Command, error) {
	ctx, cancel := context.WithTimeoutCause(l.ctx, startTimeout, fmt.Errorf("%w: it did not take the command on", hosterr.ErrGuest))
	defer cancel()
	command, err := g.linked(l).Start(ctx, r)
	if err != nil {
		return nil, guestError(ctx, err)
	}
	return command, nil
}

// DialPort connects to a TCP port of a running box's guest, hosterr.ErrPortClosed where
// nothing accepts, on loopback neither. The agent's own port is closed to everybody: who
// speaks to it from the gateway's address is the host.
func (g *Guests) DialPort(ctx context.Context, id string, port int) (*Conn, error) {
	if port < 1 || port > math.MaxUint16 {
		return nil, hosterr.Invalid("port: want 1 to 65535")
	}
	l, err := g.boxes.Enter(ctx, id, Tunnel)
	if err != nil {
		return nil, err
	}
	if port == guestapi.Port {
		l.Leave()
		return nil, fmt.Errorf("%w: %d is the agent's", hosterr.ErrPortClosed, port)
	}
	dctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	conn, err := g.cfg.Dial(dctx, l.slot, port)
	if errors.Is(err, syscall.ECONNREFUSED) {
		conn, err = g.dialInside(dctx, l, port, err)
	}
	if err != nil {
		err = l.classify(fmt.Errorf("dial the guest: %w: %w", guestclient.ErrNotReached, err))
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", hosterr.ErrPortClosed, err)
		}
		l.Leave()
		return nil, err
	}
	return l.conn(conn), nil
}

// dialInside has the guest's agent connect to a server that listens on loopback alone.
// refused is the answer of the guest's own address. What listens on loopback never stands
// in for a program of the platform.
func (g *Guests) dialInside(ctx context.Context, l *Link, port int, refused error) (net.Conn, error) {
	if port == pgapi.Port || port == appapi.Port {
		return nil, refused
	}
	conn, err := g.linked(l).Connect(ctx, port)
	if err == nil {
		return conn, nil
	}
	var refusal *guestclient.Error
	if errors.As(err, &refusal) && refusal.Body.Code == guestapi.CodeLimit {
		return nil, fmt.Errorf("%w: %s", hosterr.ErrConnections, refusal.Message)
	}
	return nil, errors.Join(refused, err)
}

func validateStream(r *hostapi.ExecStream) error {
	plain := hostapi.ExecRequest{Argv: r.Argv, Cwd: r.Cwd, Env: r.Env, User: r.User, Timeout: r.Timeout}
	if len(r.Argv) == 0 && r.TTY != nil {
		plain.Argv = []string{"shell"} // the guest finds the user's own
	}
	if r.Timeout == 0 {
		plain.Timeout = MaxTimeout
	}
	return validateExec(&plain)
}
