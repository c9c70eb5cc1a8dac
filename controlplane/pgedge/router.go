// Package pgedge is where clients of databases arrive, at every replica: it has the
// PostgreSQL router, and forwards the broker's requests. A replica answers from its own
// copy of the control store and connects to a database's host itself, so running
// databases are served while there is no leader. Only a sleeping database needs the
// leader, to be woken.
package pgedge

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/timescale"
)

// RouterConfig configures a Router.
type RouterConfig struct {
	Domain      string // of databases' host names
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Reach       *Reach
	// Secret is shared by all routers of the domain and nobody else. It makes a name that
	// does not exist look the same at each of them.
	Secret []byte
	// CancelElsewhere passes a cancel request to the other routers.
	CancelElsewhere func(ctx context.Context, key pgsni.CancelKey)
	Registerer      prometheus.Registerer
	Log             *slog.Logger
}

// Router serves PostgreSQL clients.
type Router struct {
	router *pgsni.Router
}

// NewRouter returns a Router and registers its metrics.
func NewRouter(cfg RouterConfig) (*Router, error) {
	m := newMetrics()
	r, err := pgsni.New(pgsni.Config{
		Domain:           cfg.Domain,
		TLS:              &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cfg.Certificate},
		Log:              cfg.Log,
		Observe:          pgsni.Observe{Opened: m.opened, Closed: m.closed, Refused: m.refused},
		HandshakeTimeout: timescale.Limit(pgsni.DefaultHandshakeTimeout),
		WaitTimeout:      timescale.Limit(pgsni.DefaultWaitTimeout),
		AuthTimeout:      timescale.Limit(pgsni.DefaultAuthTimeout),
		CancelTimeout:    timescale.Limit(pgsni.DefaultCancelTimeout),
		ChecksLogins:     true,
		DecoySecret:      cfg.Secret,
		CancelElsewhere:  cfg.CancelElsewhere,
	}, &resolver{reach: cfg.Reach, metrics: m})
	if err != nil {
		return nil, err
	}
	return &Router{router: r}, m.register(cfg.Registerer, r.Stats)
}

// Serve accepts clients until Drain is called, or until ctx ends, which cuts them off.
func (r *Router) Serve(ctx context.Context, l net.Listener) error { return r.router.Serve(ctx, l) }

// Drain stops accepting clients and lets sessions finish until ctx ends; then it ends
// them.
func (r *Router) Drain(ctx context.Context) { r.router.Drain(ctx) }

// Cancel forwards a cancel request to the session of this router that has the key. It
// reports whether there is one.
func (r *Router) Cancel(ctx context.Context, key pgsni.CancelKey) bool {
	return r.router.Cancel(ctx, key)
}
