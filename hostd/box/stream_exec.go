package box

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// ErrPortClosed means that nothing in the guest accepts on the port.
var ErrPortClosed = errors.New("port is closed")

const (
	// maxHead and maxRefusal bound what is read of an answer of the guest, which
	// is not trusted, in bytes.
	maxHead    = 64 << 10
	maxRefusal = 64 << 10
)

// headTimeout bounds how long the agent may take to switch to frames.
var headTimeout = timescale.Limit(30 * time.Second)

// ExecStream starts a process in a running box and returns the connection that
// its frames are on. first is what the guest must be sent before the caller's
// own frames. Closing the connection ends the process group.
func (h *Host) ExecStream(ctx context.Context, id string, req hostapi.ExecStream) (conn *Conn, first io.Reader, err error) {
	if err := validateStream(&req); err != nil {
		return nil, nil, err
	}
	l, err := h.enterCommand(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	r := guestapi.ExecRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User, Stdin: req.Stdin, OpenStdin: req.OpenStdin,
		Timeout: req.Timeout, MustStart: req.MustStart,
	}
	if req.TTY != nil {
		r.TTY = &guestapi.TTY{Cols: req.TTY.Cols, Rows: req.TTY.Rows, Term: req.TTY.Term}
	}
	first = bytes.NewReader(nil)
	if len(r.Stdin) > inlineStdin {
		first = stdinFrames(r.Stdin, !r.OpenStdin)
		r.Stdin, r.OpenStdin = nil, true
	}
	conn, err = h.upgradeAgent(l, r)
	if err != nil {
		l.leave()
		return nil, nil, err
	}
	return conn, first, nil
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

// upgradeAgent asks the agent for a process and reads the head of its answer.
func (h *Host) upgradeAgent(l *link, r guestapi.ExecRequest) (*Conn, error) {
	raw, err := json.Marshal(&r)
	if err != nil {
		return nil, fmt.Errorf("encode exec: %w", err)
	}
	conn, err := h.dialAgent(l)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(l.ctx, headTimeout)
	defer cancel()
	detach := context.AfterFunc(ctx, func() { conn.Close() })
	in, err := switchToFrames(conn, raw)
	if !detach() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, l.why(guestError(l.ctx, err))
	}
	return l.conn(buffered{Conn: conn, r: in}), nil
}

// switchToFrames makes the request, and returns what the frames are read from.
func switchToFrames(conn net.Conn, body []byte) (io.Reader, error) {
	// One write: a request in two segments would wait for a delayed acknowledgement.
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "POST %s HTTP/1.1\r\nHost: guest\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
		"Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", guestapi.PathExec, len(body), guestapi.Upgrade)
	buf.Write(body)
	if _, err := conn.Write(buf.Bytes()); err != nil {
		return nil, err
	}
	head := &io.LimitedReader{R: conn, N: maxHead}
	in := bufio.NewReaderSize(head, 32<<10)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, asGuestRefusal(resp)
	}
	head.N = math.MaxInt64
	return in, nil
}

// buffered is a connection of which some bytes were read already.
type buffered struct {
	net.Conn
	r io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func (b buffered) CloseWrite() error {
	half, ok := b.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

func (b buffered) SetLinger(sec int) error {
	if tcp, ok := b.Conn.(interface{ SetLinger(int) error }); ok {
		return tcp.SetLinger(sec)
	}
	return nil
}

// asGuestRefusal reads why the agent refused. A caller's mistake is a refusal
// of the guest's own; what the agent itself is to blame for is not.
func asGuestRefusal(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	var body guestapi.Error
	if json.Unmarshal(raw, &body) != nil || body.Error == "" {
		body.Error = "status " + resp.Status
	}
	if body.Detail != "" {
		body.Error += ": " + body.Detail
	}
	return &guestclient.Error{Status: resp.StatusCode, Message: body.Error}
}

// DialPort connects to a TCP port of a running box's guest, ErrPortClosed where
// nothing accepts. The agent's own port is closed to everybody: who speaks to it
// from the gateway's address is the host.
func (h *Host) DialPort(ctx context.Context, id string, port int) (*Conn, error) {
	if port < 1 || port > math.MaxUint16 {
		return nil, invalid("port: want 1 to 65535")
	}
	l, err := h.enterPlain(ctx, id)
	if err != nil {
		return nil, err
	}
	if port == guestapi.Port {
		l.leave()
		return nil, fmt.Errorf("%w: %d is the agent's", ErrPortClosed, port)
	}
	dctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	conn, err := h.slots.Dial(dctx, l.slot, port)
	if err != nil {
		err = l.why(fmt.Errorf("dial the guest: %w", err))
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrPortClosed, err)
		}
		l.leave()
		return nil, err
	}
	return l.conn(conn), nil
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
