// Package server is the host's HTTPS API: the routes of hostapi, answered to
// control-plane replicas only.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// strangerTime is how long a request without a certificate may take to end.
var strangerTime = timescale.Limit(5 * time.Second)

// Config is what a Server works with. The routes of a part that is nil answer
// 501.
type Config struct {
	Boxes    Boxes
	Guests   Guests
	Captures Captures
	Stored   Stored
	Volumes  Volumes
	Builds   Builds
	Events   Events
	Blobs    Blobs
	Usage    Usage
	Stats    Stats
	// Databases and Archives need a bucket: without one their routes answer 422.
	Databases Databases
	Archives  Archives
	// Info is the host's whole state.
	Info func() hostapi.Heartbeat
	// NotReady says what keeps the host from taking boxes; "": nothing does. Everybody
	// reads it. nil: never anything.
	NotReady func() string
	// ObserveTerm refuses a deposed leader's term.
	ObserveTerm func(cluster string, term uint64) error
	// Member reports whether a replica still is one; nil: every one is.
	Member func(replicaID string) bool
	// Router reports whether a router of databases was not removed; nil: none was.
	Router  func(name string) bool
	Metrics http.Handler
	Log     *slog.Logger
	// GetCertificate takes the place of Certificate, which stays the same, if it is set.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Certificate    tls.Certificate
	// CAs takes the place of CA, which stays the same, if it is set.
	CAs func() *x509.CertPool
	CA  *x509.CertPool

	// Stall is how long a caller may take nothing of an answer; default 2 minutes,
	// twice what replicas give their own clients. MaxConnections bounds those that
	// are open at once; default 16384.
	Stall          time.Duration
	MaxConnections int
}

// Server serves the API.
type Server struct {
	cfg  Config
	http *http.Server

	stopping chan struct{} // closed by Shutdown: who only listens goes
	stop     sync.Once
	streams  streams
}

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Stall == 0 {
		cfg.Stall = stallTime
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = maxConnections
	}
	s := &Server{cfg: cfg, stopping: make(chan struct{})}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		// No write time-out: an exec may take an hour, and every route that
		// waits ends with its caller.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			// Health is for everybody; every other route checks for itself that
			// a certificate was shown.
			ClientAuth: tls.VerifyClientCertIfGiven,
			ClientCAs:  cfg.CA,
			NextProtos: []string{"h2", "http/1.1"},
			// A resumed connection would count as if its authority still did. No caller
			// resumes any.
			SessionTicketsDisabled: true,
		},
	}
	if s.http.TLSConfig.GetCertificate = cfg.GetCertificate; cfg.GetCertificate == nil {
		s.http.TLSConfig.Certificates = []tls.Certificate{cfg.Certificate}
	}
	if cfg.CAs != nil {
		base := s.http.TLSConfig.Clone()
		s.http.TLSConfig.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := base.Clone()
			now.ClientCAs = cfg.CAs()
			return now, nil
		}
	}
	return s
}

// Serve answers on l until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.ServeTLS(newListener(l, s.cfg.MaxConnections), "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the host API: %w", err)
}

// Shutdown refuses new connections, ends what only follows, and waits for the
// other requests and streams until ctx ends; then it cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop.Do(func() { close(s.stopping) })
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests were cut off: %w", err), s.http.Close())
	}
	return errors.Join(err, s.streams.shut(ctx))
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+hostapi.PathHealthz, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET "+hostapi.PathReadyz, func(w http.ResponseWriter, _ *http.Request) {
		if s.cfg.NotReady != nil {
			if missing := s.cfg.NotReady(); missing != "" {
				reply(w, http.StatusServiceUnavailable, &hostapi.Error{Code: hostapi.CodeDraining, Message: "not ready", Detail: missing})
				return
			}
		}
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	// These are numbers and no tenant's data, so an operator's Prometheus may read
	// them as well.
	mux.Handle("GET "+hostapi.PathMetrics, s.only(s.cfg.Metrics, hostapi.ReplicaPrefix, hostapi.OperatorPrefix))

	route := func(pattern string, h func(*http.Request) (any, error)) {
		mux.Handle(pattern, s.only(s.answer(h), hostapi.ReplicaPrefix))
	}
	route("GET "+hostapi.PathInfo, func(*http.Request) (any, error) { return s.cfg.Info(), nil })
	s.boxRoutes(route)
	s.commandRoutes(route)
	s.objectRoutes(route)
	s.databaseRoutes(route)
	s.usageRoutes(route)
	stream := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, s.only(s.stream(h), hostapi.ReplicaPrefix))
	}
	s.streamRoutes(stream)
	mux.Handle("GET "+boxPath+"/dial/{port}", s.only(s.stream(s.dial), hostapi.ReplicaPrefix, hostapi.RouterPrefix))
	s.blobRoutes(stream)
	route("/", func(*http.Request) (any, error) { return nil, errNoRoute })
	return s.recover(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := newPacedWriter(w, s.cfg.Stall)
		defer p.done()
		mux.ServeHTTP(p, r)
	}))
}

// only lets callers through whose certificate's common name has one of the prefixes.
func (s *Server) only(next http.Handler, prefixes ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := peerName(r); name != "" {
			for _, p := range prefixes {
				if strings.HasPrefix(name, p) && len(name) > len(p) && s.member(name) {
					s.traced(w, r, next)
					return
				}
			}
		}
		// Do not wait for the body of a caller without a certificate.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(strangerTime))
		w.Header().Set("Connection", "close")
		fail(w, r, s.cfg.Log, errUnauthorized)
	})
}

// traced serves a request of a member in the trace that it belongs to.
func (s *Server) traced(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Header.Get(telemetry.HeaderParent) == "" { // an inventory, a scrape
		next.ServeHTTP(w, r)
		return
	}
	ctx, span := telemetry.Serve(r.Context(), r.Header, r.Pattern)
	defer span.End(nil)
	span.Set(telemetry.KeyRequestID, hostapi.RequestID(ctx))
	span.Set(telemetry.KeyRoute, r.Pattern)
	if strings.Contains(r.Pattern, hostapi.PathBoxes) {
		span.SetSandbox(r.PathValue("id"))
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// member reports whether a caller is still a member: a replica or a router that was
// removed keeps its certificate.
func (s *Server) member(name string) bool {
	if router, ok := strings.CutPrefix(name, hostapi.RouterPrefix); ok {
		return s.cfg.Router == nil || s.cfg.Router(router)
	}
	id, replica := strings.CutPrefix(name, hostapi.ReplicaPrefix)
	return !replica || s.cfg.Member == nil || s.cfg.Member(id)
}

// peerName is the common name of a certificate that the TLS layer verified.
func peerName(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return r.TLS.VerifiedChains[0][0].Subject.CommonName
}

// answer renders what a route returns, and logs the call.
func (s *Server) answer(h func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		r.Body = http.MaxBytesReader(w, r.Body, hostapi.MaxBody)
		out, err := h(r)
		status := http.StatusOK
		switch {
		case err != nil:
			status, _ = classify(err)
			fail(w, r, s.cfg.Log, err)
		case out == nil:
			status = http.StatusNoContent
			w.WriteHeader(status)
		case out == accepted{}:
			status = http.StatusAccepted
			w.WriteHeader(status)
		default:
			reply(w, status, out)
		}
		s.logged(r, status, began)
	})
}

func (s *Server) logged(r *http.Request, status int, began time.Time) {
	telemetry.Current(r.Context()).Status(status)
	level := slog.LevelDebug
	if r.Method != http.MethodGet {
		level = slog.LevelInfo
	}
	key := "id"
	if strings.Contains(r.Pattern, hostapi.PathBoxes) {
		key = "sandbox_id"
	}
	s.cfg.Log.Log(r.Context(), level, "request", "route", r.Pattern, key, r.PathValue("id"),
		"status", status, "took_ms", time.Since(began).Milliseconds(), "caller", peerName(r))
}

// withTerm refuses callers that were deposed.
func (s *Server) withTerm(h func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if err := s.observeTerm(r); err != nil {
			return nil, err
		}
		return h(r)
	}
}

func (s *Server) observeTerm(r *http.Request) error {
	term, err := strconv.ParseUint(r.Header.Get(hostapi.HeaderTerm), 10, 64)
	if err != nil || term == 0 {
		return errNoTerm
	}
	cluster := r.Header.Get(hostapi.HeaderCluster)
	if len(cluster) > hostapi.MaxCluster {
		return errNoTerm
	}
	return s.cfg.ObserveTerm(cluster, term)
}

// recover keeps a panic in one request from ending the daemon, and gives the
// request's context the request's id.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := requestID(r)
		w.Header().Set(hostapi.HeaderRequestID, id)
		r = r.WithContext(hostapi.WithRequestID(r.Context(), id))
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // net/http's own way to cut a response off
			}
			s.cfg.Log.ErrorContext(r.Context(), "request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			reply(w, http.StatusInternalServerError, &hostapi.Error{Code: hostapi.CodeInternal, Message: "internal error"})
		}()
		next.ServeHTTP(w, r)
	})
}

// requestID is the caller's, if it can be put into a log line as it is.
func requestID(r *http.Request) string {
	id := r.Header.Get(hostapi.HeaderRequestID)
	if len(id) > hostapi.MaxRequestID {
		return ""
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return ""
		}
	}
	return id
}

func pathID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if !hostapi.ValidID(id) {
		return "", fmt.Errorf("%w: id is not %d characters of lower-case base32", hosterr.ErrInvalid, hostapi.IDLength)
	}
	return id, nil
}

// decode reads one JSON value, and names the field that has a wrong type.
func decode(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	err := dec.Decode(v)
	if err == nil && dec.More() {
		err = errors.New("more than one value")
	}
	var tooLarge *http.MaxBytesError
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return fmt.Errorf("%w: over %d bytes", errTooLarge, tooLarge.Limit)
	case errors.As(err, &wrongType):
		return fmt.Errorf("%w: field %s: want %s, got %s", hosterr.ErrInvalid, wrongType.Field, wrongType.Type, wrongType.Value)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: body is empty", hosterr.ErrInvalid)
	default:
		return fmt.Errorf("%w: body is no JSON: %w", hosterr.ErrInvalid, err)
	}
}
