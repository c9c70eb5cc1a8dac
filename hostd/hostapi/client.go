package hostapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"
)

var (
	// ErrUnreachable means that the host was certainly not asked: no connection
	// to it could be made. The call may be made again, there or elsewhere.
	ErrUnreachable = errors.New("host unreachable")
	// ErrUnknownOutcome means that the host may or may not have done what was
	// asked. Ask again with the same id and generation, or read the box.
	ErrUnknownOutcome = errors.New("outcome unknown")
)

// maxResponseBytes bounds what is read of an answer: two output streams of
// 8 MiB in base64, and their wrapping.
const maxResponseBytes = 32 << 20

// Call says on whose behalf a request is made.
type Call struct {
	Term      uint64 // the caller's Raft term; 0 sends none, which only reads and execs may
	RequestID string
}

// Client calls one host. It is safe for concurrent use.
type Client struct {
	base      string
	http      *http.Client
	transport *http.Transport
}

// NewClient returns a client of the host at addr (host:port). The TLS
// configuration comes from PeerTLS with IsHost. Nothing is dialled yet.
func NewClient(addr string, tlsConfig *tls.Config) *Client {
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 10 * time.Second}
	t := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     time.Minute,
		ForceAttemptHTTP2:   true,
		// A host that vanishes without a word must not hold its callers for the
		// kernel's quarter of an hour: an idle connection is pinged.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
	}
	return &Client{base: "https://" + addr, http: &http.Client{Transport: t}, transport: t}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Healthz returns nil when the daemon serves.
func (c *Client) Healthz(ctx context.Context) error {
	return c.do(ctx, Call{}, http.MethodGet, PathHealthz, nil, nil)
}

// Info returns the host's whole picture, which is what its heartbeat carries.
func (c *Client) Info(ctx context.Context, call Call) (Heartbeat, error) {
	var out Heartbeat
	return out, c.do(ctx, call, http.MethodGet, PathInfo, nil, &out)
}

// List returns every box.
func (c *Client) List(ctx context.Context, call Call) ([]Box, error) {
	var out []Box
	return out, c.do(ctx, call, http.MethodGet, PathBoxes, nil, &out)
}

// Get returns one box, or CodeNotFound.
func (c *Client) Get(ctx context.Context, call Call, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, call, http.MethodGet, PathBoxes+"/"+id, nil, &out)
}

// Put makes a box and waits until it runs, or answers with the one that is
// there. When it fails nothing of the box is left on the host, and the same
// generation may be asked for again; after ErrUnknownOutcome the create may
// still go on, and the same Put joins it.
func (c *Client) Put(ctx context.Context, call Call, id string, spec BoxSpec) (Box, error) {
	var out Box
	return out, c.do(ctx, call, http.MethodPut, PathBoxes+"/"+id, spec, &out)
}

// Delete removes a box and everything it had. A generation above 0 is buried
// also where no such box is: a Put of it that arrives later is refused. A
// younger box is left alone (CodeStaleGeneration).
func (c *Client) Delete(ctx context.Context, call Call, id string, generation uint64) error {
	path := PathBoxes + "/" + id
	if generation > 0 {
		path += "?" + QueryGeneration + "=" + strconv.FormatUint(generation, 10)
	}
	return c.do(ctx, call, http.MethodDelete, path, nil, nil)
}

// Pause stops a box's CPUs. A paused box is left as it is.
func (c *Client) Pause(ctx context.Context, call Call, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, call, http.MethodPost, PathBoxes+"/"+id+"/pause", struct{}{}, &out)
}

// Resume lets a paused box run on. A running box is left as it is.
func (c *Client) Resume(ctx context.Context, call Call, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, call, http.MethodPost, PathBoxes+"/"+id+"/resume", struct{}{}, &out)
}

// Exec runs a command and waits for its end. When ctx ends first, the command
// is killed.
func (c *Client) Exec(ctx context.Context, call Call, id string, req ExecRequest) (ExecResult, error) {
	var out ExecResult
	return out, c.do(ctx, call, http.MethodPost, PathBoxes+"/"+id+"/exec", req, &out)
}

// do makes one request. A refusal by the host is a *Error; anything else wraps
// ErrUnreachable or ErrUnknownOutcome.
func (c *Client) do(ctx context.Context, call Call, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: encode request: %w", method, path, err)
		}
		body = bytes.NewReader(raw)
	}
	// A request that was never given to a connection cannot have been processed.
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w: %w", method, path, ErrUnreachable, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if call.RequestID != "" {
		req.Header.Set(HeaderRequestID, call.RequestID)
	}
	if call.Term > 0 {
		req.Header.Set(HeaderTerm, strconv.FormatUint(call.Term, 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		kind := ErrUnknownOutcome
		if !connected.Load() {
			kind = ErrUnreachable
		}
		return fmt.Errorf("%s %s: %w: %w", method, path, kind, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w: read answer: %w", method, path, ErrUnknownOutcome, err)
	case len(raw) > maxResponseBytes:
		return fmt.Errorf("%s %s: %w: answer is larger than %d bytes", method, path, ErrUnknownOutcome, maxResponseBytes)
	case resp.StatusCode >= 400:
		var e Error
		if json.Unmarshal(raw, &e) != nil || e.Code == "" {
			e = Error{Code: CodeInternal, Message: "host answered " + resp.Status}
		}
		return &e
	case out == nil || len(raw) == 0:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: %w: decode answer: %w", method, path, ErrUnknownOutcome, err)
	}
	return nil
}

// HasCode reports whether err is a host's refusal with the code.
func HasCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
