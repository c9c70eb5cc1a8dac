// Package broker runs SQL that comes as JSON, as the tenant's role, in sessions of
// its own.
package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// Bounds of what the broker does and holds.
const (
	maxSessions = 8
	maxBody     = 8 << 20
	maxSQL      = 1 << 20
	maxParams   = 65535 // the protocol's
	maxQueries  = 100
	maxRows     = 10_000
	maxBytes    = 8 << 20  // of an answer's rows, as JSON
	maxMessage  = 32 << 20 // one row as PostgreSQL sends it

	defaultTimeout = 30 * time.Second
	maxTimeout     = 10 * time.Minute
)

var (
	acquireLimit = timescale.Limit(10 * time.Second)
	resetLimit   = timescale.Limit(5 * time.Second)
	idleLimit    = 60 * time.Second // an idle session would hinder who drops the database
)

// Broker keeps the sessions.
type Broker struct {
	cfg    postgres.Config
	tenant func(context.Context) (pgapi.Tenant, error)
	slots  chan struct{}

	mu       sync.Mutex
	who      *pgapi.Tenant // as whom sessions are; nil: not asked yet
	life     int           // sessions of another are closed
	idle     []*session
	lastUsed time.Time
}

// session is one of the tenant's role.
type session struct {
	conn       *pgconn.PgConn
	life       int
	types      map[uint32]typeInfo
	statements int // that ran
	expiry     *time.Timer
}

// New returns a broker for whomever tenant names.
func New(cfg postgres.Config, tenant func(context.Context) (pgapi.Tenant, error)) *Broker {
	return &Broker{cfg: cfg, tenant: tenant, slots: make(chan struct{}, maxSessions)}
}

// Busy is how many sessions run something.
func (b *Broker) Busy() int { return len(b.slots) }

// LastUsed is when something was last run.
func (b *Broker) LastUsed() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.slots) > 0 {
		return time.Now()
	}
	return b.lastUsed
}

// Reset closes the sessions that are idle, and those in use when they are done: the
// tenant has other credentials, or the server is another.
func (b *Broker) Reset() {
	b.mu.Lock()
	b.life++
	b.who = nil
	idle := b.idle
	b.idle = nil
	b.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
}

// Close is Reset at the end.
func (b *Broker) Close() { b.Reset() }

func (s *session) close() {
	if s.expiry != nil {
		s.expiry.Stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), resetLimit)
	defer cancel()
	_ = s.conn.Close(ctx) // it ends either way
}

var errTooMany = errors.New("all of the broker's sessions are in use")

// acquire takes a session, and waits a while for one.
func (b *Broker) acquire(ctx context.Context) (*session, error) {
	wait, cancel := context.WithTimeout(ctx, acquireLimit)
	defer cancel()
	select {
	case b.slots <- struct{}{}:
	case <-wait.Done():
		// A statement whose own time is over before it has a session did not run.
		if err := context.Cause(ctx); err != nil && !errors.Is(err, errTimeout) {
			return nil, err
		}
		return nil, errTooMany
	}
	s, err := b.open(wait)
	if err != nil {
		<-b.slots
	}
	return s, err
}

func (b *Broker) open(ctx context.Context) (*session, error) {
	for {
		b.mu.Lock()
		n := len(b.idle)
		if n == 0 {
			b.mu.Unlock()
			return b.connect(ctx)
		}
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.mu.Unlock()
		s.expiry.Stop()
		if s.conn.Ping(ctx) == nil { // it was not cut meanwhile
			return s, nil
		}
		s.close()
	}
}

func (b *Broker) connect(ctx context.Context) (*session, error) {
	b.mu.Lock()
	who, life := b.who, b.life
	b.mu.Unlock()
	if who == nil {
		t, err := b.tenant(ctx)
		if err != nil {
			return nil, err
		}
		who = &t
		b.mu.Lock()
		if b.life == life {
			b.who = who
		}
		b.mu.Unlock()
	}
	cfg, err := b.cfg.Local(who.Username, who.Database)
	if err != nil {
		return nil, err
	}
	// What is sent must be read the same way whatever the role's own settings are;
	// DISCARD ALL comes back to these.
	for name, value := range map[string]string{
		"application_name": "berth broker", "client_encoding": "UTF8", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres",
		"bytea_output": "hex", "extra_float_digits": "1", "standard_conforming_strings": "on",
	} {
		cfg.RuntimeParams[name] = value
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code != stateNotReady {
			if pg.Code == stateNoCatalog { // it was dropped or renamed
				pg.Hint = rotateHint
			}
			return nil, pg
		}
		return nil, fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	conn.Frontend().SetMaxBodyLen(maxMessage)
	return &session{conn: conn, life: life, types: map[uint32]typeInfo{}}, nil
}

// release gives a session back, as clean as a new one, or closes it.
func (b *Broker) release(s *session, keep bool) {
	defer func() { <-b.slots }()
	keep = keep && !s.conn.IsClosed() && s.conn.TxStatus() == 'I' && s.clean()
	b.mu.Lock()
	b.lastUsed = time.Now()
	if keep && s.life == b.life {
		b.idle = append(b.idle, s)
		s.expiry = time.AfterFunc(idleLimit, func() { b.expire(s) })
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	s.close()
}

func (s *session) clean() bool {
	ctx, cancel := context.WithTimeout(context.Background(), resetLimit)
	defer cancel()
	_, err := s.conn.Exec(ctx, "DISCARD ALL").ReadAll()
	return err == nil
}

func (b *Broker) expire(s *session) {
	b.mu.Lock()
	for i, there := range b.idle {
		if there == s {
			b.idle = append(b.idle[:i], b.idle[i+1:]...)
			b.mu.Unlock()
			s.close()
			return
		}
	}
	b.mu.Unlock()
}
