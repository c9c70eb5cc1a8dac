// Package pgrouter is the PostgreSQL router as a process of its own, for machines that
// are no replicas: it listens to a replica for the table of databases, and connects to
// their hosts itself. Without any replica it goes on with the table that it has.
package pgrouter

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pgedge"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/nodecert"
	"github.com/berth-cloud/berth/sdnotify"
)

// Config is a router's settings.
type Config struct {
	PKIDir       string   `env:"BERTH_PKI_DIR"`  // that controlplane init --router wrote
	Replicas     []string `env:"BERTH_REPLICAS"` // peer addresses; default: from init
	Domain       string   `env:"BERTH_DB_DOMAIN"`
	Listen       string   `env:"BERTH_DB_LISTEN" envDefault:":5432"`
	TLSCert      string   `env:"BERTH_DB_TLS_CERT"`
	TLSKey       string   `env:"BERTH_DB_TLS_KEY"`
	DevCA        string   `env:"BERTH_DB_DEV_CA"`
	StatusListen string   `env:"BERTH_STATUS_LISTEN"` // /healthz, /readyz and /metrics; default: none
	LogLevel     string   `env:"BERTH_LOG_LEVEL" envDefault:"info"`
	LogFormat    string   `env:"BERTH_LOG_FORMAT" envDefault:"text"`

	Logger   *slog.Logger
	Notifier *sdnotify.Notifier `env:"-"` // tells systemd; nil: nobody
	Listener net.Listener       // instead of Listen
}

// stopTime is how long sessions have to end.
const stopTime = 5 * time.Second

// Server is the process.
type Server struct {
	cfg      Config
	log      *slog.Logger
	node     *pki.Node
	replicas []string
	certs    certs.Source
	port     net.Listener // for PostgreSQL clients
	status   net.Listener // nil: none
}

// New checks the settings, reads the keys and opens the ports.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, log: cfg.Logger}
	if err := s.load(); err != nil {
		return nil, err
	}
	var (
		err error
		lc  net.ListenConfig
	)
	if cfg.StatusListen != "" {
		if s.status, err = lc.Listen(ctx, "tcp", cfg.StatusListen); err != nil {
			return nil, fmt.Errorf("BERTH_STATUS_LISTEN: %w", err)
		}
	}
	if s.port = cfg.Listener; s.port == nil {
		if s.port, err = lc.Listen(ctx, "tcp", cfg.Listen); err != nil {
			if s.status != nil {
				s.status.Close()
			}
			return nil, fmt.Errorf("BERTH_DB_LISTEN: %w", err)
		}
	}
	return s, nil
}

// load reads what the settings name.
func (s *Server) load() (err error) {
	c := s.cfg
	switch {
	case c.PKIDir == "":
		return errors.New("BERTH_PKI_DIR is not set: the directory that controlplane init --router wrote")
	case c.Domain == "" || strings.Trim(c.Domain, ".") != c.Domain:
		return fmt.Errorf("BERTH_DB_DOMAIN is %q, want the domain of databases, as the replicas have it", c.Domain)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY go together")
	case c.TLSCert == "" && c.DevCA == "":
		return errors.New("BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY are not set: a certificate for *." + c.Domain + "; for development BERTH_DB_DEV_CA")
	}
	if s.node, err = pki.LoadNode(c.PKIDir); err != nil {
		return fmt.Errorf("%w (controlplane init --router makes these files)", err)
	}
	if s.node.Identity.Role != pki.RoleRouter {
		return fmt.Errorf("%s holds the certificate of %s, not of a router", c.PKIDir, s.node.Identity.CommonName())
	}
	s.log = s.log.With("router_id", s.node.Identity.Name)
	if s.replicas = c.Replicas; len(s.replicas) == 0 {
		about, err := pki.LoadRouter(c.PKIDir)
		if err != nil {
			return err
		}
		for _, m := range about.Replicas {
			s.replicas = append(s.replicas, m.Address)
		}
	}
	if len(s.replicas) == 0 {
		return fmt.Errorf("%s names no replica: set BERTH_REPLICAS", filepath.Join(c.PKIDir, pki.FileRouter))
	}
	for _, address := range s.replicas {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("BERTH_REPLICAS: %w", err)
		}
	}
	if c.TLSCert == "" {
		if s.certs, err = certs.OpenDev(c.DevCA, c.Domain, time.Now); err != nil {
			return fmt.Errorf("BERTH_DB_DEV_CA: %w", err)
		}
		return nil
	}
	if s.certs, err = certs.OpenFiles(c.TLSCert, c.TLSKey, time.Now, s.log); err != nil {
		return fmt.Errorf("BERTH_DB_TLS_CERT and BERTH_DB_TLS_KEY: %w", err)
	}
	return nil
}

// ID is the router's name, of its certificate.
func (s *Server) ID() string { return s.node.Identity.Name }

// Addr is where clients connect to.
func (s *Server) Addr() string { return s.port.Addr().String() }

// Run serves until ctx ends; sessions then have stopTime. Until a replica has told what
// databases there are, clients wait in the port's queue.
func (s *Server) Run(ctx context.Context) error {
	// Everything else outlives ctx until sessions have ended.
	all, over := context.WithCancel(context.WithoutCancel(ctx))
	defer over()
	p := &parts{Server: s, transport: peer.NewTransport(s.node), hosts: hosts.NewClients(s.dialHost), registry: prometheus.NewRegistry()}
	defer p.transport.CloseIdleConnections()
	defer p.hosts.Close()
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		nodecert.Remaining("berth_certificate_remaining_seconds", s.certificateEnds))
	p.table = pgedge.NewTable(pgedge.TableConfig{
		Replicas: s.replicas, Transport: p.transport, Cancel: p.cancel, Log: s.log,
	})
	g, inner := errgroup.WithContext(all)
	g.Go(func() error { p.table.Run(inner); return nil })
	g.Go(func() error { s.renewer().Run(inner); return nil })
	g.Go(func() error { s.cfg.Notifier.Watch(inner, s.log, p.progress); return nil })
	s.notified(ctx, s.cfg.Notifier.Ready("Waits for a replica to tell what databases there are"))
	if s.status != nil {
		g.Go(func() error { return p.serveStatus(inner) })
	}
	g.Go(func() error {
		defer over()
		return p.serve(ctx, inner)
	})
	return g.Wait()
}

// certificateEnds returns when the certificates of this router end.
func (s *Server) certificateEnds() map[string]time.Time {
	out := s.node.Certificate().Ends()
	if cert, err := s.certs.GetCertificate(&tls.ClientHelloInfo{ServerName: "*." + s.cfg.Domain}); err == nil {
		out["databases"] = cert.Leaf.NotAfter
	}
	return out
}

// renewer replaces the router's certificate before it expires, or when the cluster's CA is
// another, and learns which CAs count.
func (s *Server) renewer() *nodecert.Renewer {
	return &nodecert.Renewer{
		Certificate: s.node.Certificate(), Clock: time.Now, Jitter: rand.Float64, Log: s.log,
		Remedy: "on a machine with a replica's directory run controlplane init --dir DIR --ca PKI --router NAME, copy ca.crt, node.crt and node.key of DIR/NAME to BERTH_PKI_DIR here, and restart",
		Ask: func(ctx context.Context, csr []byte) ([]byte, error) {
			return hostapi.AskRenewal(ctx, s.replicas, s.node.ClientTLS(pki.AnyOf(pki.RoleReplica)), csr)
		},
		Authorities: func(ctx context.Context, known nodecert.Known) (nodecert.Authorities, error) {
			told, err := hostapi.AskAuthorities(ctx, s.replicas, s.node.ClientTLS(pki.AnyOf(pki.RoleReplica)),
				hostapi.AuthoritiesKnown{Trusts: known.Trusts, Issuer: known.Issuer})
			return nodecert.Authorities{Bundle: []byte(told.Bundle), Signs: told.Signs}, err
		},
	}
}

func (s *Server) dialHost(hostID, address string) *hostapi.Client {
	return hostapi.NewClient(address, s.node.ClientTLS(pki.Exactly(pki.Identity{Role: pki.RoleHost, Name: hostID})))
}

// parts are what Run makes.
type parts struct {
	*Server
	transport *peer.Transport
	hosts     *hosts.Clients
	registry  *prometheus.Registry
	table     *pgedge.Table
	router    atomic.Pointer[pgedge.Router] // once the table is there
	stopping  atomic.Bool
}

// cancel carries out a cancel request that came to another router.
func (p *parts) cancel(ctx context.Context, key pgsni.CancelKey) bool {
	r := p.router.Load()
	return r != nil && r.Cancel(ctx, key)
}

// serve takes clients from when the table is there until ctx ends.
func (p *parts) serve(ctx, inner context.Context) error {
	p.log.InfoContext(ctx, "router waits for a replica to tell it what databases there are", "listen", p.Addr(), "replicas", p.replicas)
	select {
	case <-p.table.Ready():
	case <-ctx.Done():
		return p.port.Close()
	}
	peers := pgedge.NewPeers(pgedge.PeersConfig{
		Leading: func() bool { return false }, Leader: p.table.Leader, Others: func() []string { return p.replicas },
		Transport: p.transport, Lookup: p.table.Lookup, Log: p.log,
	})
	reach := pgedge.NewReach(pgedge.ReachConfig{Lookup: p.table.Lookup, Latest: peers.Latest, Host: p.hosts.At, Wake: peers.Wake})
	router, err := pgedge.NewRouter(pgedge.RouterConfig{
		Domain: p.cfg.Domain, Certificate: p.certs.GetCertificate, Reach: reach, Secret: p.table.Secret(),
		CancelElsewhere: peers.CancelElsewhere, Registerer: p.registry, Log: p.log,
	})
	if err != nil {
		return errors.Join(err, p.port.Close())
	}
	p.router.Store(router)
	cutting, cut := context.WithCancel(inner)
	var moved sync.WaitGroup
	moved.Go(func() { reach.CutMoved(cutting, p.table.Changed) })
	defer moved.Wait()
	defer cut()
	served := make(chan error, 1)
	go func() { served <- router.Serve(inner, p.port) }()
	p.log.InfoContext(ctx, "router runs", "listen", p.Addr())
	p.notified(ctx, p.cfg.Notifier.Status("Serving PostgreSQL clients on "+p.Addr()))
	select {
	case err := <-served:
		reach.Close()
		return err
	case <-ctx.Done():
	}
	p.stopping.Store(true)
	p.notified(ctx, p.cfg.Notifier.Stopping())
	p.log.InfoContext(ctx, "stopping")
	drain, cancel := context.WithTimeout(inner, stopTime)
	defer cancel()
	router.Drain(drain)
	reach.Close()
	return <-served
}

// notReady says what keeps the router from taking clients; "": nothing does. That no
// replica answers is none of it, once one has.
func (p *parts) notReady() string {
	switch {
	case p.stopping.Load():
		return "stopping: this router stops"
	case p.router.Load() == nil:
		return "databases: no replica has told yet which there are"
	}
	return ""
}

// serveStatus tells how the router is: /healthz is 200 once clients are served, and
// stays so; /readyz, for balancers, is 503 again as soon as the router stops.
func (p *parts) serveStatus(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if p.router.Load() == nil {
			http.Error(w, "no replica has told yet what databases there are", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		answer := map[string]string{"status": "ok"}
		if missing := p.notReady(); missing != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			answer = map[string]string{"error": "not ready", "detail": missing}
		}
		_ = json.NewEncoder(w).Encode(answer) // the caller may be gone
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(p.status); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("BERTH_STATUS_LISTEN: %w", err)
	}
	return nil
}
