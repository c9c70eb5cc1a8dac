// Package forward lets every replica answer: it forwards a request that only the
// leader can serve over the peer port, at most one hop, and passes the answer back
// unchanged.
package forward

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// HeaderNotLeader is set by a replica that got a forwarded request and does not
// lead: it ignored the request, which may be sent elsewhere.
const HeaderNotLeader = "Berth-Not-Leader"

// Config configures a Forwarder.
type Config struct {
	Self      string       // id of this replica
	Local     http.Handler // the API itself
	Leading   func() bool  // this replica leads and may answer
	Leader    func() (id, address string)
	Transport http.RoundTripper // to the peer ports
	Logger    *slog.Logger

	// AnyReplica reports whether any replica may answer a request; nil: none may.
	AnyReplica func(r *http.Request) bool
	// Repeatable reports whether a request may be repeated if the leader may have
	// processed it before it disappeared; nil: none may.
	Repeatable func(r *http.Request) bool

	// Wait limits how long a request waits for the election of a leader; default 3
	// s, longer than several elections.
	Wait time.Duration

	// Stall is how long a client may read nothing of a forwarded answer; default one
	// minute.
	Stall time.Duration

	MaxRequestID int // characters of a client's X-Request-Id that is reused; 0: the default
}

// Forwarder is an HTTP handler in front of the API.
type Forwarder struct {
	cfg      Config
	proxy    *httputil.ReverseProxy
	failures rate.Sometimes // limits log lines: strangers may cause any number
	kept     atomic.Int64   // size of kept bodies
}

// New returns the handler.
func New(cfg Config) *Forwarder {
	if cfg.Wait == 0 {
		cfg.Wait = timescale.Limit(3 * time.Second)
	}
	if cfg.Stall == 0 {
		cfg.Stall = stall.Limit
	}
	none := func(*http.Request) bool { return false }
	if cfg.AnyReplica == nil {
		cfg.AnyReplica = none
	}
	if cfg.Repeatable == nil {
		cfg.Repeatable = none
	}
	f := &Forwarder{cfg: cfg, failures: rate.Sometimes{First: 10, Interval: time.Second}}
	f.proxy = &httputil.ReverseProxy{
		Transport:      cfg.Transport,
		FlushInterval:  -1, // pass on at once what the leader sends
		ErrorLog:       slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
		Rewrite:        f.rewrite,
		ModifyResponse: misdirected,
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			attemptOf(r.Context()).err = err
		},
	}
	return f
}

const headerRequestID = "X-Request-Id"

// untraced are the paths that machines ask for all day long.
var untraced = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// ServeHTTP implements http.Handler.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := ""
	if v := r.Header.Values(headerRequestID); len(v) == 1 {
		given = v[0]
	}
	r.Header.Set(headerRequestID, core.RequestID(given, f.cfg.MaxRequestID)) // the same on both replicas
	if !untraced[r.URL.Path] {
		ctx, span := telemetry.Serve(r.Context(), r.Header, "API")
		span.Set(telemetry.KeyNodeID, f.cfg.Self)
		span.Set(telemetry.KeyRequestID, r.Header.Get(headerRequestID))
		defer span.End(nil)
		r = r.WithContext(ctx)
	}
	if f.cfg.AnyReplica(r) || f.cfg.Leading() {
		f.cfg.Local.ServeHTTP(w, r)
		return
	}
	f.forward(w, r)
}

func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request) {
	deadline := time.Now().Add(f.cfg.Wait)
	body, release, err := f.keep(w, r)
	defer release()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		f.fail(w, r, http.StatusRequestTimeout, "the body did not arrive in time", err)
		return
	case err != nil:
		f.fail(w, r, http.StatusBadRequest, "the body ended early", err)
		return
	}
	defer body.leave()
	for {
		here, leader, address := f.resolve(r.Context(), deadline, peer.Forwarded(r.Context()))
		switch {
		case here:
			in := r.WithContext(r.Context()) // the server's own keeps its body: see stall.Body
			in.Body = body.reader()
			f.cfg.Local.ServeHTTP(w, in)
			return
		case r.Context().Err() != nil:
			return // the client is gone
		case peer.Forwarded(r.Context()):
			body.refused()
			w.Header().Set(HeaderNotLeader, f.cfg.Self)
			f.fail(w, r, http.StatusServiceUnavailable, "this replica does not lead", nil)
			return
		case address == "":
			body.refused()
			f.fail(w, r, http.StatusServiceUnavailable, "there is no leader; an election may be under way", nil)
			return
		}
		a := &attempt{leader: leader, address: address, body: body}
		f.try(w, r, a)
		switch {
		case a.err == nil, r.Context().Err() != nil:
			return
		case !body.replayable() && errors.Is(a.err, errMisdirected):
			body.refused()
			f.fail(w, r, http.StatusServiceUnavailable, "the leader is another by now, and the body cannot be sent again", a.err)
			return
		case !body.replayable(), a.sent.Load() && !errors.Is(a.err, errMisdirected) && !f.cfg.Repeatable(r):
			body.refused()
			f.fail(w, r, http.StatusBadGateway, "the leader went away over this request; it may or may not have happened", a.err)
			return
		case !time.Now().Before(deadline) && !a.replaced:
			body.refused()
			f.fail(w, r, http.StatusServiceUnavailable, "the leader does not answer", a.err)
			return
		}
		f.cfg.Logger.DebugContext(r.Context(), "forwarding again", "request_id", r.Header.Get(headerRequestID), "leader", address, "error", a.err)
		pause(r.Context(), retryPause)
	}
}

// attempt is one attempt to forward.
type attempt struct {
	leader   string
	address  string
	body     *body
	answered func()      // the leader's answer has begun
	sent     atomic.Bool // the request's head was sent, so it may have been processed
	err      error
	replaced bool // the leader did not answer any more when another led
}

// try sends the request to the leader, and records the result in a. It does not wait for
// one that is frozen longer than until another leads.
func (f *Forwarder) try(w http.ResponseWriter, r *http.Request, a *attempt) {
	ctx, span := telemetry.Call(r.Context(), "forward to the leader")
	ctx, answered, end := peer.WhileLeads(ctx, f.cfg.Leader, a.leader, func(ctx context.Context) bool {
		return peer.Alive(ctx, f.cfg.Transport, f.cfg.Self, a.address)
	})
	defer end()
	a.answered = answered
	out := r.WithContext(httptrace.WithClientTrace(
		context.WithValue(ctx, attemptKey{}, a),
		&httptrace.ClientTrace{WroteHeaders: func() { a.sent.Store(true) }}))
	out.Body = a.body.reader()
	answer := patient(w, f.cfg.Stall)
	f.proxy.ServeHTTP(answer, out)
	span.End(a.err)
	if a.err == nil {
		answer.Complete()
	}
	a.replaced = errors.Is(context.Cause(ctx), peer.ErrAnotherLeads)
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt { return ctx.Value(attemptKey{}).(*attempt) }

var errMisdirected = errors.New("forwarded to a replica that does not lead")

func misdirected(resp *http.Response) error {
	if resp.Header.Get(HeaderNotLeader) != "" {
		return errMisdirected
	}
	telemetry.Current(resp.Request.Context()).Status(resp.StatusCode)
	a := attemptOf(resp.Request.Context())
	a.answered()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		a.body.answered(resp.Header)
	}
	if resp.StatusCode == http.StatusUpgradeRequired {
		// The proxy removes this hop-by-hop header, but the answer must have it.
		resp.Header.Set("Upgrade", "websocket")
	}
	return nil
}

func (f *Forwarder) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme, pr.Out.URL.Host = "https", attemptOf(pr.In.Context()).address
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // unchanged, even if it does not parse
	pr.SetXForwarded()
	pr.Out.Header.Set(peer.HeaderProto, peer.ClientScheme(pr.In))
	telemetry.Inject(pr.In.Context(), pr.Out.Header)
	pr.Out.Header.Set(peer.HeaderForwarded, f.cfg.Self)
	if name := peer.Operator(pr.In.Context()); name != "" {
		pr.Out.Header.Set(peer.HeaderOperator, name)
	}
}

const (
	resolvePause = 10 * time.Millisecond
	retryPause   = 25 * time.Millisecond
)

// resolve returns where to serve the request. A forwarded request waits only for
// this replica, which was thought to lead and may be about to.
func (f *Forwarder) resolve(ctx context.Context, deadline time.Time, forwarded bool) (here bool, id, address string) {
	if forwarded {
		deadline = time.Now().Add(f.cfg.Wait / 3)
	}
	for {
		if f.cfg.Leading() {
			return true, "", ""
		}
		id, address := f.cfg.Leader()
		switch {
		case forwarded && id != f.cfg.Self && id != "":
			return false, "", ""
		case !forwarded && address != "" && id != f.cfg.Self:
			return false, id, address
		case !time.Now().Before(deadline), !pause(ctx, resolvePause):
			return false, "", ""
		}
	}
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

// fail answers if the leader cannot.
func (f *Forwarder) fail(w http.ResponseWriter, r *http.Request, status int, detail string, cause error) {
	id := r.Header.Get(headerRequestID)
	f.failures.Do(func() {
		f.cfg.Logger.WarnContext(r.Context(), "request not forwarded", "request_id", id, "method", r.Method, "status", status, "detail", detail, "error", cause)
	})
	h := w.Header()
	h.Set(headerRequestID, id)
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	message := "control plane unavailable"
	switch status {
	case http.StatusRequestTimeout: // this and the next text are the API's own
		message = "request timeout"
	case http.StatusBadRequest:
		message = "invalid json"
	default:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message, "detail": detail}) // the client may be gone
}
