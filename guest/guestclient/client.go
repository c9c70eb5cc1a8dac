// Package guestclient speaks to guestd from the host's side.
package guestclient

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
	"strconv"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// Dial connects to a guest's guestapi.Port.
type Dial func(ctx context.Context) (net.Conn, error)

// Client calls one guest. Every call has a connection of its own: a guest may
// be paused, restored or gone between two calls, and a kept connection with it.
type Client struct {
	dial Dial
	http *http.Transport
}

// New returns a client of the guest that dial reaches.
func New(dial Dial) *Client { return &Client{dial: dial, http: newTransport(dial)} }

// maxAnswer bounds what is read of an answer: the guest is not trusted.
const maxAnswer = 64 << 10

// ErrNotReached means that no connection to the guest could be made: nothing of
// the call was sent, so the guest has certainly not begun it.
var ErrNotReached = errors.New("guest was not reached")

// Error is guestd's refusal of a call.
type Error struct {
	Status  int    // HTTP; 0 for a command that could not be started
	Message string // Body, as one line
	Body    guestapi.Error
}

func (e *Error) Error() string { return "guest: " + e.Message }

func asError(status int, raw []byte) error {
	var body guestapi.Error
	if json.Unmarshal(raw, &body) != nil || body.Error == "" {
		body = guestapi.Error{Error: "status " + strconv.Itoa(status)}
	}
	message := body.Error
	if body.Detail != "" {
		message += ": " + body.Detail
	}
	return &Error{Status: status, Message: message, Body: body}
}

// Health asks whether guestd serves.
func (c *Client) Health(ctx context.Context) (guestapi.Health, error) {
	var h guestapi.Health
	return h, c.call(ctx, http.MethodGet, guestapi.PathHealth, nil, &h)
}

const (
	awaitPause   = 10 * time.Millisecond
	awaitAttempt = 500 * time.Millisecond
)

// Await asks for health until guestd answers or ctx ends.
func (c *Client) Await(ctx context.Context) (guestapi.Health, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, awaitAttempt)
		h, err := c.Health(attempt)
		cancel()
		if err == nil {
			return h, nil
		}
		select {
		case <-ctx.Done():
			return h, fmt.Errorf("guest does not answer: %w", errors.Join(context.Cause(ctx), err))
		case <-time.After(awaitPause):
		}
	}
}

// Sync flushes the guest's file systems.
func (c *Client) Sync(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, guestapi.PathSync, empty, nil)
}

// Freeze has the workload's processes stand still until the next identity.
func (c *Client) Freeze(ctx context.Context, f guestapi.Freeze) (guestapi.Frozen, error) {
	var done guestapi.Frozen
	return done, c.call(ctx, http.MethodPost, guestapi.PathFreeze, func() ([]byte, error) { return json.Marshal(f) }, &done)
}

// Shutdown begins to power the guest off.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, guestapi.PathShutdown, empty, nil)
}

func empty() ([]byte, error) { return []byte("{}"), nil }

func (c *Client) call(ctx context.Context, method, target string, body func() ([]byte, error), out any) error {
	conn, resp, err := c.request(ctx, method, target, body, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("guest %s: read answer: %w", target, errors.Join(context.Cause(ctx), err))
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return asError(resp.StatusCode, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("guest %s: decode answer: %w", target, err)
	}
	return nil
}

// request sends one request and reads the head of its answer. The caller closes
// the connection.
func (c *Client) request(ctx context.Context, method, target string, body func() ([]byte, error), header http.Header) (net.Conn, *http.Response, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("guest %s: %w: %w", target, ErrNotReached, err)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	resp, err := roundTrip(ctx, conn, method, target, body, header)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("guest %s: %w", target, errors.Join(context.Cause(ctx), err))
	}
	return conn, resp, nil
}

func roundTrip(ctx context.Context, conn net.Conn, method, target string, body func() ([]byte, error), header http.Header) (*http.Response, error) {
	var raw []byte
	var err error
	if body != nil {
		if raw, err = body(); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+target, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "")
	// One write: a request in two segments would wait for a delayed acknowledgement.
	var buf bytes.Buffer
	if err := req.Write(&buf); err != nil {
		return nil, err
	}
	// A guest that refuses what is too large answers, and does not read the rest.
	_, unsent := conn.Write(buf.Bytes())
	head := &io.LimitedReader{R: conn, N: maxHead}
	r := bufio.NewReaderSize(head, 32<<10)
	resp, err := http.ReadResponse(r, req)
	if unsent != nil && (err != nil || resp.StatusCode < http.StatusBadRequest) {
		return nil, unsent
	}
	if err != nil {
		if head.N <= 0 {
			err = fmt.Errorf("the head of the answer is larger than %d bytes", maxHead)
		}
		return nil, err
	}
	head.N = math.MaxInt64 // whoever reads the rest bounds it
	if resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = io.NopCloser(r) // the rest is frames
	}
	return resp, nil
}
