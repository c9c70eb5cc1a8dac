// Package agent is guestpg's server: it keeps PostgreSQL as the host wants it, and
// answers the host, and nobody else.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/pg/broker"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
)

// Config is what the agent needs of the guest it runs in.
type Config struct {
	Version  string
	Listen   netip.AddrPort
	Peer     netip.Addr // the only address that is answered
	Postgres postgres.Config
	Settings pgapi.Settings // in force until the host says others
	Reserve  Reserve
	Slow     time.Duration // without the host, the archive counts as failing; 0: wal.Slow
	Log      *slog.Logger
}

// Agent is the server.
type Agent struct {
	cfg      Config
	listener net.Listener
	server   *postgres.Server
	archive  *wal.Archive
	roles    *tenant.Roles
	broker   *broker.Broker
	version  string // PostgreSQL's

	op        sync.Mutex // who starts, stops or changes the server; New's until begin has begun
	reclaimed time.Time  // when archived WAL was last freed; under op

	mu      sync.Mutex
	writes  string // pgapi.WritesOpen and on
	reason  string
	restore *restore
	seen    activity
}

// New returns an agent that listens.
func New(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg, writes: pgapi.WritesOpen}
	a.op.Lock()
	if err := os.MkdirAll(a.stateDir(), 0o700); err != nil {
		return nil, err
	}
	settings, err := a.readSettings()
	if err != nil {
		return nil, err
	}
	a.archive = wal.NewArchive(cfg.Postgres.Data(), cmp.Or(cfg.Slow, wal.Slow))
	a.server = postgres.New(cfg.Postgres, settings, a.archive.Stopping)
	a.roles = tenant.New(a.server)
	a.broker = broker.New(cfg.Postgres, a.tenant)
	if a.restore, err = a.readRestore(); err != nil {
		return nil, err
	}
	a.version, err = postgres.Version(cfg.Postgres)
	if err != nil {
		return nil, err
	}
	a.listener, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(cfg.Listen))
	return a, err
}

// Addr is where the agent listens.
func (a *Agent) Addr() net.Addr { return a.listener.Addr() }

// readWait is for a request's header.
const readWait = 30 * time.Second

// Run serves, and keeps PostgreSQL running, until ctx ends; then PostgreSQL is stopped.
func (a *Agent) Run(ctx context.Context) error {
	cred, err := a.cfg.Postgres.Credential()
	if err != nil {
		return err
	}
	uid := uint32(os.Getuid())
	if cred != nil {
		uid = cred.Uid
	}
	// A restore that is under way ends before PostgreSQL does, or it would take that
	// for its failure; archive_command is answered for as long as PostgreSQL runs.
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	running, stop := context.WithCancel(background)
	defer stop()
	commands := &wal.Commands{Archive: a.archive, Fetch: a.fetch, UID: uid, Log: a.cfg.Log}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := commands.Serve(background, a.cfg.Postgres.CommandSocket())
		if err != nil {
			err = fmt.Errorf("serve archive_command: %w", err)
		}
		return err
	})
	group.Go(func() error {
		defer cancel()
		return a.server.Run(running)
	})
	group.Go(func() error {
		<-ctx.Done()
		a.op.Lock() // for good: nothing begins any more
		a.endRestore(errEnds)
		stop()
		return nil
	})
	group.Go(func() error { return a.guard(ctx) })
	group.Go(func() error { return a.serve(ctx) })
	group.Go(func() error { return a.begin(ctx) })
	err = group.Wait()
	a.broker.Close()
	return err
}

// begin starts PostgreSQL, on data that it makes where there is none, or goes on with
// the restore that was under way. It gives op back, which New took: no request is
// to find PostgreSQL, or a restore, before that.
func (a *Agent) begin(ctx context.Context) error {
	defer a.op.Unlock()
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	switch {
	case r == nil || r.status.Phase == pgapi.RestoreDone:
		if err := postgres.Init(ctx, a.cfg.Postgres); err != nil && ctx.Err() == nil {
			return fmt.Errorf("make the data: %w", err)
		}
		a.server.Start(a.mode(), false)
	case r.status.Phase == pgapi.RestoreRecovering:
		a.recover(r)
	default:
		a.archive.Hold(true)
		a.cfg.Log.Error("PostgreSQL is not started: its data is not whole", "phase", r.status.Phase)
	}
	return nil
}

func (a *Agent) serve(ctx context.Context) error {
	server := &http.Server{
		Handler: a.routes(), ReadHeaderTimeout: readWait, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	err := server.Serve(fromPeer{a.listener, a.cfg.Peer})
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// fromPeer accepts the connections of one address.
type fromPeer struct {
	net.Listener
	peer netip.Addr
}

func (l fromPeer) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.AddrPort().Addr().Unmap() == l.peer {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// mode is how the server is to run when no restore is under way.
func (a *Agent) mode() postgres.Mode {
	a.mu.Lock()
	defer a.mu.Unlock()
	return postgres.Mode{Limited: a.writes == pgapi.WritesLimited, Standby: a.writes == pgapi.WritesStopped}
}

// restoring says whether the data is not the database's yet.
func (a *Agent) restoring() bool {
	a.mu.Lock()
	r := a.restore
	a.mu.Unlock()
	return r != nil && r.view().Phase != pgapi.RestoreDone
}

func (a *Agent) stateDir() string { return filepath.Join(a.cfg.Postgres.Dir, "state") }

func (a *Agent) tenant(ctx context.Context) (pgapi.Tenant, error) {
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return pgapi.Tenant{}, fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return tenant.Current(ctx, conn)
}
