package pgsni

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/berth-cloud/berth/telemetry"
)

var errWaitedTooLong = errors.New("the database did not become ready in time")

// wait holds the client while f looks for its database, until WaitTimeout, or
// until the client goes away or the router shuts down.
func (c *conn) wait(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(telemetry.Carry(c.router.open, c.traced.ctx))
	defer cancel(nil)
	ctx, release := context.WithTimeoutCause(ctx, c.router.cfg.WaitTimeout, errWaitedTooLong)
	defer release()
	stop := c.watch(func() { cancel(errClientGone) })
	err := f(ctx)
	stop()

	cause := context.Cause(ctx)
	var refusal *Refusal
	switch {
	case errors.Is(cause, errClientGone):
		return errClientGone
	case err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, ErrPassThrough) || errors.As(err, &refusal):
		return err
	case errors.Is(cause, errDraining):
		return refuse(codeCannotConnectNow, messageShuttingDown)
	case errors.Is(cause, errWaitedTooLong):
		c.router.cfg.Log.Warn("database not ready in time", "client", c.addr, "name", c.name, "wait", c.router.cfg.WaitTimeout, "error", err)
		return refuse(codeCannotConnectNow, messageWaitTimeout)
	}
	c.router.cfg.Log.Warn("database not reachable", "client", c.addr, "name", c.name, "error", err)
	return refuse(codeCannotConnectNow, messageUnavailable)
}

// resolve asks for the name's backend.
func (c *conn) resolve() (backend Backend, err error) {
	err = c.wait(func(ctx context.Context) error {
		backend, err = c.router.resolver.Resolve(ctx, c.name)
		return err
	})
	return backend, err
}

// dial connects to a backend.
func (c *conn) dial(b Backend) (server net.Conn, err error) {
	err = c.wait(func(ctx context.Context) error {
		server, err = b.Dial(ctx)
		return err
	})
	if err != nil {
		if server != nil { // the client went away in the meantime
			server.Close()
		}
		return nil, err
	}
	keepAlive(server, c.router.cfg.KeepAlive)
	return server, nil
}

// hold lets the client wait for a moment.
func (c *conn) hold(d time.Duration) error {
	return c.wait(func(ctx context.Context) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// keepAlive sets TCP's keep-alive where there is TCP below.
func keepAlive(c net.Conn, cfg net.KeepAliveConfig) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(cfg)
	}
}
