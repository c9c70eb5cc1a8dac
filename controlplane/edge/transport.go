package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

const maxInformation = 5 // responses of 1xx before the one

var errManyInformation = errors.New("too many 1xx responses")

// transport carries requests to the ports of sandboxes. Its connections are kept
// under target.key, and so used again for one port of one placement alone.
type transport struct {
	shared *http.Transport
	own    *http.Transport // has a new connection for each request
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
		DisableCompression:     true, // what the program sends is what the client gets
	}
	own := shared.Clone()
	own.DisableKeepAlives = true
	return &transport{shared: shared, own: own}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	boundInformation(r.Context())
	if once(r) {
		return t.own.RoundTrip(r)
	}
	return t.shared.RoundTrip(r)
}

// once reports whether a request must not use a kept connection. When one ends
// over a request without a body, http.Transport repeats a GET, HEAD or OPTIONS,
// which only read. It would also repeat an upgrade, a TRACE and whatever has an
// idempotency key, which may be done twice then.
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
// leaves to the proxy's trace. The trace is of this request alone.
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
		return pass(code, header)
	}
}

// dial connects to the port through the sandbox's host. The connection outlives
// the request that it is made for, but is not waited for any longer: requests
// under way bound the dials.
func (e *Edge) dial(ctx context.Context) (net.Conn, error) {
	a := attemptOf(ctx)
	// Neither the request's end nor its trace are the connection's.
	life, cancel := context.WithCancel(hostapi.WithRequestID(context.Background(), a.requestID))
	giveUp := context.AfterFunc(a.ctx, cancel)
	conn, err := e.cfg.Host(a.target.sandbox.HostID, a.target.address).Dial(life, a.name.SandboxID, a.name.Port)
	if err != nil {
		giveUp()
		cancel()
		return nil, &dialError{err}
	}
	if !giveUp() {
		_ = conn.Close()
		return nil, &dialError{context.Cause(a.ctx)}
	}
	return conn, nil
}

// dialError says that no connection to the sandbox was made.
type dialError struct{ err error }

func (d *dialError) Error() string { return d.err.Error() }
func (d *dialError) Unwrap() error { return d.err }
