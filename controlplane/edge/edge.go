// Package edge serves the previews of sandboxes: http(s)://<port>-<sandbox_id>.<suffix>
// reaches that port of that sandbox, through any replica.
//
// A replica answers from its own copy of the control store and connects to the
// sandbox's host itself, so previews go on while there is no leader. Only what
// its copy does not settle goes to the leader: a sandbox that it does not know
// yet, and one that must be woken.
package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// errPaused is what a paused sandbox answers to everything that needs it to run.
const errPaused = "sandbox not running (paused or hibernated) — resume/wake it first"

// Config is what an Edge works with.
type Config struct {
	Suffix string // of preview host names
	// Find looks a sandbox up in this replica's own copy of the store. address
	// is its host's; empty where there is none.
	Find func(sandboxID string) (s *record.Sandbox, address string, ok bool)
	// Host calls a host; the same client each time for the same address.
	Host    func(agentID, address string) *hostapi.Client
	Leading func() bool
	// Forward sends a request to the leader's edge.
	Forward http.Handler
	// Awake returns once a hibernated sandbox runs. Only the leader is asked.
	Awake  func(ctx context.Context, sandboxID string) error
	Tokens authn.PreviewTokens
	Log    *slog.Logger

	// OpenWait is how long a request waits for the port to open; default 10 s.
	// A server that has just been started, or woken, is given that long.
	OpenWait time.Duration
	// Stall is how long a client may take nothing of an answer; default one minute.
	Stall time.Duration
	// MaxRequests bounds the requests under way to one sandbox; default 512.
	MaxRequests int
}

const (
	defaultMaxRequests = 512
	maxHeaderBytes     = 64 << 10
	idleTimeout        = 30 * time.Second
	idlePerPort        = 32
	firstRetry         = 25 * time.Millisecond
	lastRetry          = 400 * time.Millisecond
	maxWakes           = 2
	maxIdleOverall     = 1024
	flushInterval      = time.Millisecond
	// maxFields bounds the lines of a head: the shortest take four bytes of it, and
	// a hundred of memory each.
	maxFields       = 256
	continueTimeout = time.Second
	// stoppedCheck is how soon a request notices that its sandbox has stopped.
	stoppedCheck = 200 * time.Millisecond
)

// headerTimeout is how long a program may think before its response begins.
// A response that has begun may last for ever.
var headerTimeout = timescale.Limit(5 * time.Minute)

var defaultOpenWait = timescale.Limit(10 * time.Second)

// Edge is the handler of every request whose Host Belongs to it.
type Edge struct {
	cfg   Config
	proxy *httputil.ReverseProxy

	unwoken rate.Sometimes // to be logged: a viewer may ask any number of times

	mu    sync.Mutex
	count map[string]int // requests under way, by sandbox
}

// New makes the handler.
func New(cfg Config) *Edge {
	if cfg.OpenWait == 0 {
		cfg.OpenWait = defaultOpenWait
	}
	if cfg.Stall == 0 {
		cfg.Stall = stall.Limit
	}
	if cfg.MaxRequests == 0 {
		cfg.MaxRequests = defaultMaxRequests
	}
	e := &Edge{cfg: cfg, count: map[string]int{}, unwoken: rate.Sometimes{First: 10, Interval: time.Second}}
	e.proxy = &httputil.ReverseProxy{
		Transport: newTransport(e.dial),
		// What has come of a response goes on, also where more of it is awaited. A
		// short one that has come whole goes on in one write.
		FlushInterval: flushInterval,
		ErrorLog:      slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		Rewrite:       rewrite,
		ModifyResponse: func(resp *http.Response) error {
			a := attemptOf(resp.Request.Context())
			a.begun.Store(true)
			if err := fewFields(resp.Header); err != nil {
				return err
			}
			disown(resp.Header)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			attemptOf(r.Context()).err = err
		},
		BufferPool: buffers{},
	}
	return e
}

// ServeHTTP implements http.Handler.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	nameRequest(r)
	name, ok := Parse(r.Host, e.cfg.Suffix)
	if !ok {
		e.refuse(w, r, http.StatusNotFound, "not found", "a preview's host name is <port>-<sandbox_id>."+e.cfg.Suffix)
		return
	}
	if !e.enter(name.SandboxID) {
		w.Header().Set("Retry-After", "1")
		e.refuse(w, r, http.StatusServiceUnavailable, "too many requests at once to this sandbox", "")
		return
	}
	defer e.leave(name.SandboxID)
	e.serve(w, r, name)
}

// serve tries until the port answers, its time is over, or it is clear that it
// never will. A request of which anything may have reached the sandbox is not
// sent again.
func (e *Edge) serve(w http.ResponseWriter, r *http.Request, name Name) {
	deadline := time.Now().Add(e.cfg.OpenWait)
	body := &body{ReadCloser: r.Body}
	wakes, retry := 0, firstRetry
	for {
		to, status := e.find(name)
		switch {
		case status != ready && e.elsewhere(r):
			// This copy may be behind: the sandbox may just have been made, or have
			// been resumed.
			e.cfg.Forward.ServeHTTP(w, r)
			return
		case status == unknown:
			e.refuse(w, r, http.StatusNotFound, "not found", "")
			return
		case !e.authorized(w, r, name, to.sandbox):
			return
		case status == busy:
			w.Header().Set("Retry-After", "1")
			e.refuse(w, r, http.StatusServiceUnavailable, "sandbox is starting", "")
			return
		case status == gone:
			e.refuse(w, r, http.StatusNotFound, "sandbox not found or not running", "its status is "+string(to.sandbox.Status))
			return
		case status == paused:
			e.refuse(w, r, http.StatusConflict, errPaused, "")
			return
		case status == asleep:
			wakes++
			if err := e.cfg.Awake(hostapi.WithRequestID(r.Context(), r.Header.Get(headerRequestID)), name.SandboxID); err != nil || wakes > maxWakes {
				e.unwoken.Do(func() {
					e.cfg.Log.WarnContext(r.Context(), "preview could not wake the sandbox",
						"request_id", r.Header.Get(headerRequestID), "sandbox_id", hostapi.ShortID(name.SandboxID), "error", err)
				})
				w.Header().Set("Retry-After", "1")
				e.refuse(w, r, http.StatusServiceUnavailable, "sandbox could not be woken", "")
				return
			}
			continue
		}
		a := &attempt{target: to, name: name, requestID: r.Header.Get(headerRequestID)}
		e.try(w, r, a, body)
		err := a.err
		var notSent *dialError
		unsent := !a.sent.Load() && !body.begun.Load()
		switch {
		case err == nil, r.Context().Err() != nil:
			return
		case a.stopped.Load() && unsent:
			continue // find says what has become of it
		case a.stopped.Load():
			if _, now := e.find(name); now == paused {
				e.refuse(w, r, http.StatusConflict, errPaused, "")
				return
			}
		case errors.As(err, &notSent) && unsent && a.stale() && e.elsewhere(r):
			w.Header().Del(headerRequestID)
			e.cfg.Forward.ServeHTTP(w, r) // the host knows better than this copy
			return
		case errors.As(err, &notSent) && unsent && a.retryable() && time.Now().Before(deadline):
			if !pause(r.Context(), retry) {
				return
			}
			retry = min(2*retry, lastRetry)
			continue
		}
		e.fail(w, r, name, err)
		return
	}
}

// try sends the request to the sandbox, and notes in a what came of it.
func (e *Edge) try(w http.ResponseWriter, r *http.Request, a *attempt, body *body) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), attemptKey{}, a))
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { a.sent.Store(true) }})
	a.ctx = ctx
	out := r.WithContext(ctx)
	out.Body = body.again()
	defer e.whileReady(ctx, cancel, a).Stop()
	w.Header().Set(headerRequestID, r.Header.Get(headerRequestID))
	answer := stall.New(w, e.cfg.Stall)
	e.proxy.ServeHTTP(answer, out)
	if a.err == nil {
		answer.Complete() // here, where the request counts still
	}
}

// whileReady gives a request up that waits for a response of a sandbox that has
// stopped meanwhile: one that is paused answers nothing, and its connections
// stay open. A response that has begun is left alone.
func (e *Edge) whileReady(ctx context.Context, cancel context.CancelFunc, a *attempt) *time.Timer {
	var watch *time.Timer
	armed := make(chan struct{})
	watch = time.AfterFunc(stoppedCheck, func() {
		<-armed
		if a.begun.Load() || ctx.Err() != nil {
			return
		}
		if _, s := e.find(a.name); s != ready {
			a.stopped.Store(true)
			cancel()
			return
		}
		watch.Reset(stoppedCheck)
	})
	close(armed)
	return watch
}

// fail answers for a program that did not.
func (e *Edge) fail(w http.ResponseWriter, r *http.Request, name Name, err error) {
	e.cfg.Log.DebugContext(r.Context(), "preview failed", "request_id", r.Header.Get(headerRequestID), "sandbox_id", hostapi.ShortID(name.SandboxID), "port", name.Port, "error", err)
	var timeout net.Error
	switch {
	case hostapi.HasCode(err, hostapi.CodePortClosed):
		e.refuse(w, r, http.StatusBadGateway, "port is closed", "nothing in the sandbox listens on port "+strconv.Itoa(name.Port)+"; a server must listen on 0.0.0.0, not on 127.0.0.1")
	case hosts.Unreachable(err):
		w.Header().Set("Retry-After", "1")
		e.refuse(w, r, http.StatusBadGateway, "agent unreachable", "")
	case errors.As(err, &timeout) && timeout.Timeout():
		e.refuse(w, r, http.StatusGatewayTimeout, "the sandbox does not answer", "no response began within "+headerTimeout.String())
	default:
		e.refuse(w, r, http.StatusBadGateway, "the sandbox broke off", "")
	}
}

// elsewhere reports whether the leader may know more than this replica.
func (e *Edge) elsewhere(r *http.Request) bool {
	return !e.cfg.Leading() && !peer.Forwarded(r.Context())
}

func (e *Edge) enter(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count[id] >= e.cfg.MaxRequests {
		return false
	}
	e.count[id]++
	return true
}

func (e *Edge) leave(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count[id]--; e.count[id] == 0 {
		delete(e.count, id)
	}
}

// rewrite keeps the Host: programs make links of it.
func rewrite(pr *httputil.ProxyRequest) {
	a := attemptOf(pr.In.Context())
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = a.target.key(a.name)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	pr.Out.Host = pr.In.Host
	pr.Out.Header.Del(HeaderToken)
	if peer.Forwarded(pr.In.Context()) {
		// The replica in front has said who the client is.
		for _, h := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
			pr.Out.Header[h] = pr.In.Header[h]
		}
		return
	}
	pr.SetXForwarded()
}

// body is a request's body that is read at most once, and may be offered again
// while none of it was read.
type body struct {
	io.ReadCloser
	begun atomic.Bool
}

// again is the body behind a Close that does nothing: a transport that could not
// connect closes it. The server closes the real one.
func (b *body) again() io.ReadCloser {
	if b.ReadCloser == nil || b.ReadCloser == http.NoBody {
		return http.NoBody
	}
	return &offered{b}
}

type offered struct{ b *body }

func (o *offered) Read(p []byte) (int, error) {
	o.b.begun.Store(true)
	return o.b.ReadCloser.Read(p)
}

func (*offered) Close() error { return nil }

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// buffers are shared by the bodies that pass through.
type buffers struct{}

const bufferSize = 32 << 10

var pool = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (buffers) Get() []byte { return pool.Get().(*[bufferSize]byte)[:] }

func (buffers) Put(b []byte) {
	if cap(b) >= bufferSize {
		pool.Put((*[bufferSize]byte)(b[:bufferSize]))
	}
}

// attempt is one try to reach the sandbox.
type attempt struct {
	target target
	name   Name
	// requestID is that of the request for which a connection is made; those that
	// use it again later have others.
	requestID string
	ctx       context.Context // of this try
	err       error

	sent    atomic.Bool // the head of the request went out
	begun   atomic.Bool // a response has begun
	stopped atomic.Bool // it was given up: the sandbox had stopped
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt { return ctx.Value(attemptKey{}).(*attempt) }

// stale reports whether the host says otherwise than this copy of the store.
func (a *attempt) stale() bool {
	return hostapi.HasCode(a.err, hostapi.CodeNotRunning) || hostapi.HasCode(a.err, hostapi.CodeNotFound) || hosts.Unreachable(a.err)
}

// retryable reports whether waiting may help: a port that is about to open, or
// a move of which the store will hear in a moment.
func (a *attempt) retryable() bool {
	return hostapi.HasCode(a.err, hostapi.CodePortClosed) || hostapi.HasCode(a.err, hostapi.CodeNotRunning)
}

// refuse answers a person with a page and a program with JSON. The address has
// a credential in it, so it must not leave in a Referer.
func (e *Edge) refuse(w http.ResponseWriter, r *http.Request, status int, message, detail string) {
	h := w.Header()
	h.Set(headerRequestID, r.Header.Get(headerRequestID))
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		writePage(w, status, message, detail)
		return
	}
	writeJSON(w, status, message, detail)
}
