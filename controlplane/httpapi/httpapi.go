// Package httpapi is the public HTTP API: it binds a request to a type of
// package api, makes one call to a use case, and renders the answer. Every
// route stands once, in the tables of routes*.go, from which both the router and the OpenAPI
// document are made; every error becomes a status in one place, errors.go.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Sandboxes are the use cases of /v1/sandboxes.
type Sandboxes interface {
	Create(ctx context.Context, c core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error)
	Get(ctx context.Context, c core.Caller, id string) (api.Sandbox, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Sandbox, next string, err error)
	Delete(ctx context.Context, c core.Caller, id string) error
}

// Orgs are the use cases of /v1/me.
type Orgs interface {
	Me(ctx context.Context, c core.Caller) (api.Me, error)
	SetCurrentOrg(ctx context.Context, c core.Caller, in api.SetCurrentOrg) (api.Me, error)
	CreateToken(ctx context.Context, c core.Caller, in api.CreateToken, i core.Idempotency) (api.NewToken, error)
	ListTokens(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Token, next string, err error)
	RevokeToken(ctx context.Context, c core.Caller, prefix string) error
}

// Cluster are the use cases of /v1/admin.
type Cluster interface {
	RaftStatus(ctx context.Context) (api.RaftStatus, error)
	AddPeer(ctx context.Context, in api.AddPeer) error
	RemovePeer(ctx context.Context, id string) error
	TransferLeadership(ctx context.Context, in api.TransferLeadership) error
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, r io.Reader) error
	AcceptRestore(ctx context.Context) error
	Agents(ctx context.Context, o core.ListOptions) (page []api.Agent, next string, err error)
	DrainAgent(ctx context.Context, id string) (api.Agent, error)
	AgentEvents(ctx context.Context, id string, q api.EventQuery) ([]api.Event, error)
	UndrainAgent(ctx context.Context, id string) (api.Agent, error)
	RemoveAgent(ctx context.Context, id string) error
	CreateJoinToken(ctx context.Context, in api.CreateJoinToken) (api.JoinToken, error)
}

// Authenticator finds out who a request is from, by its bearer token or its
// client certificate. It fails with an *apierror.Error.
type Authenticator interface {
	Authenticate(r *http.Request) (core.Caller, error)
}

// Limiter says whether a workspace may make one more request now. It fails
// with an *apierror.Error.
type Limiter interface {
	Allow(workspaceID string) error
}

// Config is what the API stands on.
type Config struct {
	Sandboxes     Sandboxes
	Lifecycle     Lifecycle
	Commands      Commands
	Files         Files
	Logs          Logs
	Ports         Ports
	Inputs        Inputs
	Snapshots     Snapshots
	Forks         Forks
	Volumes       Volumes
	Templates     Templates
	Metrics       Metrics
	Orgs          Orgs
	Cluster       Cluster
	Authenticator Authenticator
	Limiter       Limiter                         // nil: no limit
	Health        func(ctx context.Context) error // of this replica, for /healthz; nil: always well
	Version       api.VersionInfo                 // of the running program
	Registerer    prometheus.Registerer           // where the request metrics go
	Gatherer      prometheus.Gatherer             // what /metrics shows
	Logger        *slog.Logger                    // of package redact: the lines about requests have whole paths and errors
}

func (c Config) validate() error {
	switch {
	case c.Sandboxes == nil, c.Lifecycle == nil, c.Commands == nil, c.Files == nil, c.Logs == nil, c.Ports == nil, c.Inputs == nil,
		c.Snapshots == nil, c.Forks == nil, c.Volumes == nil, c.Templates == nil, c.Orgs == nil, c.Cluster == nil:
		return errors.New("httpapi: a use case is missing")
	case c.Authenticator == nil:
		return errors.New("httpapi: no authenticator")
	case c.Registerer == nil, c.Gatherer == nil:
		return errors.New("httpapi: no metrics registry")
	case c.Logger == nil:
		return errors.New("httpapi: no logger")
	}
	return nil
}

// API serves every public route. It is an http.Handler.
type API struct {
	cfg     Config
	log     *slog.Logger
	engine  *gin.Engine
	metrics *metrics
	openapi func() ([]byte, error) // theDocument
	allow   map[string]string      // of each path without parameters
}

var releaseMode sync.Once // gin's mode is a global of the process

// New assembles the API.
func New(cfg Config) (*API, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	releaseMode.Do(func() { gin.SetMode(gin.ReleaseMode) })
	cfg.Version.API = api.Version
	a := &API{cfg: cfg, log: cfg.Logger, engine: gin.New(), openapi: theDocument, allow: allowed(routes())}

	var err error
	if a.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("httpapi: register metrics: %w", err)
	}

	e := a.engine
	// A path is matched as it was sent, so that an id with an escaped slash
	// stays one segment; only exact paths exist, so nothing is redirected.
	e.UseRawPath = true
	e.UnescapePathValues = true
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.HandleMethodNotAllowed = true

	// Outermost first: a response always has its request id, and whatever
	// happens further in is logged and counted with the status it led to.
	e.Use(withRequestID, a.observe, a.recoverPanic, awaitBody)
	e.NoRoute(requireBody, func(c *gin.Context) { a.fail(c, apierror.NotFound()) })
	e.NoMethod(func(c *gin.Context) { a.fail(c, a.refuseMethod(c)) })
	for _, rt := range routes() {
		e.Handle(rt.method, rt.path, requireBody, a.serve(rt))
		if rt.method == http.MethodGet {
			// net/http leaves the body out of the answer to a HEAD.
			e.HEAD(rt.path, a.serve(rt))
		}
	}
	return a, nil
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.engine.ServeHTTP(w, r) }

// serve admits the caller and runs the route's handler.
func (a *API) serve(rt route) gin.HandlerFunc {
	hasParameters := strings.Contains(rt.path, ":")
	return func(c *gin.Context) {
		var err error
		if hasParameters && a.allow[c.Request.URL.EscapedPath()] != "" {
			err = a.refuseMethod(c) // another route has this very path
		} else if err = a.admit(c, rt); err == nil {
			err = rt.handle(a, c)
		}
		if err != nil {
			a.fail(c, err)
		}
	}
}

// allowed are the methods of each path without parameters, as the Allow header
// lists them.
func allowed(all []route) map[string]string {
	out := map[string]string{}
	for _, rt := range all {
		if strings.Contains(rt.path, ":") {
			continue
		}
		methods := rt.method
		if rt.method == http.MethodGet {
			methods += ", " + http.MethodHead
		}
		if before := out[rt.path]; before != "" {
			methods = before + ", " + methods
		}
		out[rt.path] = methods
	}
	return out
}

// refuseMethod answers for a path that has other methods. The router's own Allow
// takes a path without parameters for a value of its sibling's parameter.
func (a *API) refuseMethod(c *gin.Context) error {
	if methods := a.allow[c.Request.URL.EscapedPath()]; methods != "" {
		c.Header("Allow", methods)
	}
	return errMethodNotAllowed
}

// Limits of one connection. There is no limit on how long an answer may take
// to begin: an exec lasts up to an hour. Bodies have deadlines of their own.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
)

// NewServer returns a server for the handler with the API's time-outs. The
// caller sets its address and TLS, and shuts it down. It has no time-out for
// whole requests or answers: streams last for hours, and bodies and answers
// have deadlines of their own.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // for clients that know, and proxies in front
	return &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// One that an answer before this one set stays on the connection.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
			h.ServeHTTP(w, r)
			// For what is still held of the answer, which may be all of it.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stallTimeout))
		}),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
