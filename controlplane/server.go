package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/forward"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

// Server is one replica.
type Server struct {
	cfg Config
	log *slog.Logger
	me  replica

	public  net.Listener
	port    *peer.Port
	sealer  *seal.Keyring
	certs   []tls.Certificate // of the public API; none: plain HTTP
	metrics *metrics
	events  *eventstore.Store

	// Made by Run, in this order.
	store     *raftstore.Store
	hosts     *hosts.Registry
	clients   *hosts.Clients
	engine    *flow.Engine
	loops     *loops.Loops
	intake    *eventstore.Intake
	peers     *peer.Transport
	publicAPI *http.Server
	peerAPI   *http.Server
}

// New checks the settings, reads the keys and opens both ports, so that what
// is wrong with any of them is said before anything runs.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Limiter == nil {
		cfg.Limiter = authn.NewLimiter(time.Now)
	}
	me, err := cfg.load()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, me: me, log: cfg.Logger.With("node_id", me.id), metrics: newMetrics(cfg.Version, cfg.Commit)}
	if s.sealer, err = seal.Load(filepath.Join(cfg.PKIDir, pki.FileSealKey)); err != nil {
		return nil, fmt.Errorf("read the sealing keys: %w", err)
	}
	if cfg.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("BERTH_TLS_CERT and BERTH_TLS_KEY: %w", err)
		}
		s.certs = []tls.Certificate{cert}
	}
	if _, err := authn.New(authn.Config{JWT: cfg.jwt(), Clock: time.Now}); err != nil {
		return nil, err // before a port is open
	}
	if s.events, err = eventstore.Open(eventstore.Config{DSN: cfg.EventStore, File: cfg.eventFile()}); err != nil {
		return nil, fmt.Errorf("BERTH_EVENT_STORE: %w", err)
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.events.Close())
	}
	return s, nil
}

// open opens the ports.
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
	s.port = peer.New(l, s.me.advertise, s.me.node, s.log)
	return nil
}

// Addr is where the public API listens.
func (s *Server) Addr() string { return s.public.Addr().String() }

// How long the parts of a stop may take.
const (
	settleTime = 3 * time.Second  // requests under way end here before leadership is given away
	drainTime  = 15 * time.Second // the rest of them, wherever they are
)

// Run serves until ctx ends or a part fails, and returns when every part has
// stopped. The order of the start, from what others depend on:
//
//  1. the peer port, without which Raft reaches nobody;
//  2. the store, which may be elected from then on;
//  3. the parts over it, which only get going when this replica leads;
//  4. the leader's work;
//  5. the internal API, for hosts and other replicas, and the public API last.
//
// The stop goes the other way, see stop.
func (s *Server) Run(ctx context.Context) error {
	defer func() { _ = s.events.Close() }() // every batch was committed, so nothing is lost

	// Everything below ends with its own context, in the order of stop, and not
	// with ctx, which would end it all at once.
	portCtx, closePort := context.WithCancel(context.WithoutCancel(ctx))
	defer closePort()
	leadCtx, stopLeading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeading()

	var all errgroup.Group
	failed := make(chan error, 4) // one for each part that may
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
		s.public.Close()
		closePort()
		return errors.Join(err, all.Wait())
	}
	if err := s.assemble(); err != nil {
		s.public.Close()
		err = errors.Join(err, s.store.Close())
		closePort()
		return errors.Join(err, all.Wait())
	}
	s.port.Trust(s.trusted)
	part("members", func() error { s.watchMembers(leadCtx); return nil })
	part("event store", func() error { s.intake.KeepPruned(leadCtx); return nil })
	leading := make(chan struct{})
	go func() {
		defer close(leading)
		loops.WhileLeading(leadCtx, s.store.Leadership(), s.lead)
	}()
	part("internal API", func() error { return served(s.peerAPI.Serve(s.port.HTTP())) })
	part("public API", func() error { return served(s.servePublic()) })
	s.log.InfoContext(ctx, "replica runs", "version", s.cfg.Version, "listen", s.Addr(), "peer_address", s.me.advertise, "members", len(s.me.members))
	s.warnExpiry(ctx)

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
	err := s.stop(context.WithoutCancel(ctx), stopLeading, leading)
	closePort()
	return errors.Join(cause, err, notTwice(all.Wait(), cause))
}

// stop ends the parts from the outside in:
//
//  1. the public port takes nothing new, and what is under way ends where it
//     is, for a while;
//  2. leadership goes to another replica, so that the cluster need not wait for
//     an election; requests that come by other replicas follow it;
//  3. the rest of the requests ends, or is cut;
//  4. the leader's work has ended by now, and is waited for;
//  5. the store closes its log. The peer port goes after it: Raft's last
//     messages pass through it.
func (s *Server) stop(ctx context.Context, stopLeading context.CancelFunc, leading <-chan struct{}) error {
	drain, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- shutdown(drain, s.publicAPI) }()
	settle := time.NewTimer(settleTime)
	defer settle.Stop()
	var err error
	ended := false
	select {
	case err = <-drained:
		ended = true
	case <-settle.C:
	}
	if s.store.IsLeader() && len(s.store.Status().Peers) > 1 {
		if terr := s.store.TransferLeadership(drain, ""); terr != nil {
			s.log.WarnContext(ctx, "leadership was not handed over", "error", terr)
		}
	}
	if !ended {
		err = <-drained
	}
	err = errors.Join(err, shutdown(drain, s.peerAPI))
	stopLeading()
	<-leading
	s.clients.Close()
	s.peers.CloseIdleConnections()
	return errors.Join(err, s.store.Close())
}

// shutdown lets requests end, and cuts those that are left when ctx ends.
func shutdown(ctx context.Context, srv *http.Server) error {
	if err := srv.Shutdown(ctx); err != nil {
		return srv.Close()
	}
	return nil
}

func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// notTwice drops err when it is the cause that is reported already.
func notTwice(err, cause error) error {
	if cause != nil && errors.Is(err, cause) {
		return nil
	}
	return err
}

func (s *Server) openStore(ctx context.Context) error {
	store, err := raftstore.Open(ctx, raftstore.Config{
		ID: s.me.id, Dir: s.cfg.storeDir(), StreamLayer: s.port.Raft(), Logger: s.log,
		HeartbeatTimeout: s.cfg.RaftTimeout,
		Tables: []raftstore.AnyTable{
			raftstore.Register(record.Workspaces), raftstore.Register(record.Users), raftstore.Register(record.APIKeys),
			raftstore.Register(record.Hosts), raftstore.Register(record.JoinTokens), raftstore.Register(record.Sandboxes),
			raftstore.Register(record.Flows), raftstore.Register(record.Outcomes), raftstore.Register(record.IdempotencyKeys),
			raftstore.Register(record.Snapshots), raftstore.Register(record.Volumes),
			raftstore.Register(record.Templates), raftstore.Register(record.Builds), raftstore.Register(record.Clusters),
		},
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
		return nil // another replica adds this one
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

// assemble makes the parts over the store.
func (s *Server) assemble() error {
	s.clients = hosts.NewClients(s.dialHost)
	s.hosts = hosts.NewRegistry(hosts.Config{
		Store: s.store, Clients: s.clients, Interval: s.cfg.HeartbeatInterval, Lease: s.cfg.HostLease, Clock: time.Now, Logger: s.log,
		Leads: s.store.LeadsIn,
	})
	s.engine = flow.NewEngine(flow.Config{Store: s.store, Clock: time.Now, Random: rand.Float64, Logger: s.log})
	s.loops = loops.New(loops.Config{Store: s.store, Clock: time.Now, Logger: s.log, OrphanGrace: s.cfg.OrphanGrace, KeptGrace: s.cfg.KeptGrace})
	s.peers = peer.NewTransport(s.me.node)
	s.metrics.registry.MustRegister(&stateCollector{store: s.store, hosts: s.hosts})

	c := core.New(core.Core{
		Store: s.store, Hosts: s.hosts, Engine: s.engine, Sealer: s.sealer, Clock: time.Now, Logger: s.log, DeleteWait: s.cfg.HostLease + 10*time.Second,
	})
	templates := template.New(c, template.Config{})
	volumes := volume.New(c, s.cfg.VolumeQuotaMB)
	sandboxes := sandbox.New(c, sandbox.Config{
		Templates: templates, PreviewURL: s.cfg.previewURL(), PreviewTokens: s.previewTokens(), Observe: s.metrics.observeCreate,
	})
	snapshots := snapshot.New(c, snapshot.Config{Sandboxes: sandboxes, Claims: []snapshot.Claim{fork.Claim, {Stored: templates.Flows.Stored}}})
	forks := fork.New(c, sandboxes)
	orgs := org.New(c)
	replicas := cluster.New(c, cluster.Config{
		CAFingerprint: s.me.ca.Fingerprint(), Kept: s.cfg.KeptGrace, Events: s.events, AskPeer: s.askPeer,
	})
	kinds := slices.Concat(templates.Kinds(), volumes.Kinds(), sandboxes.Flows.Kinds(), snapshots.Kinds(), forks.Kinds())
	if err := s.engine.Register(kinds...); err != nil {
		return err
	}
	s.loops.Register(c.Loops, templates.Loops, volumes.Loops, sandboxes.Loops, snapshots.Loops, orgs.Loops, replicas.Loops)

	auth, err := authn.New(authn.Config{
		Store: s.store, Users: orgs, AdminToken: s.cfg.AdminToken, JWT: s.cfg.jwt(), Clock: time.Now, Logger: s.log,
	})
	if err != nil {
		return err
	}
	routes, err := httpapi.New(httpapi.Config{
		Sandboxes: sandboxes, Lifecycle: sandboxes, Commands: sandboxes.Commands, Files: sandboxes.Files, Logs: sandboxes.Logs, Ports: sandboxes.Ports,
		Inputs: c, Snapshots: snapshots, Forks: forks, Volumes: volumes, Templates: templates, Metrics: sandbox.NewMetrics(s.events, time.Now),
		Orgs: orgs, Cluster: replicas, Authenticator: auth, Limiter: s.cfg.Limiter,
		Health:     func(context.Context) error { return s.store.Err() },
		Version:    api.VersionInfo{Version: s.cfg.Version, Commit: s.cfg.Commit, GoVersion: runtime.Version()},
		Registerer: s.metrics.registry, Gatherer: s.metrics.registry, Logger: s.log,
	})
	if err != nil {
		return err
	}
	intake := &eventstore.Intake{Store: s.events, Log: s.log}
	s.intake = intake
	table := httpapi.NewRouting()
	front := s.forwarder(routes, func(c *forward.Config) { c.AnyReplica, c.Repeatable = table.AnyReplica, table.Repeatable })
	outside := s.withPreviews(front, sandboxes.Ports)
	s.publicAPI = httpapi.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer.StripMarks(r)
		if peer.Internal(r) {
			routes.ServeHTTP(w, r) // which has none of these: 404, and nothing reaches a peer port
			return
		}
		outside.ServeHTTP(w, r)
	}), s.log)
	s.peerAPI = httpapi.NewServer(peer.Handler(peer.Routes{
		Join:      s.forwarder(&hosts.Joiner{Store: s.store, CA: s.me.ca, Clock: time.Now}),
		Heartbeat: s.hosts.ServeHeartbeat,
		Events:    intake.ServeEvents,
		Status:    statusHandler(replicas),
		Public:    outside,
		Trusted:   s.trusted,
	}), s.log)
	return nil
}

func (s *Server) forwarder(local http.Handler, change ...func(*forward.Config)) http.Handler {
	cfg := forward.Config{
		Self: s.me.id, Local: local, Leading: s.store.IsLeader, Leader: s.store.Leader, Transport: s.peers, Logger: s.log,
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
	if len(s.certs) == 0 {
		if a, ok := s.public.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
			s.log.Warn("the API is plain HTTP on an address that others reach: keys and data pass in the clear; "+
				"set BERTH_TLS_CERT and BERTH_TLS_KEY, or listen on loopback behind a proxy that ends TLS", "listen", a.String())
		}
		return s.publicAPI.Serve(bound(s.public, maxConnections))
	}
	s.publicAPI.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: s.certs}
	return s.publicAPI.ServeTLS(bound(s.public, maxConnections), "", "")
}

// lead is the leader's work, under a context that ends with the leadership.
func (s *Server) lead(ctx context.Context) {
	term, ok := s.ownTerm(ctx)
	if !ok || !s.named(ctx) {
		return
	}
	s.log.InfoContext(ctx, "leading", "term", term)
	s.hosts.LeadWhile(ctx, term, s.engine.Run, s.loops.Run)
	s.log.InfoContext(ctx, "no longer leading", "term", term)
}

// ownTerm is the term in which this replica leads. Raft's current term alone
// may be a successor's already, and hosts obey whoever shows them the highest.
func (s *Server) ownTerm(ctx context.Context) (uint64, bool) {
	for ctx.Err() == nil {
		term := s.store.Term()
		_, err := s.store.VerifiedView(ctx)
		if err == nil && s.store.Term() == term {
			return term, true
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return 0, false
}

// named makes sure that the cluster has a name before its leader speaks to hosts.
func (s *Server) named(ctx context.Context) bool {
	for ctx.Err() == nil {
		err := s.store.Update(ctx, func(tx *raftstore.Tx) error {
			for _, id := range []string{record.ClusterID, record.OriginID} {
				if _, ok := raftstore.Get(tx, record.Clusters, id); !ok {
					row := cluster.NewRow(0)
					row.ID = id
					raftstore.Put(tx, record.Clusters, row)
				}
			}
			return nil
		})
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// warnExpiry says in time that the certificate wants to be replaced.
func (s *Server) warnExpiry(ctx context.Context) {
	const notice = 60 * 24 * time.Hour
	if end := s.me.node.Leaf().NotAfter; time.Until(end) < notice {
		s.log.WarnContext(ctx, "this replica's certificate expires soon", "expires_at", end)
	}
}
