package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

const (
	maxHeaderBytes = 64 << 10
	// maxFields limits the lines of a response's head. The shortest take four bytes
	// of the head and a hundred bytes of memory each.
	maxFields       = 256
	maxInformation  = 5 // 1xx responses before the final one
	idlePerPort     = 32
	maxIdleOverall  = 1024
	continueTimeout = time.Second
	// idleTimeout is shorter than the time after which common servers close a kept
	// connection (Node.js and Uvicorn: 5 s): a request that meets such a close on
	// its way is lost unless it may be repeated.
	idleTimeout = 4 * time.Second
)

// headerTimeout is how long a program may take to begin its response, which may then
// last for any time.
var headerTimeout = timescale.Limit(5 * time.Minute)

var errManyInformation = errors.New("too many 1xx responses")

// transport sends requests to the ports of sandboxes. It keeps connections by
// target.key, so each is reused only for one port of one placement.
type transport struct {
	shared *http.Transport
	own    *http.Transport // uses a new connection for each request
	grpc   *http.Transport // speaks HTTP/2 without asking first
}

func newTransport(dial func(ctx context.Context) (net.Conn, error)) *transport {
	shared := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConns:           maxIdleOverall,
		MaxIdleConnsPerHost:    idlePerPort,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true, // pass on exactly what the program sends
	}
	own := shared.Clone()
	own.DisableKeepAlives = true
	grpc := shared.Clone()
	grpc.Protocols = new(http.Protocols)
	grpc.Protocols.SetUnencryptedHTTP2(true)
	return &transport{shared: shared, own: own, grpc: grpc}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	boundInformation(r.Context())
	switch {
	case once(r):
		return t.own.RoundTrip(r)
	case isGRPC(r):
		return t.grpc.RoundTrip(r)
	}
	return t.shared.RoundTrip(r)
}

// isGRPC reports whether a request is of gRPC, whose servers speak HTTP/2 alone.
// (gRPC-Web is HTTP of any version.)
func isGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// once reports whether a request must not use a kept-alive connection. If such a
// connection ends during a request without a body, http.Transport repeats a GET,
// HEAD or OPTIONS, which is harmless. But it would also repeat an upgrade, a TRACE
// and a request with an idempotency key.
func once(r *http.Request) bool {
	if len(r.Header["Upgrade"]) > 0 {
		return true
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return r.Method == http.MethodTrace || r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// boundInformation limits the 1xx responses to a request, which http.Transport
// leaves to the proxy's trace. The trace belongs to this request only.
func boundInformation(ctx context.Context) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil || trace.Got1xxResponse == nil {
		return
	}
	pass, n := trace.Got1xxResponse, 0
	trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		if n++; n > maxInformation {
			return errManyInformation
		}
		if err := fewFields(http.Header(header)); err != nil {
			return err
		}
		attemptOf(ctx).clean(http.Header(header))
		return pass(code, header)
	}
}

// dial connects to the port through the sandbox's host. The connection outlives the
// request for which it is made, but the dial ends with the request, so that the
// limit on requests limits dials too.
func (e *Edge) dial(ctx context.Context) (net.Conn, error) {
	a := attemptOf(ctx)
	// The connection must not inherit the request's end or trace.
	life, cancel := context.WithCancel(hostapi.WithRequestID(context.Background(), a.requestID))
	giveUp := context.AfterFunc(a.ctx, cancel)
	conn, err := e.cfg.Host(a.target.sandbox.HostID, a.target.address).Dial(life, a.target.sandbox.ID, a.target.port)
	if err != nil {
		giveUp()
		cancel()
		return nil, &dialError{err}
	}
	if !giveUp() {
		_ = conn.Close()
		return nil, &dialError{context.Cause(a.ctx)}
	}
	return &connection{Stream: conn, openedBy: a.requestID}, nil
}

// connection is a connection to a port. The host, which passes on its bytes, knows the
// request alone for which it was opened; others follow on it.
type connection struct {
	*hostapi.Stream
	openedBy string // request id
}

// dialError means that no connection to the sandbox was made.
type dialError struct{ err error }

func (d *dialError) Error() string { return d.err.Error() }
func (d *dialError) Unwrap() error { return d.err }
