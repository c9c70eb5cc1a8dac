package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client calls the service. Create it with NewClient. It is safe for concurrent use.
//
// With several base URLs, a call goes to the replica that answered last, or to the
// next one if that did not answer the last call. If the replica refuses the connection,
// the client tries the next, because nothing was sent. If it answers 503 or the
// connection breaks, or it answers nothing for some seconds, not even to whether it is
// healthy, the client tries the next only if the call may be sent twice: a GET, a DELETE,
// or a create with an idempotency key.
type Client struct {
	// Token is the bearer token: an API key, a JWT, or an operator's token.
	Token string
	// UserAgent is sent with every call unless it is empty.
	UserAgent string
	// RequestID, if set, returns the id of each call; otherwise the service makes
	// one.
	RequestID func() string
	// Patience is for how long a call that may be sent twice is repeated while every
	// replica says that there is no leader; an election takes about a second. Zero:
	// each replica is asked once.
	Patience time.Duration

	http *http.Client
	urls []*url.URL
	last atomic.Uint32 // index into urls of the one that is asked first
}

// dialTimeout is short because another replica may answer.
const dialTimeout = 5 * time.Second

// NewClient returns a client of the service at one or more base URLs, each the
// address of one replica, such as "http://127.0.0.1:8080". If hc is nil, the client
// creates its own http.Client, which has no overall timeout: limit calls by their
// context.
func NewClient(hc *http.Client, token string, baseURLs ...string) (*Client, error) {
	if len(baseURLs) == 0 {
		return nil, errors.New("no base URL")
	}
	c := &Client{Token: token, http: hc}
	for _, s := range baseURLs {
		if !strings.Contains(s, "://") {
			return nil, fmt.Errorf("base URL %q: want http://host:port or https://host: it lacks http:// or https://", s)
		}
		u, err := url.Parse(strings.TrimRight(strings.TrimSpace(s), "/"))
		if err != nil {
			return nil, fmt.Errorf("base URL: %w", err)
		}
		if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("base URL %q: want http://host:port or https://host", s)
		}
		c.urls = append(c.urls, u)
	}
	if c.http == nil {
		c.http = &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
				TLSHandshakeTimeout: dialTimeout,
				IdleConnTimeout:     90 * time.Second,
				MaxIdleConnsPerHost: 16,
				ForceAttemptHTTP2:   true,
			},
			// The service never redirects, and following a redirect could send the
			// token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c, nil
}

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request in a form that can be sent again.
type call struct {
	method string
	path   string // from the root, segments escaped
	query  url.Values
	header http.Header
	body   []byte
	reader io.Reader // instead of body, for a request that can be sent only once
	size   int64     // of reader, in bytes; -1 if unknown
	safe   bool      // may be sent twice
	whole  bool      // its answer is wanted whatever the status is
	token  string    // instead of the client's
}

// get, remove and post build the three kinds of call.
func get(segments ...string) call {
	return call{method: http.MethodGet, path: join(segments), safe: true}
}

func remove(segments ...string) call {
	return call{method: http.MethodDelete, path: join(segments), safe: true}
}

func post(body any, segments ...string) (call, error) {
	b, err := encode(body)
	if err != nil {
		return call{}, fmt.Errorf("encode request: %w", err)
	}
	h := http.Header{"Content-Type": {"application/json"}}
	return call{method: http.MethodPost, path: join(segments), header: h, body: b}, nil
}

// encode is json.Marshal without the escapes for HTML, six bytes for each '<', '>' and
// '&', which would make a body at its limit too large.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// join builds a path. It escapes the segments, so that none can change the path.
func join(segments []string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// do sends the call to one replica after another until one answers. The caller
// closes the body of the response, whose status is below 400.
func (c *Client) do(ctx context.Context, cl call) (*http.Response, error) {
	for until := time.Now().Add(c.Patience); ; {
		resp, err := c.round(ctx, cl)
		if err == nil || !cl.safe || StatusOf(err) != http.StatusServiceUnavailable || time.Now().After(until) {
			return resp, err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// retryPause is a fraction of the duration of an election.
const retryPause = 300 * time.Millisecond

// round asks each replica at most once.
func (c *Client) round(ctx context.Context, cl call) (*http.Response, error) {
	first := int(c.last.Load())
	requestID := ""
	if c.RequestID != nil {
		requestID = c.RequestID()
	}
	var failure error
	for i := range c.urls {
		at := (first + i) % len(c.urls)
		resp, err := c.attempt(ctx, c.urls[at], cl, requestID)
		if err != nil {
			failure = err
			c.away(ctx, at)
			if ctx.Err() != nil || !(cl.safe || neverSent(err)) {
				return nil, err
			}
			continue
		}
		if resp.StatusCode >= http.StatusMultipleChoices && !cl.whole {
			e := errorFrom(resp)
			resp.Body.Close()
			if e.Status == http.StatusServiceUnavailable && cl.safe {
				failure = e
				continue
			}
			c.last.Store(uint32(at))
			return nil, e
		}
		c.last.Store(uint32(at))
		return resp, nil
	}
	return nil, failure
}

// away makes later calls begin with another replica than the one at an index, which did
// not answer: it may be frozen, and would cost each of them its deadline.
func (c *Client) away(ctx context.Context, at int) {
	if !errors.Is(ctx.Err(), context.Canceled) { // that is the caller's doing
		c.last.CompareAndSwap(uint32(at), uint32((at+1)%len(c.urls)))
	}
}

// A replica that has answered a call with nothing for lookAfter is asked whether it is
// healthy. One that does not answer that in aliveLimit either, whatever it says, is frozen.
var (
	lookAfter  = 3 * time.Second
	aliveLimit = 5 * time.Second
)

var errFrozen = errors.New("the replica does not answer")

// attempt sends a call to one replica. It leaves one that is frozen, where the next may be
// asked: the connection stays open.
func (c *Client) attempt(ctx context.Context, base *url.URL, cl call, requestID string) (*http.Response, error) {
	if !cl.safe {
		return c.send(ctx, base, cl, requestID)
	}
	ctx, answered, end := c.attended(ctx, base)
	resp, err := c.send(ctx, base, cl, requestID)
	if frozen := answered(); frozen != nil {
		if err == nil { // it answered at the last moment
			resp.Body.Close()
		}
		err = frozen
	}
	if err != nil {
		end(nil)
		return nil, err
	}
	resp.Body = ending{resp.Body, end}
	return resp, nil
}

// attended returns a context for what a replica is asked. If there are others, it ends once
// the replica is frozen; answered stops looking, and returns an error if it was. The caller
// calls end.
func (c *Client) attended(ctx context.Context, base *url.URL) (_ context.Context, answered func() error, end context.CancelCauseFunc) {
	ctx, end = context.WithCancelCause(ctx)
	if len(c.urls) == 1 {
		return ctx, func() error { return nil }, end
	}
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for sleep(watch, lookAfter) {
			if !c.alive(watch, base) && watch.Err() == nil {
				end(errFrozen)
			}
		}
	})
	return ctx, func() error {
		stop()
		watching.Wait()
		if errors.Is(context.Cause(ctx), errFrozen) {
			return fmt.Errorf("call %s: %w", base.Host, errFrozen)
		}
		return nil
	}, end
}

// ending is a body that ends its call's context.
type ending struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

// Close implements io.Closer.
func (b ending) Close() error {
	defer b.end(nil)
	return b.ReadCloser.Close()
}

// sleep waits, and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// alive reports whether a replica answers at all.
func (c *Client) alive(ctx context.Context, base *url.URL) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	resp, err := c.send(ctx, base, get("healthz"), "")
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}

func (c *Client) send(ctx context.Context, base *url.URL, cl call, requestID string) (*http.Response, error) {
	target := base.String() + cl.path
	if len(cl.query) > 0 {
		target += "?" + cl.query.Encode()
	}
	var body io.Reader
	if cl.body != nil {
		body = bytes.NewReader(cl.body)
	} else if cl.reader != nil && cl.size != 0 {
		// A transport that could not connect must not close it: the next one reads
		// it.
		body = io.NopCloser(cl.reader)
	}
	req, err := http.NewRequestWithContext(ctx, cl.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if cl.reader != nil {
		req.ContentLength = cl.size
	}
	for k, v := range cl.header {
		req.Header[k] = v
	}
	if token := cmp.Or(cl.token, c.Token); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if c.UserAgent != "" {
		req.Header.Set("User-Agent", c.UserAgent)
	}
	if requestID != "" {
		req.Header.Set(HeaderRequestID, requestID)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, withoutPath(err, base)
	}
	return resp, nil
}

// withoutPath names the replica that failed, but not the path, which may contain a
// sandbox id, a credential.
func withoutPath(err error, base *url.URL) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return fmt.Errorf("%s %s: %w", strings.ToUpper(ue.Op), base.Host, ue.Err)
	}
	return fmt.Errorf("call %s: %w", base.Host, err)
}

// neverSent reports whether err occurred before any byte of the request was sent.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// into sends the call and decodes the answer.
func into[T any](ctx context.Context, c *Client, cl call) (*T, error) {
	resp, err := c.do(ctx, cl)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := new(T)
	if err := decode(resp, out); err != nil {
		return nil, err
	}
	return out, nil
}

// decode reads one JSON value and the rest of the body, so that the connection can
// be reused.
func decode(resp *http.Response, out any) error {
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", resp.Request.URL.Host, err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10))
	return nil
}

// done sends the call and discards the answer.
func (c *Client) done(ctx context.Context, cl call) error {
	resp, err := c.do(ctx, cl)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return resp.Body.Close()
}
