package pgsni

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Waits after an Accept that failed for want of descriptors or memory.
const (
	firstAcceptRetry = 5 * time.Millisecond
	lastAcceptRetry  = time.Second
)

// Router serves clients. Its methods are for concurrent use.
type Router struct {
	cfg      Config
	resolver Resolver
	tls      *tls.Config
	gate     *gate
	keys     *keys
	crowds   crowds
	sessions atomic.Int64

	// How long servers take to answer during a login: at first, and then.
	firstAnswer, laterAnswer pace

	// open ends when no new session may begin, life when all must end.
	open, life         context.Context
	closeOpen, endLife context.CancelCauseFunc

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	running   sync.WaitGroup // of conns
}

// New makes a Router, or says what is wrong with the Config.
func New(cfg Config, resolver Resolver) (*Router, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL router: %w", err)
	}
	r := &Router{
		cfg: cfg, resolver: resolver, tls: serverTLS(cfg.TLS),
		gate:      newGate(cfg.MaxUnauthenticated, cfg.MaxUnauthenticatedPerAddress),
		keys:      newKeys(rand.Reader),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{},
	}
	r.open, r.closeOpen = context.WithCancelCause(context.Background())
	r.life, r.endLife = context.WithCancelCause(context.Background())
	return r, nil
}

// Serve accepts clients on l until ctx ends, Drain is called or l fails, and
// closes l. The end of ctx cuts all sessions, and so does a listener's failure;
// after Drain they go on until they end or Drain's time does. Serve returns when
// none is left; its error is the listener's. A Router may serve several listeners,
// which end together, and serves none after that.
func (r *Router) Serve(ctx context.Context, l net.Listener) error {
	r.mu.Lock()
	if r.open.Err() != nil {
		r.mu.Unlock()
		l.Close()
		return nil
	}
	r.listeners[l] = struct{}{}
	r.mu.Unlock()
	defer context.AfterFunc(ctx, func() { r.shut(); r.cutAll() })()

	err := r.accept(l)
	r.shut()
	if err != nil {
		r.cutAll()
	}
	r.running.Wait()
	return err
}

// Drain closes the listeners, so that new clients try another router, refuses
// those that have no session yet, and returns when the sessions have ended. With
// the end of ctx it cuts those that are left: with admin_shutdown (57P01) where a
// message of the server has just ended, in the middle where not.
func (r *Router) Drain(ctx context.Context) {
	r.shut()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.running.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		r.cutAll()
		<-ended
	}
	r.endLife(errDraining)
}

// Stats are the present numbers of a Router.
type Stats struct {
	Sessions        int // logged in
	Unauthenticated int
	CancelKeys      int
}

// Stats counts.
func (r *Router) Stats() Stats {
	return Stats{Sessions: int(r.sessions.Load()), Unauthenticated: r.gate.size(), CancelKeys: r.keys.size()}
}

// shut ends what is not a session yet.
func (r *Router) shut() {
	r.closeOpen(errDraining)
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.listeners {
		l.Close()
	}
}

func (r *Router) cutAll() {
	r.endLife(errDraining)
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.cut()
	}
}

// accept hands each client to a goroutine of its own.
func (r *Router) accept(l net.Listener) error {
	wait := firstAcceptRetry
	for {
		raw, err := l.Accept()
		switch {
		case r.open.Err() != nil:
			if raw != nil {
				raw.Close()
			}
			return nil
		case exhausted(err):
			r.cfg.Log.Warn("accept failed; trying again", "error", err, "wait", wait)
			select {
			case <-time.After(wait):
			case <-r.open.Done():
			}
			wait = min(2*wait, lastAcceptRetry)
			continue
		case err != nil:
			return fmt.Errorf("accept a PostgreSQL client: %w", err)
		}
		wait = firstAcceptRetry
		r.admit(newConn(r, raw))
	}
}

// exhausted says whether an Accept may work later.
func exhausted(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, os.ErrDeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// admit starts to serve a client, if there is room. Nothing is said where there
// is none: a TLS handshake is what a flood would like to have.
func (r *Router) admit(c *conn) {
	if c.visitor = r.gate.enter(c.addr.Addr(), c.cut); c.visitor == nil {
		c.wire.Close()
		r.refused(c, "", errNoRoom)
		return
	}
	if !r.enlist(c) {
		c.visitor.leave()
		c.wire.Close()
		return
	}
	go func() {
		defer r.running.Done()
		defer r.delist(c)
		keepAlive(c.wire.Conn, r.cfg.KeepAlive)
		if err := c.serve(); err != nil {
			r.refuse(c, err)
		}
	}()
}

// enlist adds a connection to those that the router's end waits for. After shut
// there are no more.
func (r *Router) enlist(c *conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open.Err() != nil {
		return false
	}
	r.conns[c] = struct{}{}
	r.running.Add(1)
	return true
}

func (r *Router) delist(c *conn) {
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	c.visitor.leave()
	c.wire.Close()
}

// refuse ends a connection that has no session.
func (r *Router) refuse(c *conn, err error) {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		r.refused(c, "", err)
		return
	}
	r.refused(c, refusal.Code, err)
	c.tell(refusal)
	c.hangUp()
	c.linger()
}

// refused notes a connection that ended before it was a session.
func (r *Router) refused(c *conn, sqlstate string, err error) {
	r.cfg.Log.Debug("connection refused", "client", c.addr, "sqlstate", sqlstate, "error", err)
	if sqlstate == "" {
		c.endLogin(outcomeBroken, "")
	} else {
		c.endLogin(outcomeRefused, sqlstate)
	}
	r.cfg.Observe.refused(sqlstate)
}

func (r *Router) full() bool { return r.sessions.Load() >= int64(r.cfg.MaxSessions) }

// takeSession counts one more session, if there may be one.
func (r *Router) takeSession() bool {
	if r.sessions.Add(1) > int64(r.cfg.MaxSessions) {
		r.sessions.Add(-1)
		return false
	}
	return true
}

func (r *Router) leaveSession() { r.sessions.Add(-1) }
