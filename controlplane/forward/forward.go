// Package forward lets every replica answer: a request that only the leader can
// serve goes on to it over the peer port, once, and the answer comes back as
// the leader gave it.
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
	"github.com/berth-cloud/berth/timescale"
)

// HeaderNotLeader is on the answer of a replica that was taken for the leader
// and is not: the request was not looked at and may be sent elsewhere.
const HeaderNotLeader = "Berth-Not-Leader"

// Config is what a Forwarder works with.
type Config struct {
	Self      string       // id of this replica
	Local     http.Handler // the API itself
	Leading   func() bool  // this replica leads and may answer
	Leader    func() (id, address string)
	Transport http.RoundTripper // to the peer ports
	Logger    *slog.Logger

	// AnyReplica reports whether every replica answers a request for itself; nil:
	// none does.
	AnyReplica func(r *http.Request) bool
	// Repeatable reports whether a request may be sent again when it is unknown
	// whether the leader that went away has handled it; nil: none may.
	Repeatable func(r *http.Request) bool

	// Wait bounds how long a request waits for a leader to be elected; default
	// 3 s, several elections.
	Wait time.Duration

	// Stall is how long a client may take nothing of a forwarded answer;
	// default one minute.
	Stall time.Duration
}

// Forwarder is the handler in front of the API.
type Forwarder struct {
	cfg      Config
	proxy    *httputil.ReverseProxy
	failures rate.Sometimes // to be logged: a stranger may cause any number
	kept     atomic.Int64   // bytes of bodies
}

// New makes the handler.
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
		FlushInterval:  -1, // what the leader sends in pieces reaches the client in pieces
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

// ServeHTTP implements http.Handler.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := ""
	if v := r.Header.Values(headerRequestID); len(v) == 1 {
		given = v[0]
	}
	r.Header.Set(headerRequestID, core.RequestID(given)) // the same here and at the leader
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
		here, address := f.resolve(r.Context(), deadline, peer.Forwarded(r.Context()))
		switch {
		case here:
			r.Body = body.reader()
			f.cfg.Local.ServeHTTP(w, r)
			return
		case r.Context().Err() != nil:
			return // the client has gone
		case peer.Forwarded(r.Context()):
			body.answered()
			w.Header().Set(HeaderNotLeader, f.cfg.Self)
			f.fail(w, r, http.StatusServiceUnavailable, "this replica does not lead", nil)
			return
		case address == "":
			body.answered()
			f.fail(w, r, http.StatusServiceUnavailable, "there is no leader; an election may be under way", nil)
			return
		}
		a := &attempt{address: address, body: body}
		out := r.WithContext(httptrace.WithClientTrace(
			context.WithValue(r.Context(), attemptKey{}, a),
			&httptrace.ClientTrace{WroteHeaders: func() { a.sent.Store(true) }}))
		out.Body = body.reader()
		answer := patient(w, f.cfg.Stall)
		f.proxy.ServeHTTP(answer, out)
		if a.err == nil {
			answer.Complete()
		}
		switch {
		case a.err == nil, r.Context().Err() != nil:
			return
		case !body.replayable() && errors.Is(a.err, errMisdirected):
			body.answered()
			f.fail(w, r, http.StatusServiceUnavailable, "the leader is another by now, and the body cannot be sent again", a.err)
			return
		case !body.replayable(), a.sent.Load() && !errors.Is(a.err, errMisdirected) && !f.cfg.Repeatable(r):
			body.answered()
			f.fail(w, r, http.StatusBadGateway, "the leader went away over this request; it may or may not have happened", a.err)
			return
		case !time.Now().Before(deadline):
			body.answered()
			f.fail(w, r, http.StatusServiceUnavailable, "the leader does not answer", a.err)
			return
		}
		f.cfg.Logger.DebugContext(r.Context(), "forwarding again", "request_id", r.Header.Get(headerRequestID), "leader", address, "error", a.err)
		pause(r.Context(), retryPause)
	}
}

// attempt is one try to forward.
type attempt struct {
	address string
	body    *body
	sent    atomic.Bool // the request's header went out: it may have been processed
	err     error
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt { return ctx.Value(attemptKey{}).(*attempt) }

var errMisdirected = errors.New("forwarded to a replica that does not lead")

func misdirected(resp *http.Response) error {
	if resp.Header.Get(HeaderNotLeader) != "" {
		return errMisdirected
	}
	attemptOf(resp.Request.Context()).body.answered()
	if resp.StatusCode == http.StatusUpgradeRequired {
		// It is a header of one hop, which the proxy takes away, and must be there.
		resp.Header.Set("Upgrade", "websocket")
	}
	return nil
}

func (f *Forwarder) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme, pr.Out.URL.Host = "https", attemptOf(pr.In.Context()).address
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it came, also what does not parse
	pr.SetXForwarded()
	pr.Out.Header.Set(peer.HeaderForwarded, f.cfg.Self)
	if name := peer.Operator(pr.In.Context()); name != "" {
		pr.Out.Header.Set(peer.HeaderOperator, name)
	}
}

const (
	resolvePause = 10 * time.Millisecond
	retryPause   = 25 * time.Millisecond
)

// resolve finds out where the request is to be served. A forwarded request
// waits here only for this replica itself, which was taken for the leader and
// may be about to be it.
func (f *Forwarder) resolve(ctx context.Context, deadline time.Time, forwarded bool) (here bool, address string) {
	if forwarded {
		deadline = time.Now().Add(f.cfg.Wait / 3)
	}
	for {
		if f.cfg.Leading() {
			return true, ""
		}
		id, address := f.cfg.Leader()
		switch {
		case forwarded && id != f.cfg.Self && id != "":
			return false, ""
		case !forwarded && address != "" && id != f.cfg.Self:
			return false, address
		case !time.Now().Before(deadline), !pause(ctx, resolvePause):
			return false, ""
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

// fail answers for the leader, which could not or never got the request.
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
	case http.StatusRequestTimeout: // this and the next as the API itself has them
		message = "request timeout"
	case http.StatusBadRequest:
		message = "invalid json"
	default:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message, "detail": detail}) // the client may be gone
}
