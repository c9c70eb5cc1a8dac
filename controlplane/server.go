package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/audit"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/billing"
	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/forward"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pgedge"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/reseal"
	"github.com/berth-cloud/berth/controlplane/rotation"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/stats"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/controlplane/usage"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

// Server is one replica.
type Server struct {
	cfg Config
	log *slog.Logger
	me  replica

	public net.Listener
	db     net.Listener // for PostgreSQL clients; nil: no router

	domainPort net.Listener // for domains by TLS; nil: they are at the public port
	plainPort  net.Listener // without TLS; nil: there is none

	port    *peer.Port
	told    *rotation.Told // what hosts and routers say of the authorities that they trust
	caRead  chan struct{}  // the files of the CA say something else
	sealer  *seal.Keyring
	certs   certificates
	metrics *metrics
	events  *eventstore.Store
	tiers   *limits.Tiers
	prices  *usage.Prices

	// Created by Run, in this order.
	store     *raftstore.Store
	hosts     *hosts.Registry
	clients   *hosts.Clients
	engine    *flow.Engine
	loops     *loops.Loops
	intake    *eventstore.Intake
	recorder  *stats.Recorder
	requests  *stats.RequestRecorder
	peers     *peer.Transport
	edge      *edge.Edge
	reach     *pgedge.Reach
	begun     chan struct{}  // closed by awaitRecords
	router    *pgedge.Router // nil: none
	feed      *pgedge.Feed   // for routers that are processes of their own
	acme      *certs.ACME    // nil: none
	auth      *authn.Authenticator
	publicAPI *http.Server
	peerAPI   *http.Server

	stopping atomic.Bool // see ready
	removed  atomic.Bool // see watchRemoval

	domainTLS    certs.DomainSource // nil: domains have no TLS
	domainCerts  *certs.Domains     // nil: they are not ordered by ACME
	domainServer *http.Server       // nil: no port of its own
	plainServer  *http.Server       // nil: no port without TLS
}

// New checks the settings, reads the keys and opens the ports, so that mistakes are
// reported before anything runs.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	me, err := cfg.load()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, me: me, log: cfg.Logger.With("node_id", me.id), metrics: newMetrics(cfg.Version, cfg.Commit), told: rotation.NewTold(time.Now), caRead: make(chan struct{}, 1), begun: make(chan struct{})}
	if s.sealer, err = seal.Load(filepath.Join(cfg.PKIDir, pki.FileSealKey)); err != nil {
		return nil, fmt.Errorf("read the sealing keys: %w", err)
	}
	if s.certs, err = cfg.certificates(s.log); err != nil {
		return nil, err
	}
	if _, err := cfg.authenticator(nil, nil, s.log); err != nil {
		return nil, err // before a port is open
	}
	if s.tiers, err = limits.Load(cfg.Tiers, cfg.DefaultTier); err != nil {
		return nil, fmt.Errorf("BERTH_TIERS, BERTH_DEFAULT_TIER: %w", err)
	}
	s.tiers.WarnPercent = cfg.WarnPercent
	if s.prices, err = usage.LoadPrices(cfg.Prices); err != nil {
		return nil, fmt.Errorf("BERTH_PRICES: %w", err)
	}
	if s.events, err = eventstore.Open(eventstore.Config{DSN: cfg.EventStore, File: cfg.eventFile(), Retention: cfg.EventRetention}); err != nil {
		from := "BERTH_EVENT_STORE"
		if cfg.EventStore == "" {
			from = "BERTH_DATA_DIR"
		}
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.events.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	if s.public = s.cfg.PublicListener; s.public == nil {
		if s.public, err = listen(ctx, "BERTH_LISTEN", s.cfg.Listen); err != nil {
			return err
		}
	}
	l := s.cfg.PeerListener
	if l == nil {
		address := s.cfg.PeerListen
		if address == "" {
			address = s.me.advertise
		}
		if l, err = listen(ctx, "BERTH_PEER_LISTEN", address); err != nil {
			s.public.Close()
			return err
		}
	}
	if s.db, err = s.listenRouter(ctx); err == nil {
		err = s.listenDomains(ctx)
	}
	if err != nil {
		s.closePublic()
		l.Close()
		return err
	}
	s.me.node.TakeJoins(s.me.ca, time.Now)
	s.port = peer.New(l, s.me.advertise, s.me.node, s.log)
	return nil
}

// Addr returns the address of the public API.
func (s *Server) Addr() string { return s.public.Addr().String() }

// settingsEvery is how soon a change of the files of tiers, of sealing keys and of the CA counts.
const settingsEvery = 5 * time.Second

// The durations of the parts of a stop.
const (
	settleTime = 3 * time.Second  // requests in progress may end before leadership is transferred
	drainTime  = 15 * time.Second // all requests, including those that moved to the next leader
	routerTime = 5 * time.Second  // database sessions
)

// Run serves until ctx ends or a part fails, and returns when every part has
// stopped. The parts start in the order of their dependencies:
//
//  1. the peer port, which Raft needs to reach other replicas;
//  2. the store, which may win an election from then on;
//  3. the parts above it, which are passive until this replica leads;
//  4. the leader's work;
//  5. the internal API, for hosts and other replicas; then the public API and the
//     PostgreSQL router.
//
// They stop in the reverse order, see stop.
func (s *Server) Run(ctx context.Context) error {
	defer func() { _ = s.events.Close() }() // every batch is committed, so nothing is lost

	// Everything below has its own context, ended in the order of stop. ctx would
	// end all of it at once.
	portCtx, closePort := context.WithCancel(context.WithoutCancel(ctx))
	defer closePort()
	leadCtx, stopLeading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeading()

	var all errgroup.Group
	failed := make(chan error, 6) // one slot for each part that can fail
	part := func(name string, run func() error) {
		all.Go(func() error {
			err := run()
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				failed <- err
			}
			return err
		})
	}

	part("peer port", func() error { return s.port.Run(portCtx) })
	if err := s.openStore(ctx); err != nil {
		s.closePublic()
		closePort()
		return errors.Join(err, all.Wait())
	}
	if err := s.assemble(); err != nil {
		s.closePublic()
		err = errors.Join(err, s.store.Close())
		closePort()
		return errors.Join(err, all.Wait())
	}
	s.port.Trust(s.trusted)
	part("records", func() error { s.awaitRecords(leadCtx); return nil })
	part("members", func() error { s.watchMembers(leadCtx); return nil })
	part("removal", func() error { s.watchRemoval(leadCtx); return nil })
	part("keys of issuers", func() error { s.auth.Run(leadCtx); return nil })
	part("tiers", func() error { s.tiers.Follow(leadCtx, settingsEvery, s.log); return nil })
	part("sealing keys", func() error {
		reseal.Follow(leadCtx, s.sealer, filepath.Join(s.cfg.PKIDir, pki.FileSealKey), settingsEvery, s.log)
		return nil
	})
	part("authorities", func() error { s.followCA(leadCtx); return nil })
	part("certificate", func() error { s.renewer().Run(leadCtx); return nil })
	part("event store", func() error { s.intake.KeepPruned(leadCtx); return nil })
	part("records for the event store", func() error { s.recorder.Run(leadCtx); return nil })
	part("requests for the event store", func() error { s.requests.Run(leadCtx); return nil })
	leading := make(chan struct{})
	go func() {
		defer close(leading)
		loops.WhileLeading(leadCtx, s.store.Leadership(), s.lead)
	}()
	part("internal API", func() error { return served(s.peerAPI.Serve(s.port.HTTP())) })
	part("public API", func() error { return served(s.servePublic()) })
	if s.domainServer != nil {
		part("domains", func() error { return served(s.domainServer.ServeTLS(bound(s.domainPort, maxConnections), "", "")) })
	}
	if s.plainServer != nil {
		part("port without TLS", func() error { return served(s.plainServer.Serve(bound(s.plainPort, maxConnections))) })
	}
	part("connections to databases", func() error {
		s.reach.CutMoved(portCtx, func() <-chan struct{} { return s.store.View().Changed(record.Databases.Name) })
		return nil
	})
	part("activity of apps", func() error { s.edge.Run(leadCtx); return nil })
	if s.router != nil {
		part("router of databases", func() error { return s.router.Serve(portCtx, s.db) })
	}
	s.log.InfoContext(ctx, "replica runs", "version", s.cfg.Version, "listen", s.Addr(), "peer_address", s.me.advertise, "members", len(s.me.members))
	part("systemd", func() error { s.tellSystemd(ctx, portCtx); return nil })
	s.warnApps(ctx)
	s.warnGitHosts(ctx)
	if s.cfg.WebhookAllowPrivate {
		s.log.WarnContext(ctx, "webhooks may be sent to any address, also of this machine and of private networks, and without TLS", "remedy", "unset BERTH_WEBHOOK_ALLOW_PRIVATE, unless this is a machine for development")
	}

	var cause error
	select {
	case <-ctx.Done():
		s.log.InfoContext(ctx, "stopping")
	case cause = <-failed:
		s.log.ErrorContext(ctx, "a part failed; stopping", "error", cause)
	case <-s.store.Failed():
		cause = s.store.Err()
		s.log.ErrorContext(ctx, "the control store failed; stopping", "error", cause)
	}
	s.notified(ctx, s.cfg.Notifier.Stopping())
	err := s.stop(context.WithoutCancel(ctx), stopLeading, leading)
	closePort()
	return errors.Join(cause, err, notTwice(all.Wait(), cause))
}

// stop stops the parts from the outside in:
//
//  1. The public ports accept nothing new. Requests in progress may end, for
//     drainTime; database sessions have only routerTime, because those of a pool
//     never end by themselves.
//  2. After settleTime, leadership is transferred to another replica, so that the
//     cluster need not wait for an election. Requests that other replicas forwarded
//     follow it.
//  3. The remaining requests end or are cut off.
//  4. The leader's work, which ends with the leadership, is waited for.
//  5. The store closes its log. The peer port closes last, because Raft's last
//     messages pass through it.
func (s *Server) stop(ctx context.Context, stopLeading context.CancelFunc, leading <-chan struct{}) error {
	s.stopping.Store(true)
	drain, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- shutdownAll(drain, s.publicAPI, s.domainServer, s.plainServer) }()
	routed := s.drainRouter(ctx)
	settle := time.NewTimer(settleTime)
	defer settle.Stop()
	var err error
	ended := false
	select {
	case err = <-drained:
		ended = true
	case <-settle.C:
	}
	if s.store.IsLeader() && s.store.Status().Voters() > 1 {
		if terr := s.store.TransferLeadership(drain, ""); terr != nil {
			s.log.WarnContext(ctx, "leadership was not handed over", "error", terr)
		}
	}
	if !ended {
		err = <-drained
	}
	<-routed
	s.reach.Close()
	s.feed.Close()
	s.edge.Close()
	err = errors.Join(err, shutdown(drain, s.peerAPI))
	stopLeading()
	<-leading
	s.clients.Close()
	s.peers.CloseIdleConnections()
	return errors.Join(err, s.store.Close())
}

// shutdown waits for requests to end, and cuts off the rest when ctx ends.
func shutdown(ctx context.Context, srv *http.Server) error {
	if err := srv.Shutdown(ctx); err != nil {
		return srv.Close()
	}
	return nil
}

// shutdownAll does so for all servers at once. A nil one is none.
func shutdownAll(ctx context.Context, servers ...*http.Server) error {
	var all errgroup.Group
	for _, srv := range servers {
		if srv != nil {
			all.Go(func() error { return shutdown(ctx, srv) })
		}
	}
	return all.Wait()
}

func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// notTwice returns nil if err only repeats cause.
func notTwice(err, cause error) error {
	if cause != nil && errors.Is(err, cause) {
		return nil
	}
	return err
}

func (s *Server) openStore(ctx context.Context) error {
	store, err := raftstore.Open(ctx, raftstore.Config{
		ID: s.me.id, Dir: s.cfg.StoreDir(), StreamLayer: s.port.Raft(), Logger: s.log,
		HeartbeatTimeout: s.cfg.RaftTimeout,
		Tables:           raftstore.RecordTables(),
	})
	if err != nil {
		return fmt.Errorf("open the control store: %w", err)
	}
	s.store = store
	if len(s.me.members) == 0 {
		if store.Status().LastLogIndex == 0 {
			s.log.WarnContext(ctx, "this replica is in no cluster, and waits to be added to one", "remedy",
				"berth raft add-peer "+s.me.id+" "+s.me.advertise+"; or, where no replica is left to add it, BERTH_PEERS with all of them")
		}
		return nil // another replica will add this one
	}
	servers := make([]raftstore.Server, len(s.me.members))
	for i, m := range s.me.members {
		servers[i] = raftstore.Server{ID: m.ID, Address: m.Address}
	}
	if err := store.Bootstrap(servers); err != nil {
		return errors.Join(err, store.Close())
	}
	return nil
}

// assemble creates the parts above the store.
func (s *Server) assemble() error {
	s.clients = hosts.NewClients(s.dialHost)
	s.hosts = hosts.NewRegistry(hosts.Config{
		Store: s.store, Clients: s.clients, Interval: s.cfg.HeartbeatInterval, Lease: s.cfg.HostLease, Clock: time.Now, Logger: s.log,
		Leads: s.store.LeadsIn,
	})
	s.engine = flow.NewEngine(flow.Config{Store: s.store, Clock: time.Now, Random: rand.Float64, Logger: s.log, Failed: s.metrics.flowFailed})
	s.loops = loops.New(loops.Config{Store: s.store, Clock: time.Now, Logger: s.log, OrphanGrace: s.cfg.OrphanGrace, KeptGrace: s.cfg.KeptGrace})
	s.peers = peer.NewTransport(s.me.node)
	s.metrics.registry.MustRegister(&stateCollector{store: s.store, hosts: s.hosts})
	s.metrics.operators.MustRegister(&tenantsCollector{store: s.store, clock: time.Now})

	c := core.New(core.Core{
		Store: s.store, Hosts: s.hosts, Engine: s.engine, Sealer: s.sealer, Clock: time.Now, Logger: s.log, Tiers: s.tiers,
		DeleteWait: s.cfg.HostLease + 10*time.Second,
	})
	templates := template.New(c, template.Config{})
	volumes := volume.New(c, volume.Config{QuotaMB: s.cfg.VolumeQuotaMB, DefaultMB: s.cfg.VolumeSizeMB, MaxMB: s.cfg.VolumeMaxMB})
	sandboxes := sandbox.New(c, sandbox.Config{
		History:   s.events,
		Templates: templates, PreviewURL: s.cfg.previewURL(), PreviewTokens: s.previewTokens(), Observe: s.metrics.observeCreate,
	})
	snapshots := snapshot.New(c, snapshot.Config{Sandboxes: sandboxes, Claims: []snapshot.Claim{fork.Claim, {Capture: sandbox.MoveNeeds, Stored: sandbox.MoveStored}, {Stored: templates.Flows.Stored}}})
	forks := fork.New(c, sandboxes, s.cfg.ForkMax)
	dbConfig := s.cfg.databases()
	dbConfig.Sandboxes, dbConfig.Templates = sandboxes, templates
	databases := database.New(c, dbConfig)
	apps, gitHosts, err := s.newApps(c, sandboxes, templates, databases)
	if err != nil {
		return err
	}
	domains, err := s.newDomains(c)
	if err != nil {
		return err
	}
	webhooks := webhook.New(c, webhook.Config{Delays: s.cfg.WebhookDelays, Timeout: s.cfg.WebhookTimeout, MaxEndpoints: s.cfg.WebhookEndpoints, AllowPrivate: s.cfg.WebhookAllowPrivate})
	orgs := org.New(c)
	used := usage.New(c, usage.Config{Prices: s.prices, Every: s.cfg.UsageInterval})
	payments := billing.New(c, billing.Config{Provider: s.cfg.payments(), Every: s.cfg.BillingSync})
	trail := audit.New(c, s.cfg.audit())
	replicas := cluster.New(c, cluster.Config{
		Missing:       func(r raftstore.Reader) map[string]int { return reseal.Missing(r, s.sealer) },
		CAFingerprint: s.me.ca.Fingerprint, Kept: s.cfg.KeptGrace, Events: s.events, AskPeer: s.askPeer,
		Evacuated: sandboxes.Evacuated, Spread: sandboxes.Spread, StableAfter: s.cfg.ReplicaStableAfter, DeadAfter: s.cfg.ReplicaDeadAfter,
	})
	kinds := slices.Concat(templates.Kinds(), volumes.Kinds(), sandboxes.Flows.Kinds(), snapshots.Kinds(), forks.Kinds(), databases.Kinds(), apps.Kinds())
	if err := s.engine.Register(kinds...); err != nil {
		return err
	}
	resealer := reseal.New(s.store, s.sealer, s.log)
	s.metrics.operators.MustRegister(resealer)
	s.loops.Register(c.Loops, templates.Loops, volumes.Loops, sandboxes.Loops, snapshots.Loops, databases.Loops, apps.Loops, domains.Loops, webhooks.Loops, gitHosts.Loops, orgs.Loops, used.Loops, payments.Loops, replicas.Loops, trail.Loops, resealer.Loops)
	if s.domainCerts != nil {
		s.loops.Register(s.domainCerts.Loops)
	}

	if s.auth, err = s.cfg.authenticator(s.store, orgs, s.log); err != nil {
		return err
	}
	if err := s.openACME(); err != nil {
		return err
	}
	s.metrics.registry.MustRegister(nodecert.Remaining("berth_certificate_remaining_seconds", s.certificateEnds), failingRenewals(s.failingRenewals))
	answers, err := s.routeDatabases(databases.WakeForClient)
	if err != nil {
		return err
	}
	limiter, rates := s.limiter()
	s.edge = s.openEdge(s.previews(sandboxes.Ports), edgeOf(apps))
	routes, err := httpapi.New(httpapi.Config{
		Sandboxes: sandboxes, Lifecycle: sandboxes, Commands: sandboxes.Commands, Files: sandboxes.Files, Logs: sandboxes.Logs, Ports: sandboxes.Ports,
		Inputs: c, Snapshots: snapshots, Forks: forks, Volumes: volumes, Templates: templates, Databases: databases, Apps: apps, Domains: domains, AppProxy: s.edge.AppProxy,
		Functions: apps.Functions(), Invoke: s.edge.Invoke, Metrics: stats.New(stats.Config{
			Core: c, Events: s.events, Databases: databases, Traffic: s.edge.Traffic, Classes: edge.ClassNames(), Clock: time.Now,
		}),
		Broker: pgedge.NewBroker(s.reach), Webhooks: webhooks, GitHosts: gitHosts, Orgs: orgs, Usage: used, Billing: payments, Cluster: replicas, Audit: trail, Authenticator: s.auth, Again: s.auth.Again, Limiter: limiter,
		Health:     func(context.Context) error { return s.store.Err() },
		Ready:      s.ready,
		Version:    api.VersionInfo{Version: s.cfg.Version, Commit: s.cfg.Commit, GoVersion: runtime.Version()},
		Registerer: s.metrics.registry, Gatherer: s.metrics.registry, OperatorsGatherer: s.metrics.operators, Logger: s.log,
		MaxRequestID: s.cfg.MaxRequestID,
	})
	if err != nil {
		return err
	}
	intake := &eventstore.Intake{Store: s.events, Log: s.log}
	s.intake = intake
	s.recorder = &stats.Recorder{View: s.store.View, Notes: s.events, Log: s.log}
	s.requests = &stats.RequestRecorder{View: s.store.View, Hours: s.edge.Hours, Notes: s.events, Log: s.log}
	table := httpapi.NewRouting()
	front := s.forwarder(routes, func(c *forward.Config) { c.AnyReplica, c.Repeatable = table.AnyReplica, table.Repeatable })
	outside := s.withEdge(front)
	s.publicAPI = httpapi.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.arrive(r)
		if peer.Internal(r) {
			routes.ServeHTTP(w, r) // answers 404: these paths exist only on the peer port
			return
		}
		outside.ServeHTTP(w, r)
	}), s.log)
	s.openDomainPorts()
	s.peerAPI = httpapi.NewServer(peer.Handler(peer.Routes{
		Join:        s.forwarder(&hosts.Joiner{Store: s.store, CA: s.me.ca, Clock: time.Now, Audit: audit.Joined}),
		Heartbeat:   s.hosts.ServeHeartbeat,
		Events:      intake.ServeEvents,
		Renew:       peer.RenewHandler(s.me.ca, time.Now, s.log),
		Authorities: s.told.Handler(s.me.ca), Rotation: rotation.Handler(s.rotation),
		Status:    statusHandler(replicas),
		Rate:      rates,
		Databases: answers,
		Apps:      s.edge.ServePeer,
		Public:    outside,
		Trusted:   s.trusted,
	}), s.log)
	return nil
}

// arrive makes a request of a public port one that is from nobody but a client, at that
// client's address.
func (s *Server) arrive(r *http.Request) {
	peer.StripMarks(r)
	r.RemoteAddr = peer.ClientAddr(r, s.me.proxies)
}

func (s *Server) forwarder(local http.Handler, change ...func(*forward.Config)) http.Handler {
	cfg := forward.Config{
		Self: s.me.id, Local: local, Leading: s.store.IsLeader, Leader: s.store.Leader, Transport: s.peers, Logger: s.log,
		MaxRequestID: s.cfg.MaxRequestID,
	}
	for _, c := range change {
		c(&cfg)
	}
	return forward.New(cfg)
}

func (s *Server) dialHost(hostID, address string) *hostapi.Client {
	return hostapi.NewClient(address, s.me.node.ClientTLS(pki.Exactly(pki.Identity{Role: pki.RoleHost, Name: hostID})))
}

func (s *Server) servePublic() error {
	if s.certs.public == nil {
		if a, ok := s.public.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			s.log.Warn("the API is plain HTTP on an address that others reach: keys and data pass in the clear; "+
				"set BERTH_TLS_CERT and BERTH_TLS_KEY, or listen on loopback behind a proxy that ends TLS", "listen", a.String())
		}
		return s.publicAPI.Serve(bound(s.public, maxConnections))
	}
	s.publicAPI.TLSConfig = tlsConfig(s.front(s.certs.public))
	return s.publicAPI.ServeTLS(bound(s.public, maxConnections), "", "")
}
