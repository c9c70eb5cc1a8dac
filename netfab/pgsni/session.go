package pgsni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/telemetry"
)

// serve is a connection from its first byte to its last. The refusal that it may
// return is still to be told to the client.
func (c *conn) serve() error {
	g, err := c.greet()
	if err != nil {
		return err
	}
	// Where the router checks logins, saying something is not enough to keep a place.
	if g.cancel != nil || !c.router.cfg.ChecksLogins {
		c.visitor.said()
	}
	if g.cancel != nil {
		c.cancelRequest(*g.cancel)
		return nil
	}
	c.began = time.Now()
	st, err := parseStartup(g.startup)
	if err != nil {
		return err
	}
	if c.name, err = databaseName(c.serverName(), c.router.cfg.Domain); err != nil {
		return err
	}
	c.beginLogin()
	if err := c.permit(st); err != nil {
		return err
	}
	backend, err := c.resolve()
	if errors.Is(err, ErrUnknown) {
		return c.decoy(st, c.router.cfg.ChecksLogins)
	}
	if err != nil {
		return err
	}
	return c.connect(backend, st)
}

// permit refuses what no database would be asked for.
func (c *conn) permit(st *startup) error {
	switch {
	case st.get("user") == "":
		return refuse(codeInvalidAuth, messageNoUser)
	case st.replication() && !c.router.cfg.AllowReplication:
		return refuse(codeInvalidAuth, messageReplication)
	case c.router.open.Err() != nil:
		return refuse(codeCannotConnectNow, messageShuttingDown)
	case c.router.full():
		return refuse(codeTooManyConnections, messageTooMany)
	}
	return nil
}

// connect connects the client to its database, and relays.
func (c *conn) connect(backend Backend, st *startup) error {
	var login *checked
	if v, ok := backend.(Verifying); ok {
		var err error
		if login, err = c.checkLogin(v, st); err != nil {
			return err
		}
	}
	if login != nil {
		owner := ownerOf(backend)
		if !c.router.crowds.enter(c.name, owner, c.router.cfg.MaxPerDatabase, c.router.cfg.MaxSessions) {
			return refuse(codeTooManyConnections, messageTooMany)
		}
		defer c.router.crowds.leave(c.name, owner)
		c.visitor.prove()
	}
	c.visitor.said()
	return c.untilServed(backend, st, login)
}

// maxLogins is how often the router logs in at the server for one client. A database that
// is put to sleep, restarted or moved at that moment breaks a login off; the client has
// been told nothing by then.
const maxLogins = 3

// The pauses before another login at a server that is starting. They double from the
// first to the last: each login is a process of the server's, which has enough to do.
const (
	firstLoginRetry = 50 * time.Millisecond
	lastLoginRetry  = time.Second
)

// tracedHolds is how many of these pauses end in a login that is in the trace.
const tracedHolds = 5

// untilServed is session, again where the server broke the login off, and for as long as a
// client is held where the server is still starting.
func (c *conn) untilServed(backend Backend, st *startup, login *checked) error {
	until := time.Now().Add(c.router.cfg.WaitTimeout)
	retry := firstLoginRetry
	for tries, holds := 1, 0; ; {
		err := c.session(backend, st, login)
		switch {
		case errors.Is(err, errStarting) && time.Now().Before(until) && c.detach():
			if err := c.hold(min(retry, time.Until(until))); err != nil {
				return err
			}
			retry = min(2*retry, lastLoginRetry)
			if holds++; holds == tracedHolds {
				c.traced.ctx = telemetry.Without(c.traced.ctx)
			}
		case errors.Is(err, errBrokenOff) && tries < maxLogins && c.detach():
			tries++
		case errors.Is(err, errStarting), errors.Is(err, errBrokenOff):
			return c.loginFailed(err)
		default:
			return err
		}
	}
}

// session connects to the server, logs in, and relays until the end. If the server breaks
// off before the client was told of its login, the error is errBrokenOff; if it is still
// starting, errStarting.
func (c *conn) session(backend Backend, st *startup, login *checked) error {
	server, err := c.dial(backend)
	if err != nil {
		return err
	}
	defer server.Close()
	if !c.attach(server) {
		return errDraining
	}
	opening := st.raw
	if login != nil {
		opening = startupFor(st, c.router.cfg.ServerMinor)
	}
	if err := c.begin(opening); err != nil {
		return err
	}
	r := c.newRelay(backend, Session{Name: c.name, User: st.get("user"), Client: c.addr})
	r.fromClient.Add(int64(len(st.raw)))
	if login != nil {
		if err := login.login(r); errors.Is(err, errBrokenOff) || errors.Is(err, errStarting) {
			return err
		} else if err != nil {
			return c.loginFailed(err)
		}
	}
	return r.run()
}

// begin sends the server its StartupMessage.
func (c *conn) begin(opening []byte) error {
	_ = c.server.SetWriteDeadline(time.Now().Add(c.router.cfg.AuthTimeout))
	if _, err := c.server.Write(opening); err != nil {
		c.router.cfg.Log.Warn("server does not take the start-up", "client", c.addr, "name", c.name, "error", err)
		return refuse(codeCannotConnectNow, messageUnavailable)
	}
	_ = c.server.SetWriteDeadline(time.Time{})
	return nil
}

// loginFailed is what a client is told whose login was right for the router and
// went wrong at the server.
func (c *conn) loginFailed(err error) error {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return err
	}
	c.router.cfg.Log.Warn("login not passed on", "client", c.addr, "name", c.name, "error", err)
	return refuse(codeCannotConnectNow, messageUnavailable)
}

// verifier asks for a user's verifier while the client waits.
func (c *conn) verifier(v Verifying, user string) (verifier *Verifier, err error) {
	err = c.wait(func(ctx context.Context) error {
		if verifier, err = v.Verifier(ctx, user); err == nil && verifier == nil {
			err = fmt.Errorf("no verifier of user %q and no error", user)
		}
		return err
	})
	return verifier, err
}
