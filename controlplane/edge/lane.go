package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"
)

// lanes carries requests without a body, one at a time on each connection,
// and leaves all others to rest.
//
// http.Transport has two goroutines for each connection, because a server may
// answer while it is still being sent a body. Where there is none, the one that
// serves the request can write and then read: between them, edge and host take
// a fifth less CPU for a small request (BenchmarkRequest).
type lanes struct {
	dial func(ctx context.Context) (tunnel, error)
	rest http.RoundTripper

	mu     sync.Mutex
	idle   map[string][]*lane // by key, the one used last at the end
	count  int                // of those
	closer *time.Timer        // runs while there are any
}

// tunnel is a connection to a port of a sandbox, through its host.
type tunnel interface {
	net.Conn
	Quiet() bool // see hostapi.Stream
}

// lane is a tunnel that requests take one after the other.
type lane struct {
	conn  tunnel
	from  *io.LimitedReader
	in    *bufio.Reader
	out   *bufio.Writer
	used  bool // for a request before
	since time.Time
}

const (
	laneBuffer     = 4 << 10
	maxInformation = 5 // responses of 1xx before the one
)

var errManyInformation = errors.New("too many 1xx responses")

// plain reports whether a request can take a lane: it is safe to send it twice,
// because a connection that was idle may turn out to be closed, and it has no
// body and wants no other protocol.
func plain(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return false
	}
	return (r.Body == nil || r.Body == http.NoBody) && r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
		r.Header["Upgrade"] == nil && r.Header["Expect"] == nil && r.Header["Trailer"] == nil
}

// RoundTrip implements http.RoundTripper.
func (l *lanes) RoundTrip(r *http.Request) (*http.Response, error) {
	// The trace is the proxy's, of this request alone.
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.Got1xxResponse != nil {
		pass := trace.Got1xxResponse
		trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
			if err := fewFields(http.Header(header)); err != nil {
				return err
			}
			return pass(code, header)
		}
	}
	if !plain(r) {
		return l.rest.RoundTrip(r)
	}
	for {
		c, err := l.take(r)
		if err != nil {
			return nil, err
		}
		resp, err := l.ask(c, r)
		if err == nil {
			return resp, nil
		}
		_ = c.conn.Close()
		if cause := context.Cause(r.Context()); cause != nil {
			return nil, cause
		}
		// Nothing came back from one that was idle: the other end had closed it.
		// Such a request, which is only a read, is sent once more, as browsers and
		// proxies do. Where the sandbox has stopped no connection can be made, and
		// the request is not sent a third time.
		var silent *silentError
		if !c.used || !errors.As(err, &silent) {
			return nil, err
		}
	}
}

// silentError says that a connection ended before a response began.
type silentError struct{ err error }

func (e *silentError) Error() string { return "no response: " + e.err.Error() }
func (e *silentError) Unwrap() error { return e.err }

// ask sends a request and reads the head of its response, whose body gives the
// lane back at its end.
func (l *lanes) ask(c *lane, r *http.Request) (*http.Response, error) {
	// A close from elsewhere ends whatever waits here.
	stop := context.AfterFunc(r.Context(), func() { _ = c.conn.Close() })
	resp, err := c.exchange(r)
	if err != nil {
		stop()
		return nil, err
	}
	b := &laneBody{from: resp.Body, lanes: l, lane: c, key: r.URL.Host, stop: stop, keep: !resp.Close && !r.Close}
	resp.Body = b
	if resp.ContentLength == 0 || r.Method == http.MethodHead || b.from == http.NoBody {
		b.end()
		resp.Body = http.NoBody
	}
	return resp, nil
}

func (c *lane) exchange(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.WroteHeaders != nil {
		trace.WroteHeaders() // some of them may be from here on
	}
	err := r.Write(c.out)
	if err == nil {
		err = c.out.Flush()
	}
	if err != nil {
		return nil, &silentError{fmt.Errorf("send the request: %w", err)}
	}
	if err := c.conn.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return nil, &silentError{err}
	}
	c.from.N = maxHeaderBytes
	if _, err := c.in.Peek(1); err != nil {
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return nil, err
		}
		return nil, &silentError{err}
	}
	resp, err := c.response(r)
	if err != nil {
		return nil, err
	}
	c.from.N = 1 << 62
	return resp, c.conn.SetReadDeadline(time.Time{})
}

// response reads the head of the response, and tells of those that go before it.
func (c *lane) response(r *http.Request) (*http.Response, error) {
	for range maxInformation + 1 {
		resp, err := http.ReadResponse(c.in, r)
		switch {
		case err != nil && c.from.N <= 0:
			return nil, fmt.Errorf("the head of the response is larger than %d bytes", maxHeaderBytes)
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the response switches protocols unasked")
		case resp.StatusCode >= http.StatusOK:
			return resp, nil
		}
		if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errManyInformation
}

// laneBody is the body of a response.
type laneBody struct {
	from  io.Reader
	lanes *lanes
	lane  *lane // nil once it was given back or closed
	key   string
	stop  func() bool
	keep  bool
}

// Read implements io.Reader.
func (b *laneBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if err != nil && b.lane != nil {
		b.keep = b.keep && errors.Is(err, io.EOF)
		b.end()
	}
	return n, err
}

// come reports whether the next Read waits for nothing.
func (b *laneBody) come() bool { return b.lane == nil || b.lane.in.Buffered() > 0 }

// Close implements io.Closer. A body that was not read to its end takes its
// connection with it.
func (b *laneBody) Close() error {
	if b.lane != nil {
		b.keep = false
		b.end()
	}
	return nil
}

func (b *laneBody) end() {
	c := b.lane
	b.lane = nil
	// What came behind the response is nobody's.
	if !b.stop() || !b.keep || c.in.Buffered() > 0 {
		_ = c.conn.Close()
		return
	}
	b.lanes.give(b.key, c)
}

// take returns a connection for a request: one that is idle, or a new one.
func (l *lanes) take(r *http.Request) (*lane, error) {
	for c := l.takeIdle(r.URL.Host); c != nil; c = l.takeIdle(r.URL.Host) {
		if c.conn.Quiet() {
			return c, nil
		}
		_ = c.conn.Close()
	}
	conn, err := l.dial(r.Context())
	if err != nil {
		return nil, err
	}
	c := &lane{conn: conn, from: &io.LimitedReader{R: conn}}
	c.in, c.out = bufio.NewReaderSize(c.from, laneBuffer), bufio.NewWriterSize(conn, laneBuffer)
	return c, nil
}

func (l *lanes) takeIdle(key string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.idle[key]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	l.keepFirst(key, len(list)-1)
	return c
}

// keepFirst leaves the first n of a key's connections. The caller holds l.mu.
func (l *lanes) keepFirst(key string, n int) {
	list := l.idle[key]
	l.count -= len(list) - n
	clear(list[n:])
	if n == 0 {
		delete(l.idle, key)
		return
	}
	l.idle[key] = list[:n]
}

// give keeps a connection for the next request.
func (l *lanes) give(key string, c *lane) {
	c.used, c.since = true, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle[key]) >= idlePerPort || l.count >= maxIdleOverall {
		_ = c.conn.Close()
		return
	}
	if l.idle == nil {
		l.idle = map[string][]*lane{}
	}
	l.idle[key] = append(l.idle[key], c)
	l.count++
	if l.closer == nil {
		l.closer = time.AfterFunc(idleTimeout, l.closeIdle)
	}
}

// closeIdle closes what nobody has used for idleTimeout.
func (l *lanes) closeIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, list := range l.idle {
		old := 0
		for old < len(list) && time.Since(list[old].since) >= idleTimeout {
			_ = list[old].conn.Close()
			old++
		}
		n := copy(list, list[old:])
		l.keepFirst(key, n)
	}
	if l.count == 0 {
		l.closer = nil
		return
	}
	l.closer.Reset(idleTimeout)
}
