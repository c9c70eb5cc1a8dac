// Package httpapi is the public HTTP API: it binds a request to a type of package
// api, makes one call to a use case, and renders the answer. The tables in
// routes*.go contain every route once; the router and the OpenAPI document are built
// from them. Errors become statuses in one place, errors.go.
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

// Orgs are the use cases of /v1/me, /v1/orgs and /v1/admin/workspaces.
type Orgs interface {
	// Enter returns the caller as a member of a workspace, which need not be the
	// current one.
	Enter(c core.Caller, orgID string) (core.Caller, error)
	// NotSuspended refuses a create of a suspended workspace, unless it repeats one.
	NotSuspended(c core.Caller, i core.Idempotency) error
	ListOrgs(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Org, next string, err error)
	CreateOrg(ctx context.Context, c core.Caller, in api.CreateOrg, i core.Idempotency) (api.Org, error)
	GetOrg(ctx context.Context, c core.Caller, id string) (api.OrgDetails, error)
	PatchOrg(ctx context.Context, c core.Caller, id string, in api.PatchOrg) (api.Org, error)
	DeleteOrg(ctx context.Context, c core.Caller, id string) error
	ListMembers(ctx context.Context, c core.Caller, orgID string, o core.ListOptions) (page []api.Member, next string, err error)
	Invite(ctx context.Context, c core.Caller, orgID string, in api.Invite, i core.Idempotency) (api.NewInvitation, error)
	PatchMember(ctx context.Context, c core.Caller, orgID, userID string, in api.PatchMember) (api.Member, error)
	RemoveMember(ctx context.Context, c core.Caller, orgID, userID string) error
	ListInvitations(ctx context.Context, c core.Caller, orgID string, o core.ListOptions) (page []api.Invitation, next string, err error)
	RevokeInvitation(ctx context.Context, c core.Caller, orgID, id string) error
	AcceptInvitation(ctx context.Context, c core.Caller, token string) (api.Org, error)
	ListTiers() []api.Tier
	ListWorkspaces(ctx context.Context, o core.ListOptions) (page []api.Workspace, next string, err error)
	CreateWorkspace(ctx context.Context, in api.CreateWorkspace, i core.Idempotency) (api.Workspace, error)
	PatchWorkspace(ctx context.Context, id string, in api.PatchWorkspace) (api.Workspace, error)
	CreateWorkspaceToken(ctx context.Context, id string, in api.CreateToken, i core.Idempotency) (api.NewToken, error)

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
	RemoveRouter(ctx context.Context, name string) error
	TransferLeadership(ctx context.Context, in api.TransferLeadership) error
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, r io.Reader, withoutKeys bool) error
	AcceptRestore(ctx context.Context) error
	Agents(ctx context.Context, o core.ListOptions) (page []api.Agent, next string, err error)
	Agent(ctx context.Context, id string) (api.Agent, error)
	DrainAgent(ctx context.Context, id string) (api.Agent, error)
	EvacuateAgent(ctx context.Context, id string, in api.EvacuateAgent) (api.Agent, error)
	Rebalance(ctx context.Context, in api.Rebalance) (api.Rebalancing, error)
	Rebalancing(ctx context.Context) (api.Rebalancing, error)
	StopRebalancing(ctx context.Context) error
	AgentEvents(ctx context.Context, id string, q api.EventQuery) ([]api.Event, error)
	UndrainAgent(ctx context.Context, id string) (api.Agent, error)
	RemoveAgent(ctx context.Context, id string) error
	CreateJoinToken(ctx context.Context, in api.CreateJoinToken, i core.Idempotency) (api.JoinToken, error)
}

// Authenticator determines the caller of a request, by its bearer token or client
// certificate. Its error is an *apierror.Error.
type Authenticator interface {
	Authenticate(r *http.Request) (core.Caller, error)
}

// Limiter reports whether a workspace, or a person, may make another request now. Its error
// is an *apierror.Error.
type Limiter interface {
	Allow(id string) error
}

// Config configures the API.
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
	Databases     Databases
	Metrics       Metrics
	Broker        Broker
	Webhooks      Webhooks
	Apps          Apps                                       // nil: no app is known
	Domains       AppDomains                                 // nil: no app has any
	AppProxy      func(appID, rest string) http.Handler      // of the requests to an app's program; nil: none is passed on
	Functions     Functions                                  // nil: no function is known
	Invoke        func(functionID, rest string) http.Handler // of the invocations of a function; nil: none is passed on
	GitHosts      GitHosts
	Orgs          Orgs
	Usage         Usage
	Billing       Billing
	Cluster       Cluster
	Audit         Audit
	Authenticator Authenticator
	Limiter       Limiter                         // nil: no limit
	Health        func(ctx context.Context) error // of this replica, for /healthz; nil: always healthy
	Ready         func() error                    // what keeps this replica from serving, for /readyz; its text is sent; nil: nothing does
	Version       api.VersionInfo                 // of the running program
	Registerer    prometheus.Registerer           // for the request metrics
	Gatherer      prometheus.Gatherer             // for /metrics, to everybody

	// Again returns what a caller may do now who was authenticated before; nil: the same.
	Again func(c core.Caller) (core.Caller, error)

	OperatorsGatherer prometheus.Gatherer // for /metrics, to operators alone; nil: nothing
	Logger            *slog.Logger        // of package redact, because lines about requests contain whole paths and errors

	MaxRequestID int // characters of a client's X-Request-Id that is reused; 0: the default
}

func (c Config) validate() error {
	switch {
	case c.Sandboxes == nil, c.Lifecycle == nil, c.Commands == nil, c.Files == nil, c.Logs == nil, c.Ports == nil, c.Inputs == nil,
		c.Snapshots == nil, c.Forks == nil, c.Volumes == nil, c.Templates == nil, c.Databases == nil, c.Broker == nil, c.Webhooks == nil, c.Orgs == nil, c.Usage == nil, c.Billing == nil, c.Cluster == nil:
		return errors.New("httpapi: a use case is missing")
	case c.Audit == nil:
		return errors.New("httpapi: the audit log is missing")
	case c.GitHosts == nil:
		return errors.New("httpapi: the use cases of git hosts are missing")
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
	openapi func() ([]byte, error) // theDocument, except in tests
	allow   map[string]string      // by path, without parameters: its methods
	hooks   *hookMemory            // of the large webhooks of git hosts
}

var releaseMode sync.Once // gin's mode is global

// New assembles the API.
func New(cfg Config) (*API, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	releaseMode.Do(func() { gin.SetMode(gin.ReleaseMode) })
	cfg.Version.API = api.Version
	a := &API{cfg: cfg, log: cfg.Logger, engine: gin.New(), openapi: theDocument, allow: allowed(routes())}
	a.hooks = newHookMemory()

	var err error
	if a.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("httpapi: register metrics: %w", err)
	}

	e := a.engine
	// Paths are matched as they were sent, so that an id with an escaped slash stays
	// one segment. Only exact paths exist; nothing is redirected.
	e.UseRawPath = true
	e.UnescapePathValues = false // unescapeParams does it
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.HandleMethodNotAllowed = true

	// Outermost first: every response has a request id, and whatever happens inside
	// is logged and counted with its status.
	e.Use(unescapeParams, a.withRequestID, a.observe, a.recoverPanic, awaitBody)
	e.NoRoute(requireBody, func(c *gin.Context) { a.fail(c, apierror.NotFound()) })
	e.NoMethod(a.otherMethod)
	for _, rt := range routes() {
		e.Handle(rt.method, rt.path, requireBody, a.serve(rt))
		if rt.method == http.MethodGet {
			// net/http omits the body of the answer to a HEAD.
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
			err = a.refuseMethod(c) // the path is another route's, without parameters
		} else if err = a.admit(c, rt); err == nil {
			defer a.whileAllowed(c, &rt)()
			err = a.perform(c, &rt)
		} else if act := rt.actOf(c); act != nil {
			a.recordError(c, &rt, act, err)
		}
		if err != nil && rt.access == brokerToken {
			if e, status := classify(c.Request.Context(), err); status != statusClientGone {
				err = withSQLState(e)
			}
		}
		if err != nil {
			a.fail(c, err)
		}
	}
}

// allowed returns the methods of each path without parameters, in the form of the
// Allow header.
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

// refuseMethod returns the error for a method that a path does not have, and
// corrects Allow: the router takes a path without parameters for a value of another
// route's parameter.
func (a *API) refuseMethod(c *gin.Context) error {
	if methods := a.allow[c.Request.URL.EscapedPath()]; methods != "" {
		c.Header("Allow", methods)
	}
	if strings.HasPrefix(c.Request.URL.Path, "/v1/invitations/") { // who was sent the link may open it in a browser
		return errMethodNotAllowed.With("the person who is invited accepts by a POST with a JWT: berth org accept LINK", nil)
	}
	return errMethodNotAllowed
}

// Limits of one connection. There is no limit on how long an answer may take to
// begin, because an exec may run for an hour. Bodies have their own deadlines.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
)

// NewServer returns a server with the API's timeouts. The caller sets its address
// and TLS, and shuts it down. Whole requests and answers have no timeout, because
// streams last for hours; bodies and answers have their own deadlines.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // for clients with prior knowledge, and proxies
	return &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Clear the deadline that the connection's previous answer left.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
			h.ServeHTTP(w, r)
			// For the part of the answer that is still buffered, which may be all of
			// it.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stallTimeout))
		}),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
