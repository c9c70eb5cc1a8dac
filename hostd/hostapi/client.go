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
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/plainjson"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

var (
	// ErrUnreachable means that the host was certainly not asked: no connection
	// to it could be made. The call may be made again, there or elsewhere.
	ErrUnreachable = errors.New("host unreachable")
	// ErrUnknownOutcome means that the host may or may not have done what was
	// asked. Ask again with the same id and generation, or read the box.
	ErrUnknownOutcome = errors.New("outcome unknown")
)

// MaxBody bounds the body of a request that is JSON, in bytes: the public API
// takes 8 MiB for a command with its input, which is a third more in base64.
const MaxBody = 12 << 20

// fits refuses a body here that the host would refuse: it does so while the body
// is still being sent, and not every caller would see why.
func fits(body []byte) error {
	if len(body) <= MaxBody {
		return nil
	}
	return &Error{
		Code: CodeTooLarge, Message: "request body is too large", Detail: fmt.Sprintf("over %d bytes", MaxBody),
		HTTPStatus: http.StatusRequestEntityTooLarge,
	}
}

// maxResponseBytes bounds what is read of an answer: two output streams of
// 8 MiB in base64, and their wrapping.
const maxResponseBytes = 32 << 20

// Binding says in whose name a client calls.
type Binding struct {
	Host    string // the host's name, in errors; may be ""
	Cluster string // whose term it is; see HeaderCluster
	Term    uint64 // the caller's Raft term; 0 sends none, which only reads and execs may
}

// largeAnswer is the size from which a client that is Admitting asks, in bytes.
const largeAnswer = 64 << 10

// Client calls one host, in the name that it is bound to and for the public
// request that the context names (WithRequestID). A refusal by the host is a
// *Error; anything else wraps ErrUnreachable or ErrUnknownOutcome. It is safe for
// concurrent use.
type Client struct {
	binding Binding
	admit   func(ctx context.Context, bytes int64) error

	addr string
	base string
	// Calls with one short answer share one HTTP/2 connection.
	http *http.Client
	// Long bodies have HTTP/1.1 connections of their own: on a shared one a
	// reader that stalls would hold up the windows of everybody else.
	streams *http.Client
	dialer  *net.Dialer
	tls     *tls.Config // of HTTP/1.1 connections
}

// NewClient returns a client of the host at addr (host:port), bound to no term.
// The TLS configuration comes from PeerTLS with IsHost. Nothing is dialled yet.
func NewClient(addr string, tlsConfig *tls.Config) *Client {
	// A host that vanishes without a word must not hold its callers for the
	// kernel's quarter of an hour.
	dialer := &net.Dialer{Timeout: timescale.Limit(2 * time.Second), KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	shared := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     time.Minute,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: timescale.Limit(5 * time.Second), PingTimeout: timescale.Limit(5 * time.Second)},
	}
	oldTLS := tlsConfig.Clone()
	oldTLS.NextProtos = []string{"http/1.1"}
	old := new(http.Protocols)
	old.SetHTTP1(true)
	own := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     oldTLS,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     time.Minute,
		Protocols:           old,
		// How long an upload waits for the host to say that it wants the body.
		ExpectContinueTimeout: timescale.Limit(10 * time.Second),
		DisableCompression:    true, // bytes are passed on as they are
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	return &Client{
		addr: addr, base: "https://" + addr, http: &http.Client{Transport: shared}, streams: &http.Client{Transport: own},
		dialer: dialer, tls: oldTLS,
	}
}

var handshakeTimeout = timescale.Limit(5 * time.Second)

// Bind returns a client that calls in another name over the same connections.
func (c *Client) Bind(b Binding) *Client {
	bound := *c
	bound.binding = b
	return &bound
}

// Admitting returns a client over the same connections that asks admit before it
// reads and holds a large answer, of so many bytes; admit may wait.
func (c *Client) Admitting(admit func(ctx context.Context, bytes int64) error) *Client {
	asking := *c
	asking.admit = admit
	return &asking
}

// Host is the name of the host, as the client was bound to it.
func (c *Client) Host() string { return c.binding.Host }

// Close closes idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.streams.CloseIdleConnections()
}

// Healthz returns nil when the daemon serves.
func (c *Client) Healthz(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, PathHealthz, nil, nil)
}

// Readyz returns nil when the host takes boxes; CodeDraining otherwise, with what is
// missing.
func (c *Client) Readyz(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, PathReadyz, nil, nil)
}

// Info returns the host's whole state, which is what its heartbeat carries.
func (c *Client) Info(ctx context.Context) (Heartbeat, error) {
	var out Heartbeat
	return out, c.do(ctx, http.MethodGet, PathInfo, nil, &out)
}

// Boxes returns every box.
func (c *Client) Boxes(ctx context.Context) ([]Box, error) {
	var out []Box
	return out, c.do(ctx, http.MethodGet, PathBoxes, nil, &out)
}

// GetBox returns one box, or CodeNotFound.
func (c *Client) GetBox(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodGet, PathBoxes+"/"+id, nil, &out)
}

// PutBox makes a box and waits until it runs, or answers with the one that is
// there. When it fails nothing of the box is left on the host, and the same
// generation may be asked for again; after ErrUnknownOutcome the create may
// still go on, and the same Put joins it.
func (c *Client) PutBox(ctx context.Context, id string, spec BoxSpec) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPut, PathBoxes+"/"+id, spec, &out)
}

// DeleteBox removes a box and everything it had. A generation above 0 is buried
// also where no such box is: a Put of it that arrives later is refused. A
// younger box is left alone (CodeStaleGeneration). One that is gone is no error.
func (c *Client) DeleteBox(ctx context.Context, id string, generation uint64) error {
	return c.deleteBox(ctx, id, generation, false)
}

// DeleteBoxKeepingDisk is DeleteBox of a database's box whose disk is kept for an operator.
func (c *Client) DeleteBoxKeepingDisk(ctx context.Context, id string, generation uint64) error {
	return c.deleteBox(ctx, id, generation, true)
}

func (c *Client) deleteBox(ctx context.Context, id string, generation uint64, keepDisk bool) error {
	q := url.Values{}
	if generation > 0 {
		q.Set(QueryGeneration, strconv.FormatUint(generation, 10))
	}
	if keepDisk {
		q.Set(QueryKeepDisk, "true")
	}
	path := PathBoxes + "/" + id
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return gone(c.do(ctx, http.MethodDelete, path, nil, nil), CodeNotFound)
}

// Pause stops a box's CPUs. A paused box is left as it is.
func (c *Client) Pause(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/pause", struct{}{}, &out)
}

// Resume lets a paused box run on. A running box is left as it is.
func (c *Client) Resume(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/resume", struct{}{}, &out)
}

// Exec runs a command and waits for its end. When ctx ends first, the command
// is killed.
func (c *Client) Exec(ctx context.Context, id string, req ExecRequest) (ExecResult, error) {
	var out ExecResult
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/exec", req, &out)
}

// gone makes a success of the refusals to delete what is not there.
func gone(err error, codes ...Code) error {
	for _, code := range codes {
		if HasCode(err, code) {
			return nil
		}
	}
	return err
}

// explain says of which host an error is.
func (c *Client) explain(err error) error {
	if err == nil || c.binding.Host == "" {
		return err
	}
	return fmt.Errorf("host %s: %w", c.binding.Host, err)
}

// do makes one request with a short answer.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	return c.explain(c.exchange(ctx, method, path, in, out))
}

func (c *Client) exchange(ctx context.Context, method, path string, in, out any) error {
	req := request{method: method, path: path}
	if in != nil {
		raw, err := plainjson.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: encode request: %w", method, path, err)
		}
		if err := fits(raw); err != nil {
			return err
		}
		req.body, req.length = bytes.NewReader(raw), int64(len(raw))
		req.header = http.Header{"Content-Type": {"application/json"}}
	}
	resp, err := c.send(ctx, c.http, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if c.admit != nil && (resp.ContentLength < 0 || resp.ContentLength > largeAnswer) {
		size := resp.ContentLength
		if size < 0 || size > maxResponseBytes {
			size = maxResponseBytes
		}
		if err := c.admit(ctx, size); err != nil {
			return fmt.Errorf("%s %s: %w: %w", method, path, ErrUnknownOutcome, err)
		}
	}
	raw, err := readAnswer(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w: %w", method, path, ErrUnknownOutcome, err)
	case out == nil || len(raw) == 0:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: %w: decode answer: %w", method, path, ErrUnknownOutcome, err)
	}
	return nil
}

// stream makes one request whose body or answer is long. The caller closes the
// answer's body.
func (c *Client) stream(ctx context.Context, r request) (*http.Response, error) {
	resp, err := c.send(ctx, c.streams, r)
	return resp, c.explain(err)
}

// request is one request to a host.
type request struct {
	method string
	path   string // with its query
	header http.Header
	body   io.Reader
	length int64 // of the body; -1 where it is not known
}

// send makes a request and returns its answer, whose body the caller closes.
func (c *Client) send(ctx context.Context, via *http.Client, r request) (_ *http.Response, err error) {
	ctx, span := c.trace(ctx, &r)
	defer func() { span.End(withoutURL(err)) }()
	// A request that was never given to a connection cannot have been processed.
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req, err := c.build(httptrace.WithClientTrace(ctx, trace), &r)
	if err != nil {
		return nil, err
	}
	resp, err := via.Do(req)
	if err != nil {
		kind := ErrUnknownOutcome
		if !connected.Load() {
			kind = ErrUnreachable
		}
		return nil, fmt.Errorf("%s: %w: %w", r.name(), kind, err)
	}
	span.Status(resp.StatusCode)
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, r.refusal(resp)
}

// trace begins the span of a request.
func (c *Client) trace(ctx context.Context, r *request) (context.Context, telemetry.Span) {
	ctx, span := telemetry.Call(ctx, "host")
	if span.On() {
		span.Name(r.route())
		span.Set(telemetry.KeyAgentID, c.binding.Host)
	}
	return ctx, span
}

// withoutURL is why a request was not answered, without its URL: the query names a tenant's
// files.
func withoutURL(err error) error {
	var whole *url.Error
	if errors.As(err, &whole) {
		return whole.Err
	}
	return err
}

// name is the request without its query, which names a tenant's files.
func (r *request) name() string {
	path, _, _ := strings.Cut(r.path, "?")
	return r.method + " " + path
}

// route names the request without ids, ports and names, of which there are many: "host
// POST /v1/boxes/{id}/exec".
func (r *request) route() string {
	path, _, _ := strings.Cut(r.path, "?")
	parts := strings.Split(path, "/") // "", v1, collection, id, verb, …
	for i, part := range parts {
		if i == 3 || i > 3 && strings.Trim(part, "abcdefghijklmnopqrstuvwxyz") != "" {
			parts[i] = "{id}"
		}
	}
	return "host " + r.method + " " + strings.Join(parts[:min(len(parts), 6)], "/")
}

func (c *Client) build(ctx context.Context, r *request) (*http.Request, error) {
	body := r.body
	if body != nil && r.length == 0 {
		body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", r.name(), ErrUnreachable, err)
	}
	if body != nil && body != http.NoBody {
		req.ContentLength = r.length
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if id := RequestID(ctx); id != "" {
		req.Header.Set(HeaderRequestID, id)
	}
	telemetry.Inject(ctx, req.Header)
	if b := c.binding; b.Term > 0 {
		req.Header.Set(HeaderTerm, strconv.FormatUint(b.Term, 10))
		if b.Cluster != "" {
			req.Header.Set(HeaderCluster, b.Cluster)
		}
	}
	return req, nil
}

// refusal reads why the host refused.
func (r *request) refusal(resp *http.Response) error {
	raw, err := readAnswer(resp.Body)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", r.name(), ErrUnknownOutcome, err)
	}
	var e Error
	if json.Unmarshal(raw, &e) != nil || e.Code == "" {
		e = Error{Code: CodeInternal, Message: "host answered " + resp.Status}
	}
	e.HTTPStatus, e.ContentRange = resp.StatusCode, resp.Header.Get("Content-Range")
	return &e
}

func readAnswer(body io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(body, maxResponseBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(raw) > maxResponseBytes {
		return nil, fmt.Errorf("answer is larger than %d bytes", maxResponseBytes)
	}
	return raw, nil
}

// HasCode reports whether err is a host's refusal with the code.
func HasCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
