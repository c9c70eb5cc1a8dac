package pgsni

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// serve is a connection from its first byte to its last. The refusal that it may
// return is still to be told to the client.
func (c *conn) serve() error {
	g, err := c.greet()
	if err != nil {
		return err
	}
	c.visitor.said()
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
		if err := login.login(r); err != nil {
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
