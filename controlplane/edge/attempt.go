package edge

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// target is a port of a sandbox, and the sandbox's host.
type target struct {
	sandbox *record.Sandbox
	address string // of its host
	port    int

	host     string // the Host that the program sees; "": the client's own
	prefix   string // of the path that the client sees
	function bool   // the program is the runner of a function
	leave    func() // is called when the attempt has ended; may be nil
}

// key identifies a port of one generation of a sandbox. Kept-alive connections are
// reused only for the same key.
func (t target) key() string {
	return t.sandbox.ID + "-" + strconv.FormatUint(t.sandbox.Generation, 10) + ":" + strconv.Itoa(t.port)
}

// attempt is one attempt to reach a sandbox.
type attempt struct {
	target target
	// requestID is the id of the request for which a connection is made. Requests
	// that reuse the connection have other ids.
	requestID string
	shared    string          // the client's host name, if it is under a suffix, as are others'; or ""
	ctx       context.Context // of this attempt
	body      *body
	head      http.Header // of the client's answer
	err       error
	openedBy  atomic.Pointer[string] // the id of the request that opened the connection

	sent    atomic.Bool // the head of the request was sent
	begun   atomic.Bool // a response has begun
	stopped atomic.Bool // it was cancelled because the sandbox had stopped
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt { return ctx.Value(attemptKey{}).(*attempt) }

// clean removes from the head of a response what its program may not say there.
func (a *attempt) clean(h http.Header) {
	removeOwnHeaders(h)
	switch {
	case a.target.prefix != "":
		removeForHost(h)
	case a.shared != "":
		keepCookies(h, a.shared)
	}
}

// connected is called with the connection that the request goes over.
func (a *attempt) connected(info httptrace.GotConnInfo) {
	if c, ok := info.Conn.(*connection); ok {
		a.openedBy.Store(&c.openedBy)
	}
}

// answering prepares the head of the final answer. A 1xx answer before it has cleared what
// was set there. An upgrade is no answer: its connection is taken over.
func (a *attempt) answering(resp *http.Response) {
	a.head.Set(headerRequestID, a.requestID)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		a.body.Answering(resp.Header)
	}
}

// stale reports whether the host's answer contradicts this copy of the store.
func (a *attempt) stale() bool {
	return hostapi.HasCode(a.err, hostapi.CodeNotRunning) || hostapi.HasCode(a.err, hostapi.CodeNotFound) || hosts.Unreachable(a.err)
}

// retryable reports whether waiting may help: the port may be about to open, or the
// store may soon learn of a transition.
func (a *attempt) retryable() bool {
	return hostapi.HasCode(a.err, hostapi.CodePortClosed) || hostapi.HasCode(a.err, hostapi.CodeNotRunning)
}

// body is a request's body that can be read once, and offered again while nothing of
// it was read.
type body struct {
	*stall.Body
	none  bool
	begun atomic.Bool
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	return &body{Body: stall.NewBody(w, r), none: r.Body == nil || r.Body == http.NoBody}
}

// again returns the body for another attempt. A transport that could not connect closes
// it, which does nothing.
func (b *body) again() io.ReadCloser {
	if b.none {
		return http.NoBody
	}
	return b
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Body.Read(p)
}

// buffers is a pool for the bodies that pass through.
type buffers struct{}

const bufferSize = 32 << 10

var pool = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (buffers) Get() []byte { return pool.Get().(*[bufferSize]byte)[:] }

func (buffers) Put(b []byte) {
	if cap(b) >= bufferSize {
		pool.Put((*[bufferSize]byte)(b[:bufferSize]))
	}
}
