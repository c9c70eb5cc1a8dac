package hostapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/plainjson"
	"github.com/berth-cloud/berth/timescale"
)

// maxHead bounds how long an upgrade may take: the host connects to the guest
// before it answers.
var maxHead = timescale.Limit(30 * time.Second)

// Stream is a connection that was upgraded: what is read and written are frames
// (ExecStream) or bytes (Dial). It is a net.Conn of its own, which no other call
// shares, so a reader that stops holds up nobody but the guest. It is closed
// when the context ends with which it was made.
type Stream struct {
	*tls.Conn
	r    *bufio.Reader
	raw  *patientConn
	said atomic.Bool // CloseWrite was called
	stop func() bool // detaches the context
}

// Read implements io.Reader. An end that is not the guest's is an error.
func (s *Stream) Read(p []byte) (int, error) { return s.r.Read(p) }

// CloseWrite says that nothing more will be written; reading goes on.
func (s *Stream) CloseWrite() error {
	s.said.Store(true)
	return s.Conn.CloseWrite()
}

// Close implements io.Closer. Without a CloseWrite before it the connection is
// reset, and what was written a moment ago may not arrive.
func (s *Stream) Close() error {
	s.stop()
	return s.raw.end(!s.said.Load())
}

// patientConn is what a Stream's TLS runs on. It has no deadlines for writing:
// crypto/tls gives its goodbye five seconds, and a reader that is slower would
// see a broken stream where an orderly one ended.
type patientConn struct{ net.Conn }

// SetWriteDeadline implements net.Conn.
func (patientConn) SetWriteDeadline(time.Time) error { return nil }

// end closes the connection under TLS, which itself would first wait for a
// write that is stalled.
func (c *patientConn) end(reset bool) error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// ExecStream starts a process whose streams are the frames of the connection
// (guestapi.ReadFrame and WriteFrame). Closing it kills the process group; not
// reading from it makes the process wait.
func (c *Client) ExecStream(ctx context.Context, id string, req ExecStream) (*Stream, error) {
	raw, err := plainjson.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("exec stream: encode request: %w", err)
	}
	if err := fits(raw); err != nil {
		return nil, c.explain(err)
	}
	return c.upgrade(ctx, UpgradeFrames, request{
		method: http.MethodPost, path: PathBoxes + "/" + id + "/exec/stream", body: bytes.NewReader(raw), length: int64(len(raw)),
		header: http.Header{"Content-Type": {"application/json"}},
	})
}

// Dial connects to a TCP port of the guest, or answers CodePortClosed. Each
// direction may be closed by itself.
func (c *Client) Dial(ctx context.Context, id string, port int) (*Stream, error) {
	return c.upgrade(ctx, UpgradeTCP, request{
		method: http.MethodGet, path: PathBoxes + "/" + id + "/dial/" + strconv.Itoa(port),
	})
}

// upgrade makes a request on a connection of its own.
func (c *Client) upgrade(ctx context.Context, protocol string, r request) (*Stream, error) {
	s, err := c.upgraded(ctx, protocol, r)
	return s, c.explain(err)
}

func (c *Client) upgraded(ctx context.Context, protocol string, r request) (_ *Stream, err error) {
	spanCtx, span := c.trace(ctx, &r)
	defer func() { span.End(err) }()
	head, cancel := context.WithTimeout(spanCtx, maxHead)
	defer cancel()
	raw, err := c.dialer.DialContext(head, "tcp", c.addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", r.name(), ErrUnreachable, err)
	}
	patient := &patientConn{raw}
	conn := tls.Client(patient, c.tls)
	if err := conn.HandshakeContext(head); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w: %w", r.name(), ErrUnreachable, err)
	}
	detach := context.AfterFunc(head, func() { raw.Close() })
	s := &Stream{Conn: conn, r: bufio.NewReaderSize(conn, 32<<10), raw: patient}
	err = c.switchProtocols(head, s, protocol, &r)
	if !detach() && err == nil {
		err = fmt.Errorf("%s: %w: %w", r.name(), ErrUnknownOutcome, context.Cause(head))
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { _ = patient.end(true) })
	return s, nil
}

func (c *Client) switchProtocols(ctx context.Context, s *Stream, protocol string, r *request) error {
	req, err := c.build(ctx, r)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	// One write: a request in two segments would wait for a delayed acknowledgement.
	var buf bytes.Buffer
	if err := req.Write(&buf); err != nil {
		return fmt.Errorf("%s: %w: %w", r.name(), ErrUnreachable, err)
	}
	if _, err := io.Copy(s.Conn, &buf); err != nil {
		return fmt.Errorf("%s: %w: %w", r.name(), ErrUnknownOutcome, err)
	}
	resp, err := http.ReadResponse(s.r, req)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w: %w", r.name(), ErrUnknownOutcome, err)
	case resp.StatusCode >= http.StatusBadRequest:
		return r.refusal(resp)
	case resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol:
		return &Error{Code: CodeInternal, Message: "host did not switch to " + protocol + ": " + resp.Status, HTTPStatus: resp.StatusCode}
	}
	return nil
}
