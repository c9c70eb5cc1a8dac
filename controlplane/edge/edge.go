// Package edge serves what runs in sandboxes by host names of its own:
// http(s)://<port>-<sandbox_id>.<suffix> reaches that port of that sandbox, a preview,
// and http(s)://<app_id>.<suffix> an app, as do the domains that workspaces have verified
// for it, through any replica.
//
// A replica uses its own copy of the control store and connects to the sandbox's
// host directly, so both work while there is no leader. It forwards a request to
// the leader only if its copy does not know the sandbox or the app yet, or if a
// preview's sandbox must be woken. It has the leader wake an app, and holds the
// request meanwhile.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/controlplane/wake"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Config configures an Edge.
type Config struct {
	// Find returns a sandbox from this replica's copy of the store, and its host's
	// address, "" if there is none.
	Find func(sandboxID string) (s *record.Sandbox, address string, ok bool)
	// Host returns the client of a host, always the same for the same address.
	Host    func(agentID, address string) *hostapi.Client
	Leading func() bool
	// Forward forwards a request to the leader's edge.
	Forward    http.Handler
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics

	Previews *Previews // nil: there are none
	Apps     *Apps     // nil: there are none

	// OpenWait is how long a request waits for the port to open, because its server
	// may have just been started or woken; default 10 s.
	OpenWait time.Duration
	// Stall is how long a client may read nothing of a response; default one minute.
	Stall time.Duration
	// MaxRequests limits the requests to one sandbox's previews at a time; default
	// 512.
	MaxRequests int
	// MaxRequestID is how many characters of a client's X-Request-Id are reused at most; 0:
	// the default.
	MaxRequestID int
}

const (
	defaultMaxRequests = 512
	firstRetry         = 25 * time.Millisecond
	lastRetry          = 400 * time.Millisecond
	flushInterval      = time.Millisecond
	// stoppedCheck is the interval at which a request checks whether its sandbox has
	// stopped.
	stoppedCheck = 200 * time.Millisecond
)

var defaultOpenWait = timescale.Limit(10 * time.Second)

// Edge handles every request whose Host Belongs to it.
type Edge struct {
	cfg     Config
	routes  routes
	proxy   *httputil.ReverseProxy
	apps    *apps // nil: there are none
	metrics *metrics

	unwoken rate.Sometimes // limits log lines: a viewer may cause any number

	mu    sync.Mutex
	count map[string]int // by sandbox or app: requests in progress
}

// New returns the handler. The caller closes it, and runs Run if there are apps.
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
	if p := cfg.Previews; p != nil {
		e.routes.add(p.Suffix, e.servePreview)
	}
	if cfg.Apps != nil {
		e.apps = newApps(*cfg.Apps)
		e.apps.wakes = wake.New(wakeLimit, e.wake)
		e.routes.add(cfg.Apps.Suffix, e.serveApp)
	}
	e.metrics = newMetrics(cfg.Registerer, e.apps)
	e.proxy = &httputil.ReverseProxy{
		Transport: newTransport(e.dial),
		// The beginning of a response is sent on even if more is awaited, but a
		// short response that arrives at once is sent in one write.
		FlushInterval: flushInterval,
		ErrorLog:      slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		Rewrite:       rewrite,
		ModifyResponse: func(resp *http.Response) error {
			a := attemptOf(resp.Request.Context())
			a.begun.Store(true)
			if err := fewFields(resp.Header); err != nil {
				return err
			}
			e.addLog(resp)
			a.clean(resp.Header)
			cleanTrailers(resp)
			a.answering(resp)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			attemptOf(r.Context()).err = err
		},
		BufferPool: buffers{},
	}
	return e
}

// Belongs reports whether a request's Host is under one of the edge's suffixes, or a
// domain of an app. Such a request is always for the edge and never for the API.
func (e *Edge) Belongs(host string) bool {
	_, ok := e.find(host)
	return ok
}

// find returns who serves a host name. The service's own suffixes count before domains,
// so no domain can ever stand in for a preview or an app.
func (e *Edge) find(host string) (http.HandlerFunc, bool) {
	if serve, ok := e.routes.find(host); ok {
		return serve, true
	}
	id, ok := e.domain(host)
	if !ok {
		return nil, false
	}
	return func(w http.ResponseWriter, r *http.Request) {
		e.visitApp(w, r, &visitApp{id: id, noun: nounApp, whole: r})
	}, true
}

// IsDomain reports whether a host name, with or without a port number, is a domain of an
// app.
func (e *Edge) IsDomain(host string) bool {
	if _, ok := e.routes.find(host); ok {
		return false
	}
	_, ok := e.domain(host)
	return ok
}

// Misdirected reports whether a request came over the TLS of a domain, and is for another
// host name: its sender has been given a certificate that says nothing of that one.
func (e *Edge) Misdirected(r *http.Request) bool {
	return r.TLS != nil && DomainName(r.Host) != DomainName(r.TLS.ServerName) && e.IsDomain(r.TLS.ServerName)
}

// RefuseMisdirected answers such a request: its client may send it once more, on a
// connection of its own (RFC 9110, 15.5.20).
func (e *Edge) RefuseMisdirected(w http.ResponseWriter, r *http.Request) {
	e.nameRequest(r)
	e.refuse(w, r, http.StatusMisdirectedRequest, "misdirected request", "this connection is for "+DomainName(r.TLS.ServerName))
}

// ServeHTTP implements http.Handler.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.nameRequest(r)
	serve, ok := e.find(r.Host)
	if !ok {
		e.refuse(w, r, http.StatusNotFound, "not found", "")
		return
	}
	serve(w, r)
}

// Close ends the waits for wakes.
func (e *Edge) Close() {
	if e.apps != nil {
		e.apps.wakes.Close()
	}
}

// visit is a request on its way to a sandbox. Previews and apps differ in where that
// is, and in what they say if it is nowhere. The way is the same.
type visit interface {
	// find returns where the request goes now, unless it has answered the request or
	// leaves it to the leader.
	find(w http.ResponseWriter, r *http.Request) (target, step)
	// serves reports whether a target may still answer.
	serves(to target) bool
	// again reports whether a request of which nothing was sent is worth another
	// attempt: at once, or after a pause.
	again(a *attempt) (now, later bool)
	// forward lets the leader serve the request.
	forward(w http.ResponseWriter, r *http.Request)
	// fail answers if the program did not.
	fail(w http.ResponseWriter, r *http.Request, a *attempt)
}

// step is what becomes of a request next.
type step int

const (
	send  step = iota // it goes to the target
	over              // it has been answered, or its client has left
	away              // the leader may know more
	again             // its visit looks once more
)

// serve repeats the request until the port answers, its time is over, or it is clear
// that it never will. A request is not repeated if any part of it may have reached
// the sandbox.
func (e *Edge) serve(w http.ResponseWriter, r *http.Request, v visit) {
	body := newBody(w, r)
	defer body.Leave()
	var deadline time.Time
	for retry := firstRetry; ; {
		to, next := v.find(w, r)
		switch next {
		case over:
			return
		case away:
			v.forward(w, r)
			return
		}
		a := &attempt{target: to, requestID: r.Header.Get(headerRequestID), shared: e.routes.name(r.Host), body: body, head: w.Header()}
		if deadline.IsZero() { // whatever it has waited for until now
			deadline = time.Now().Add(e.cfg.OpenWait)
		}
		e.try(w, r, a, v)
		unsent := !a.sent.Load() && !body.begun.Load()
		var notSent *dialError
		switch {
		case a.err == nil, r.Context().Err() != nil:
			return
		case a.stopped.Load() && unsent:
			continue // find returns its new status
		case !a.stopped.Load() && unsent && errors.As(a.err, &notSent):
			now, later := v.again(a)
			switch {
			case now:
				continue
			case a.stale() && e.elsewhere(r): // the host knows better than this copy
				w.Header().Del(headerRequestID)
				v.forward(w, r)
				return
			case later && time.Now().Before(deadline):
				if !pause(r.Context(), retry) {
					return
				}
				retry = min(2*retry, lastRetry)
				continue
			}
		}
		v.fail(w, r, a)
		return
	}
}

// try sends the request to the sandbox, and records the result in a.
func (e *Edge) try(w http.ResponseWriter, r *http.Request, a *attempt, v visit) {
	if a.target.leave != nil {
		defer a.target.leave()
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), attemptKey{}, a))
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: a.connected, WroteHeaders: func() { a.sent.Store(true) }})
	a.ctx = ctx
	out := r.WithContext(ctx)
	out.Body = a.body.again()
	defer whileServing(ctx, cancel, a, v).Stop()
	w.Header().Set(headerRequestID, r.Header.Get(headerRequestID))
	answer := stall.New(w, e.cfg.Stall)
	e.proxy.ServeHTTP(answer, out)
	if a.err == nil {
		answer.Complete() // while the request still counts
	}
	if openedBy := a.openedBy.Load(); openedBy != nil {
		e.cfg.Log.DebugContext(ctx, "request passed on", "request_id", a.requestID, "opened_by", *openedBy,
			"sandbox_id", hostapi.ShortID(a.target.sandbox.ID), "agent_id", a.target.sandbox.HostID, "port", a.target.port)
	}
}

// whileServing cancels a request whose response has not begun if its sandbox has
// stopped: a paused one does not answer, and its connections stay open.
func whileServing(ctx context.Context, cancel context.CancelFunc, a *attempt, v visit) *time.Timer {
	var watch *time.Timer
	armed := make(chan struct{})
	watch = time.AfterFunc(stoppedCheck, func() {
		<-armed
		if a.begun.Load() || ctx.Err() != nil {
			return
		}
		if !v.serves(a.target) {
			a.stopped.Store(true)
			cancel()
			return
		}
		watch.Reset(stoppedCheck)
	})
	close(armed)
	return watch
}

// elsewhere reports whether the leader may know more than this replica.
func (e *Edge) elsewhere(r *http.Request) bool {
	return !e.cfg.Leading() && !peer.Forwarded(r.Context())
}

// enter counts a request, unless there are as many as may be.
func (e *Edge) enter(id string, most int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count[id] >= most {
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

// rewrite keeps the Host header, because programs build links from it.
func rewrite(pr *httputil.ProxyRequest) {
	a := attemptOf(pr.In.Context())
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = a.target.key()
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	pr.Out.Host = pr.In.Host
	if a.target.host != "" {
		pr.Out.Host = a.target.host
	}
	pr.Out.Trailer = nil // their values do not pass; programs are not to wait for them
	pr.Out.Header.Del(HeaderToken)
	pr.Out.Header.Del(headerForwardedPrefix)
	removeDisguised(pr.Out.Header)
	if a.target.prefix != "" {
		pr.Out.Header.Set(headerForwardedPrefix, a.target.prefix)
	}
	if peer.Forwarded(pr.In.Context()) {
		// The first replica has set these headers.
		for _, h := range []string{"X-Forwarded-For", "X-Forwarded-Host"} {
			pr.Out.Header[h] = pr.In.Header[h]
		}
	} else {
		pr.SetXForwarded()
	}
	pr.Out.Header.Set(peer.HeaderProto, peer.ClientScheme(pr.In))
}

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
