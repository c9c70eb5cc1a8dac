package pgedge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/wake"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// The pauses before another attempt at a database that does not answer yet. They double
// from firstRetry to lastRetry.
const (
	firstRetry = 25 * time.Millisecond
	lastRetry  = 400 * time.Millisecond

	catchUpRetry = 5 * time.Millisecond
)

var (
	// wakeLimit bounds one wake.
	wakeLimit = timescale.Limit(2 * time.Minute)
	// leaderLimit is how long a sleeping database may wait for a leader to wake it. It
	// allows for several elections.
	leaderLimit = timescale.Limit(15 * time.Second)
)

// Reach connects to databases' guests, and has sleeping databases woken.
type Reach struct {
	lookup Lookup
	latest func(ctx context.Context, id string) (index uint64, ok bool)
	begun  <-chan struct{}
	host   func(hostID, address string) *hostapi.Client
	wakes  *wake.Shared

	tunnels tunnels
}

// ReachConfig configures a Reach.
type ReachConfig struct {
	Lookup Lookup
	// Latest returns the index of a database's row at the leader, 0 if there is no row.
	// ok is false on the leader itself, and if the leader does not answer at once.
	Latest func(ctx context.Context, id string) (index uint64, ok bool)
	// Begun is closed once this process knows what others knew when it started, or has
	// waited for that long enough. nil: it does from the start.
	Begun <-chan struct{}
	// Host returns the client for a host, the same one for the same address.
	Host func(hostID, address string) *hostapi.Client
	// Wake returns once a database runs. It fails with an *apierror.Error; EUnavailable
	// means that another attempt may succeed.
	Wake func(ctx context.Context, id string) error
}

// NewReach returns a Reach. The caller must close it.
func NewReach(cfg ReachConfig) *Reach {
	begun := cfg.Begun
	if begun == nil {
		now := make(chan struct{})
		close(now)
		begun = now
	}
	return &Reach{lookup: cfg.Lookup, latest: cfg.Latest, begun: begun, host: cfg.Host, wakes: wake.New(wakeLimit, cfg.Wake)}
}

// Close ends the waits for wakes. Connections stay open.
func (r *Reach) Close() { r.wakes.Close() }

// catchUpLimit is how long a follower waits for a row that the leader has. It is several
// times what Raft takes to tell followers of a commit.
var catchUpLimit = timescale.Limit(500 * time.Millisecond)

// catchUp waits until this replica knows as much of a database as the leader did when it
// was called, so that credentials just given to a client work on every replica. One that
// has just started knows no more than its last snapshot, and would refuse the passwords of
// newer databases as wrong. It does not ask the leader about names that cannot be a
// database's id, because strangers can send any name.
func (r *Reach) catchUp(ctx context.Context, id string) {
	if !databaseID.MatchString(id) {
		return
	}
	select {
	case <-r.begun:
	case <-ctx.Done():
		return
	}
	index, ok := r.latest(ctx, id)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpLimit)
	defer cancel()
	for {
		if e, _ := r.lookup(id); e.Index >= index || pause(ctx, catchUpRetry) != nil {
			return
		}
	}
}

var databaseID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// The errors of a database that cannot be reached.
var (
	errGone     = &apierror.Error{Code: apierror.ENotFound, Message: "the database has been deleted"}
	errFailed   = &apierror.Error{Code: apierror.EConflict, Message: "the database has failed"}
	errNoLeader = &apierror.Error{Code: apierror.EUnavailable, Message: "the database sleeps, and the control plane has no leader now that could wake it", RetryAfter: time.Second}
)

// Dial connects to a port of a database's guest. While the database is asleep, restarts
// or moves, Dial waits until ctx ends. If waiting cannot help, it fails with an
// *apierror.Error.
func (r *Reach) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	conn, _, err := r.dial(ctx, id, port)
	return conn, err
}

// dial is Dial, and also reports whether the database was woken for it.
func (r *Reach) dial(ctx context.Context, id string, port int) (conn net.Conn, woken bool, err error) {
	a := attempt{Reach: r, id: id, port: port}
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		conn, err := a.try(a.traced(ctx))
		if conn != nil || err != nil {
			return conn, a.woken, err
		}
		if err := pause(ctx, retry); err != nil {
			return nil, a.woken, err
		}
	}
}

// attempt is what one caller of Dial knows of its database.
type attempt struct {
	*Reach
	id   string
	port int

	tries      int
	woken      bool      // the leader said that it runs
	leaderless time.Time // since when there is no leader to wake it
}

// tracedTries is how many of the tries are in the trace: one that waits for minutes makes
// hundreds.
const tracedTries = 5

func (a *attempt) traced(ctx context.Context) context.Context {
	if a.tries++; a.tries > tracedTries {
		return telemetry.Without(ctx)
	}
	return ctx
}

// try attempts to connect once. It returns neither a connection nor an error if the
// caller should wait and try again.
func (a *attempt) try(ctx context.Context) (net.Conn, error) {
	e, ok := a.lookup(a.id)
	switch {
	case !ok || !e.known():
		return nil, errGone
	case e.Status == record.DatabaseFailed:
		return nil, errFailed.With(e.Error, nil)
	case e.Status != record.DatabaseReady:
		return nil, nil // a flow gets it going
	}
	asleep := !e.runs()
	// After a wake the leader knows sooner than this copy of the store that it runs.
	if !asleep || a.woken && e.located() {
		conn, err := a.connect(ctx, e)
		if err == nil {
			return conn, nil
		}
		if asleep = hostapi.HasCode(err, hostapi.CodeNotRunning); !asleep && !worthWaiting(err) {
			return nil, fmt.Errorf("dial the host: %w", err)
		}
	}
	if !asleep {
		return nil, nil
	}
	err := a.wake(ctx)
	if err == nil && e.located() {
		if conn, err := a.connect(ctx, e); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// worthWaiting reports whether a host's refusal may be over in a moment, because the
// server restarts or this copy of the store is behind.
func worthWaiting(err error) bool {
	for _, code := range []hostapi.Code{hostapi.CodePortClosed, hostapi.CodeNotFound, hostapi.CodeDraining, hostapi.CodeGuest, hostapi.CodeNotReady} {
		if hostapi.HasCode(err, code) {
			return true
		}
	}
	return hosts.Unreachable(err)
}

func (a *attempt) wake(ctx context.Context) error {
	spanCtx, span := telemetry.Start(ctx, "pg.wake")
	err := a.wakes.Wait(spanCtx, a.id)
	span.End(err)
	switch {
	case err == nil:
		a.woken, a.leaderless = true, time.Time{}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case apierror.CodeOf(err) != apierror.EUnavailable:
		return err
	case a.leaderless.IsZero():
		a.leaderless = time.Now()
	case time.Since(a.leaderless) > leaderLimit:
		return errNoLeader.With("", err)
	}
	return nil
}

// connect makes a connection that does not end with ctx.
func (a *attempt) connect(ctx context.Context, e Entry) (net.Conn, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	giveUp := context.AfterFunc(ctx, cancel)
	stream, err := a.host(e.HostID, e.HostAddress).Dial(life, e.SandboxID, a.port)
	if err != nil {
		giveUp()
		cancel()
		return nil, err
	}
	if !giveUp() {
		return nil, errors.Join(context.Cause(ctx), stream.Close())
	}
	t := &tunnel{Stream: stream, end: cancel, database: a.id, sandbox: e.SandboxID, of: &a.tunnels}
	a.tunnels.add(t)
	if now, ok := a.lookup(a.id); !ok || now.leaves(e.SandboxID) { // meanwhile, where CutMoved may not have seen it
		return nil, errors.Join(errMoved, t.Close())
	}
	return t, nil
}

// errMoved is the error of a connection to a box that the database has left.
var errMoved = &hostapi.Error{Code: hostapi.CodeNotFound, Message: "the database is somewhere else now"}

// tunnel is a connection to a guest. It has CloseWrite, for a client's half-close.
type tunnel struct {
	*hostapi.Stream
	end               context.CancelFunc
	database, sandbox string
	of                *tunnels
}

// Close implements net.Conn.
func (t *tunnel) Close() error {
	defer t.end()
	t.of.remove(t)
	return t.Stream.Close()
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
